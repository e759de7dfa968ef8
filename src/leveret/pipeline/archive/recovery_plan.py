"""A recovery plan: the messages to publish, frozen before the first is published.

    plans/vhost-<vhost>/<plan id>/
        runs/<n>.arrow   unsettled messages of some files, after UNSETTLED: record batches of one queue each
        plan.json        the plan; without it the rest counts for nothing
        recovered.arrow  the messages of the runs, as ranges after RECOVERED
        DONE             the outcome; with it the runs are gone

A plan is of one vhost and pins the manifest at one entry. Order and content follow from it alone: a queue's unsettled
messages sorted by (incarnation, offset), each identity once; the n-th has publishing id n. So any process can
continue an interrupted plan at the position that the broker reports. The plan needs only its runs and the Parquet
files that it names: these are kept until it is finished, even if other files replace them in the manifest (`pinned`).

A finished plan covers its entry of the manifest: all messages are settled or were recovered, and no later plan has
them again, in whatever file they are. Identity decides that, not time. A plan of some queues only, or of a moment,
covers only the messages that it recovered. Identities belong to one upstream: after the manifest has forgotten the
vhost, plans of earlier entries do not count.

Plans of one directory (`plans`, or one for each other broker as a target) are independent of those of another.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from leveret.model.errors import StorageError
from leveret.pipeline.archive.documents import read_document, write_document
from leveret.pipeline.archive.manifest import Manifest, Terms
from leveret.pipeline.archive.settled_offsets import Int64s
from leveret.pipeline.archive.stored_positions import StoredPositions
from leveret.pipeline.archive.tables import read_table, write_table
from leveret.pipeline.files.files import (
    Place,
    delete,
    delete_tree,
    loaded,
    make_directory,
    matching,
    vhost_directory,
)
from leveret.pipeline.jobs.job import EVERYTHING, EXPORTS, PLANS, SCRATCH, Selection
from leveret.wire.incarnation import in_order
from leveret.wire.record import RECOVERY_REFERENCE_PREFIX

_PLAN: Final = "plan.json"
_DONE: Final = "DONE"
_RECOVERED: Final = "recovered.arrow"
_Document = TypeVar("_Document", bound=msgspec.Struct)
UNSETTLED: Final = pa.schema(
    [
        pa.field("queue_epoch", pa.int64()),
        pa.field("queue_offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("file", pa.int32()),
        pa.field("row", pa.int32()),
    ]
)

RECOVERED: Final = pa.schema(
    [
        pa.field("queue", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("queue_epoch", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)


class RunSpan(msgspec.Struct, frozen=True):
    """What a part says of its messages, whose rows are in order: of one incarnation, by offset, each once.

    Attributes:
        first, last: the lowest and the highest offset. first_file, last_file: the files of these messages.
        first_ms, last_ms: the times of the oldest and the newest message.
    """

    epoch: int
    first: int
    last: int
    first_file: int
    last_file: int
    first_ms: int
    last_ms: int


class RunPart(msgspec.Struct, frozen=True):
    """Unsettled messages of one queue: a record batch of a run, with its checksum if the plan has checksums.

    `span` is None if the rows are not in order, and in plans of earlier versions.
    """

    run: str
    batch: int
    queue: str
    rows: int
    crc32: int | None = None
    span: RunSpan | None = None


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `plan.json`.

    Attributes:
        number: the manifest entry that the plan pins.
        files: the Parquet files with the messages, which refer to them by index; in the order of the log.
        unreadable: the numbers of records, by file, that could not be read and are left out.
        messages: the number of each queue's unsettled messages, each counted once; empty in plans of earlier versions.
        stored_positions: the stored positions of the streams' readers and publishers.
    """

    plan_id: str
    vhost: str
    number: int
    selection: Selection = EVERYTHING
    files: list[str]
    parts: list[RunPart]
    unreadable: dict[str, int] = {}
    messages: dict[str, int] = {}
    stored_positions: list[StoredPositions] = msgspec.field(name="books", default_factory=list)

    @property
    def queues(self) -> dict[str, int]:
        """The number of each queue's messages; without `messages`, one that is stored twice counts twice."""
        if self.messages:
            return self.messages
        totals: dict[str, int] = {}
        for part in self.parts:
            totals[part.queue] = totals.get(part.queue, 0) + part.rows
        return totals

    def parts_by_queue(self) -> dict[str, list[RunPart]]:
        """The parts of each queue with messages, in their order."""
        found: dict[str, list[RunPart]] = {}
        for part in self.parts:
            found.setdefault(part.queue, []).append(part)
        return found

    @property
    def reference(self) -> str:
        """The publisher reference under which the broker stores the plan's progress."""
        return RECOVERY_REFERENCE_PREFIX + self.plan_id


class _Named(msgspec.Struct, frozen=True):
    """The files of a `plan.json` alone: its parts are many more, and a deletion does not need them."""

    files: list[str]


class QueueOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a finished plan; times are those of its oldest and newest message.

    Attributes:
        in_doubt: the number that may be there twice; 0 at a node of our own.
        reader_offsets: for a stream, the number of readers that continue at their message.
        clamped_offsets: the number of these readers whose offset was beyond the end, at which they continue.
        publisher_ids: for a stream, the number of publishers whose last id is known.
    """

    queue: str
    messages: int
    first_ms: int
    last_ms: int
    in_doubt: int = 0
    reader_offsets: int = 0
    clamped_offsets: int = 0
    publisher_ids: int = 0


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `DONE`.

    Attributes:
        unreadable_records: the number that could not be read and was left out; some of them may be settled.
        is_cut_short: whether the rest belongs to another plan.
    """

    plan_id: str
    vhost: str
    number: int
    selection: Selection = EVERYTHING
    finished_ms: int
    queues: list[QueueOutcome]
    unreadable_records: int = 0
    is_cut_short: bool = False

    @property
    def saw_all(self) -> bool:
        """Whether it left no message to a later plan."""
        return self.selection.is_of_all and not self.is_cut_short and not self.unreadable_records

    @property
    def totals(self) -> dict[str, int]:
        """The number of each queue's messages."""
        return {queue.queue: queue.messages for queue in self.queues}

    def rows(self) -> list[dict[str, Any]]:
        """A row a queue."""
        return [
            {
                "virtual_host": self.vhost,
                "queue": queue.queue,
                "message_count": queue.messages,
                "first_timestamp": queue.first_ms,
                "last_timestamp": queue.last_ms,
                "in_doubt": queue.in_doubt,
                "reader_offsets": queue.reader_offsets,
                "clamped_offsets": queue.clamped_offsets,
                "publisher_ids": queue.publisher_ids,
            }
            for queue in self.queues
        ]

    def summary(self) -> dict[str, Any]:
        """A row of the promotion's summary."""
        found = [queue for queue in self.queues if queue.messages]
        return {
            "virtual_host": self.vhost,
            "first_timestamp": min((queue.first_ms for queue in found), default=None),
            "last_timestamp": max((queue.last_ms for queue in found), default=None),
            "message_count": sum(queue.messages for queue in found),
            "queues": {queue.queue: queue.messages for queue in found},
            "in_doubt": sum(queue.in_doubt for queue in self.queues),
            "reader_offsets": sum(queue.reader_offsets for queue in found),
            "publisher_ids": sum(queue.publisher_ids for queue in found),
            "unreadable_records": self.unreadable_records,
        }


class PlanDirectory:
    """The directory of one plan: `path`, in the data directory."""

    def __init__(self, data_dir: Place, path: Place) -> None:
        self.data_dir = data_dir
        self.path = path

    @classmethod
    def new(cls, data_dir: Place, vhost: str, plans: str = PLANS, term: int = 0) -> PlanDirectory:
        """Make the directory of a new plan below `plans`, a path within the data directory.

        `term` is the owner's in a shared archive, and a part of the plan's id: a previous owner that was paused leaves
        the plans of later ones alone.
        """
        plan_id = (f"{term}-" if term else "") + secrets.token_hex(8)
        directory = cls(data_dir, data_dir / plans / vhost_directory(vhost) / plan_id)
        make_directory(directory.runs)
        return directory

    @property
    def term(self) -> int:
        """The term of the owner that made it; 0 in an archive that is not shared."""
        term, mark, _ = self.path.name.partition("-")
        return int(term) if mark else 0

    @property
    def runs(self) -> Place:
        """The directory of the runs."""
        return self.path / "runs"

    @property
    def progress(self) -> Place:
        """The directory of the queues' progress, for a broker that does not store it."""
        return self.path / "progress"

    @property
    def is_frozen(self) -> bool:
        """Whether the plan is complete, so that publishing may have begun."""
        return (self.path / _PLAN).exists()

    @property
    def is_done(self) -> bool:
        """Whether all its messages are in the broker."""
        return (self.path / _DONE).exists()

    @property
    def number(self) -> int:
        """The manifest entry that the plan pins, if it is frozen.

        Raises:
            StorageError: the plan cannot be read.
        """
        return self.outcome().number if self.is_done else self.load().number

    def freeze(self, plan: RecoveryPlan) -> None:
        """Write the plan, so that it will be carried out."""
        write_document(self.path / _PLAN, plan)

    def load(self) -> RecoveryPlan:
        """The frozen plan.

        Raises:
            StorageError: the plan cannot be read.
        """
        return self._read(_PLAN, RecoveryPlan)

    @property
    def files(self) -> list[str]:
        """The files with the frozen plan's messages.

        Raises:
            StorageError: the plan cannot be read.
        """
        return self._read(_PLAN, _Named).files

    def finish(self, outcome: PlanOutcome) -> None:
        """Record that the messages of the outcome are in the broker, and delete the runs."""
        self._keep_identities(outcome.totals)
        write_document(self.path / _DONE, outcome)
        delete_tree(self.runs)

    def outcome(self) -> PlanOutcome:
        """The outcome of a finished plan.

        Raises:
            StorageError: the outcome cannot be read.
        """
        return self._read(_DONE, PlanOutcome)

    def _read(self, name: str, type_: type[_Document]) -> _Document:
        path = self.path / name
        try:
            return read_document(path, type_)
        except (OSError, msgspec.DecodeError) as error:
            raise _unreadable(path, error) from error

    def recovered(self) -> pa.Table:
        """The messages that a finished plan recovered, after RECOVERED.

        Raises:
            StorageError: the file cannot be read.
        """
        path = self.path / _RECOVERED
        try:
            return read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise _unreadable(path, error) from error

    def _keep_identities(self, totals: dict[str, int]) -> None:
        tables = [
            _dense_ranges(queue, parts, totals.get(queue, 0))
            or _ranges_of(queue, read_order(self.runs, parts), totals.get(queue, 0))
            for queue, parts in self.load().parts_by_queue().items()
        ]
        table = pa.concat_tables(tables) if tables else RECOVERED.empty_table()
        write_table(self.path / _RECOVERED, table.unify_dictionaries(), compressed=False)


def _unreadable(path: Place, error: Exception) -> StorageError:
    return StorageError(f"{path}: {error}; restore it from a copy")


def plan_directories(data_dir: Place, plans: str = PLANS) -> Iterator[PlanDirectory]:
    """Every plan, in any state."""
    for path in matching(data_dir / plans, "*/*"):
        yield PlanDirectory(data_dir, path)


def unfinished(
    data_dir: Place, plans: str = PLANS, vhosts: Collection[str] | None = None
) -> list[PlanDirectory]:
    """Frozen plans that are not done, of these vhosts or of all; in a shared archive some may not count."""
    names = _directories(vhosts)
    return [
        each
        for each in plan_directories(data_dir, plans)
        if (names is None or each.path.parent.name in names) and each.is_frozen and not each.is_done
    ]


def plan_ids(data_dir: Place, vhosts: Collection[str]) -> list[str]:
    """The ids of the unfinished plans of these vhosts, of every target."""
    return [each.path.name for plans in _all_plans(data_dir) for each in unfinished(data_dir, plans, vhosts)]


def _directories(vhosts: Collection[str] | None) -> set[str] | None:
    return None if vhosts is None else set(map(vhost_directory, vhosts))


def pinned(data_dir: Place) -> set[str]:
    """The files that unfinished plans of any directory need, whether or not the manifest names them.

    Sidecars and stored positions are not among them, because a plan contains their result. Files that a plan in the
    making reads are not either: the caller must exclude that no plan is made meanwhile.

    Raises:
        StorageError: a plan cannot be read, so its files are unknown.
    """
    found: set[str] = set()
    for plans in (PLANS, EXPORTS, SCRATCH):
        for path in (data_dir / plans).rglob(_PLAN):
            directory = PlanDirectory(data_dir, path.parent)
            if not directory.is_done:
                found.update(directory.files)
    return found


def finished(manifest: Manifest, vhost: str, plans: str = PLANS) -> list[PlanDirectory]:
    """The finished plans of a vhost, since it was last forgotten.

    Raises:
        StorageError: an outcome cannot be read.
    """
    directory, forgotten = vhost_directory(vhost), manifest.forgotten_by_vhost.get(vhost, 0)
    return [
        each
        for each in plan_directories(manifest.data_dir, plans)
        if each.path.parent.name == directory and each.is_done and not _is_before(each, forgotten)
    ]


def covered_number(manifest: Manifest, vhost: str, plans: str = PLANS) -> int:
    """The last manifest entry that a finished plan of this vhost covers, 0 without one.

    Raises:
        StorageError: an outcome cannot be read.
    """
    outcomes = [each.outcome() for each in finished(manifest, vhost, plans)]
    return max((each.number for each in outcomes if each.saw_all), default=0)


def cut_from_scratch(manifest: Manifest, vhost: str, plans: str = PLANS) -> list[PlanDirectory]:
    """Plans from scratch that were cut short, and whose rest is in no other plan.

    Raises:
        StorageError: an outcome cannot be read.
    """
    ended = [(each.outcome(), each) for each in finished(manifest, vhost, plans)]
    ended.sort(key=lambda pair: (pair[0].number, pair[0].finished_ms), reverse=True)
    cut = takewhile(lambda pair: pair[0].is_cut_short and pair[0].selection.start_from_scratch, ended)
    return [each for _, each in cut]


def delete_plans(data_dir: Place, vhosts: Iterable[str]) -> None:
    """Delete all plans of vhosts that the manifest has forgotten; one that stays does not count."""
    directories = {vhost_directory(vhost) for vhost in vhosts}
    for plans in _all_plans(data_dir):
        for directory in directories:
            delete_tree(data_dir / plans / directory)


def delete_forgotten(manifest: Manifest) -> None:
    """Delete plans, of every target, whose vhosts were forgotten since.

    An unreadable one stays, and is reported where it is needed.

    Raises:
        StorageError: a plan cannot be deleted.
    """
    data_dir = manifest.data_dir
    numbers = {vhost_directory(vhost): number for vhost, number in manifest.forgotten_by_vhost.items()}
    for each in (found for plans in _all_plans(data_dir) for found in plan_directories(data_dir, plans)):
        is_before = False
        with suppress(StorageError):
            is_before = each.is_frozen and _is_before(each, numbers.get(each.path.parent.name, 0))
        if is_before:
            delete(each.path)


def _all_plans(data_dir: Place) -> list[str]:
    """The directories of plans: of promotions, and of each other broker."""
    return [PLANS, *(f"{EXPORTS}/{place.name}" for place in matching(data_dir / EXPORTS, "*"))]


def _is_before(directory: PlanDirectory, forgotten: int) -> bool:
    """Whether a plan is older than the manifest entry that forgot its vhost, 0 for none."""
    return forgotten > 0 and directory.number < forgotten


def delete_unfrozen(data_dir: Place, plans: str = PLANS, terms: Terms | None = None) -> None:
    """Delete plans that were never complete, of which no message was published.

    `terms` are those of this node in a shared archive: only plans of its vhosts, of these terms and earlier ones.
    """
    owned = None if terms is None else {vhost_directory(vhost): term for vhost, term in terms.items()}
    for each in plan_directories(data_dir, plans):
        is_mine = owned is None or each.term <= owned.get(each.path.parent.name, -1)
        if is_mine and not each.is_frozen:
            delete_tree(each.path)


def clear_scratch(data_dir: Place, vhosts: Collection[str] | None = None) -> None:
    """Delete the plans of dry runs and rehearsals that ended, of these vhosts or of all."""
    if vhosts is None:
        delete_tree(data_dir / SCRATCH)
        return
    for place in matching(data_dir / SCRATCH, "*/*"):
        if place.name in map(vhost_directory, vhosts):
            delete_tree(place)


class QueueOrder:
    """A queue's unsettled messages in the order in which they are published; the n-th, from 1, has publishing id n.

    Attributes:
        places: file << 32 | row, of each message.
        timestamps: the times of their chunks, in ms.
        epochs: the queue's incarnation, one a message.
        offsets: the offsets in the queue.
        before: the number of messages that come before the first of these.
    """

    def __init__(self, unsettled: pa.Table, before: int = 0) -> None:
        epochs = unsettled.column("queue_epoch").to_numpy()
        offsets = unsettled.column("queue_offset").to_numpy()
        places = (
            unsettled.column("file").to_numpy().astype(np.int64) << 32 | unsettled.column("row").to_numpy()
        )
        # Unfinished plans are numbered in this order. It differs from the order of the numbers themselves, which
        # earlier versions used, only for queues with several epochs whose policy was removed in between.
        timestamps = unsettled.column("timestamp_ms").to_numpy()
        if not are_in_order(epochs, offsets):
            order = np.lexsort((places, offsets, in_order(epochs)))
            epochs, offsets, places, timestamps = (
                each[order] for each in (epochs, offsets, places, timestamps)
            )
            fresh = np.ones(len(epochs), np.bool_)
            fresh[1:] = (epochs[1:] != epochs[:-1]) | (offsets[1:] != offsets[:-1])
            epochs, offsets, places, timestamps = (
                each[fresh] for each in (epochs, offsets, places, timestamps)
            )
        self.places: Int64s = places
        self.epochs: Int64s = epochs
        self.offsets: Int64s = offsets
        self.timestamps: Int64s = timestamps
        self.before = before

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.places)

    def up_to(self, last: int) -> QueueOrder:
        """The order of the messages up to this id alone."""
        found, count = copy.copy(self), max(0, last - self.before)
        found.places, found.epochs = self.places[:count], self.epochs[:count]
        found.offsets, found.timestamps = self.offsets[:count], self.timestamps[:count]
        return found

    def places_of(self, ids: Int64s) -> Int64s:
        """The places of the messages with these ids."""
        places: Int64s = self.places[ids - 1 - self.before]
        return places

    def sweeps(self, after: int) -> list[npt.NDArray[np.int64]]:
        """Cut the ids above `after` into pieces with rising places, so that no file is opened twice for one piece.

        There is almost always one piece, because the outgoing log has a queue's chunks in their order.
        """
        skipped = max(0, after - self.before)
        cuts = np.flatnonzero(np.diff(self.places[skipped:]) <= 0) + 1
        ids = np.arange(skipped, len(self), dtype=np.int64) + self.before + 1
        return [piece for piece in np.split(ids, cuts) if len(piece)]


def are_in_order(epochs: Int64s, offsets: Int64s) -> bool:
    """Whether rows need no sort, as nearly always: one incarnation, and each offset behind the one before it."""
    return bool(np.all(epochs[1:] == epochs[:-1]) and np.all(offsets[1:] > offsets[:-1]))


def read_order(runs: Place, parts: Iterable[RunPart], before: int = 0) -> QueueOrder:
    """The order of the queue with these parts, or of some adjacent ones with `before` messages before them.

    Raises:
        StorageError: a run cannot be read, or is damaged.
    """
    batches = []
    for part in parts:
        try:
            with loaded(runs / part.run) as source, pa.ipc.open_file(source) as reader:
                batch = reader.get_batch(part.batch)
            batch.validate()
            if batch.schema != UNSETTLED or part.crc32 not in (None, unsettled_crc32(batch)):
                raise pa.ArrowInvalid("it was altered: its checksum or its schema differs")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _unreadable(runs / part.run, error) from error
        batches.append(batch)
    return QueueOrder(pa.Table.from_batches(batches, schema=UNSETTLED), before)


def spans_in_order(parts: list[RunPart]) -> list[RunSpan] | None:
    """The spans of a queue's parts if these, one behind the other, are its order; None if they must be sorted."""
    spans = [part.span for part in parts if part.span is not None]
    if len(spans) < len(parts):
        return None
    is_in_order = all(
        before.epoch == behind.epoch and before.last < behind.first and before.last_file <= behind.first_file
        for before, behind in pairwise(spans)
    )
    return spans if is_in_order else None


def unsettled_crc32(batch: pa.RecordBatch) -> int:
    """The CRC-32 of the values of a batch after UNSETTLED.

    Raises:
        pa.ArrowInvalid: some values are null, which are never written.
    """
    crc = 0
    for column in batch.columns:
        crc = crc32(column.to_numpy(), crc)
    return crc


def _dense_ranges(queue: str, parts: list[RunPart], count: int) -> pa.Table | None:
    """All messages of a queue as ranges, after RECOVERED, if its parts say that each of them is one."""
    spans = spans_in_order(parts)
    if (
        spans is None
        or count != sum(span.last + 1 - span.first for span in spans)
        or count != sum(part.rows for part in parts)
    ):
        return None
    columns = zip(
        *((queue, span.epoch, span.first, span.last + 1 - span.first) for span in spans), strict=True
    )
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, RECOVERED, strict=True)],
        schema=RECOVERED,
    )


def _ranges_of(queue: str, order: QueueOrder, count: int) -> pa.Table:
    """The first messages of a queue as ranges, after RECOVERED."""
    epochs, offsets = order.epochs[:count], order.offsets[:count]
    begins = np.ones(count, np.bool_)
    begins[1:] = (np.diff(epochs) != 0) | (np.diff(offsets) != 1)
    firsts = np.flatnonzero(begins)
    counts = np.diff(np.append(firsts, count))
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(len(firsts), np.int32), pa.array([queue])),
        pa.array(epochs[firsts]),
        pa.array(offsets[firsts]),
        pa.array(counts),
    ]
    return pa.Table.from_arrays(columns, schema=RECOVERED)

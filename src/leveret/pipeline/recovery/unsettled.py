"""Finds the unsettled messages: messages that no settlement names.

This is where a settlement meets its message. The driver merges the settlements of all sidecars into masks, a few
octets a queue; tasks read the key columns of the files and keep the offsets that the masks do not have. Files whose
offsets the masks cover completely - most of a long history - are not even opened. Only keys and references of
unsettled messages are written, as runs (`archive.recovery_plan`); no rows go through Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import MESSAGE, RECORDS
from leveret.pipeline.archive.history import check_known
from leveret.pipeline.archive.manifest import Manifest, QueuePart, StoredFile
from leveret.pipeline.archive.recovery_plan import (
    UNSETTLED,
    PlanDirectory,
    RunPart,
    RunSpan,
    are_in_order,
    covered_number,
    cut_from_scratch,
    finished,
    unsettled_crc32,
)
from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Int64s,
    Masks,
    QueueIncarnation,
    SettledRanges,
    rows_by_incarnation,
)
from leveret.pipeline.archive.settlements import settlements_of
from leveret.pipeline.archive.tables import RESTORE, messages_in
from leveret.pipeline.files.files import Place, keep, opened, sync_directory, written_beside
from leveret.pipeline.jobs.job import EVERYTHING, PLANS, Selection
from leveret.wire.incarnation import epoch_of, generation_of, in_order, may_have_messages, numbering_of

_THREADS: Final = 8
"""Settlements are read side by side: in a store, each read takes a while."""
PART_ROWS_MIN: Final = 50_000
"""The rows from which on a part of a queue gets no more of them; the last one of a run may have fewer."""
_KEYS: Final = ["queue", "queue_epoch", "queue_offset", "kind", "timestamp_ms"]


def not_to_recover(
    manifest: Manifest, vhost: str, selection: Selection = EVERYTHING, plans: str = PLANS
) -> Masks:
    """The messages of a vhost that a recovery leaves out: settled ones, and those that finished plans of `plans` cover.

    From scratch only those are left out that an unfinished recovery from scratch, which this one continues, recovered.

    As of a moment, those settled by then, and those that the plans recovered; a message that they left out because it
    was settled later comes back.

    Raises:
        PreconditionFailed: the moment is before the known history.
        StorageError: a file cannot be read; for settlements, only without `all_available`.
    """
    ranges = SettledRanges()
    check_known(manifest, vhost, selection.as_of_ms)
    if selection.start_from_scratch:
        _add_recovered(ranges, manifest, vhost, cut_from_scratch(manifest, vhost, plans))
        return ranges.masks()
    settling = [file for file in manifest.files_of(vhost) if file.settlements]
    with ThreadPoolExecutor(_THREADS, "settlements") as threads:
        for table in threads.map(partial(_settled_in, manifest.data_dir, selection), settling):
            if table is not None:
                ranges.add_settlements(vhost, table)
    if selection.as_of_ms is not None:
        _add_copies(ranges, manifest, vhost)
    else:
        _add_renumbered(ranges, manifest, vhost)
    _add_recovered(ranges, manifest, vhost, finished(manifest, vhost, plans))
    if selection.as_of_ms is None:
        for file in manifest.ever_added(vhost, covered_number(manifest, vhost, plans)):
            for part in file.queues:
                firsts, counts = zip(*part.ranges, strict=True)
                ranges.add(QueueIncarnation(vhost, part.queue, part.epoch), firsts, counts)
    return ranges.masks()


def _add_recovered(
    ranges: SettledRanges, manifest: Manifest, vhost: str, directories: list[PlanDirectory]
) -> None:
    """Add the messages that plans recovered, and their copies in later incarnations of the queues.

    A message that a plan left out as settled does not count: the end of the policy may have settled it, and a later
    incarnation has it.
    """
    if not directories:
        return
    recovered = SettledRanges()
    for directory in directories:
        recovered.add_settlements(vhost, directory.recovered())
    incarnations: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for file in manifest.files_of(vhost):
        for part in file.queues:
            incarnations[part.queue, generation_of(part.epoch)].add(part.epoch)
    for incarnation, starts, ends in recovered.merged():
        for same in incarnations[incarnation.queue, generation_of(incarnation.epoch)] | {incarnation.epoch}:
            ranges.add(incarnation._replace(epoch=same), starts, ends - starts)


def _add_renumbered(ranges: SettledRanges, manifest: Manifest, vhost: str) -> None:
    """Add to the earlier numberings of a queue the offsets that a later one has, or settles.

    A leader that lacks messages copies what it has in another numbering, and then ends the earlier ones. Until the end
    is here, a message is in both; and an offset that was given twice names the later message.
    """
    several = _several(
        manifest,
        vhost,
        lambda incarnations: (
            len({numbering_of(each) for each in filter(may_have_messages, incarnations)}) > 1
        ),
    )
    if not several:
        return
    settled = {incarnation: (starts, ends - starts) for incarnation, starts, ends in ranges.merged()}
    for queue, found in several:
        incarnations = {each: parts for each, parts in found.items() if may_have_messages(each)}
        for later, parts in incarnations.items():
            firsts, counts = np.array([each for part in parts for each in part.ranges], np.int64).T
            more = settled.get(QueueIncarnation(vhost, queue, later))
            for earlier in incarnations:
                if numbering_of(earlier) < numbering_of(later):
                    ranges.add(QueueIncarnation(vhost, queue, earlier), firsts, counts)
                    if more is not None:
                        ranges.add(QueueIncarnation(vhost, queue, earlier), *more)


def _several(
    manifest: Manifest, vhost: str, is_wanted: Callable[[Collection[int]], bool]
) -> list[tuple[str, dict[int, list[QueuePart]]]]:
    """Of the queues whose incarnations of one epoch are wanted together, the parts by incarnation."""
    files = manifest.files_of(vhost)
    by_epoch: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for queue, incarnation in {(part.queue, part.epoch) for file in files for part in file.queues}:
        by_epoch[queue, epoch_of(incarnation)].append(incarnation)
    parts: dict[tuple[str, int], dict[int, list[QueuePart]]] = {
        key: {each: [] for each in incarnations}
        for key, incarnations in by_epoch.items()
        if is_wanted(incarnations)
    }
    for part in (part for file in files for part in file.queues) if parts else ():
        if (wanted := parts.get((part.queue, epoch_of(part.epoch)))) is not None:
            wanted[part.epoch].append(part)
    return [(queue, incarnations) for (queue, _), incarnations in parts.items()]


def _add_copies(ranges: SettledRanges, manifest: Manifest, vhost: str) -> None:
    """Subtract from a later incarnation of a queue the messages that it copied from an earlier one.

    A queue whose policy comes back is collected anew, each message with its original time of arrival. For a moment
    before that the previous incarnation is right. An incarnation that had ended by then is settled, and has no
    message.
    """
    several = _several(manifest, vhost, lambda incarnations: len(incarnations) > 1)
    if not several:
        return
    settled = ranges.masks()
    for queue, incarnations in several:
        former: list[Int64s] = []
        for incarnation in sorted(incarnations, key=in_order):
            if former:
                offsets = np.concatenate(former)
                ranges.add(QueueIncarnation(vhost, queue, incarnation), offsets, np.ones_like(offsets))
            mask = settled.get(QueueIncarnation(vhost, queue, incarnation), NOTHING)
            for first, count in (each for part in incarnations[incarnation] for each in part.ranges):
                offsets = np.arange(first, first + count)
                former.append(offsets[~mask.contains(offsets)])


class NumberedFile(NamedTuple):
    """A file that unsettled messages refer to by a number."""

    number: int
    path: str
    records: int


class OffsetSpan(NamedTuple):
    """The lowest and the highest offset of messages of one incarnation of a queue, and their number."""

    queue: str
    epoch: int
    first: int
    last: int
    messages: int


class UnsettledMessages(msgspec.Struct):
    """The unsettled messages of some files, and the number of unreadable records of each file.

    Attributes:
        spans: the spans of each incarnation, one for each group of files; each message counts once within the group.
    """

    parts: list[RunPart]
    unreadable: dict[str, int]
    spans: list[OffsetSpan] = []

    def add(self, others: UnsettledMessages) -> None:
        """Add the messages of other files."""
        self.parts += others.parts
        self.unreadable |= others.unreadable
        self.spans = self.spans + others.spans

    def counted(self) -> tuple[dict[str, int], set[str]]:
        """The number of each queue's messages, and the queues with messages that two groups of files may share."""
        totals: dict[str, int] = {}
        doubtful: set[str] = set()
        last: dict[tuple[str, int], int] = {}
        for span in sorted(self.spans):
            totals[span.queue] = totals.get(span.queue, 0) + span.messages
            if span.first <= last.get(span[:2], -1):
                doubtful.add(span.queue)
            last[span[:2]] = max(span.last, last.get(span[:2], -1))
        return totals, doubtful


def span_of(queue: str, epoch: int, offsets: Int64s) -> OffsetSpan:
    """The span of these offsets, at least one; each counts once."""
    if np.any(np.diff(offsets) <= 0):
        offsets = np.unique(offsets)
    return OffsetSpan(queue, epoch, int(offsets[0]), int(offsets[-1]), len(offsets))


def write_run(
    data_dir: Place,
    vhost: str,
    files: Iterable[NumberedFile],
    masks: Masks,
    run: Place,
    selection: Selection = EVERYTHING,
) -> UnsettledMessages:
    """Write the unsettled messages in files to `run`; without any, no file is written.

    With `all_available` unreadable messages are left out, and each message is read whole, so that every planned
    message can be published.

    Raises:
        StorageError: a file cannot be read.
    """
    found: dict[str, list[pa.RecordBatch]] = {}
    unreadable: dict[str, int] = {}
    for number, name, records in files:
        keys = keys_of(data_dir / name) if not selection.all_available else _readable_keys_of(data_dir / name)
        if lost := records - keys.num_rows:
            unreadable[name] = lost
        for incarnation, batch in _unsettled_batches(keys, number, vhost, masks, selection):
            found.setdefault(incarnation.queue, []).append(batch)
    if not found:
        return UnsettledMessages([], unreadable)
    parts, spans = [], []
    with written_beside(run.parent) as beside:
        with pa.OSFile(str(beside), "wb") as sink, pa.ipc.new_file(sink, UNSETTLED) as writer:
            pieces = [(queue, piece) for queue, batches in found.items() for piece in _pieces(batches)]
            for index, (queue, batches) in enumerate(pieces):
                [batch] = pa.Table.from_batches(batches).cast(UNSETTLED).combine_chunks().to_batches()
                writer.write_batch(batch)
                span = run_span(batch)
                parts.append(RunPart(run.name, index, queue, batch.num_rows, unsettled_crc32(batch), span))
                if span is not None:
                    spans.append(OffsetSpan(queue, span.epoch, span.first, span.last, batch.num_rows))
                    continue
                epochs, offsets = (batch.column(name).to_numpy() for name in ("queue_epoch", "queue_offset"))
                for each in np.unique(epochs).tolist():
                    spans.append(span_of(queue, each, offsets[epochs == each]))
        keep(beside, run)
    sync_directory(run.parent)
    return UnsettledMessages(parts, unreadable, spans)


def _pieces(batches: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Cut a queue's batches into pieces, so that the task of some files need not read what others have."""
    piece: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        piece.append(batch)
        rows += batch.num_rows
        if rows >= PART_ROWS_MIN:
            yield piece
            piece, rows = [], 0
    if piece:
        yield piece


def run_span(batch: pa.RecordBatch) -> RunSpan | None:
    """The span of rows after UNSETTLED, at least one; None if they are not in order."""
    epochs, offsets, timestamps, files, _ = (column.to_numpy() for column in batch.columns)
    if not are_in_order(epochs, offsets):
        return None
    return RunSpan(
        int(epochs[0]),
        int(offsets[0]),
        int(offsets[-1]),
        int(files[0]),
        int(files[-1]),
        int(timestamps.min()),
        int(timestamps.max()),
    )


def _unsettled_batches(
    keys: pa.Table, number: int, vhost: str, masks: Masks, selection: Selection
) -> Iterator[tuple[QueueIncarnation, pa.RecordBatch]]:
    """The keys of the unsettled messages in the file of this number, by incarnation, with the columns of UNSETTLED.

    All are taken at once: a file may have messages of many queues.
    """
    found = list(unsettled_rows(keys, vhost, masks, selection))
    if not found:
        return
    columns = keys.append_column("file", pa.array(np.full(keys.num_rows, number, np.int32)))
    columns = columns.select(UNSETTLED.names)
    rows = np.concatenate([mine for _, mine in found])
    # All rows of a single queue are in order.
    if len(found) > 1 or len(rows) < keys.num_rows:
        columns = columns.take(pa.array(rows))
    begin = 0
    for incarnation, mine in found:
        for batch in columns.slice(begin, len(mine)).to_batches():
            yield incarnation, batch
        begin += len(mine)


def unsettled_rows(
    keys: pa.Table, vhost: str, masks: Masks, selection: Selection
) -> Iterator[tuple[QueueIncarnation, Int64s]]:
    """The rows of the unsettled messages among these keys, at least one, by queue and epoch."""
    is_wanted = keys.column("kind").to_numpy() == MESSAGE
    if selection.as_of_ms is not None:
        is_wanted &= keys.column("timestamp_ms").to_numpy() <= selection.as_of_ms
    offsets = keys.column("queue_offset").to_numpy()
    for incarnation, rows in rows_by_incarnation(vhost, keys):
        if not selection.wants(incarnation.queue):
            continue
        kept = rows[is_wanted[rows] & ~masks.get(incarnation, NOTHING).contains(offsets[rows])]
        if len(kept):
            yield incarnation, kept


def keys_of(path: Place) -> pa.Table:
    """The keys of a file's rows, with their numbers.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with opened(path) as source, messages_in(source, dictionaries=["queue"]) as file:
            return _with_rows(file.read(_KEYS), 0)
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{path}: {error}; {RESTORE}") from error


def _readable_keys_of(path: Place) -> pa.Table:
    """The keys of a file's wholly readable rows, with their numbers, read by row group."""
    tables = []
    damage, begin = (OSError, pa.ArrowInvalid), 0
    with suppress(*damage), opened(path) as source, messages_in(source, dictionaries=["queue"]) as file:
        for group in range(file.num_row_groups):
            with suppress(*damage):
                tables.append(_with_rows(file.read_row_group(group).select(_KEYS), begin))
            begin += file.metadata.row_group(group).num_rows
    return pa.concat_tables(tables) if tables else _with_rows(RECORDS.empty_table().select(_KEYS), 0)


def _with_rows(keys: pa.Table, begin: int) -> pa.Table:
    rows = np.arange(begin, begin + keys.num_rows, dtype=np.int32)
    return keys.append_column(pa.field("row", pa.int32(), nullable=False), pa.array(rows))


def _settled_in(data_dir: Place, selection: Selection, file: StoredFile) -> pa.Table | None:
    """A file's settlements, up to the requested moment; None if there is none, or none that can be read is needed."""
    as_of_ms = selection.as_of_ms
    if as_of_ms is not None and file.min_ms > as_of_ms:
        return None
    try:
        return settlements_of(data_dir, file, until_ms=as_of_ms)
    except (OSError, pa.ArrowInvalid) as error:
        if not selection.all_available:
            raise StorageError(
                f"{data_dir / file.settlements}: {error}; the settled messages are not known: restore the file from a "
                "copy, or promote with --all-available to recover also messages that may have been consumed"
            ) from error
        return None

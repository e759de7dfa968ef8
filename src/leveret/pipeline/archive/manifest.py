"""The manifest: the list of the files with transferred records. It alone is the truth.

A file that the manifest does not name does not exist for any reader; Spark's checkpoint decides nothing. An entry
is a line of JSON with its checksum (`documents`); entries are numbered from 1.

An entry adds files, removes files, or replaces files by doing both. `manifest_storage` stores the lines, and ensures
that each number is written once. A file has the chunks of one outgoing log (`wire.log_name`: a vhost, and in a
cluster a node) from offset `first` up to before `next`; the files ever added to a log continue each other without a
gap. A file that is offered twice (by a repeated batch, or a process considered dead) is recognised and skipped; a
file that would leave a gap is refused.

Nodes of a cluster may share an archive. Then each vhost has one writer, its owner, and the manifest has the term in
which the owner claimed the vhost. An entry by an owner of an earlier term is refused, so that a node that was paused
changes nothing when it comes back: all entries are in one order, and the node has read the claim before it writes.
"""

from __future__ import annotations

import gc
import heapq
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from leveret.model.errors import StorageError
from leveret.pipeline.archive.documents import line_of, value_of
from leveret.pipeline.archive.manifest_storage import FileManifestLog, ManifestLog, ObjectLog
from leveret.pipeline.files.files import Place, note_named
from leveret.pipeline.files.objects import ObjectPath
from leveret.wire.log_name import label_of, log_name, title_of, vhost_of

FORMAT: Final = 3
"""The newest format of the archive. Entries have the lowest format that tells all of them, so that earlier versions
read what they can:

1   a vhost has one log
2   a vhost has a log for each node of an upstream cluster
3   nodes of a downstream cluster share the archive: vhosts are claimed, and plans are named
"""
Terms: TypeAlias = Mapping[str, int]
"""By vhost, the term in which a node owns it."""


class TransferGap(StorageError):
    """A file does not continue what the manifest has.

    Attributes:
        log: the outgoing log.
        have: the offset up to which the manifest has the log.
        offered: the first offset of the file.
    """

    def __init__(self, log: str, have: int, offered: int) -> None:
        super().__init__(
            f"{title_of(log)}: transferred up to offset {have}, a file that begins at {offered} does not "
            "continue that and was not recorded; the transfer starts again from the manifest"
        )
        self.log = log
        self.have = have
        self.offered = offered


class VhostForgotten(StorageError):
    """A writer began before its vhost was forgotten, and offers records from before that."""

    def __init__(self, vhost: str, begun: int, forgotten: int) -> None:
        super().__init__(
            f"vhost '{vhost}': its data was deleted by entry {forgotten} of the manifest, and this was begun at entry "
            f"{begun}; nothing was recorded, the transfer starts again from the manifest"
        )


class Superseded(StorageError):
    """Another node of the cluster that shares the archive owns the vhost by now."""

    def __init__(self, data_dir: Place, vhost: str, claimed: int, term: int | None) -> None:
        super().__init__(
            f"{data_dir}: vhost '{vhost}' belongs to another node by now (term {claimed}, and this node has term "
            f"{term}); nothing was recorded, and that node goes on from here"
            if term is not None
            else f"{data_dir}: a cluster writes this archive (vhost '{vhost}' is claimed in term {claimed}); nothing "
            "was recorded: give this node a place of its own (standby.replication.downstream.data_dir)"
        )


class NewerArchive(StorageError):
    """A later version wrote the archive, in a format that this one does not know."""

    def __init__(self, data_dir: Place, format: int) -> None:
        super().__init__(
            f"{data_dir}: the archive has format {format}, of a later version of Leveret; this version reads formats "
            f"up to {FORMAT}. Nothing was changed: use a version that is at least as new as the one that wrote it"
        )


class QueuePart(msgspec.Struct):
    """The records of one queue (of one epoch) in a file.

    Attributes:
        messages: number of messages.
        settled: number of offsets in settlements; some of them may be no messages.
        ranges: (first offset, count) of the records, in order of arrival, neighbours joined.
        min_ms: timestamp of the oldest chunk.
        max_ms: timestamp of the newest chunk.
        type: the queue's type, empty if the upstream did not name it.
        settled_span: the lowest and the highest offset in settlements; None if it is unknown, or there is none.
    """

    queue: str
    epoch: int
    messages: int = 0
    settled: int = 0
    ranges: list[tuple[int, int]] = []
    min_ms: int = 0
    max_ms: int = 0
    type: str = ""
    settled_span: tuple[int, int] | None = None

    def count(self, first: int, records: int, timestamp_ms: int, is_message: bool) -> None:
        """Add one chunk."""
        self.min_ms = min(self.min_ms, timestamp_ms) if self.ranges else timestamp_ms
        self.max_ms = max(self.max_ms, timestamp_ms)
        self.add_range(first, records)
        self.messages += records if is_message else 0

    def add_range(self, first: int, records: int) -> None:
        """Add records behind the others."""
        if self.ranges and sum(self.ranges[-1]) == first:
            self.ranges[-1] = (self.ranges[-1][0], self.ranges[-1][1] + records)
        else:
            self.ranges.append((first, records))

    def count_settled(self, first: int, count: int) -> None:
        """Add a range of settled offsets."""
        self.settled += count
        lowest, highest = self.settled_span or (first, first)
        self.settled_span = (min(lowest, first), max(highest, first + count - 1))


class Moves(IntEnum):
    """The state of a file's moves."""

    NONE = 0
    WAIT = 1
    """They do not count: it is not known yet that the copies of the moved messages are here."""
    COUNT = 2


class StoredFile(msgspec.Struct, kw_only=True):
    """A Parquet file of records and its sidecar of settlements; paths are relative to the data directory.

    Attributes:
        first: offset in the outgoing log of the first record.
        next: offset after the last one.
        settlements: path of the sidecar, empty without settlements.
        stored_positions: path of the stored positions of streams' readers and publishers, empty without any.
        bytes: the octets of all its files. mark, epoch: the fingerprint and epoch of the last chunk (`LastChunk`).
        history_from_ms: from a compaction: the time before which the state of queues is unknown.
        moves: whether it has moves (`wire.site_order`) of a cluster, and whether these count by now.
        node: the label of the upstream's node (`wire.log_name`); empty for a single node.
    """

    vhost: str
    node: str = ""
    path: str
    settlements: str = ""
    stored_positions: str = msgspec.field(name="books", default="")
    first: int
    next: int
    records: int
    bytes: int
    min_ms: int
    max_ms: int
    queues: list[QueuePart]
    mark: int = 0
    epoch: int = 0
    history_from_ms: int = 0
    moves: Moves = Moves.NONE

    @property
    def log(self) -> str:
        """The name of its outgoing log."""
        return log_name(self.vhost, self.node)

    @property
    def names(self) -> list[str]:
        """The paths of all its files."""
        return [name for name in (self.path, self.settlements, self.stored_positions) if name]


class LastChunk(NamedTuple):
    """The fingerprint of a chunk (`wire.chunk.fingerprint_of`) and its writer's epoch; 0 if unknown."""

    mark: int
    epoch: int


class ManifestState(msgspec.Struct, kw_only=True):
    """The sum of all earlier entries; a log of their own may be deleted."""

    files: list[StoredFile]
    next_by_log: dict[str, int] = msgspec.field(name="next_by_vhost")
    forgotten_by_vhost: dict[str, int]
    terms: dict[str, int] = {}
    named_plans: list[str] = []


class ManifestEntry(msgspec.Struct, kw_only=True):
    """One line: added files, paths of removed files, and vhosts that are forgotten as a whole.

    Attributes:
        writer: distinguishes equal entries of two processes.
        claimed: in a shared archive, by vhost, the term of an owner that writes from here on.
        named_plans: in a shared archive, the ids of recovery plans that count from here on.
        ordered: by log, the end of the files whose moves count from here on.
        state: the sum of all earlier entries, at the begin of a log.
        format: the format of the archive from here on.
    """

    number: int
    at_ms: int
    writer: str = ""
    added: list[StoredFile] = []
    removed: list[str] = []
    forgotten: list[str] = []
    claimed: dict[str, int] = {}
    named_plans: list[str] = []
    ordered: dict[str, int] = {}
    state: ManifestState | None = None
    format: int = 1


class _EntryFormat(msgspec.Struct):
    """An entry, as far as it can be read whatever its format."""

    format: int = 1


def _dated(files: list[StoredFile]) -> Iterator[tuple[int, int, StoredFile]]:
    """Files of one log in order of offset, each with a time that never falls, and its offset."""
    came_ms = 0
    for file in files:
        came_ms = max(came_ms, file.max_ms)
        yield came_ms, file.first, file


@contextmanager
def uncollected() -> Iterator[None]:
    """Put Python's collector off: it would visit the parts of a large archive, all in use, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Manifest:
    """The manifest of one data directory, as far as it has been read.

    Attributes:
        entries: in order; all of them, or those from the last one with a state on.
        next_by_log: the offset up to which each outgoing log is stored.
        forgotten_by_vhost: the number of the last entry that forgot a vhost; its earlier files do not count.
        terms: in a shared archive, by vhost, the highest term in which an owner claimed it.
        named_plans: in a shared archive, the ids of the recovery plans that count.
        waiting: by path, the present files whose moves do not count yet.
    """

    def __init__(self, data_dir: Place) -> None:
        """Read the manifest; a data directory that does not exist is empty.

        Raises:
            ManifestDamaged: naming file and line.
            NewerArchive: a later version wrote it.
        """
        self.data_dir = data_dir
        self.entries: list[ManifestEntry] = []
        self.next_by_log: dict[str, int] = {}
        self.forgotten_by_vhost: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.named_plans: set[str] = set()
        self.waiting: dict[str, StoredFile] = {}
        self._files: dict[str, StoredFile] = {}
        self._in_order: dict[str, list[StoredFile]] | None = {}
        """The present files by log; None after a change."""
        self._writer = secrets.token_hex(4)
        directory = data_dir / "manifest"
        self._log: ManifestLog = (
            ObjectLog(directory) if isinstance(directory, ObjectPath) else FileManifestLog(directory)
        )
        self.refresh()
        self._begun = self.number

    @property
    def number(self) -> int:
        """Number of the last entry, 0 when there is none."""
        return self.entries[-1].number if self.entries else 0

    def files(self) -> list[StoredFile]:
        """The present files, in order of vhost, log and offset."""
        return [file for files in self._by_log().values() for file in files]

    def _by_log(self) -> dict[str, list[StoredFile]]:
        """The present files by log, in order; sorted once after a change, and not for each of many logs."""
        if self._in_order is None:
            self._in_order = {}
            for file in sorted(self._files.values(), key=lambda file: (file.vhost, file.node, file.first)):
                self._in_order.setdefault(file.log, []).append(file)
        return self._in_order

    @property
    def vhosts(self) -> list[str]:
        """The vhosts with data, in order."""
        return sorted(set(map(vhost_of, self.next_by_log)))

    def logs_of(self, vhost: str) -> list[str]:
        """The logs of one vhost with data, in order."""
        return sorted(log for log in self.next_by_log if vhost_of(log) == vhost)

    def files_of_log(self, log: str) -> list[StoredFile]:
        """The present files of one log, in order of offset."""
        return list(self._by_log().get(log, ()))

    def files_of(self, vhost: str) -> list[StoredFile]:
        """The present files of one vhost: each log's in order of offset, several logs' about as their records came."""
        logs = [_dated(self.files_of_log(log)) for log in self.logs_of(vhost)]
        return [file for _, _, file in heapq.merge(*logs, key=itemgetter(0, 1))]

    def last_chunk(self, log: str) -> LastChunk:
        """The last stored chunk of a log."""
        end = self.next_by_log.get(log)
        last = (file for file in self._by_log().get(log, ()) if file.next == end)
        return next((LastChunk(file.mark, file.epoch) for file in last), LastChunk(0, 0))

    def ever_added(self, vhost: str, up_to: int) -> Iterator[StoredFile]:
        """Files added to `vhost`, since it was last forgotten, up to entry `up_to`.

        Also ones that were removed since then.

        Earlier files than the last state are those in it, which name all records of an incarnation that had messages
        left (`compact`); none if `up_to` is before it.
        """
        since = self.forgotten_by_vhost.get(vhost, 0)
        for entry in self.entries:
            if since < entry.number <= up_to:
                added = entry.added if entry.state is None else entry.state.files
                yield from (file for file in added if file.vhost == vhost)

    def added_since(self, number: int) -> list[StoredFile] | None:
        """Files added after entry `number`; None if some of those entries are gone."""
        if self.entries and number < self.entries[0].number - 1:
            return None
        return [file for entry in self.entries if entry.number > number for file in entry.added]

    def history_from_ms(self, vhost: str) -> int:
        """The time before which the state of a vhost's queues is unknown; 0: as far back as there are data."""
        return max((file.history_from_ms for file in self.files_of(vhost)), default=0)

    def check(self) -> None:
        """Check that the store can keep the manifest.

        Raises:
            StorageError: the store cannot be used for it.
        """
        self._log.check()

    def refresh(self) -> None:
        """Read the entries that any process appended since the last call."""
        with uncollected():
            self._log.read(self._take_line)

    def append(
        self,
        added: Iterable[StoredFile],
        removed: Iterable[str] = (),
        *,
        begun: int | None = None,
        terms: Terms | None = None,
    ) -> list[StoredFile]:
        """Append an entry that adds and removes files; files already covered are skipped. Return the new ones.

        Args:
            added: the files; those that replace others are of the vhosts of these.
            removed: the paths of replaced files.
            begun: the number of the last entry when the files were chosen; by default when this manifest was opened.
            terms: in a shared archive, the terms in which this node owns the vhosts; None in an archive of its own.

        Raises:
            Superseded: another node owns a vhost by now.
            VhostForgotten: a file's vhost was forgotten since then.
            TransferGap: a file leaves a gap; the log's earlier files, and all other logs' files, were recorded.
            StorageError: a file is missing, or the manifest was deleted since then, or cannot be written.
        """
        files, gone = list(added), list(removed)
        with self.locked():
            is_written = False
            while not is_written:
                self.check_owned({file.vhost for file in files}, terms)
                self._check_remembered(files, self._begun if begun is None else begun)
                fresh, gap = self._continuing(files, replacing=bool(gone))
                self._check_there(fresh)
                is_written = not (fresh or gone) or self._write(added=fresh, removed=gone)
            for name in (name for file in fresh for name in file.names):
                note_named(self.data_dir / name, is_named=True)
        if gap is not None:
            raise gap
        return fresh

    def claim(self, terms: Terms, plans: Collection[str] = ()) -> None:
        """Have only this node, the owner in these terms, write of these vhosts from now on; durable on return.

        `plans` are ids of plans that count although no entry names them, because they are older than all claims.

        Raises:
            Superseded: another node owns one of the vhosts by now.
            StorageError: the manifest cannot be written.
        """
        self._note(terms, plans, claimed=terms)

    def name_plans(self, plans: Mapping[str, str], terms: Terms) -> None:
        """Have frozen plans, by id with their vhosts, count, if this node owns these; durable on return.

        Raises:
            Superseded: another node owns a vhost by now, and no plan of these counts.
            StorageError: the manifest cannot be written.
        """
        self._note({vhost: terms.get(vhost, 0) for vhost in plans.values()}, plans, claimed={})

    def _note(self, terms: Terms, plans: Collection[str], *, claimed: Terms) -> None:
        """Note claims that are new, and names of plans, if this node owns the vhosts in these terms."""
        with self.locked():
            is_written = False
            while not is_written:
                self.check_owned(terms, terms)
                new = {vhost: term for vhost, term in claimed.items() if self.terms.get(vhost, 0) < term}
                names = sorted({*plans} - self.named_plans)
                is_written = not (new or names) or self._write(claimed=new, named_plans=names)

    def order(self, ends: Mapping[str, int], terms: Terms | None = None) -> None:
        """Have the moves in the files before these ends count, by log; durable on return.

        Raises:
            Superseded: another node owns a vhost by now.
            StorageError: the manifest cannot be written.
        """
        with self.locked():
            is_written = False
            while not is_written:
                due = {each.log for each in self._ordered(ends)}
                self.check_owned(map(vhost_of, due), terms)
                is_written = not due or self._write(ordered={log: ends[log] for log in sorted(due)})

    def _ordered(self, ends: Mapping[str, int]) -> list[StoredFile]:
        """The files before these ends whose moves do not count yet."""
        return [file for file in self.waiting.values() if file.next <= ends.get(file.log, 0)]

    def check_owned(self, vhosts: Iterable[str], terms: Terms | None) -> None:
        """Check that no other node has claimed these vhosts in a higher term, by the entries read so far.

        Raises:
            Superseded: one has.
        """
        for vhost in vhosts:
            claimed = self.terms.get(vhost, 0)
            if claimed > (0 if terms is None else terms.get(vhost, 0)):
                mine = None if terms is None else terms.get(vhost, 0)
                raise Superseded(self.data_dir, vhost, claimed, mine)

    def counts(self, vhost: str, plan_id: str) -> bool:
        """Return whether a frozen plan counts: in a shared archive, whether an entry names it."""
        return vhost not in self.terms or plan_id in self.named_plans

    def forget(self, vhosts: Iterable[str]) -> list[StoredFile]:
        """Forget these vhosts, as if none of their records had ever come. Return their files, which are unused now.

        Raises:
            StorageError: the manifest cannot be written.
        """
        wanted = set(vhosts)
        with self.locked():
            is_written = False
            while not is_written:
                known = sorted(wanted.intersection(self.vhosts))
                gone = [file for file in self.files() if file.vhost in known]
                is_written = not known or self._write(forgotten=known)
            self._begun = self.number
        return gone

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers, and read the latest entries."""
        with self._log.locked():
            self.refresh()
            yield

    def _check_remembered(self, files: list[StoredFile], begun: int) -> None:
        """Check that no vhost was forgotten since its files were chosen, which would not continue the later ones."""
        if begun > self.number:
            raise StorageError(
                f"{self.data_dir / 'manifest'}: was deleted after its entry {begun}, when this was begun; nothing was "
                "recorded, the transfer starts again from the manifest"
            )
        for vhost in {file.vhost for file in files}:
            if (forgotten := self.forgotten_by_vhost.get(vhost, 0)) > begun:
                raise VhostForgotten(vhost, begun, forgotten)

    def _check_there(self, files: list[StoredFile]) -> None:
        """Check that the files exist: they may have been swept as orphans while their writer seemed dead."""
        for name in (name for file in files for name in file.names):
            if not (self.data_dir / name).exists():
                raise StorageError(
                    f"{self.data_dir / name}: is gone, so it was not recorded; transfer it again"
                )

    def _continuing(
        self, added: Iterable[StoredFile], replacing: bool
    ) -> tuple[list[StoredFile], TransferGap | None]:
        """The new files that continue the manifest's, and the first gap; a gap of one log does not affect others."""
        fresh: list[StoredFile] = []
        gaps: dict[str, TransferGap] = {}
        ends = dict(self.next_by_log)
        for file in sorted(added, key=lambda file: (file.log, file.first)):
            end = ends.get(file.log)
            is_known = end is not None and file.next <= end and not replacing
            if is_known or file.log in gaps:
                continue
            if end is not None and file.first != end and not replacing:
                gaps[file.log] = TransferGap(file.log, end, file.first)
                continue
            ends[file.log] = max(file.next, end or 0)
            fresh.append(file)
        return fresh, next(iter(gaps.values()), None)

    def _take_line(self, line: bytes) -> bool:
        try:
            format = value_of(line, _EntryFormat).format
            if format > FORMAT:
                raise NewerArchive(self.data_dir, format)
            entry = value_of(line, ManifestEntry)
        except msgspec.DecodeError:
            return False
        if entry.number != self.number + 1 and (entry.state is None or entry.number <= self.number):
            return False
        self._take(entry)
        return True

    def _take(self, entry: ManifestEntry) -> None:
        self._in_order = None
        if entry.state is not None:
            self.entries.clear()
            self._files = {file.path: file for file in entry.state.files}
            self.next_by_log = dict(entry.state.next_by_log)
            self.forgotten_by_vhost = dict(entry.state.forgotten_by_vhost)
            self.terms, self.named_plans = dict(entry.state.terms), set(entry.state.named_plans)
        self.terms |= entry.claimed
        self.named_plans.update(entry.named_plans)
        self.entries.append(entry)
        for path in entry.removed:
            self._files.pop(path, None)
        for vhost in entry.forgotten:
            for log in self.logs_of(vhost):
                del self.next_by_log[log]
            self.forgotten_by_vhost[vhost] = entry.number
        if entry.forgotten:
            kept = self._files.items()
            self._files = {path: file for path, file in kept if file.vhost not in entry.forgotten}
        for file in entry.added:
            self._files[file.path] = file
            self.next_by_log[file.log] = max(file.next, self.next_by_log.get(file.log, 0))
        self._note_moves(entry)

    def _note_moves(self, entry: ManifestEntry) -> None:
        """Have the moves in ordered files count; entries stay as they were written."""
        added = entry.added if entry.state is None else entry.state.files
        known = [*self.waiting.values(), *(file for file in added if file.moves is Moves.WAIT)]
        self.waiting = {file.path: file for file in known if self._files.get(file.path) is file}
        for file in self._ordered(entry.ordered):
            self._files[file.path] = msgspec.structs.replace(file, moves=Moves.COUNT)
            del self.waiting[file.path]

    def _write(
        self,
        added: list[StoredFile] | None = None,
        removed: list[str] | None = None,
        forgotten: list[str] | None = None,
        claimed: dict[str, int] | None = None,
        named_plans: list[str] | None = None,
        ordered: dict[str, int] | None = None,
    ) -> bool:
        """Append an entry; return False if another process was faster, whose entry is read then."""
        self._shorten()
        entry = self._entry(
            added=added or [],
            removed=removed or [],
            forgotten=forgotten or [],
            claimed=claimed or {},
            named_plans=named_plans or [],
            ordered=ordered or {},
        )
        if not self._log.append(entry.number, line_of(entry)):
            self.refresh()
            return False
        self._take(entry)
        self._log.fold(self.entries[0].number, entry.number, self._lines)
        return True

    def _shorten(self) -> None:
        """Now and then write one entry with the sum of all, because old entries cost each reader time and memory."""
        made: list[ManifestEntry] = []

        def line() -> bytes:
            state = ManifestState(
                files=self.files(),
                next_by_log=dict(self.next_by_log),
                forgotten_by_vhost=dict(self.forgotten_by_vhost),
                terms=dict(self.terms),
                named_plans=sorted(self.named_plans),
            )
            made.append(self._entry(state=state))
            return line_of(made[0])

        if self._log.shorten(self.number + 1, line):
            self._take(made[0])

    def _entry(self, **what: Any) -> ManifestEntry:
        at_ms = time.time_ns() // 1_000_000
        entry = ManifestEntry(number=self.number + 1, at_ms=at_ms, writer=self._writer, **what)
        logs = [file.node for file in entry.added]
        if entry.state is not None:
            logs += map(label_of, entry.state.next_by_log)
        is_shared = bool(self.terms or entry.claimed)
        entry.format = 3 if is_shared else 2 if any(logs) else 1
        return entry

    def _lines(self, first: int, last: int) -> bytes:
        begin = self.entries[0].number
        return b"".join(line_of(entry) for entry in self.entries[first - begin : last - begin + 1])

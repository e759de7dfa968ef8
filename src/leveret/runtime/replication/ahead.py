"""The future extent of a delayed follower's logs, with every waiting change applied; the leader is told of this extent.

For each log with waiting changes, one small object holds its future begin and end. The objects are updated as
changes come, and rebuilt from the spool at start. The headers of waiting chunks are not kept: `headers` finds
them in the spool, from the newest back (see storage.spool), and continues in the log itself where they end.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from leveret.model.errors import StorageError
from leveret.storage.spool import Spool, SpoolEntry
from leveret.wire.chunk import HEADER_BYTES, decode_header
from leveret.wire.link import ChangeKind, LinkError, LogChange, LogExtent


class Base(Protocol):
    """What is applied."""

    def inventory(self) -> Iterable[LogExtent]:
        """The extent of each log of this node."""

    def bounds(self, name: str) -> tuple[int, int] | None:
        """The first offset of a log and the one behind its last; None if there is no such log."""

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """The headers of at most `count` chunks of a log that begin before an offset, newest first."""


class _Log(NamedTuple):
    """A log as it will be: its bounds, where its last chunk waits (-1: nowhere), its last change that waits."""

    exists: bool
    first: int = 0
    next: int = 0
    tail: int = -1
    latest: int = -1


class DelayedPlan(NamedTuple):
    """Changes that may wait: their entries, and what logs and files will be then."""

    entries: list[SpoolEntry]
    logs: dict[str, _Log]
    files: dict[str, tuple[bool, int]]


class Ahead:
    """See the module.

    Attributes:
        applied: changes before this offset of the spool are applied.
        lost: logs that waiting changes go on with, and that are damaged or gone here: until one of these changes
            begins such a log anew, nothing of it can be applied.
    """

    def __init__(self, base: Base, spool: Spool) -> None:
        """Nothing waits."""
        self.applied = 0
        self.lost: set[str] = set()
        self._base = base
        self._spool = spool
        self._logs: dict[str, _Log] = {}
        self._files: dict[str, tuple[bool, int]] = {}
        self._unusable: set[str] = set()

    # -- changes ------------------------------------------------------------------------------

    def plan(self, begin: int, changes: Iterable[LogChange]) -> DelayedPlan:
        """The entries of changes that are to wait from this offset of the spool on; call `keep` when they do.

        Raises:
            LinkError: they do not fit what is here or waits: the link is to be begun anew.
            StorageError: the spool or a log cannot be read.
        """
        plan = DelayedPlan([], {}, {})
        logs = ChainMap(plan.logs, self._logs)
        for offset, change in enumerate(changes, begin):
            name, kind = change.name, change.kind
            if kind in (ChangeKind.FILE, ChangeKind.REMOVE):
                plan.files[name] = (kind is ChangeKind.FILE, offset)
                plan.entries.append(SpoolEntry(kind, name, octets=change.octets))
                continue
            log = logs.get(name) or self._here(name)
            entry = SpoolEntry(kind, name, change.offset, change.octets, self._previous(log, change, begin))
            plan.entries.append(entry)
            plan.logs[name] = _after(log, offset, entry)
        return plan

    def keep(self, plan: DelayedPlan) -> None:
        """The planned changes wait in the spool now."""
        self._logs |= plan.logs
        self._files |= plan.files

    def recovered(self, offset: int, entry: SpoolEntry) -> None:
        """At start: this waits; no file is read for it.

        What is here may be ahead of it: then it will not be applied a second time.
        """
        name, kind = entry.name, entry.kind
        if kind in (ChangeKind.FILE, ChangeKind.REMOVE):
            self._files[name] = (kind == ChangeKind.FILE, offset)
            return
        if kind in (ChangeKind.BEGIN, ChangeKind.DELETE, ChangeKind.QUARANTINE):
            self._unusable.discard(name)
        elif name not in self._logs and self._is_lost(entry):
            self.lost.add(name)
            self._unusable.add(name)
        if name in self._unusable:
            self._logs[name] = _Log(exists=False, latest=offset)
        else:
            self._logs[name] = _after(self._logs.get(name) or self._here(name), offset, entry)

    def note_applied(self, offset: int, entry: SpoolEntry) -> None:
        """This change is applied, as are all before it."""
        self.applied = offset + 1
        log, file = self._logs.get(entry.name), self._files.get(entry.name)
        if log is not None and log.latest <= offset:
            del self._logs[entry.name]
            self.lost.discard(entry.name)
        if file is not None and file[1] <= offset:
            del self._files[entry.name]

    def _here(self, name: str) -> _Log:
        bounds = self._base.bounds(name)
        return _Log(exists=False) if bounds is None else _Log(True, *bounds)

    def _is_lost(self, entry: SpoolEntry) -> bool:
        """Whether what the first waiting change of a log goes on with is not here."""
        bounds = self._base.bounds(entry.name)
        if entry.kind != ChangeKind.APPEND:
            return bounds is None
        begin = decode_header(entry.octets).chunk_id
        return begin != entry.offset if bounds is None else begin > bounds[1]

    def _previous(self, log: _Log, change: LogChange, begin: int) -> int:
        """Where the chunk waits that will be the last of the log before this change, or by it."""
        if change.kind is ChangeKind.APPEND and change.chunk is not None:
            due, chunk_id = log.next if log.exists else change.offset, change.chunk.header.chunk_id
            if chunk_id != due:
                raise LinkError(f"log {change.name}: chunk {chunk_id} came where {due} was due")
            return log.tail
        if change.kind is not ChangeKind.CUT:
            return -1
        if not log.exists or not log.first <= change.offset <= log.next or log.latest >= begin:
            raise LinkError(f"log {change.name} cannot be cut at offset {change.offset}")
        at = log.tail
        while at >= self.applied:
            entry = self._spool.entry_at(at)
            if decode_header(entry.octets).next_offset <= change.offset:
                return at
            at = entry.previous
        return -1

    # -- what there will be -------------------------------------------------------------------

    def inventory(self) -> list[LogExtent]:
        """The future extent of each log of this node.

        Raises:
            StorageError: the spool or a log cannot be read.
        """
        extent = {each.path: each for each in self._base.inventory()}
        for name, log in self._logs.items():
            extent.pop(name, None)
            if log.exists:
                last = self.headers(name, log.next, 1)
                extent[name] = LogExtent(name, log.first, log.next, last[0] if last else b"")
        return list(extent.values())

    def files(self, here: Iterable[str]) -> list[str]:
        """Names of the state files that there will be; `here` are those that there are."""
        names = dict.fromkeys(here, True) | {name: there for name, (there, _) in self._files.items()}
        return [name for name, there in names.items() if there]

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """The headers of at most `count` chunks that there will be of a log before an offset, newest first.

        Raises:
            StorageError: the spool or the log cannot be read.
        """
        log = self._logs.get(name)
        if log is None:
            return self._base.headers(name, before, count)
        found: list[bytes] = []
        before, at = min(before, log.next), log.tail
        while at >= self.applied and len(found) < count:
            entry = self._spool.entry_at(at)
            if entry.name != name or entry.kind != ChangeKind.APPEND:
                raise StorageError(f"log {name}: change {at} of what waits is not a chunk of it")
            begin = decode_header(entry.octets).chunk_id
            if begin < before:
                found.append(bytes(entry.octets[:HEADER_BYTES]))
                before = begin
            at = entry.previous
        if len(found) < count and before > log.first:
            found += self._base.headers(name, before, count - len(found))
        return [octets for octets in found if decode_header(octets).chunk_id >= log.first]


def _after(log: _Log, offset: int, entry: SpoolEntry) -> _Log:
    """The log once this change is made too."""
    at = entry.offset
    match entry.kind:
        case ChangeKind.APPEND:
            first = log.first if log.exists else at
            return _Log(True, first, decode_header(entry.octets).next_offset, offset, offset)
        case ChangeKind.DROP if log.exists and at < log.next:
            return log._replace(first=max(log.first, at), latest=offset)
        case ChangeKind.DROP:
            # Something always stays, so that the end is known.
            return log._replace(latest=offset)
        case ChangeKind.BEGIN:
            return _Log(True, at, at, latest=offset)
        case ChangeKind.CUT:
            return _Log(True, log.first, at, entry.previous, offset)
    return _Log(exists=False, latest=offset)

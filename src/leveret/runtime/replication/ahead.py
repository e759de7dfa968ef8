"""What a delayed follower will hold once all that waits is applied: that is what its leader is told it has.

Of each log that waiting changes are about, one small object says where it will begin and end. It is kept up as
changes come, and made anew from the spool at start. The headers of chunks that wait are not kept: `headers` finds
them in the spool, from the newest back (see storage.spool), and goes on in the log itself where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.spool import Entry
from leveret.wire.chunk import HEADER_BYTES, Header, decode_header
from leveret.wire.link import Change, Held, Kind, LinkError

_ALL: Final = 1 << 63


class Base(Protocol):
    """What is applied."""

    def inventory(self) -> list[Held]:
        """What this node has of each log."""

    def bounds(self, name: str) -> tuple[int, int] | None:
        """The first offset of a log and the one behind its last; None if there is no such log."""

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """The headers of at most `count` chunks of a log that begin before an offset, newest first."""


@dataclass(frozen=True, slots=True)
class _Log:
    """A log as it will be.

    Attributes:
        exists: whether there will be one.
        last: the header of its last chunk, empty for none; None as long as that is the applied log's own.
        tail: where the last chunk waits in the spool, -1 if it does not.
        barrier: the last waiting change that begins, cuts or removes the log; -1 for none.
        base_end: what of the applied log counts, up to this offset, until the barrier is applied.
        latest: the last waiting change of the log.
    """

    exists: bool
    first: int
    next: int
    last: bytes | None = None
    tail: int = -1
    barrier: int = -1
    base_end: int = _ALL
    latest: int = -1


class Ahead:
    """See the module.

    A change is first `planned`, which checks it; once the spool has all that was planned, it is `kept`.

    Attributes:
        applied: changes before this offset of the spool are applied.
        lost: logs that waiting changes go on with and that are not here, as they were damaged: until they are
            begun anew, nothing of them can be applied.
    """

    def __init__(self, base: Base, entry_at: Callable[[int], Entry], applied: int = 0) -> None:
        """Nothing waits; `entry_at` gives a change that does."""
        self.applied = applied
        self.lost: set[str] = set()
        self._base = base
        self._entry_at = entry_at
        self._logs: dict[str, _Log] = {}
        self._files: dict[str, tuple[bool, int]] = {}
        self._planned: dict[str, _Log] = {}
        self._planned_files: dict[str, tuple[bool, int]] = {}
        self._unusable: set[str] = set()

    # -- changes ------------------------------------------------------------------------------

    def plan(self, offset: int, change: Change) -> Entry:
        """The entry of a change that is to wait at this offset of the spool.

        Raises:
            LinkError: it does not fit what is here or waits: the link is to be begun anew.
            StorageError: the spool or a log cannot be read.
        """
        name = change.name
        if change.kind in (Kind.FILE, Kind.REMOVE):
            self._planned_files[name] = (change.kind is Kind.FILE, offset)
            return Entry(change.kind, name, rest=change.octets)
        log = self._get(name)
        entry = Entry(change.kind, name, change.offset)
        match change.kind:
            case Kind.APPEND if change.chunk is not None:
                due = log.next if log.exists else change.offset
                if change.chunk.header.chunk_id != due:
                    raise LinkError(
                        f"log {name}: chunk {change.chunk.header.chunk_id} came where {due} was due"
                    )
                entry = entry._replace(rest=change.octets, previous=log.tail if log.exists else -1)
            case Kind.CUT:
                entry = self._plan_cut(log, entry)
        self._planned[name] = self._after(log, offset, entry)
        return entry

    def _plan_cut(self, log: _Log, entry: Entry) -> Entry:
        """With what will be left: the last chunk before the cut."""
        if not log.exists or not log.first <= entry.offset <= log.next:
            raise LinkError(f"log {entry.name} is to be cut at offset {entry.offset}, and is not here")
        at = log.tail
        while at >= self.applied:
            found = self._entry_at(at)
            if _header(found).next_offset <= entry.offset:
                return entry._replace(rest=bytes(found.rest[:HEADER_BYTES]), previous=at)
            at = found.previous
        for header in self._base_headers(log, entry.name, entry.offset, 1):
            return entry._replace(rest=header)
        return entry

    def keep(self) -> None:
        """All that was planned waits in the spool now."""
        self._logs |= self._planned
        self._files |= self._planned_files
        self.forget()

    def forget(self) -> None:
        """Nothing of what was planned does."""
        self._planned.clear()
        self._planned_files.clear()

    def recovered(self, offset: int, entry: Entry) -> None:
        """At start: this waits; no file is read for it."""
        name = entry.name
        if entry.kind in (Kind.FILE, Kind.REMOVE):
            self._files[name] = (entry.kind == Kind.FILE, offset)
            return
        if entry.kind in (Kind.BEGIN, Kind.DELETE, Kind.ASIDE):
            self._unusable.discard(name)
        elif name not in self._logs and self._is_lost(entry):
            self.lost.add(name)
            self._unusable.add(name)
        if name in self._unusable:
            self._logs[name] = _Log(exists=False, first=0, next=0, last=b"", base_end=0, latest=offset)
        else:
            self._logs[name] = self._after(self._get(name), offset, entry)

    def _is_lost(self, entry: Entry) -> bool:
        """Whether what the first waiting change of a log goes on with is not here."""
        bounds = self._base.bounds(entry.name)
        if entry.kind == Kind.APPEND:
            begin = _header(entry).chunk_id
            return begin != entry.offset if bounds is None else begin > bounds[1]
        return bounds is None and entry.kind == Kind.CUT

    def _get(self, name: str) -> _Log:
        log = self._planned.get(name) or self._logs.get(name)
        if log is not None:
            return log
        bounds = self._base.bounds(name)
        return _Log(exists=False, first=0, next=0) if bounds is None else _Log(True, *bounds)

    def _after(self, log: _Log, offset: int, entry: Entry) -> _Log:
        """The log once this change is made too."""
        at = entry.offset
        match entry.kind:
            case Kind.APPEND:
                header, octets = _header(entry), bytes(entry.rest[:HEADER_BYTES])
                first = log.first if log.exists else at
                grown = replace(log, exists=True, first=first, next=header.next_offset, last=octets)
                return replace(grown, tail=offset, latest=offset)
            case Kind.DROP:
                # Segments go whole, and the newest stays.
                end = decode_header(log.last).chunk_id if log.last else log.next
                return replace(log, first=max(log.first, min(at, end)), latest=offset)
            case Kind.BEGIN:
                return _Log(True, at, at, b"", barrier=offset, base_end=0, latest=offset)
            case Kind.CUT:
                end = at if log.barrier < self.applied else min(log.base_end, at)
                left = bytes(entry.rest)
                return _Log(True, log.first, at, left, entry.previous, offset, end, offset)
        return _Log(False, 0, 0, b"", barrier=offset, base_end=0, latest=offset)

    def note_applied(self, offset: int, entry: Entry) -> None:
        """This change is applied, as are all before it."""
        self.applied = offset + 1
        log = self._logs.get(entry.name)
        if log is not None and log.latest <= offset:
            del self._logs[entry.name]
        if self._files.get(entry.name, (False, offset + 1))[1] <= offset:
            del self._files[entry.name]

    # -- what there will be -------------------------------------------------------------------

    def inventory(self) -> list[Held]:
        """What this node will have of each log.

        Raises:
            StorageError: a log cannot be read.
        """
        held = {each.path: each for each in self._base.inventory()}
        for name, log in self._logs.items():
            own = held.pop(name, None)
            if not log.exists:
                continue
            if log.last is not None:
                held[name] = Held(name, log.first, log.next, log.last)
            elif own is not None:
                last = decode_header(own.last).chunk_id if own.last else own.next_offset
                held[name] = msgspec.structs.replace(own, first_offset=min(log.first, last))
        return list(held.values())

    def files(self, applied: Iterable[str]) -> list[str]:
        """Names of the state files that there will be; `applied` are those that there are."""
        names = dict.fromkeys(applied, True)
        names |= {name: is_there for name, (is_there, _) in self._files.items()}
        return [name for name, is_there in names.items() if is_there]

    def headers(self, name: str, before: int, count: int) -> list[bytes]:
        """The headers of at most `count` chunks that there will be of a log before an offset, newest first.

        Raises:
            StorageError: the spool or the log cannot be read.
        """
        log = self._logs.get(name)
        if log is None:
            return self._base.headers(name, before, count)
        found: list[bytes] = []
        at = log.tail
        while at >= self.applied and len(found) < count:
            entry = self._entry_at(at)
            if entry.name != name or entry.kind != Kind.APPEND:
                raise StorageError(f"log {name}: change {at} of what waits is not a chunk of it")
            begin = _header(entry).chunk_id
            if begin < before:
                found.append(bytes(entry.rest[:HEADER_BYTES]))
            before, at = min(before, begin), entry.previous
        if len(found) < count:
            found += self._base_headers(log, name, before, count - len(found))
        return found

    def _base_headers(self, log: _Log, name: str, before: int, count: int) -> list[bytes]:
        counts = _ALL if log.barrier < self.applied else log.base_end
        before = min(before, counts, log.next)
        return self._base.headers(name, before, count) if before > 0 else []


def _header(entry: Entry) -> Header:
    return decode_header(entry.rest)

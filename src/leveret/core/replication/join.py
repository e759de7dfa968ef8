"""The join of a follower, decided for each log: where its copy continues, and which of its chunks are divergent.

For each log the follower reports its offsets and the header of its last chunk. If the leader has that very chunk, the
copy is a prefix of the leader's log: one header is compared, however long the log is. Otherwise the leader asks for the
headers before it, newest first, each time for twice as many, until one header is the leader's. So the cost of a
join grows with the divergent part of a copy, not with its length.

**Why equal headers mean that everything before is equal.** A chunk is made once, by the one leader of its
epoch, behind everything that this leader's log held; and a copy appends it only behind the same chunks
(at a join this module ensures that, afterwards the order of frames does). Logs change at their ends only:
a drop removes the oldest chunks, a truncation the newest. So if two logs hold the same chunk, both held the same chunks
before it when it was made. A header tells different chunks apart: by the epoch when two leaders appended at that
offset, as each promotion raises the epoch; by timestamp, CRC-32 of the data and lengths when one leader did, which lost
chunks that it had sent in a power failure and came back in its epoch. To be taken for equal, different chunks must have
one epoch, offset, millisecond and length, and a CRC that collides. For the *past* to differ behind a chunk that is
rightly equal, the same data must be written again with the same timestamp after other data than before. A writer whose
timestamps are not the clock's (copies in an outgoing log have the timestamps of their originals) must not come back in
its epoch with less than it has sent.

**Quarantine.** Chunks that the leader does not have are divergent, and nothing divergent is deleted. Where the leader
has dropped too much to compare, histories decide. A *clean* follower (never a leader since it last
finished a join, and a follower in the leader's present epoch) has only chunks that this leader sent: so the leader has
dropped them, or lost them in a power failure before any promise relied on them. Of any other follower all chunks go to
quarantine that were not certainly the leader's once.

**Chunks that were the leader's once.** The log of a drained queue begins anew, and no chunk is left to compare. But all
chunks of one epoch come from one process, in order. If the leader's log, as far as it is dropped, had chunks of an
epoch up to an offset (`LeaderLogs.ended`), then a follower's chunk of that epoch that ends there or before was in it.
The search for the newest such chunk goes on below the leader's begin, and only chunks behind it are divergent.

**A follower that begins later than its leader** has dropped chunks that the leader still holds: the leader was a
follower too, and was promoted before it received the drop. The dropped messages were settled, or beyond retention, by
the records before the drop. If all chunks of the follower are the leader's, the leader has the reason for the drop as
well and will drop them itself: the copy continues. If the follower's end is divergent, the reason may be in the
divergent part, and the leader counts on messages that the follower dropped: then the copy begins anew.
It is quarantined whole, in one step. After a truncation alone, a follower that stopped there would look at its next
join like a follower that dropped chunks with reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from leveret.model.errors import PeerError
from leveret.wire.chunk import HEADER_BYTES, Header, decode_header
from leveret.wire.link import PROBE_CHUNKS_MAX

PROBE_CHUNKS_MIN: Final = 16


class CopyExtent(Protocol):
    """The extent of a follower's copy of a log; `last` is the header of its last chunk, empty without chunks."""

    @property
    def path(self) -> str:
        """The log's name, on every node."""

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""

    @property
    def next_offset(self) -> int:
        """The offset behind its last record."""

    @property
    def last(self) -> bytes:
        """48 octets, or empty."""


class Bounds(NamedTuple):
    """The offsets in the leader's log: `first_offset` inclusive, `next_offset` exclusive."""

    first_offset: int
    next_offset: int


class LeaderLogs(Protocol):
    """The leader's present logs; their ends grow, and old segments are dropped, between two calls."""

    def paths(self) -> Iterable[str]:
        """Return the names of all logs."""

    def bounds(self, path: str) -> Bounds | None:
        """Return the extent of a log; None if there is no such log."""

    def header_at(self, path: str, chunk_id: int) -> bytes | None:
        """Return the header of the chunk that begins at this offset within the bounds; None if none does."""

    def ended(self, path: str) -> Mapping[int, int]:
        """Return, by epoch, the offset behind the epoch's last chunk before the log's begin, where that is known.

        Epochs are those of one line of leaders, of which the follower's chunks are, too.
        """


@dataclass(frozen=True, slots=True)
class Continue:
    """After the earlier steps the copy is a prefix of the leader's log: send the chunks from here on, if any."""

    path: str
    from_offset: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The follower's copy, if any, is of no use: the follower deletes it, and its log begins here."""

    path: str
    from_offset: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Request the headers of chunks that begin before an offset, newest first, up to this many."""

    path: str
    before: int
    chunks_max: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """The follower's records at this offset and after it are divergent: quarantine them."""

    path: str
    at: int


@dataclass(frozen=True, slots=True)
class DropBefore:
    """The leader's log begins here: drop the segments that end before."""

    path: str
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """The leader has deleted the log since it sent the log to the follower."""

    path: str


@dataclass(frozen=True, slots=True)
class QuarantineLog:
    """The leader does not have the log, and may never have had it: quarantine the copy."""

    path: str


Step: TypeAlias = Continue | Begin | Probe | Truncate | DropBefore | DeleteLog | QuarantineLog


class _Probing:
    """The search for a log's last common chunk among the chunks that begin before `before`."""

    __slots__ = ("before", "chunks_max", "end", "extent")

    def __init__(self, extent: CopyExtent, before: int) -> None:
        self.extent = extent
        self.before = before
        self.end = extent.next_offset
        """The highest possible end of the newest of them: the leader's end may lie within a chunk."""
        self.chunks_max = PROBE_CHUNKS_MIN


class Join:
    """The join of one follower; each result is a list of steps, to be taken in that order.

    Steps refer to the leader's logs at that moment: before any other event, the caller takes the steps, or begins to
    note drops and deletes.

    Args:
        leader: the leader's logs.
        is_clean: the follower has only chunks that this leader sent; see the module.
    """

    def __init__(self, leader: LeaderLogs, *, is_clean: bool) -> None:
        """Start without a compared log."""
        self._leader = leader
        self._is_clean = is_clean
        self._seen: set[str] = set()
        self._probing: dict[str, _Probing] = {}

    def doubt(self) -> None:
        """Take the follower for not clean: from now on its chunks go to quarantine, and none is deleted."""
        self._is_clean = False

    def spare(self, path: str) -> None:
        """Leave out a log that the leader cannot read: the follower's copy, if any, can repair it."""
        self._seen.add(path)

    @property
    def is_probing(self) -> bool:
        """Whether the follower owes an answer to a `Probe`."""
        return bool(self._probing)

    def is_undecided(self, path: str) -> bool:
        """Return whether a `Probe` for this log is under way; `probed` takes later changes of the log into account."""
        return path in self._probing

    def compare(self, extent: CopyExtent) -> list[Step]:
        """Decide for a log of the follower; a `Probe` defers the decision to `probed`.

        Raises:
            PeerError: the log was reported before, or its last chunk does not fit its offsets.
        """
        path, first, end = extent.path, extent.first_offset, extent.next_offset
        if path in self._seen:
            raise PeerError(f"the follower reports log {path} twice")
        self._seen.add(path)
        last = _last(extent)
        bounds = self._leader.bounds(path)
        if bounds is None:
            return [DeleteLog(path) if self._is_clean or last is None else QuarantineLog(path)]
        if last is None and first == bounds.first_offset:
            return [Continue(path, first)]
        if last is None or (self._is_clean and end <= bounds.first_offset):
            return [Begin(path, bounds.first_offset)]
        if self._has(path, bounds, last, extent.last):
            return self._continue(extent, bounds, end)
        if end <= bounds.first_offset and end <= self._leader.ended(path).get(last.epoch, 0):
            return [Begin(path, bounds.first_offset)]
        return self._probe(_Probing(extent, min(last.chunk_id, bounds.next_offset)), bounds)

    def rest(self) -> list[Step]:
        """Decide for the leader's other logs, once the follower has reported all of its logs."""
        steps: list[Step] = []
        for path in self._leader.paths():
            bounds = self._leader.bounds(path)
            if path not in self._seen and bounds is not None:
                steps.append(Begin(path, bounds.first_offset))
        return steps

    def probed(self, path: str, headers: Sequence[bytes]) -> list[Step]:
        """Decide by the answer to the last `Probe` of a log.

        Raises:
            PeerError: the log has no open `Probe`, or the headers do not fit it.
        """
        probing = self._probing.get(path)
        if probing is None:
            raise PeerError(f"the follower reports chunks of log {path}, which was not requested")
        found = _checked(probing, headers)
        del self._probing[path]
        extent, bounds = probing.extent, self._leader.bounds(path)
        if bounds is None:
            return [DeleteLog(path) if self._is_clean else QuarantineLog(path)]
        if self._is_clean and extent.next_offset <= bounds.first_offset:
            return [Begin(path, bounds.first_offset)]
        # Everything before a common chunk is common: so for thousands of headers the leader reads a dozen of its own.
        comparable = sum(header.chunk_id >= bounds.first_offset for header in found)
        newest = bisect_left(
            range(comparable), True, key=lambda index: self._has(path, bounds, found[index], headers[index])
        )
        if newest < comparable:
            at = found[newest].next_offset
            return [Truncate(path, at), *self._continue(extent, bounds, at)]
        ended = self._leader.ended(path) if comparable < len(found) else {}
        for header in found[comparable:]:
            if header.next_offset <= ended.get(header.epoch, 0):
                return [Truncate(path, header.next_offset), Begin(path, bounds.first_offset)]
        probing.before = probing.end = found[-1].chunk_id
        probing.chunks_max = min(2 * probing.chunks_max, PROBE_CHUNKS_MAX)
        return self._probe(probing, bounds)

    def _probe(self, probing: _Probing, bounds: Bounds) -> list[Step]:
        """Search further back if the leader can still tell of earlier chunks, and no gap lies before them."""
        extent = probing.extent
        if probing.before <= bounds.first_offset:
            probing.before = min(probing.before, max(self._leader.ended(extent.path).values(), default=0))
        if extent.first_offset <= bounds.first_offset and extent.first_offset < probing.before:
            self._probing[extent.path] = probing
            return [Probe(extent.path, probing.before, probing.chunks_max)]
        return [Truncate(extent.path, extent.first_offset), Begin(extent.path, bounds.first_offset)]

    def _has(self, path: str, bounds: Bounds, header: Header, octets: bytes) -> bool:
        """Return whether the leader has this very chunk."""
        within = bounds.first_offset <= header.chunk_id < bounds.next_offset
        return within and self._leader.header_at(path, header.chunk_id) == octets

    def _continue(self, extent: CopyExtent, bounds: Bounds, from_offset: int) -> list[Step]:
        """Return the steps that continue the copy behind the last common chunk."""
        steps: list[Step] = [Continue(extent.path, from_offset)]
        if extent.first_offset < bounds.first_offset:
            steps.insert(0, DropBefore(extent.path, bounds.first_offset))
        return steps


def _last(extent: CopyExtent) -> Header | None:
    """Return the decoded header of the last chunk; None if the log is empty."""
    if not extent.last and extent.first_offset == extent.next_offset:
        return None
    last = _decoded(extent.path, extent.last)
    if not extent.first_offset <= last.chunk_id < last.next_offset == extent.next_offset:
        raise PeerError(
            f"follower holds offsets {extent.first_offset} to {extent.next_offset} of log {extent.path}, but its last "
            f"chunk is {last.chunk_id} to {last.next_offset}"
        )
    return last


def _checked(probing: _Probing, headers: Sequence[bytes]) -> list[Header]:
    """Decode the headers of an answer; check that they are adjacent, and as many as requested or present."""
    extent, path = probing.extent, probing.extent.path
    found = [_decoded(path, octets) for octets in headers]
    end, end_max = probing.before, probing.end
    for header in found:
        if not extent.first_offset <= header.chunk_id < end <= header.next_offset <= end_max:
            raise PeerError(
                f"the follower reports chunk {header.chunk_id} to {header.next_offset} of log {path}, and one that "
                f"ends at {end} was requested"
            )
        end = end_max = header.chunk_id
    if len(found) > probing.chunks_max or (len(found) < probing.chunks_max and end > extent.first_offset):
        raise PeerError(
            f"the follower reports {len(found)} chunks of log {path} before offset {probing.before}, and "
            f"{probing.chunks_max} were requested"
        )
    return found


def _decoded(path: str, octets: bytes) -> Header:
    """Decode a header; raise ChunkError, a PeerError, for other octets."""
    if len(octets) != HEADER_BYTES:
        raise PeerError(
            f"the follower reports a header of log {path} with {len(octets)} octets instead of {HEADER_BYTES}"
        )
    return decode_header(octets)

"""The copying node's account of one link: checks frames against the present copies, and computes acks. Pure.

A follower has one link, for a whole node; a mirror node has one link to each leader, for some of the leader's logs.

    joining      this node reports its copies to the leader
    copying      the leader sends records from disk, log by log: no state that the leader ever had
    streaming    the leader sends each cut
    per_log      the link of mirrors: its logs join one by one, in frames that have numbers from the first on

**The order of a frame.** The whole frame is checked; its changes are made; the disk has them; failures of single logs
are reported; segments that waited for that are dropped; the frame's number is acked. So no change of an invalid frame
is made, and an ack covers all earlier frames.

**A faulty leader** ends the link with its first invalid frame: a number that goes back, a cut before the join has
ended, a change that is not due, a chunk that does not follow the last one, a truncation or drop behind the end, a chunk
of a later epoch than the leader's, a name that no log can have. With valid frames, a leader may do anything to its
copies; therefore divergent records go to quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from leveret.core.replication.join import Bounds
from leveret.model.errors import PeerError
from leveret.wire.link import ChangeKind, FrameHead, LogChange


class ReceivePhase(StrEnum):
    """The phase of a link: see the module."""

    JOINING = "joining"
    COPYING = "copying"
    STREAMING = "streaming"
    PER_LOG = "per_log"


class ReceiveEvent(StrEnum):
    """An event of a link: a frame of records from disk, the frame of a cut, the end of the join."""

    READ = "read"
    CUT = "cut"
    JOINED = "joined"


_NEXT: Final[Mapping[ReceivePhase, Mapping[ReceiveEvent, ReceivePhase]]] = {
    ReceivePhase.JOINING: {ReceiveEvent.READ: ReceivePhase.COPYING},
    ReceivePhase.COPYING: {
        ReceiveEvent.READ: ReceivePhase.COPYING,
        ReceiveEvent.JOINED: ReceivePhase.STREAMING,
    },
    # A follower that is too slow goes back to copying.
    ReceivePhase.STREAMING: {
        ReceiveEvent.READ: ReceivePhase.COPYING,
        ReceiveEvent.CUT: ReceivePhase.STREAMING,
    },
    ReceivePhase.PER_LOG: {
        ReceiveEvent.READ: ReceivePhase.PER_LOG,
        ReceiveEvent.CUT: ReceivePhase.PER_LOG,
    },
}
_LIVE: Final = frozenset(
    {ChangeKind.APPEND, ChangeKind.DROP, ChangeKind.DELETE, ChangeKind.FILE, ChangeKind.REMOVE}
)
_OF_NO_PLACE: Final = frozenset({ChangeKind.FILE, ChangeKind.REMOVE, ChangeKind.CURSOR})
_REWRITING: Final = frozenset({ChangeKind.BEGIN, ChangeKind.TRUNCATE, ChangeKind.QUARANTINE})
_DUE: Final[Mapping[tuple[ReceivePhase, ReceiveEvent], frozenset[ChangeKind]]] = {
    (ReceivePhase.COPYING, ReceiveEvent.READ): _LIVE | _REWRITING | {ChangeKind.HEAD},
    # A node of a cluster has mirrors' copies, which are truncated, begin anew, and receive prefixes.
    (ReceivePhase.STREAMING, ReceiveEvent.CUT): _LIVE
    | {ChangeKind.BEGIN, ChangeKind.TRUNCATE, ChangeKind.HEAD},
    # A heartbeat before any other frame.
    (ReceivePhase.PER_LOG, ReceiveEvent.READ): frozenset(),
    (ReceivePhase.PER_LOG, ReceiveEvent.CUT): (
        _REWRITING
        | {
            ChangeKind.APPEND,
            ChangeKind.DROP,
            ChangeKind.DELETE,
            ChangeKind.CURSOR,
            ChangeKind.HEAD,
        }
    ),
}
"""The allowed changes, by the phase after the frame and the frame's event."""


class Copied(NamedTuple):
    """The extent of the present copy of a log, None without one, and the epoch in which the leader leads the log."""

    bounds: Bounds | None
    epoch_max: int


class CopiedLogs(Protocol):
    """The copies of this node."""

    def copied(self, name: str) -> Copied | None:
        """Return the present copy of a log; None if the leader has not answered its report: its changes are ignored.

        Raises:
            PeerError: no log or state file can have that name.
        """


class ReplicationReceiver:
    """See the module.

    Attributes:
        phase: see the module.
        names: the names of logs by their number in frames.
        taken: the highest number of an accepted frame.
        acked: the last acked number; 0 for none.
    """

    __slots__ = ("_logs", "acked", "names", "phase", "taken")

    def __init__(self, logs: CopiedLogs, phase: ReceivePhase) -> None:
        """Start without a frame; the phase is `joining` or `per_log`."""
        self._logs = logs
        self.phase = phase
        self.names: dict[int, str] = {}
        self.taken = 0
        self.acked = 0

    def frame(self, head: FrameHead, changes: Sequence[LogChange]) -> bool:
        """Accept a frame, whose changes the caller then makes; return whether to ack its number once they are on disk.

        Raises:
            PeerError: the frame is invalid. The caller makes none of its changes, and ends the link.
        """
        number = head.position
        event = ReceiveEvent.CUT if number else ReceiveEvent.READ
        following = self._following(event, f"cut {number}")
        if event is ReceiveEvent.CUT and number < self.taken:
            raise PeerError(f"the leader sends cut {number} after cut {self.taken}")
        due, here = _DUE[following, event], dict[str, Copied | None]()
        for change in changes:
            if change.kind not in due:
                raise PeerError(f"{_said(change)} is not due while this node is {following}")
            self._check(change, here)
        is_new = number > self.taken or bool(changes)
        self.phase, self.taken = following, max(number, self.taken)
        return is_new

    def joined(self, number: int) -> None:
        """Take the end of the join: this node has everything up to that cut.

        Raises:
            PeerError: no join is under way, or the cut is not after the accepted frames.
        """
        following = self._following(ReceiveEvent.JOINED, "the end of a join")
        if number <= self.taken:
            raise PeerError(f"the leader ends a join at cut {number}, and sent cut {self.taken} before")
        self.phase, self.taken = following, number

    @property
    def number(self) -> int:
        """The number to ack once all accepted frames are on disk; 0 during a join."""
        return self.taken if self.phase in (ReceivePhase.STREAMING, ReceivePhase.PER_LOG) else 0

    def _following(self, event: ReceiveEvent, said: str) -> ReceivePhase:
        following = _NEXT[self.phase].get(event)
        if following is None:
            raise PeerError(f"the leader sends {said}, which is not due while this node is {self.phase}")
        return following

    def _check(self, change: LogChange, here: dict[str, Copied | None]) -> None:
        """Raise PeerError for an invalid change; `here` has the logs after the frame's earlier changes."""
        kind, name, offset = change.kind, change.name, change.offset
        copied = here[name] if name in here else self._logs.copied(name)
        if copied is None or kind in _OF_NO_PLACE:
            return
        bounds = copied.bounds
        if change.chunk is not None:
            header = change.chunk.header
            if header.epoch > copied.epoch_max:
                raise PeerError(
                    f"{_said(change)} has epoch {header.epoch}, above the leader's {copied.epoch_max}"
                )
            if kind is not ChangeKind.APPEND:
                return
            first, end = bounds if bounds is not None else (offset, offset)
            if header.chunk_id != end:
                raise PeerError(
                    f"{_said(change)} begins at offset {header.chunk_id}; the log ends at {end} here"
                )
            bounds = Bounds(first, header.next_offset)
        elif kind is ChangeKind.BEGIN:
            bounds = Bounds(offset, offset)
        elif kind in (ChangeKind.DELETE, ChangeKind.QUARANTINE):
            bounds = None
        elif bounds is None:
            if kind is ChangeKind.TRUNCATE:
                raise PeerError(f"{_said(change)} is of a log that is not here")
        elif offset > bounds.next_offset:
            raise PeerError(f"{_said(change)} is behind the log's end, which is {bounds.next_offset} here")
        elif kind is ChangeKind.TRUNCATE:
            bounds = Bounds(min(offset, bounds.first_offset), offset)
        here[name] = Copied(bounds, copied.epoch_max)


def _said(change: LogChange) -> str:
    at = "" if change.chunk is not None else f" at offset {change.offset}"
    return f"change {change.kind.name}{at} of log {change.name!r:.300}"

"""The leader's account of one link: the frames sent to the peer, and the records that the peer certainly has. Pure.

A *scope* is what a link copies as one: a whole node (a follower has one link with that scope), or one log of it (a
mirror node has one link, with a scope for each log). A scope goes through these phases:

    reporting      the leader waits for the peer's report of its copy
    comparing      the copy is compared with the leader's log (core.replication.join)
    put_off        the copy would begin anew, and promises may rely on it: it is compared again once they do not
    quarantining   the leader sent the divergent offsets: the peer quarantines those records, and reports anew
    catching_up    missing records are read from disk and sent, beside live traffic
    live           each cut is sent; the peer has not acked the frame with which that began
    joined         it has acked that frame: an ack of a cut says that it has all of the scope up to the cut
    ended          its link ended, or it released the scope, cannot write it, or reports it anew

`_NEXT` has every transition; no other one is possible. A peer's messages cause only two of them, `reported` and
`acked`. So no message of a peer, in any phase, gives it a higher standing than these do. An ack of a frame that was not
sent, or one that goes back, ends the link: such a peer counts differently from this leader, and no promise may rely on
its acks.

Frames have rising numbers (core.replication.replica_set). A frame with the number 0 carries records for a follower that
catches up: its ack says that the follower is alive, and does not tell which records it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from leveret.core.replication.replica_set import Acks
from leveret.model.errors import PeerError

WHOLE_NODE: Final = ""
"""The name of the scope of a follower; other scopes have their log's name."""


class SendPhase(StrEnum):
    """The phase of a scope: see the module."""

    REPORTING = "reporting"
    COMPARING = "comparing"
    PUT_OFF = "put_off"
    QUARANTINING = "quarantining"
    CATCHING_UP = "catching_up"
    LIVE = "live"
    JOINED = "joined"
    ENDED = "ended"


class SendEvent(StrEnum):
    """An event of a scope.

    A comparison ends with COMPARED (all records of the peer are common), DIVERGED or POSTPONED.
    """

    REPORTED = "reported"
    COMPARED = "compared"
    DIVERGED = "diverged"
    POSTPONED = "postponed"
    RELEASED = "released"
    CAUGHT_UP = "caught_up"
    ACKED = "acked"
    FELL_BEHIND = "fell_behind"
    ENDED = "ended"


_NEXT: Final[Mapping[SendPhase, Mapping[SendEvent, SendPhase]]] = {
    SendPhase.REPORTING: {SendEvent.REPORTED: SendPhase.COMPARING, SendEvent.ENDED: SendPhase.ENDED},
    SendPhase.COMPARING: {
        SendEvent.COMPARED: SendPhase.CATCHING_UP,
        SendEvent.DIVERGED: SendPhase.QUARANTINING,
        SendEvent.POSTPONED: SendPhase.PUT_OFF,
        SendEvent.ENDED: SendPhase.ENDED,
    },
    SendPhase.PUT_OFF: {SendEvent.RELEASED: SendPhase.COMPARING, SendEvent.ENDED: SendPhase.ENDED},
    SendPhase.QUARANTINING: {SendEvent.ENDED: SendPhase.ENDED},
    SendPhase.CATCHING_UP: {SendEvent.CAUGHT_UP: SendPhase.LIVE, SendEvent.ENDED: SendPhase.ENDED},
    SendPhase.LIVE: {
        SendEvent.ACKED: SendPhase.JOINED,
        SendEvent.FELL_BEHIND: SendPhase.CATCHING_UP,
        SendEvent.ENDED: SendPhase.ENDED,
    },
    SendPhase.JOINED: {SendEvent.FELL_BEHIND: SendPhase.CATCHING_UP, SendEvent.ENDED: SendPhase.ENDED},
    SendPhase.ENDED: {SendEvent.ENDED: SendPhase.ENDED},
}


class SentScope:
    """One scope of a link; see the module.

    Attributes:
        name: the log's name, or WHOLE_NODE.
        phase: see the module.
        is_live: whether each cut is sent: the phase is `live` or `joined`.
        joins_at: the number of the frame with which that began.
        has_read: the offset up to which the peer has acked records that the leader read from disk.
    """

    __slots__ = ("_acks", "_read", "has_read", "is_live", "joins_at", "name", "phase")

    def __init__(self, name: str, acks: Acks) -> None:
        """Start without a report."""
        self.name = name
        self.phase = SendPhase.REPORTING
        self.is_live = False
        self.joins_at = 0
        self.has_read = 0
        self._acks = acks
        self._read: deque[tuple[int, int]] = deque()
        """Unacked frames of records from disk: their number, and the end of the peer's copy after them."""

    def happens(self, event: SendEvent) -> None:
        """Go to the next phase.

        Raises:
            ValueError: the event is impossible in this phase.
        """
        following = _NEXT[self.phase].get(event)
        if following is None:
            raise ValueError(f"{event} is not possible while scope {self.name!r} is {self.phase}")
        self.phase = following
        self.is_live = following in (SendPhase.LIVE, SendPhase.JOINED)

    def read(self, number: int, end: int) -> None:
        """Note that the frame of that number brings the peer's copy up to the offset `end`."""
        self._read.append((number, end))

    def begins_live(self, number: int, end: int) -> None:
        """Note that all missing records were sent; each cut is sent after the frame of this number.

        The peer's records may not be on its disk yet, even if it lacked none. Its ack of this frame tells that they
        are.
        """
        self.happens(SendEvent.CAUGHT_UP)
        self.joins_at = number
        self.read(number, end)

    def falls_behind(self, cut: int, *, has: int, end: int) -> None:
        """Note that no cut after this one is sent; the records up to it, offsets `has` to `end`, are in flight."""
        self.happens(SendEvent.FELL_BEHIND)
        self.has_read = has
        self.read(cut, end)

    def acked(self) -> None:
        """Take new acks of the link."""
        while self._read and self._read[0][0] <= self._acks.cut:
            self.has_read = self._read.popleft()[1]
        if self.phase is SendPhase.LIVE and self._acks.cut >= self.joins_at:
            self.happens(SendEvent.ACKED)

    @property
    def owes_read(self) -> bool:
        """Whether the peer owes an ack of records from disk, or of the frame with which the scope went live."""
        return bool(self._read)


class SentPrefix:
    """The prefix of a log for a mirror whose copy begins later: whole segments, the newest first.

    So the copy is contiguous at every moment; segments that are dropped meanwhile need not be sent.

    Attributes:
        first: the offset at which the peer's copy certainly begins.
        top: the first offset of the copy with every whole segment that was sent.
        part: of the segment that is being sent: its first offset, and the offset behind the last sent chunk.
    """

    __slots__ = ("_tops", "first", "part", "top")

    def __init__(self, first: int) -> None:
        """Start with a copy that begins at this offset."""
        self.first = self.top = first
        self.part: tuple[int, int] | None = None
        self._tops: deque[tuple[int, int]] = deque()
        """Unacked frames that end a segment: their number, and the copy's first offset after them."""

    def begins(self, first: int) -> None:
        """Take the result of the comparison: the copy begins at this offset, and no prefix was sent."""
        self.first = self.top = first
        self.part = None

    def dropped(self, first_offset: int) -> None:
        """Note that the leader's log begins at this offset now."""
        self.first = max(self.first, first_offset)
        self.top = max(self.top, first_offset)

    def next_part(self, first_offset: int, segment: int | None) -> tuple[int, int] | None:
        """Return the first offset of the segment to send, and the offset at which to continue; None without one.

        The log begins at `first_offset`, and its last segment before `top` begins at `segment`.
        """
        if self.part is None or self.part[0] < first_offset:
            self.part = (segment, segment) if segment is not None else None
        return self.part

    def sent(self, number: int, at: int) -> bool:
        """Note that the frame of that number brings the part up to offset `at`; return whether the segment is whole."""
        assert self.part is not None
        start = self.part[0]
        self.part = (start, at)
        if at != self.top:
            return False
        self.top, self.part = start, None
        self._tops.append((number, start))
        return True

    def acked(self, number: int, first_offset: int) -> None:
        """Take an ack: frames up to that number are on the peer's disk; the log begins at `first_offset`."""
        while self._tops and self._tops[0][0] <= number:
            self.first = min(self.first, max(self._tops.popleft()[1], first_offset))

    @property
    def is_owed(self) -> bool:
        """Whether the peer owes an ack of a whole segment."""
        return bool(self._tops)


class ReplicationSender:
    """The account of one link; see the module.

    Attributes:
        acks: the peer's acks; the replica sets of the link's scopes share this object.
        sent: the number of the last frame.
        scopes: the scopes by name.
    """

    __slots__ = ("_owed", "_peer", "_waiting", "acks", "scopes", "sent")

    def __init__(self, peer: str) -> None:
        """Start without a sent frame; `peer` names the other node in errors."""
        self.acks = Acks()
        self.sent = 0
        self.scopes: dict[str, SentScope] = {}
        self._peer = peer
        self._owed: deque[tuple[int, int]] = deque()
        """Unacked cuts: number, and the time of sending."""
        self._waiting: dict[SentScope, None] = {}
        """The scopes that wait for an ack."""

    def begin(self, name: str) -> SentScope:
        """Begin a scope of that name; an earlier one ends."""
        self.end(name)
        scope = self.scopes[name] = SentScope(name, self.acks)
        return scope

    def end(self, name: str) -> None:
        """End a scope: no more frames are sent for it. No effect without such a scope."""
        scope = self.scopes.pop(name, None)
        if scope is not None:
            scope.happens(SendEvent.ENDED)
            self._waiting.pop(scope, None)

    def waits(self, scope: SentScope) -> None:
        """Have `acked` return this scope: at the next ack, and as long as it owes acks of records from disk."""
        self._waiting[scope] = None

    def frame(self, number: int) -> None:
        """Note that a frame, or another message with a number, was sent.

        Raises:
            ValueError: the number goes back.
        """
        if 0 < number < self.sent:
            raise ValueError(f"frame {number} comes behind frame {self.sent}")
        self.sent = max(self.sent, number)

    def cut(self, number: int, at_ms: int) -> None:
        """Note the frame of a cut, as `frame` does; promises may wait for its ack, so the ack is owed from now on."""
        self.frame(number)
        self._owed.append((number, at_ms))

    def acked(self, number: int) -> list[SentScope]:
        """Take an ack: the peer's disk has all frames up to that number; return the scopes that waited for an ack.

        Raises:
            PeerError: that frame was not sent, or the peer acked a later one before; the caller ends the link.
        """
        acks = self.acks
        if number > self.sent:
            raise PeerError(f"{self._peer} acks {number}, but {self.sent} was sent last")
        if 0 < number < acks.cut:
            raise PeerError(f"{self._peer} acks {number} after it had acked {acks.cut}")
        if number <= acks.cut:
            return []
        acks.cut = number
        while self._owed and self._owed[0][0] <= number:
            self._owed.popleft()
        waiting = list(self._waiting)
        for scope in waiting:
            scope.acked()
            if not scope.owes_read:
                del self._waiting[scope]
        return waiting

    @property
    def owed_since_ms(self) -> int | None:
        """The time at which the oldest unacked cut was sent; None if all cuts are acked."""
        return self._owed[0][1] if self._owed else None

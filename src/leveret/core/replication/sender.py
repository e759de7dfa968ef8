"""The leader's account of one link: what was sent to the peer, and what the peer has of that for certain. Pure.

A *scope* is what a link copies as one: a whole node (a follower has one link with that scope), or one log of it (a
mirror node has one link, with a scope for each log). A scope goes through these phases:

    reporting      the peer is to report what it has
    comparing      that is compared with what is here (core.replication.join)
    put_off        the peer would be left with nothing, and is counted on: it is compared again once it is not
    quarantining   the peer was told which records are divergent: it sets them aside, and reports anew
    catching_up    missing records are read from disk and sent, beside live traffic
    live           each cut is sent; the peer has not acked the frame with which that began
    joined         it has acked that frame: an ack of a cut says that it has all of the scope up to the cut
    ended          its link ended, or it released the scope, cannot write it, or reports it anew

`_NEXT` has every transition; no other one is possible. A peer decides by its words on two of them, `reported` and
`acked`. So whatever a peer says, and in whichever phase, it cannot make more of itself than that. An ack of a frame
that was not sent, or one that goes back, ends the link: whoever sends such an ack does not count as this leader does,
and no promise may rest on its word.

Frames have rising numbers (core.replication.replica_set). A frame with the number 0 carries records for a follower that
catches up: the ack of it says that the follower is there, and nothing of what it has.
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
    """What happens to a scope.

    The result of the comparison is one of COMPARED (what the peer has is common), DIVERGED and POSTPONED.
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
        name: of the log, or WHOLE_NODE.
        phase: see the module.
        is_live: each cut is sent; the phase is `live` or `joined`.
        joins_at: the number of the frame with which that began.
        has_read: the offset up to which the peer has acked the records that were read from disk for it.
    """

    __slots__ = ("_acks", "_read", "has_read", "is_live", "joins_at", "name", "phase")

    def __init__(self, name: str, acks: Acks) -> None:
        """Nothing is reported."""
        self.name = name
        self.phase = SendPhase.REPORTING
        self.is_live = False
        self.joins_at = 0
        self.has_read = 0
        self._acks = acks
        self._read: deque[tuple[int, int]] = deque()
        """Frames that were read from disk and are not acked: number, and up to where the peer has the log then."""

    def happens(self, event: SendEvent) -> None:
        """Go to the next phase.

        Raises:
            ValueError: that cannot happen in this phase.
        """
        following = _NEXT[self.phase].get(event)
        if following is None:
            raise ValueError(f"{event} is not possible while scope {self.name!r} is {self.phase}")
        self.phase = following
        self.is_live = following in (SendPhase.LIVE, SendPhase.JOINED)

    def read(self, number: int, end: int) -> None:
        """The frame of that number brings the peer up to the offset `end`."""
        self._read.append((number, end))

    def begins_live(self, number: int, end: int) -> None:
        """All was read and sent; each cut is sent after the frame of this number.

        What the peer has may not be on its disk yet, also where it lacked nothing. Its ack of this frame says so.
        """
        self.happens(SendEvent.CAUGHT_UP)
        self.joins_at = number
        self.read(number, end)

    def falls_behind(self, cut: int, *, has: int, end: int) -> None:
        """No cut after that one is sent; everything up to it is on its way, from the offset `has` up to `end`."""
        self.happens(SendEvent.FELL_BEHIND)
        self.has_read = has
        self.read(cut, end)

    def acked(self) -> None:
        """The acks of the link have risen."""
        while self._read and self._read[0][0] <= self._acks.cut:
            self.has_read = self._read.popleft()[1]
        if self.phase is SendPhase.LIVE and self._acks.cut >= self.joins_at:
            self.happens(SendEvent.ACKED)

    @property
    def owes_read(self) -> bool:
        """Whether an ack of what was read, or of the frame with which it went live, is to come."""
        return bool(self._read)


class SentPrefix:
    """The prefix of a log for a mirror whose copy begins later: whole segments, the newest first.

    So the copy is contiguous at every moment; what is dropped at the old end meanwhile need not be sent.

    Attributes:
        first: the offset at which the peer's copy begins, for certain.
        top: the same with every whole segment that was sent.
        part: of the segment that is being sent: its first offset, and the offset behind the last chunk that was sent.
    """

    __slots__ = ("_tops", "first", "part", "top")

    def __init__(self, first: int) -> None:
        """Of a copy that begins there."""
        self.first = self.top = first
        self.part: tuple[int, int] | None = None
        self._tops: deque[tuple[int, int]] = deque()
        """Frames with the end of a segment that are not acked: number, and where the copy begins then."""

    def begins(self, first: int) -> None:
        """The comparison was decided: the copy begins there, and nothing in front of it was sent."""
        self.first = self.top = first
        self.part = None

    def dropped(self, first_offset: int) -> None:
        """The leader's log begins there now."""
        self.first = max(self.first, first_offset)
        self.top = max(self.top, first_offset)

    def next_part(self, first_offset: int, segment: int | None) -> tuple[int, int] | None:
        """The segment to send, and where to go on in it; None for none.

        Of a log that begins at `first_offset`, whose last segment before `top` begins at `segment`.
        """
        if self.part is None or self.part[0] < first_offset:
            self.part = (segment, segment) if segment is not None else None
        return self.part

    def sent(self, number: int, at: int) -> bool:
        """The frame of that number brings the part up to offset `at`; whether the segment is whole with that."""
        assert self.part is not None
        start = self.part[0]
        self.part = (start, at)
        if at != self.top:
            return False
        self.top, self.part = start, None
        self._tops.append((number, start))
        return True

    def acked(self, number: int, first_offset: int) -> None:
        """Frames up to that number are on the peer's disk; the log begins at `first_offset`."""
        while self._tops and self._tops[0][0] <= number:
            self.first = min(self.first, max(self._tops.popleft()[1], first_offset))

    @property
    def is_owed(self) -> bool:
        """Whether an ack of a whole segment is to come."""
        return bool(self._tops)


class ReplicationSender:
    """The account of one link; see the module.

    Attributes:
        acks: what the peer has acked; the replica sets of the link's scopes share this.
        sent: the number of the last frame.
        scopes: by name.
    """

    __slots__ = ("_owed", "_peer", "_waiting", "acks", "scopes", "sent")

    def __init__(self, peer: str) -> None:
        """Nothing was sent; `peer` names the other node in errors."""
        self.acks = Acks()
        self.sent = 0
        self.scopes: dict[str, SentScope] = {}
        self._peer = peer
        self._owed: deque[tuple[int, int]] = deque()
        """Cuts that are not acked: number, and when each was sent."""
        self._waiting: dict[SentScope, None] = {}
        """The scopes that wait for an ack."""

    def begin(self, name: str) -> SentScope:
        """A scope of that name begins; an earlier one ends."""
        self.end(name)
        scope = self.scopes[name] = SentScope(name, self.acks)
        return scope

    def end(self, name: str) -> None:
        """Nothing of that scope is sent any more; nothing happens without one."""
        scope = self.scopes.pop(name, None)
        if scope is not None:
            scope.happens(SendEvent.ENDED)
            self._waiting.pop(scope, None)

    def waits(self, scope: SentScope) -> None:
        """Have `acked` return this scope: at its next ack, and as long as it owes acks of what was read."""
        self._waiting[scope] = None

    def frame(self, number: int) -> None:
        """A frame, or another message with a number, was sent.

        Raises:
            ValueError: numbers do not go back.
        """
        if 0 < number < self.sent:
            raise ValueError(f"frame {number} comes behind frame {self.sent}")
        self.sent = max(self.sent, number)

    def cut(self, number: int, at_ms: int) -> None:
        """As `frame`, of a cut; promises may wait for its ack, so the ack is owed from now on."""
        self.frame(number)
        self._owed.append((number, at_ms))

    def acked(self, number: int) -> list[SentScope]:
        """Everything up to the frame of that number is on the peer's disk; the scopes that waited for an ack.

        Raises:
            PeerError: that was not sent, or the peer had acked more before: the link is to be ended.
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
        """When the oldest cut was sent that is not acked; None if all are."""
        return self._owed[0][1] if self._owed else None

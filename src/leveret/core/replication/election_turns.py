"""The election of a leader, of a node among its followers or of a queue among its mirrors: pure.

Both have a record in etcd that names the leader and the replicas with every confirmed message. Each node decides for
itself, from three facts:

    RecordedLeader   the leader in the record: this node, another one that runs, or one that does not run
    LocalCopy        this node's copy: whole; unreadable; or torn, when it may lack messages despite the record
    Successor        the replica that leads next by the rules of core.replication.leader_and_mirrors

`_NEXT` has the turn of this node for each combination. A turn is carried out by a conditional write of the record, so
of several nodes that take their turn at once one succeeds. The nodes of a cluster know which of them run, and all of
them choose the same successor; a node that follows another one does not know that, so each of them chooses itself, if
it may.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Final

from leveret.core.replication.leader_and_mirrors import QueuePromotion


class RecordedLeader(StrEnum):
    """The leader in the record, as this node sees it."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    GONE = "gone"

    @classmethod
    def seen(cls, leader: str, me: str, running: Container[str]) -> RecordedLeader:
        """Return where the recorded leader is, from the nodes that run."""
        if leader == me:
            return cls.HERE
        return cls.ELSEWHERE if leader in running else cls.GONE


class LocalCopy(StrEnum):
    """The state of this node's copy: see the module."""

    WHOLE = "whole"
    TORN = "torn"
    UNREADABLE = "unreadable"


class Successor(StrEnum):
    """The replica that leads next; with or without every confirmed message."""

    ONLY_THIS = "only_this"
    """This node, and the record names no other one with every confirmed message."""
    THIS = "this"
    THIS_WITH_LOSS = "this_with_loss"
    OTHER = "other"
    OTHER_WITH_LOSS = "other_with_loss"
    NOBODY = "nobody"

    @classmethod
    def by(cls, promoted: QueuePromotion, me: str, *, is_only: bool = False) -> Successor:
        """Return the successor that the rules name; `is_only`: no other replica is recorded as complete."""
        if promoted.leader is None:
            return cls.NOBODY
        if promoted.leader != me:
            return cls.OTHER if promoted.is_complete else cls.OTHER_WITH_LOSS
        if not promoted.is_complete:
            return cls.THIS_WITH_LOSS
        return cls.ONLY_THIS if is_only else cls.THIS


class ElectionTurn(StrEnum):
    """The step that a node takes now.

    LEAD goes on leading; FOLLOW copies from the leader. HAND_OVER writes the successor, and TAKE_OVER this node, into
    the record as the leader. GIVE_WAY leaves the lead to replicas that certainly have every confirmed message.
    WAIT waits for the successor, or for a copy's repair. DOWN waits for the leader: no replica may lead.
    """

    LEAD = "lead"
    FOLLOW = "follow"
    HAND_OVER = "hand_over"
    TAKE_OVER = "take_over"
    GIVE_WAY = "give_way"
    WAIT = "wait"
    DOWN = "down"


_TAKEN: Final = {
    Successor.ONLY_THIS: ElectionTurn.TAKE_OVER,
    Successor.THIS: ElectionTurn.TAKE_OVER,
    Successor.THIS_WITH_LOSS: ElectionTurn.TAKE_OVER,
    Successor.OTHER: ElectionTurn.WAIT,
    Successor.OTHER_WITH_LOSS: ElectionTurn.WAIT,
    Successor.NOBODY: ElectionTurn.DOWN,
}
_NEXT: Final[Mapping[tuple[RecordedLeader, LocalCopy], Mapping[Successor, ElectionTurn]]] = {
    (RecordedLeader.HERE, LocalCopy.WHOLE): dict.fromkeys(Successor, ElectionTurn.LEAD),
    # Nobody has more: it took over as the only one.
    (RecordedLeader.HERE, LocalCopy.TORN): dict.fromkeys(Successor, ElectionTurn.LEAD),
    # A copy that may still be repaired is better than a replica that lacks messages.
    (RecordedLeader.HERE, LocalCopy.UNREADABLE): dict.fromkeys(Successor, ElectionTurn.WAIT)
    | {Successor.OTHER: ElectionTurn.HAND_OVER},
    (RecordedLeader.ELSEWHERE, LocalCopy.WHOLE): dict.fromkeys(Successor, ElectionTurn.FOLLOW),
    (RecordedLeader.ELSEWHERE, LocalCopy.TORN): dict.fromkeys(Successor, ElectionTurn.FOLLOW),
    (RecordedLeader.ELSEWHERE, LocalCopy.UNREADABLE): dict.fromkeys(Successor, ElectionTurn.FOLLOW),
    (RecordedLeader.GONE, LocalCopy.WHOLE): _TAKEN,
    (RecordedLeader.GONE, LocalCopy.TORN): _TAKEN | {Successor.THIS: ElectionTurn.GIVE_WAY},
    (RecordedLeader.GONE, LocalCopy.UNREADABLE): dict.fromkeys(Successor, ElectionTurn.GIVE_WAY),
}


def turn(leader: RecordedLeader, copy: LocalCopy, successor: Successor) -> ElectionTurn:
    """Return the turn of this node: see the module."""
    return _NEXT[leader, copy][successor]

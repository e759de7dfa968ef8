"""core.replication.sender: phases of a scope as a table over all pairs, and peers that lie in every one of them."""

from __future__ import annotations

import random
from typing import Final

import pytest

from leveret.core.replication.replica_set import ReplicaSet
from leveret.core.replication.sender import ReplicationSender, SendEvent, SendPhase, SentPrefix, SentScope
from leveret.model.errors import PeerError
from tests.seeds import seeds

R, C, P, Q, U, L, J, E = SendPhase
WAYS: Final[dict[SendPhase, tuple[SendEvent, ...]]] = {
    R: (),
    C: (SendEvent.REPORTED,),
    P: (SendEvent.REPORTED, SendEvent.POSTPONED),
    Q: (SendEvent.REPORTED, SendEvent.DIVERGED),
    U: (SendEvent.REPORTED, SendEvent.COMPARED),
    L: (SendEvent.REPORTED, SendEvent.COMPARED, SendEvent.CAUGHT_UP),
    J: (SendEvent.REPORTED, SendEvent.COMPARED, SendEvent.CAUGHT_UP, SendEvent.ACKED),
    E: (SendEvent.ENDED,),
}
TABLE: Final[dict[SendPhase, tuple[SendPhase | None, ...]]] = {
    #  reported compared diverged postponed released caught_up acked behind ended
    R: (C, None, None, None, None, None, None, None, E),
    C: (None, U, Q, P, None, None, None, None, E),
    P: (None, None, None, None, C, None, None, None, E),
    Q: (None, None, None, None, None, None, None, None, E),
    U: (None, None, None, None, None, L, None, None, E),
    L: (None, None, None, None, None, None, J, U, E),
    J: (None, None, None, None, None, None, None, U, E),
    E: (None, None, None, None, None, None, None, None, E),
}


def scope_in(phase: SendPhase, sender: ReplicationSender | None = None) -> SentScope:
    scope = (sender or ReplicationSender("b")).begin("log")
    for event in WAYS[phase]:
        scope.happens(event)
    assert scope.phase is phase
    return scope


@pytest.mark.parametrize("phase", SendPhase)
@pytest.mark.parametrize("event", SendEvent)
def test_phases_follow_the_table(phase: SendPhase, event: SendEvent) -> None:
    scope, expected = scope_in(phase), TABLE[phase][list(SendEvent).index(event)]
    if expected is None:
        with pytest.raises(ValueError, match="is not possible while"):
            scope.happens(event)
        expected = phase
    else:
        scope.happens(event)
    assert scope.phase is expected
    assert scope.is_live == (expected in (L, J))


def test_only_the_ack_of_the_frame_with_which_it_went_live_lets_cuts_count() -> None:
    sender = ReplicationSender("b")
    scope = scope_in(U, sender)
    sender.frame(3)
    scope.read(3, 40)
    sender.frame(5)
    scope.begins_live(5, 60)
    sender.waits(scope)
    assert sender.acked(4) == [scope]
    assert (scope.phase, scope.has_read, scope.owes_read) == (L, 40, True)
    sender.waits(scope)
    assert sender.acked(5) == [scope]
    assert (scope.phase, scope.has_read, scope.owes_read) == (J, 60, False)
    assert sender.acked(5) == []


def test_one_that_falls_behind_has_what_it_had_acked_until_it_acks_the_last_cut() -> None:
    sender = ReplicationSender("b")
    scope = scope_in(J, sender)
    sender.cut(9, at_ms=100)
    scope.falls_behind(9, has=70, end=90)
    sender.waits(scope)
    assert (scope.phase, scope.has_read, sender.owed_since_ms) == (U, 70, 100)
    sender.acked(9)
    assert (scope.phase, scope.has_read, sender.owed_since_ms) == (U, 90, None)


def test_a_scope_that_is_reported_anew_is_another_one_and_acks_say_nothing_of_it() -> None:
    sender = ReplicationSender("b")
    before = scope_in(L, sender)
    before.joins_at = 4
    sender.frame(4)
    sender.waits(before)
    after = sender.begin("log")
    assert (before.phase, after.phase) == (E, R)
    assert sender.acked(4) == []
    assert (before.phase, after.phase) == (E, R)


@pytest.mark.parametrize("phase", SendPhase)
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (8, "b acks 8, but 7 was sent last"),
        (1 << 62, "but 7 was sent last"),
        (3, "b acks 3 after it had acked 5"),
    ],
)
def test_an_ack_that_cannot_be_ends_the_link_and_counts_for_nothing(
    phase: SendPhase, number: int, said: str
) -> None:
    sender = ReplicationSender("b")
    scope = scope_in(phase, sender)
    sender.frame(7)
    sender.acked(5)
    if phase is not E:
        sender.waits(scope)
    with pytest.raises(PeerError, match=said):
        sender.acked(number)
    assert (scope.phase, sender.acks.cut) == (phase, 5)


def test_an_ack_of_frames_without_a_number_says_nothing() -> None:
    sender = ReplicationSender("b")
    sender.frame(7)
    sender.acked(6)
    assert sender.acked(0) == []
    assert sender.acks.cut == 6


def test_numbers_of_frames_do_not_go_back() -> None:
    sender = ReplicationSender("b")
    sender.frame(7)
    sender.frame(0)
    with pytest.raises(ValueError, match="frame 6 comes behind frame 7"):
        sender.frame(6)


@pytest.mark.parametrize("seed", seeds(200, each_time=40))
def test_no_promise_is_kept_by_what_a_peer_makes_up(seed: int) -> None:
    """A peer acks what it likes, at any time; promises count on what was really sent to it, and on nothing else."""
    dice = random.Random(seed)
    sender, replicas = ReplicationSender("b"), ReplicaSet()
    replicas.wait_for([frozenset({"b"})])
    scope, number, counts = sender.begin("log"), 0, False
    for _ in range(60):
        number += dice.randint(1, 3)
        match dice.choice(["step", "cut", "ack", "lie", "behind", "again"]):
            case "step" if scope.phase is R:
                scope.happens(SendEvent.REPORTED)
            case "step" if scope.phase is C:
                scope.happens(SendEvent.COMPARED)
            case "step" if scope.phase is U:
                sender.frame(number)
                scope.begins_live(number, number)
                sender.waits(scope)
            case "cut" if scope.is_live:
                sender.cut(number, number)
            case "behind" if scope.is_live:
                scope.falls_behind(sender.sent, has=0, end=0)
                replicas.left("b")
                counts = False
            case "again":
                scope = sender.begin("log")
                replicas.begins_anew("b")
                counts = False
            case "ack" if sender.sent:
                said = dice.randint(max(0, sender.acks.cut), sender.sent)
                sender.acked(said)
            case "lie":
                said = dice.choice([sender.sent + dice.randint(1, 1 << 40), sender.acks.cut - 1])
                if said > 0:
                    with pytest.raises(PeerError):
                        sender.acked(said)
        if scope.phase is J and not counts:
            replicas.joined("b", sender.acks, scope.joins_at)
            counts = True
        kept = replicas.reached(1 << 62)
        assert kept <= sender.sent
        if scope.is_live and not counts:
            assert sender.acks.cut < scope.joins_at


def test_a_prefix_counts_segment_by_segment_once_it_is_acked() -> None:
    prefix = SentPrefix(0)
    prefix.begins(30)
    assert prefix.next_part(0, 20) == (20, 20)
    assert not prefix.sent(1, 25)
    assert prefix.next_part(0, 20) == (20, 25)
    assert prefix.sent(2, 30)
    assert (prefix.first, prefix.top, prefix.is_owed) == (30, 20, True)
    prefix.acked(1, 0)
    assert prefix.first == 30
    prefix.acked(2, 0)
    assert (prefix.first, prefix.is_owed) == (20, False)


def test_a_part_of_a_dropped_segment_is_not_gone_on_with() -> None:
    prefix = SentPrefix(0)
    prefix.begins(30)
    prefix.next_part(0, 10)
    prefix.sent(1, 15)
    prefix.dropped(20)
    assert prefix.next_part(20, 20) == (20, 20)
    prefix.sent(2, 30)
    prefix.dropped(30)
    prefix.acked(2, 30)
    assert (prefix.first, prefix.top) == (30, 30)
    assert prefix.next_part(30, None) is None

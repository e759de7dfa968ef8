"""Many deliveries that are settled or come back each by itself: in turns, to the same end as in one step.

Each story is played twice: on a node that does all at once, and on one that does one run with each flush, where
others act in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pamqp.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import base, commands

from leveret.core.broker import deferred_work
from leveret.core.queues import queue_types
from leveret.session.amqp091 import channel, delivery, settling
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import ClientConnection
from tests.unit.session.amqp091.fakes import FakeNode, connect, frame, publish, take

QUIET_PASSES = 5
COUNT = 40
"""Messages, of which every other one comes back: more than there are flushes before an end is looked for."""
QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 1},
    "priority": {"x-max-priority": 3},
    "dead-lettered": {"x-dead-letter-exchange": "dlx"},
}
ENDS: dict[str, list[base.Frame]] = {
    "closed": [commands.Channel.Close(200, "", 0, 0)],
    "recovered": [commands.Basic.Recover(requeue=True)],
    "requeued": [commands.Basic.Nack(0, True, True)],
    "requeued partly": [commands.Basic.Nack(COUNT - 4, True, True)],
    "rejected": [commands.Basic.Nack(0, True, False)],
    "acked": [commands.Basic.Ack(0, True)],
    "acked partly": [commands.Basic.Ack(COUNT - 4, True)],
    "failed": [commands.Basic.Ack(COUNT - 3)],
    "committed": [commands.Basic.Ack(0, True), commands.Tx.Commit()],
    "rolled back": [commands.Basic.Ack(0, True), commands.Tx.Rollback()],
}
BETWEEN: dict[str, list[bytes]] = {
    "publish": publish(b"new", priority=2),
    "get": [frame(commands.Basic.Get(queue="q", no_ack=True))],
    "consume": [frame(commands.Basic.Consume(queue="q", consumer_tag="late"))],
    "purge": [frame(commands.Queue.Purge(queue="q"))],
    "declare": [frame(commands.Queue.Declare(queue="q", passive=True))],
    "delete if empty": [frame(commands.Queue.Delete(queue="q", if_empty=True))],
    "delete": [frame(commands.Queue.Delete(queue="q"))],
}


class Result(NamedTuple):
    """What others see of a story."""

    client: list[object]
    other: list[object]
    settled: list[tuple[bytes, int]]
    dead: list[tuple[bytes, str]]
    counts: tuple[int, int, int] | None


@contextmanager
def slicing(*, is_on: bool) -> Iterator[None]:
    """Do one run with a flush, or everything at once."""
    with pytest.MonkeyPatch.context() as patch:
        few = 1 if is_on else 10_000
        for module in (delivery, settling, channel):
            patch.setattr(module, "FEW", few)
        patch.setattr(settling, "PART_RUNS", 1)
        patch.setattr(deferred_work, "AT_ONCE", 1)
        yield


class Story:
    """A client that holds every other message of a queue, another one, and one whose consumer takes nothing yet."""

    def __init__(self, kind: str, end: str, *, has_waiting: bool = False) -> None:
        self.node = FakeNode()
        self.client, self.other, self.waiting = (connect(self.node, 1) for _ in range(3))
        self.waiting.is_paused = True
        self._woken: list[ClientConnection] = []
        for session in (self.client, self.other):
            session.wake = lambda session=session: self._woken.append(session)  # type: ignore[misc]
        self.send(self.other, frame(commands.Queue.Declare(queue="q", durable=True, arguments=QUEUES[kind])))
        for number in range(COUNT):
            self.send(self.other, *publish(str(number).encode(), priority=number % 3))
        self._flush()
        self.queue = self.node.queue("q")
        if has_waiting:
            self.send(
                self.waiting, frame(commands.Basic.Consume(queue="q", consumer_tag="waiting", no_ack=True))
            )
        self.send(self.client, frame(commands.Basic.Consume(queue="q", consumer_tag="early")))
        self._flush()
        self.send(self.client, *[frame(commands.Basic.Ack(tag)) for tag in range(1, COUNT, 2)])
        self.send(self.client, frame(commands.Basic.Cancel("early")))
        if end in ("committed", "rolled back"):
            self.send(self.client, frame(commands.Tx.Select()))
        self._flush()
        take(self.client)
        take(self.other)

    def send(self, session: ClientConnection, *octets: bytes) -> None:
        session.receive(b"".join(octets), 0)

    def _flush(self) -> None:
        self.node.flush(self.client, self.other, self.waiting)

    def turn(self) -> None:
        """A flush, and then what it woke."""
        self._flush()
        woken, self._woken = self._woken, []
        for session in woken:
            session.go_on(0)

    def play(self, end: str, between: list[str], is_lost: bool) -> Result:
        before = self.queue.message_count
        self.waiting.resume()
        if end == "lost":
            self.client.lost()
        else:
            self.send(self.client, *map(frame, ENDS[end]))
        if is_lost and end != "lost":
            self.client.lost()
        for action in between:
            self.send(self.other, *BETWEEN[action])
            if self.node.broker.deferred_work:
                self.turn()
                self._check(before)
        quiet = 0
        for _ in range(5 * COUNT):
            self.turn()
            quiet = 0 if self.node.broker.deferred_work or self.queue.backlog.unsorted else quiet + 1
            if quiet == QUIET_PASSES:
                break
        assert not self.node.broker.deferred_work
        assert not self.queue.pending_returns
        assert self.other.blocked_reason is None
        return self._result()

    def _check(self, before: int) -> None:
        """A node that ends here starts with what is not settled: nothing is lost, nor is more there than was."""
        queue = self.queue
        if self.node.broker.queues.get(queue.key) is queue:
            published = len([each for each in self.node.logs[queue] if each is not None]) - COUNT
            logged = [*self.node.settled.get(queue, []), *queue.settling]
            settled = sum(end - first for _, first, end in logged) - (COUNT - before)
            assert queue.message_count == before + published - settled
            assert queue.ready_count + queue.unacked_count == queue.message_count
            if self.client.blocked_reason is not None:
                assert self.client.blocked_reason is BlockedReason.REMOTE

    def _result(self) -> Result:
        queue = self.queue
        log = self.node.logs[queue]

        def body(offset: int) -> bytes:
            return (log[offset] or (None, b"a record"))[1]

        settled = [
            (body(offset), reason)
            for reason, first, end in self.node.settled.get(queue, [])
            for offset in range(first, end)
        ]
        is_there = self.node.broker.queues.get(queue.key) is queue
        dead = [
            (body(offset), letters.reason)
            for letters in queue.dead_lettering.take()
            for run in letters.runs
            for offset in range(run.first, run.end)
        ]
        counts = (queue.ready_count, queue.unacked_count, queue.consumer_count) if is_there else None
        # The log of a queue that is deleted goes with it.
        kept = sorted(settled) if is_there else []
        others = [*_shown(self.other), *_shown(self.waiting)]
        return Result(_shown(self.client), others, kept, dead if is_there else [], counts)


def _shown(session: ClientConnection) -> list[object]:
    """What a client was sent, and how it ended."""
    frames = [
        each if isinstance(each, bytes) else bytes(pamqp.frame.marshal(each, 1)) for _, each in take(session)
    ]
    return [*frames, session.state.name]


NOT_HOLDING = ("acked", "acked partly", "rejected", "committed", "rolled back")
"""While these are done the queue is served: what a consumer has got before a purge depends on the flushes."""


def played(
    kind: str, end: str, between: list[str], is_lost: bool, *, is_sliced: bool, has_waiting: bool = False
) -> Result:
    with slicing(is_on=is_sliced):
        return Story(kind, end, has_waiting=has_waiting).play(end, between, is_lost)


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(QUEUES)),
    end=st.sampled_from([*sorted(ENDS), "lost"]),
    between=st.lists(st.sampled_from(sorted(BETWEEN)), max_size=6),
    is_lost=st.booleans(),
)
def test_in_turns_all_ends_as_it_does_in_one_step(
    kind: str, end: str, between: list[str], is_lost: bool
) -> None:
    if end in NOT_HOLDING:
        between = [each for each in between if each != "consume"]
    in_turns = played(kind, end, between, is_lost, is_sliced=True)
    at_once = played(kind, end, between, is_lost, is_sliced=False)
    assert in_turns == at_once


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(QUEUES)),
    end=st.sampled_from([*sorted(ENDS), "lost"]),
    count=st.integers(0, 6),
    is_lost=st.booleans(),
)
def test_who_waits_gets_what_came_back_in_turns_in_the_same_order(
    kind: str, end: str, count: int, is_lost: bool
) -> None:
    is_lost = is_lost and end not in NOT_HOLDING
    between = ["publish"] * count
    in_turns = played(kind, end, between, is_lost, is_sliced=True, has_waiting=True)
    assert in_turns == played(kind, end, between, is_lost, is_sliced=False, has_waiting=True)


MANY = 3 * delivery.FEW


def consuming(node: FakeNode, *queues: commands.Queue.Declare, **arguments: Any) -> ClientConnection:
    """A client with a consumer on each of these queues."""
    session = connect(node, 1)
    session.wake = lambda: session.go_on(0)
    for declare in queues:
        session.receive(frame(declare), 0)
        session.receive(frame(commands.Basic.Consume(queue=declare.queue, **arguments)), 0)
    node.flush(session)
    take(session)
    return session


def named(session: ClientConnection) -> list[str]:
    return [each.name for _, each in take(session)]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node that does two parts between flushes, and one more with each."""
    monkeypatch.setattr(deferred_work, "AT_ONCE", 2)
    return FakeNode()


def declares(**arguments: Any) -> list[commands.Queue.Declare]:
    return [commands.Queue.Declare(queue=f"q{number}", **arguments) for number in range(MANY)]


def test_a_consumer_that_is_about_to_leave_gets_nothing_more(node: FakeNode) -> None:
    gone, other = consuming(node, *declares()), connect(node, 1)
    gone.lost()
    other.receive(b"".join(octets for each in declares() for octets in publish(b"1", each.queue)), 0)
    for _ in range(4 * MANY):
        node.flush(other)
        assert take(gone) == []
    assert not node.broker.deferred_work
    assert {queue.ready_count for queue in node.broker.queues.values()} == {1}
    assert not any(queue.consumers or queue.pending_returns for queue in node.broker.queues.values())


def test_who_comes_after_an_exclusive_consumer_that_leaves_in_turns_is_let_in(node: FakeNode) -> None:
    consuming(node, *declares(), exclusive=True).lost()
    other = connect(node, 1)
    other.wake = lambda: other.go_on(0)
    other.receive(frame(commands.Basic.Consume(queue="q0")) + frame(commands.Basic.Qos()), 0)
    assert take(other) == []
    while other.blocked_reason is not None:
        node.flush(other)
    assert named(other) == ["Basic.ConsumeOk", "Basic.QosOk"]


def test_a_queue_that_nobody_needs_any_more_can_be_declared_with_other_properties(node: FakeNode) -> None:
    """Its last consumer leaves in turns: until it has, the declaration waits."""
    consuming(node, *declares(auto_delete=True)).lost()
    other = connect(node, 1)
    other.wake = lambda: other.go_on(0)
    other.receive(frame(commands.Queue.Declare(queue="q0", durable=True)), 0)
    for _ in range(4 * MANY):
        node.flush(other)
    assert named(other) == ["Queue.DeclareOk"]
    assert set(node.broker.queues) == {("/", "q0")}


def test_queues_go_on_some_with_each_flush(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that goes on is dispatched by the flush: of 5,000 at once that took 48 ms."""
    monkeypatch.setattr(settling, "QUEUES_AT_ONCE", 5)
    consuming(node, *declares()).lost()
    most = 0
    while node.broker.deferred_work:
        node.broker.dirty.clear()
        node.broker.deferred_work.go_on(lambda: False)
        if not node.broker.deferred_work:
            break
        if any(not queue.pending_returns for queue in node.broker.queues.values()):
            most = max(most, sum(not each.pending_returns for each in node.broker.dirty))
    assert most == 5


def test_acknowledgements_of_a_read_that_are_each_by_themselves_have_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "ACKED_AT_ONCE", 5)
    story = Story("priority", "closed")
    story.send(
        story.other, *publish(b"0", priority=0), *publish(b"1", priority=1), *publish(b"2", priority=0)
    )
    session = connect(story.node, 1)
    session.turn_frames = 5
    session.wake = lambda: None
    session.receive(frame(commands.Basic.Consume(queue="q")), 0)
    story.client.lost()
    story.node.flush(session)
    while session.channels[1].unacked.count < COUNT // 2 + 3:
        story.node.flush(session)
    acks = [frame(commands.Basic.Ack(tag)) for tag in range(1, COUNT // 2 + 4)]
    session.receive(b"".join(acks), 0)
    turns = 1
    while session.blocked_reason is BlockedReason.TURN:
        assert sum(1 for _ in session.channels[1].unacked) >= len(acks) - 5 * turns
        turns += 1
        session.go_on(0)
    assert turns >= len(acks) // 5
    assert session.channels[1].unacked.count == 0
    assert session.state.name == "OPEN"


def test_a_rolled_back_transaction_puts_all_back_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time sorts all that is unacked: of 10,000 acknowledgements each took 3 ms."""
    story, calls = Story("classic", "rolled back"), list[int]()
    put_back = delivery.UnackedRuns.put_back

    def counted(self: delivery.UnackedRuns, runs: list[delivery.Unacked]) -> None:
        calls.append(len(runs))
        put_back(self, runs)

    monkeypatch.setattr(delivery.UnackedRuns, "put_back", counted)
    story.send(story.client, *[frame(commands.Basic.Ack(tag)) for tag in range(2, COUNT, 2)])
    story.send(story.client, frame(commands.Tx.Rollback()))
    assert calls == [COUNT // 2 - 1]
    assert story.client.channels[1].unacked.count == COUNT // 2


def test_a_commit_in_turns_fails_if_another_node_leads_the_queue_at_its_end() -> None:
    """What was settled here may not be in the log of the leader that came after."""
    with slicing(is_on=True):
        story = Story("classic", "committed")
        story.send(story.client, *map(frame, ENDS["committed"]))
        again = queue_types.make_queue(story.queue.definition, story.node.read)
        story.node.broker.replace_queue(again)
        for _ in range(2 * COUNT):
            story.turn()
        assert named(story.client) == ["Channel.Close"]


@pytest.mark.parametrize("unmet", ["", "no other site has what queue 'q' got"])
def test_a_commit_that_is_not_kept_says_whether_that_is_the_disk(unmet: str) -> None:
    """A nack of the other site was told as a refusal of the disk."""
    node = FakeNode()
    session = connect(node, 1)
    for part in (frame(commands.Queue.Declare(queue="q")), frame(commands.Tx.Select()), *publish(b"x")):
        session.receive(part, 0)
    session.receive(frame(commands.Tx.Commit()), 0)
    take(session)
    waiting = [*node.broker.confirming, *session.confirming]
    for waits, batch in [(each, batch) for each in waiting for batch in each.close_batches()]:
        batch.unmet = unmet
        waits.confirm(batch, ok=False)
    [(_, closing)] = take(session)
    assert closing.reply_code == 506
    assert (unmet or "the disk refused the transaction, or the leader of a queue did") in closing.reply_text

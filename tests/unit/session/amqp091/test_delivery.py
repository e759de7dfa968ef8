"""session.amqp091.delivery: runs of delivery tags against a plain dict, and deliveries as clients read them."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pamqp import base, commands, header

from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import QueueSettings
from leveret.session.amqp091 import delivery
from leveret.session.amqp091.blocked import BlockedReason
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.connection_base import OUT_BYTES_MAX
from leveret.session.amqp091.delivery import ChannelConsumer, DeliveryChannel, Unacked, UnackedRuns
from leveret.wire import amqp091 as wire
from tests.unit.session.amqp091.fakes import (
    BODY_MAX_BYTES,
    FRAME_MAX_BYTES,
    FakeNode,
    connect,
    frame,
    publish,
    take,
)

QUEUES = [cast(Queue, "q"), cast(Queue, "r")]
CONSUMER = cast(ChannelConsumer, "c")


class UnackedMachine(RuleBasedStateMachine):
    """Deliveries and settlements of a channel in any order."""

    @initialize()
    def begin(self) -> None:
        self.runs = UnackedRuns()
        self.model: dict[int, tuple[DeliverySource, int]] = {}
        self.next_tag = 1
        self.next_offset = 10

    @rule(count=st.integers(1, 5), queue=st.sampled_from(QUEUES), skip=st.integers(0, 2))
    def deliver(self, count: int, queue: Queue, skip: int) -> None:
        offset = self.next_offset + skip
        self.runs.add(Unacked(self.next_tag, offset, count, queue, CONSUMER, 0))
        self.model |= {self.next_tag + i: (queue, offset + i) for i in range(count)}
        self.next_tag += count
        self.next_offset = offset + count

    @rule(tag=st.integers(0, 60))
    def settle_one(self, tag: int) -> None:
        run = self.runs.take_one(tag)
        expected = self.model.pop(tag, None)
        assert (run is None) == (expected is None)
        if run is not None:
            assert (run.tag, run.count, run.consumer) == (tag, 1, CONSUMER)
            assert (run.queue, run.offset) == expected

    @rule(tag=st.integers(0, 60), more=st.integers(0, 9))
    def settle_some(self, tag: int, more: int) -> None:
        run = self.runs.take_from(tag, tag + more)
        assert (run is None) == (tag not in self.model)
        if run is not None:
            assert run.tag == tag
            assert run.count <= more + 1
            for each, place in places(run):
                assert self.model.pop(each) == place

    @rule(count=st.integers(1, 6))
    def return_the_first(self, count: int) -> None:
        for run in self.runs.take_first(count):
            for each, place in places(run):
                assert self.model.pop(each) == place
                assert all(each < held for held in self.model)

    @rule(queue=st.sampled_from(QUEUES), is_put_back=st.booleans())
    def take_of(self, queue: Queue, is_put_back: bool) -> None:
        taken = self.runs.take_of(queue)
        assert {tag: place for run in taken for tag, place in places(run)} == {
            tag: place for tag, place in self.model.items() if place[0] is queue
        }
        if is_put_back:
            self.runs.put_back(taken)
        else:
            self.model = {tag: place for tag, place in self.model.items() if place[0] is not queue}

    @rule(tag=st.integers(0, 60))
    def settle_up_to(self, tag: int) -> None:
        taken = {tag: place for run in self.runs.take_up_to(tag) for tag, place in places(run)}
        expected = {held: place for held, place in self.model.items() if held <= tag or not tag}
        assert list(taken.items()) == list(expected.items())
        for held in expected:
            del self.model[held]

    @invariant()
    def it_holds_what_is_not_settled_in_order(self) -> None:
        assert [place for run in self.runs for place in places(run)] == list(self.model.items())
        assert self.runs.count == len(self.model)
        assert all((tag in self.runs) == (tag in self.model) for tag in range(self.next_tag + 2))


def places(run: Unacked) -> list[tuple[int, tuple[DeliverySource, int]]]:
    return [(run.tag + i, (run.queue, run.offset + i)) for i in range(run.count)]


class SmallBlocksMachine(UnackedMachine):
    """The same in blocks of two runs, of which there are many soon."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(delivery, "BLOCK_RUNS", 2)

    def teardown(self) -> None:
        self.patched.undo()

    @invariant()
    def no_block_is_empty_or_long(self) -> None:
        blocks = self.runs._blocks
        assert blocks == [deque()] or all(1 <= len(block) <= 4 for block in blocks)


TestUnackedRuns = UnackedMachine.TestCase
TestUnackedRuns.settings = settings(max_examples=50, stateful_step_count=25)
TestUnackedRunsInSmallBlocks = SmallBlocksMachine.TestCase
TestUnackedRunsInSmallBlocks.settings = settings(max_examples=50, stateful_step_count=25)


# -- deliveries as octets ---------------------------------------------------------------------


def consuming(bodies: list[bytes], **consume: Any) -> tuple[FakeNode, ClientConnection]:
    """A durable queue with these messages and one consumer `c`, before the flush that delivers."""
    node = FakeNode()
    session = connect(node, 1)
    octets = frame(commands.Queue.Declare(queue="q", durable=True))
    octets += b"".join(part for body in bodies for part in publish(body))
    session.receive(octets, 0)
    node.flush(session)
    take(session)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c", **consume)), 0)
    return node, session


def deliveries(session: ClientConnection) -> list[tuple[int | None, bool | None, bytes]]:
    """(tag, redelivered, body) of every delivery that waits; checks what belongs together."""
    got: list[tuple[int | None, bool | None, bytes]] = []
    left = 0
    for _, value in take(session):
        if isinstance(value, commands.Basic.Deliver):
            assert left == 0
            assert (value.consumer_tag, value.exchange, value.routing_key) == ("c", "", "q")
            got.append((value.delivery_tag, value.redelivered, b""))
        elif isinstance(value, header.ContentHeader):
            left = value.body_size
            assert value.properties.delivery_mode == 2
        elif isinstance(value, bytes):
            assert 0 < len(value) <= left
            left -= len(value)
            got[-1] = (*got[-1][:2], got[-1][2] + value)
    assert left == 0
    return got


@given(
    st.lists(
        st.sampled_from(
            [0, 1, BODY_MAX_BYTES - 1, BODY_MAX_BYTES, BODY_MAX_BYTES + 1, 2 * BODY_MAX_BYTES, 9999]
        ),
        max_size=6,
    )
)
def test_a_body_of_any_size_is_delivered_in_frames_no_larger_than_frame_max(sizes: list[int]) -> None:
    bodies = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    node, session = consuming(bodies)
    node.flush(session)
    octets = b"".join(session.take_output())
    assert all(size <= FRAME_MAX_BYTES for size in frame_sizes(octets))
    session.send(octets)
    assert deliveries(session) == [(n, False, body) for n, body in enumerate(bodies, 1)]


@pytest.mark.parametrize("method", [commands.Basic.Consume(queue="q"), commands.Basic.Get(queue="q")])
@pytest.mark.parametrize("sizes", [(20_000,), (100_000,), (100_000, 100_000, 10)])
def test_large_bodies_go_out_without_a_copy(method: base.Frame, sizes: tuple[int, ...]) -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.frame_max_bytes = 100_000 + wire.FRAME_OVERHEAD
    body = bytes(n % 251 for n in range(sum(sizes)))
    octets = frame(commands.Queue.Declare(queue="q", durable=True))
    session.receive(octets + b"".join(publish(body, steps=sizes)), 0)
    node.flush(session)
    session.receive(frame(method), 0)
    node.flush(session)
    pieces = session.take_output()
    large = [piece for piece in pieces if len(piece) > 10_000]
    assert list(map(len, large)) == [size for size in sizes if size > 10_000]
    owners = {id(piece.obj if isinstance(piece, memoryview) else piece) for piece in large}
    assert len(owners) == 1, "each shows a part of the same octets"
    assert len(pieces) == 2 * len(large) + 1, "what is between them is joined"
    session.send_pieces(pieces)
    assert [value for _, value in take(session) if isinstance(value, bytes)] == [
        body[at : at + 100_000] for at in range(0, len(body), 100_000)
    ]


def frame_sizes(octets: bytes) -> list[int]:
    sizes = []
    while octets:
        size = int.from_bytes(octets[3:7], "big") + 8
        sizes.append(size)
        octets = octets[size:]
    return sizes


@pytest.mark.parametrize(
    ("tag", "taken"),
    [
        (1, [(1, 1)]),
        (2, [(1, 2)]),
        (3, [(1, 3)]),
        (4, [(1, 3), (4, 1)]),
        (9, [(1, 3), (4, 2)]),
        (0, [(1, 3), (4, 2)]),
    ],
)
def test_an_ack_of_several_takes_all_up_to_its_tag_and_none_behind_it(
    tag: int, taken: list[tuple[int, int]]
) -> None:
    runs = UnackedRuns()
    for first, count in ((1, 3), (4, 2)):
        runs.add(Unacked(first, 10 + first, count, QUEUES[0], CONSUMER, first))
    assert [(run.tag, run.count) for run in runs.take_up_to(tag)] == taken
    assert runs.count == 5 - sum(count for _, count in taken)


def test_prefetch_limits_what_is_out_and_acks_let_more_go() -> None:
    node, session = consuming([])
    session.receive(
        frame(commands.Basic.Cancel(consumer_tag="c")) + frame(commands.Basic.Qos(prefetch_count=2)), 0
    )
    session.receive(b"".join(part for n in range(5) for part in publish(b"%d" % n)), 0)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 0)
    node.flush(session)
    assert [tag for tag, _, _ in deliveries(session)] == [1, 2]
    session.receive(frame(commands.Basic.Ack(2, multiple=False)), 0)
    node.flush(session)
    assert deliveries(session) == [(3, False, b"2")]
    session.receive(frame(commands.Basic.Ack(3, multiple=True)), 0)
    node.flush(session)
    assert deliveries(session) == [(4, False, b"3"), (5, False, b"4")]
    assert node.settled[node.queue("q")] == [(0, 1, 2), (0, 0, 1), (0, 2, 3)]


def test_a_message_of_a_get_takes_no_place_of_the_consumers_of_its_channel() -> None:
    node, session = consuming([])
    session.receive(frame(commands.Basic.Cancel(consumer_tag="c")), 0)
    session.receive(frame(commands.Basic.Qos(prefetch_count=1, global_=True)), 0)
    session.receive(b"".join(part for n in range(3) for part in publish(b"%d" % n)), 0)
    session.receive(frame(commands.Basic.Get(queue="q")), 0)
    take(session)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 0)
    node.flush(session)
    assert deliveries(session) == [(2, False, b"1")]
    session.receive(frame(commands.Basic.Ack(1)), 0)
    node.flush(session)
    assert deliveries(session) == []
    session.receive(frame(commands.Basic.Ack(2)), 0)
    node.flush(session)
    assert deliveries(session) == [(3, False, b"2")]


def test_a_nack_that_a_stream_refuses_loses_no_delivery_of_another_queue() -> None:
    """The connection ends, and what it held comes back."""
    node, session = consuming([b"0", b"1"])
    stream = commands.Queue.Declare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    session.receive(frame(stream), 0)
    node.flush(session)
    channel = session.channels[1]
    channel.unacked.add(Unacked(channel.next_tag, 0, 1, node.queue("s"), None, 0))
    take(session)
    session.receive(frame(commands.Basic.Nack(channel.next_tag, multiple=True)), 0)
    [close] = [value for _, value in take(session)]
    assert (close.name, close.reply_code) == ("Connection.Close", 540)
    node.flush()
    queue = node.queue("q")
    assert (queue.ready_count, queue.unacked_count) == (2, 0)


@pytest.mark.parametrize("size", [0, 5, BODY_MAX_BYTES, BODY_MAX_BYTES + 1])
def test_get_gives_one_message_and_how_many_are_left(size: int) -> None:
    _, session = consuming([])
    session.receive(frame(commands.Basic.Cancel(consumer_tag="c")), 0)
    session.receive(b"".join(publish(b"x" * size)) * 2, 0)
    take(session)
    for left in (1, 0):
        session.receive(frame(commands.Basic.Get(queue="q")), 0)
        ok, head, *bodies = [value for _, value in take(session)]
        assert isinstance(ok, commands.Basic.GetOk)
        assert (ok.delivery_tag, ok.redelivered, ok.message_count) == (2 - left, False, left)
        assert (ok.exchange, ok.routing_key, head.body_size) == ("", "q", size)
        assert b"".join(bodies) == b"x" * size
    session.receive(frame(commands.Basic.Get(queue="q")), 0)
    assert [type(value).__name__ for _, value in take(session)] == ["GetEmpty"]


def test_a_consumer_whose_socket_is_full_waits_until_it_takes_more() -> None:
    node, session = consuming([bytes(4000)] * 600)
    node.flush(session)
    assert session.is_throttled
    first = len(deliveries(session))
    assert OUT_BYTES_MAX - 4000 < first * 4000 < 3 * OUT_BYTES_MAX
    node.flush(session)
    assert deliveries(session) == []
    session.resume()
    node.flush(session)
    assert deliveries(session)[0][0] == first + 1
    session.is_paused = True
    session.channels[1].wake_consumers()
    node.flush(session)
    assert deliveries(session) == []


def test_a_deleted_queue_cancels_its_consumers_and_late_acks_of_its_messages_do_nothing() -> None:
    node, session = consuming([b"0"])
    node.flush(session)
    take(session)
    old = node.queue("q")
    delete, declare = commands.Queue.Delete(queue="q"), commands.Queue.Declare(queue="q", durable=True)
    session.receive(frame(delete) + frame(declare), 0)
    names = [type(value).__name__ for _, value in take(session)]
    assert names == ["DeleteOk", "Cancel", "DeclareOk"]
    session.receive(frame(commands.Basic.Ack(1)), 0)
    assert old not in node.broker.dirty
    node.flush(session)
    assert node.queue("q") is not old
    assert session.channels[1].unacked.count == 0


# -- the time to acknowledge ------------------------------------------------------------------


def closed_at(session: ClientConnection, now_ms: int) -> str | None:
    """What channel 1 is closed with when the clock shows `now_ms`, None if it stays."""
    session.tick(now_ms)
    return next(
        (each.reply_text for _, each in take(session) if isinstance(each, commands.Channel.Close)), None
    )


@pytest.mark.parametrize(
    ("arguments", "timeout_ms"),
    [({}, 1_800_000), ({"x-consumer-timeout": 5_000}, 5_000), ({"x-consumer-timeout": "5s"}, None)],
)
def test_the_oldest_delivery_must_be_acknowledged_within_what_the_queue_or_the_node_says(
    arguments: dict[str, Any], timeout_ms: int | None
) -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.heartbeat_ms = 0
    session.receive(frame(commands.Queue.Declare(queue="q", arguments=arguments)), 0)
    session.receive(b"".join(publish(b"1") + publish(b"2")), 0)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 100)
    node.flush(session)
    take(session)
    last_ms = 100 + (timeout_ms or 10**12)
    assert closed_at(session, last_ms) is None
    told = closed_at(session, last_ms + 1)
    if timeout_ms is None:
        assert told is None
        return
    assert told is not None
    assert f"channel 1 timed out. Timeout value used: {timeout_ms} ms" in told
    assert node.queue("q").ready_count == 2


def test_every_part_of_a_run_that_is_acknowledged_in_pieces_keeps_its_time() -> None:
    node = FakeNode()
    session = connect(node, 1)
    session.heartbeat_ms = 0
    session.receive(frame(commands.Queue.Declare(queue="q", arguments={"x-consumer-timeout": 1_000})), 0)
    session.receive(b"".join(part for n in range(4) for part in publish(b"%d" % n)), 0)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 0)
    node.flush(session)
    session.receive(frame(commands.Basic.Ack(2)) + frame(commands.Basic.Ack(1)), 900)
    take(session)
    assert closed_at(session, 1_000) is None
    assert closed_at(session, 1_001) is not None


def test_messages_that_are_handed_out_together_come_back_as_one_run() -> None:
    """However unlike they are: 50,000 of them were as many steps of a channel's end."""
    source = cast(Any, object())
    runs = UnackedRuns()
    for at in range(5):
        runs.add(Unacked(1 + at, 10 + at, 1, source, None, 7))
    runs.add(Unacked(6, 15, 2, source, None, 8))
    runs.add(Unacked(8, 20, 1, source, None, 8))
    runs.add(Unacked(9, 21, 1, cast(Any, object()), None, 8))
    assert [(run.tag, run.offset, run.count) for run in runs] == [
        (1, 10, 5),
        (6, 15, 2),
        (8, 20, 1),
        (9, 21, 1),
    ]
    assert runs.count == 9
    assert [run.offset for run in runs.take_up_to(3)] == [10]
    assert runs.count == 6


@given(
    st.lists(st.tuples(st.integers(1, 25), st.integers(1, 6), st.sampled_from([0, 0, 0, 1])), max_size=8),
    st.booleans(),
    st.integers(0, 40),
)
def test_acknowledgements_that_come_together_settle_what_they_would_one_by_one(
    acks: list[tuple[int, int, int]], in_transaction: bool, cut: int
) -> None:
    """Rows of tags that follow each other, out of order, twice, or of nothing; multiples between them."""
    frames = [
        frame(commands.Basic.Ack(delivery_tag=first + at, multiple=bool(multiple)))
        for first, count, multiple in acks
        for at in range(count)
    ]
    if in_transaction:
        frames.append(frame(commands.Tx.Commit()))
    octets = b"".join(frames)

    def outcome(pieces: list[bytes]) -> object:
        node = FakeNode()
        session = connect(node, 1)
        for name in "qr":
            session.receive(frame(commands.Queue.Declare(queue=name)), 0)
        if in_transaction:
            session.receive(frame(commands.Tx.Select()), 0)
        for number in range(20):
            session.receive(b"".join(publish(b"%d" % number, "qr"[number % 3 == 0])), 0)
        if in_transaction:
            session.receive(frame(commands.Tx.Commit()), 0)
        node.flush(session)
        for name in "qr":
            session.receive(frame(commands.Basic.Consume(queue=name, consumer_tag=name)), 0)
        node.flush(session)
        take(session)
        for piece in pieces:
            session.receive(piece, 0)
        node.flush(session)
        counts = [(node.queue(name).ready_count, node.queue(name).unacked_count) for name in "qr"]
        settled = {queue.key: ranges for queue, ranges in node.settled.items()}
        return counts, settled, b"".join(session.take_output()), session.counters.ack

    assert outcome([octets[:cut], octets[cut:]]) == outcome(frames)


# -- as RabbitMQ 3.10.8 has it ----------------------------------------------------------------


def kinds(node: FakeNode) -> ClientConnection:
    """A connection with channels 1 to 3, and the queues `quorum`, `single` (a quorum queue) and `stream`."""
    session = connect(node, 1, 2, 3)
    types: dict[str, dict[str, Any]] = {
        "quorum": {"x-queue-type": "quorum"},
        "single": {"x-queue-type": "quorum", "x-single-active-consumer": True},
        "stream": {"x-queue-type": "stream"},
    }
    for name, arguments in types.items():
        session.receive(frame(commands.Queue.Declare(queue=name, durable=True, arguments=arguments)), 0)
    take(session)
    return session


@pytest.mark.parametrize("queue", ["quorum", "stream"])
def test_only_classic_queues_are_consumed_from_with_a_limit_for_the_whole_channel(queue: str) -> None:
    session = kinds(FakeNode())
    session.receive(frame(commands.Basic.Qos(prefetch_count=5)), 0)
    session.receive(frame(commands.Basic.Qos(prefetch_count=5, global_=True)), 0)
    take(session)
    session.receive(frame(commands.Basic.Consume(queue=queue)), 0)
    [(_, close)] = take(session)
    text = f"NOT_IMPLEMENTED - queue '{queue}' in vhost '/' does not support global qos"
    assert (close.reply_code, close.reply_text) == (540, text)


def test_a_prefetch_of_consumers_lifts_the_limit_of_the_channel() -> None:
    node, session = queued()
    session.receive(b"".join(part for n in range(5) for part in publish(b"%d" % n)), 0)
    session.receive(frame(commands.Basic.Qos(prefetch_count=1, global_=True)), 0)
    session.receive(frame(commands.Basic.Consume(queue="q", consumer_tag="c")), 0)
    node.flush(session)
    assert len(deliveries(session)) == 1
    session.receive(frame(commands.Basic.Qos(prefetch_count=3)), 0)
    node.flush(session)
    assert len(deliveries(session)) == 4, "the consumer was there before, and has no limit of its own"


@pytest.mark.parametrize("queue", ["quorum", "single", "stream"])
def test_only_classic_queues_have_exclusive_consumers(queue: str) -> None:
    session = kinds(FakeNode())
    for number in (1, 2, 3):
        session.receive(frame(commands.Basic.Qos(prefetch_count=5), number), 0)
        session.receive(frame(commands.Basic.Consume(queue=queue, exclusive=number < 3), number), 0)
    assert [type(value).__name__ for _, value in take(session)] == ["QosOk", "ConsumeOk"] * 3


def test_nothing_is_got_from_a_quorum_queue_past_its_single_active_consumer() -> None:
    session = kinds(FakeNode())
    session.receive(frame(commands.Basic.Get(queue="single")), 0)
    [(_, close)] = take(session)
    assert (close.reply_code, close.reply_text) == (
        405,
        "RESOURCE_LOCKED - cannot obtain access to locked queue 'single' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer",
    )


# -- without a long step ----------------------------------------------------------------------


def test_a_get_waits_while_a_long_backlog_is_measured_in_parts() -> None:
    """A policy that limits the octets of a queue has all its messages read; a get read them all at once."""
    node, session = consuming([])
    session.receive(frame(commands.Basic.Cancel(consumer_tag="c")), 0)
    for _ in range(30):
        session.receive(b"".join(b"".join(publish(b".")) for _ in range(20)), 0)
    node.flush(session)
    take(session)
    node.queue("q").configure(QueueSettings(max_length_bytes=10_000))
    session.receive(frame(commands.Basic.Get(queue="q", no_ack=True)), 0)
    parts = 1
    while session.blocked_reason is not None:
        assert session.blocked_reason is BlockedReason.TURN
        assert take(session) == []
        session.go_on(0)
        parts += 1
    [ok, *_] = [value for _, value in take(session)]
    assert (ok.name, ok.message_count) == ("Basic.GetOk", 599)
    assert parts > 2
    assert node.queue("q").ready_bytes == 599


def test_an_ack_wakes_the_consumers_of_a_channel_only_if_its_limit_held_one_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel with a limit and 1,000 consumers spent 0.2 s of each turn on waking them for each ack."""
    node, session = consuming([b"%d" % number for number in range(5)])
    session.receive(frame(commands.Basic.Qos(prefetch_count=4, global_=True)), 0)
    channel, woken = session.channels[1], list[bool]()
    node.flush(session)

    def wake() -> None:
        woken.append(True)
        DeliveryChannel.wake_consumers(channel)

    monkeypatch.setattr(channel, "wake_consumers", wake)
    assert len(deliveries(session)) == 4
    for tag in (1, 2, 3):
        session.receive(frame(commands.Basic.Ack(tag)), 0)
    assert woken == [True]
    node.flush(session)
    assert [body for _, _, body in deliveries(session)] == [b"4"]
    session.receive(frame(commands.Basic.Ack(4)), 0)
    assert woken == [True], "nobody is held up"


def queued() -> tuple[FakeNode, ClientConnection]:
    """A queue `q` without a consumer."""
    node, session = consuming([])
    session.receive(frame(commands.Basic.Cancel(consumer_tag="c")), 0)
    node.flush(session)
    take(session)
    return node, session


def bodies(session: ClientConnection) -> list[bytes]:
    return [each for _, each in take(session) if isinstance(each, bytes)]


def consumers(session: ClientConnection, *queues: str, no_ack: bool = False) -> None:
    for number, name in enumerate(queues):
        tag = f"{name}{number}{no_ack}"
        session.receive(frame(commands.Basic.Consume(queue=name, consumer_tag=tag, no_ack=no_ack)), 0)


@pytest.mark.parametrize(
    "last", [commands.Basic.Get(queue="q"), commands.Basic.Cancel(consumer_tag="q0False")]
)
def test_a_waiting_consumer_comes_before_what_follows_a_publish_in_the_same_read(last: base.Frame) -> None:
    node, session = queued()
    consumers(session, "q")
    node.flush(session)
    take(session)
    session.receive(b"".join(publish(b"1")) + frame(last), 0)
    names = [each.name for _, each in take(session) if isinstance(each, base.Frame)]
    assert names == ["Basic.Deliver", "Basic.GetEmpty" if last.name == "Basic.Get" else "Basic.CancelOk"]


def test_the_queues_of_a_channel_with_a_limit_take_turns() -> None:
    node, session = queued()
    session.receive(frame(commands.Queue.Declare(queue="r")), 0)
    session.receive(frame(commands.Basic.Qos(prefetch_count=1, global_=True)), 0)
    for octets in (b"1", b"2", b"3"):
        session.receive(b"".join([*publish(b"q" + octets), *publish(b"r" + octets, "r")]), 0)
    consumers(session, "q", "r")
    node.flush(session)
    found = bodies(session)
    for tag in range(1, 6):
        session.receive(frame(commands.Basic.Ack(tag)), 0)
        node.flush(session)
        found += bodies(session)
    assert sorted(found) == [b"q1", b"q2", b"q3", b"r1", b"r2", b"r3"]
    assert {each[:1] for each in found[:2]} == {each[:1] for each in found[2:4]} == {b"q", b"r"}


def test_two_consumers_of_a_channel_with_a_limit_take_turns_at_one_queue() -> None:
    node, session = queued()
    session.receive(frame(commands.Basic.Qos(prefetch_count=1, global_=True)), 0)
    consumers(session, "q", "q")
    for octets in (b"1", b"2", b"3", b"4"):
        session.receive(b"".join(publish(octets)), 0)
    tags: list[str | None] = []
    for tag in range(1, 5):
        node.flush(session)
        tags += [each.consumer_tag for _, each in take(session) if isinstance(each, commands.Basic.Deliver)]
        session.receive(frame(commands.Basic.Ack(tag)), 0)
    assert sorted(map(str, tags)) == ["q0False", "q0False", "q1False", "q1False"]


def test_a_full_channel_gives_nothing_to_a_consumer_without_acks_either() -> None:
    node, session = queued()
    session.receive(frame(commands.Queue.Declare(queue="r")), 0)
    session.receive(frame(commands.Basic.Qos(prefetch_count=1, global_=True)), 0)
    consumers(session, "q")
    consumers(session, "r", no_ack=True)
    session.receive(b"".join(publish(b"1")), 0)
    node.flush(session)
    session.receive(b"".join(publish(b"2", "r")), 0)
    node.flush(session)
    assert bodies(session) == [b"1"]
    session.receive(frame(commands.Basic.Ack(1)), 0)
    node.flush(session)
    assert bodies(session) == [b"2"]

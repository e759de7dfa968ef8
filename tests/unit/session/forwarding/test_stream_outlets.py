"""Publishers of the stream protocol at nodes that do not lead: all is stored once, in order, whoever comes to lead."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model.errors import LedElsewhere, LeveretError, NotFound, PreconditionFailed, StorageError
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.forwarding.stream_outlets import IDLE_MS, Hold
from leveret.wire import forwarding
from leveret.wire.chunk import encode_entry
from leveret.wire.properties import SyntaxFault
from tests.unit.core.queues.test_stream import Bounds
from tests.unit.session.forwarding.sites import Client, Cluster, RelayNode
from tests.unit.session.forwarding.test_failover import NODES, upset

KEY = ("/", "q")


def _release(send: Callable[[], None]) -> None:
    """Hold nothing."""
    send()


class Publisher:
    """A client of a node: numbers its messages, and publishes again what has no confirm when the stream has moved."""

    def __init__(self, node: RelayNode, reference: str = "p") -> None:
        self.node = node
        self.reference = reference.encode()
        self.next_id = 1
        self.confirmed: set[int] = set()
        self.errors: list[LeveretError] = []
        self.moved = False
        self.hold: Hold = _release

    def publish(self, *ids: int) -> None:
        queue = self.node.queue("q")
        entries = [encode_entry(b"%d" % each) for each in ids]
        batch = StreamBatch(self.reference, list(ids), entries, len(ids), None)
        batch.done = partial(self._done, ids)
        if isinstance(queue, RemoteQueue):
            self.node.forwarded.streams.publish(queue, batch, self.hold)
        else:
            assert isinstance(queue, Stream)
            queue.publish(batch)
            self.node.broker.dirty[queue] = None

    def publish_next(self, count: int) -> None:
        if self.moved:
            self.moved = False
            missing = [each for each in range(1, self.next_id) if each not in self.confirmed]
            if missing:
                self.publish(*missing)
        self.next_id += count
        self.publish(*range(self.next_id - count, self.next_id))

    def _done(self, ids: tuple[int, ...], error: LeveretError | None) -> None:
        if error is None:
            self.confirmed.update(ids)
        else:
            self.errors.append(error)
            self.moved = True


def stream(cluster: Cluster, leader: str) -> None:
    cluster.declare("q", leader, arguments={"x-queue-type": "stream"})


def led(cluster: Cluster, node: str) -> Stream:
    queue = cluster[node].queue("q")
    assert isinstance(queue, Stream)
    return queue


def stored(cluster: Cluster) -> list[tuple[bytes, int]]:
    """Publisher and id of each message that the stream has."""
    [leader] = [node for node in cluster.nodes.values() if not node.queue("q").is_remote]
    return [(each.reference, number) for each in leader.batches.get(KEY, []) for number in each.entry_ids]


@settings(max_examples=150)
@given(st.integers(0, 1 << 32), st.integers(1, 120))
def test_what_a_publisher_at_any_node_repeats_is_stored_once_and_in_order(seed: int, steps: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publishers = [Publisher(cluster[name], f"{name}{number}") for name in NODES for number in range(2)]
    held: list[Callable[[], None]] = []
    for _ in range(steps):
        if dice.random() < 0.3:
            publisher = dice.choice(publishers)
            publisher.hold = dice.choice([_release, held.append])
            publisher.publish_next(dice.randint(1, 4))
        if held and dice.random() < 0.3:
            held.pop(0)()
        upset(cluster, dice)
    for send in held:
        send()
    cluster.settle()
    for publisher in publishers:
        publisher.hold = _release
        publisher.publish_next(1)
    cluster.settle()
    found = stored(cluster)
    for publisher in publishers:
        wanted = list(range(1, publisher.next_id))
        assert publisher.confirmed == set(wanted)
        assert [number for reference, number in found if reference == publisher.reference] == wanted
        assert all(isinstance(each, LedElsewhere) for each in publisher.errors)


def test_a_batch_waits_for_a_leader_and_fails_only_with_the_leader_that_was_sent_it() -> None:
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher = Publisher(cluster["a"])
    publisher.publish_next(2)
    cluster.move("q", "c")
    cluster.settle()
    assert (publisher.confirmed, publisher.errors) == ({1, 2}, [])
    publisher.publish_next(1)
    cluster.links[-1].carry()
    cluster.move("q", "b", crash=True)
    assert [type(each) for each in publisher.errors] == [LedElsewhere]
    publisher.publish_next(1)
    cluster.settle()
    assert publisher.confirmed == {1, 2, 3, 4}
    assert [number for _, number in stored(cluster)] == [1, 2, 3, 4]


def test_a_batch_that_is_held_fails_with_the_one_before_it() -> None:
    """Stored by itself at the next leader, it would have the one before it taken for a repetition."""
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher = Publisher(cluster["a"])
    publisher.publish_next(1)
    cluster.settle()
    publisher.publish_next(1)
    held: list[Callable[[], None]] = []
    publisher.hold = held.append
    publisher.publish_next(1)
    cluster.move("q", "c", crash=True)
    [send] = held
    send()
    cluster.settle()
    assert [type(each) for each in publisher.errors] == [LedElsewhere] * 2
    publisher.hold = _release
    publisher.publish_next(1)
    cluster.settle()
    assert publisher.confirmed == {1, 2, 3, 4}
    assert [number for _, number in stored(cluster)] == [1, 2, 3, 4]


def test_what_the_leader_refuses_a_publisher_without_reference_is_refused_with_its_reason_and_the_rest_goes_on() -> (
    None
):
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher = Publisher(cluster["a"], reference="")
    leader = led(cluster, "b")
    refusals: list[LeveretError] = [
        StorageError("full"),
        PreconditionFailed("no downstream"),
        NotFound("gone"),
    ]
    for number, refusal in enumerate(refusals, 1):
        publisher.publish(number)
        while not leader.incoming:
            cluster.connect()
            for link in cluster.links:
                link.carry()
        [batch] = leader.incoming
        leader.incoming = []
        batch.done(refusal)
        cluster.settle()
    assert [(type(each), str(each)) for each in publisher.errors] == [
        (type(each), str(each)) for each in refusals
    ]
    publisher.publish(9)
    cluster.settle()
    assert publisher.confirmed == {9}


def test_behind_a_batch_that_the_leader_does_not_store_nothing_of_its_publisher_is_stored() -> None:
    """By the higher ids it would count as stored when its publisher publishes it again: confirmed, and lost."""
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher = Publisher(cluster["a"])
    publisher.publish_next(1)
    cluster.settle()
    publisher.publish_next(1)
    leader = led(cluster, "b")
    while not leader.incoming:
        for link in cluster.links:
            link.carry()
    [refused], leader.incoming = leader.incoming, []
    leader.sequences.take_numbered()
    # Two more are on their way when the disk refuses that one.
    publisher.publish(3)
    publisher.publish(4)
    publisher.next_id = 5
    refused.done(StorageError("full"))
    cluster.settle()
    assert publisher.confirmed == {1}
    assert [type(each) for each in publisher.errors] == [LedElsewhere] * 3
    publisher.publish_next(1)
    cluster.settle()
    assert publisher.confirmed == {1, 2, 3, 4, 5}
    assert [number for _, number in stored(cluster)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("end", ["deleted", "down", "led here"])
def test_batches_fail_with_a_stream_that_is_deleted_down_or_led_here(end: str) -> None:
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher, calls = Publisher(cluster["a"]), []
    node = cluster["a"].forwarded
    node.streams.watches[KEY] = {0: lambda: calls.append(end)}
    publisher.publish_next(1)
    queue = cluster["a"].remote_queue("q")
    match end:
        case "deleted":
            cluster.delete("q")
        case "down":
            node.down(queue)
        case _:
            cluster.move("q", "a")
    assert [type(each) for each in publisher.errors] == [LedElsewhere]
    assert calls


def test_a_channel_without_publishes_is_closed_after_a_while() -> None:
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    publisher = Publisher(cluster["a"])
    publisher.publish_next(1)
    cluster.settle()
    [link] = cluster.links
    assert len(link.leader_client.channels) == 1
    cluster["a"].forwarded.tick(IDLE_MS + 1)
    cluster.settle()
    assert not link.leader_client.channels
    publisher.publish_next(1)
    cluster.settle()
    assert publisher.confirmed == {1, 2}


@pytest.mark.parametrize("crash", [False, True], ids=["handed-over", "crashed"])
@pytest.mark.parametrize("at", ["a", "b"])
def test_a_consumer_at_next_that_had_nothing_yet_goes_on_where_it_began(at: str, crash: bool) -> None:
    cluster = Cluster(*NODES)
    stream(cluster, "b")
    led(cluster, "b").log = Bounds(committed_offset=4)
    client = Client(cluster[at])
    consume = commands.Basic.Consume(queue="q", consumer_tag="t", arguments={"x-stream-offset": "next"})
    client.send(commands.Basic.Qos(prefetch_count=10), consume)
    cluster.settle()
    cluster.move("q", "c", crash=crash)
    # What was published before the end of the leader, and never delivered, is not skipped by the next one.
    led(cluster, "c").log = Bounds(committed_offset=10)
    cluster.settle()
    [consumer] = led(cluster, "c").consumers
    assert isinstance(consumer, ChannelConsumer)
    assert (consumer.arguments, consumer.stream_begin) == ({"x-stream-offset": 4}, 4)


@pytest.mark.parametrize("filters", [None, {b""}, {b"", b"red"}, set()])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_is_on_the_wire_as_it_is(count: int, filters: set[bytes] | None) -> None:
    entries = [encode_entry(b"x" * number) for number in range(count)]
    batch = forwarding.ForwardedBatch(7, b"ref", tuple(range(count)), entries, count, filters)
    octets = forwarding.store(1, batch)[7:-1]
    assert forwarding.decode_store(octets) == batch
    for end in range(4, len(forwarding.store(1, batch._replace(filters=set()))) - 8):
        with pytest.raises(SyntaxFault):
            forwarding.decode_store(octets[:end])
    with pytest.raises(SyntaxFault):
        forwarding.decode_stored(b"short")

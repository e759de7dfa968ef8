"""A node that is low on memory or disk: publishers wait, all others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from pamqp import commands

from tests.conformance.brokers import Broker, running
from tests.conformance.conftest import BROKERS, kind_of
from tests.conformance.rawclient import FRAME_HEARTBEAT, HEARTBEAT, Peer

SILENCE_S = 0.5


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of its own: should an alarm stay, no publisher of another test waits for its end."""
    with running(kind_of(request)) as one:
        yield one


@contextmanager
def memory_is_low(broker: Broker) -> Iterator[None]:
    """Publishers are blocked for want of memory while the block lasts."""
    broker.ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.4")


@pytest.fixture
def peers(broker: Broker) -> Iterator[list[Peer]]:
    """Two open connections with channel 1, the second without any capability."""
    with ExitStack() as held:
        found = [held.enter_context(broker.peer()) for _ in range(2)]
        found[0].login()
        found[1].login(capabilities={})
        for peer in found:
            peer.open_channel(1)
        yield found


@contextmanager
def beating(peer: Peer) -> Iterator[None]:
    """The peer sends heartbeats while the block lasts: the command that ends an alarm takes seconds of its own."""
    over = threading.Event()

    def beat() -> None:
        # Should the broker have given it up, the test sees that.
        with suppress(OSError):
            while not over.wait(0.3):
                peer.send_octets(HEARTBEAT)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def expect_nothing(peer: Peer) -> None:
    with pytest.raises(TimeoutError):
        peer.receive(SILENCE_S)


def test_a_publisher_is_blocked_told_and_served_when_the_alarm_is_over(
    broker: Broker, peers: list[Peer], name: str
) -> None:
    notified, silent = peers
    for peer in (notified, silent):
        peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    notified.call(1, commands.Queue.Declare(queue=name), commands.Queue.DeclareOk)
    with memory_is_low(broker):
        for peer in (notified, silent):
            peer.publish(1, b"waits", routing_key=name)
        assert notified.expect(0, commands.Connection.Blocked).reason == "low on memory"
        notified.send(1, commands.Queue.Declare(queue=name, passive=True))
        expect_nothing(notified)
        expect_nothing(silent)
    notified.expect(0, commands.Connection.Unblocked)
    answers = [notified.receive()[1] for _ in range(2)]
    assert {type(answer) for answer in answers} == {commands.Queue.DeclareOk, commands.Basic.Ack}
    silent.expect(1, commands.Basic.Ack)
    notified.call(1, commands.Queue.Purge(queue=name), commands.Queue.PurgeOk)
    assert notified.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk).message_count == 0


def test_who_does_not_publish_goes_on(broker: Broker, peers: list[Peer], name: str) -> None:
    consumer, publisher = peers
    consumer.call(1, commands.Queue.Declare(queue=name, exclusive=False), commands.Queue.DeclareOk)
    publisher.publish(1, b"before", routing_key=name)
    publisher.expect_silence(1)
    with memory_is_low(broker):
        consumer.call(1, commands.Basic.Consume(queue=name, consumer_tag="c"), commands.Basic.ConsumeOk)
        consumer.expect(1, commands.Basic.Deliver)
        assert consumer.expect_content(1) == b"before"
        consumer.send(1, commands.Basic.Ack(1))
        consumer.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        deleted = consumer.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)
        assert deleted.message_count == 0


def test_a_connection_that_opens_in_an_alarm_is_blocked_by_its_first_publish(
    broker: Broker, name: str
) -> None:
    with memory_is_low(broker), broker.peer() as peer:
        peer.login()
        peer.open_channel(1)
        peer.expect_silence(1)
        peer.publish(1, b"x", routing_key=name)
        peer.expect(0, commands.Connection.Blocked)


def test_a_blocked_connection_hears_heartbeats_and_is_not_given_up(broker: Broker, name: str) -> None:
    with ExitStack() as held:
        with memory_is_low(broker):
            # In the alarm: it sends no heartbeats, and would be given up while the alarm takes its time to come.
            silent = held.enter_context(broker.peer())
            silent.login(heartbeat_s=1)
            silent.open_channel(1)
            silent.publish(1, b"x", routing_key=name)
            beats, blocked = 0, False
            while beats < 6:
                kind, _, _ = silent.receive_frame()
                beats += kind == FRAME_HEARTBEAT
                blocked |= kind != FRAME_HEARTBEAT
            assert blocked
            held.enter_context(beating(silent))
        silent.expect(0, commands.Connection.Unblocked)
        silent.expect_silence(1)


def test_both_alarms_are_named_and_only_their_end_unblocks(
    broker: Broker, peers: list[Peer], name: str
) -> None:
    peer = peers[0]
    broker.ctl("set_disk_free_limit", "1000000GB")
    try:
        with memory_is_low(broker):
            peer.publish(1, b"x", routing_key=name)
            assert peer.expect(0, commands.Connection.Blocked).reason in (
                "low on disk & memory",
                "low on memory & disk",
            )
        expect_nothing(peer)
    finally:
        broker.ctl("set_disk_free_limit", "50MB")
    peer.expect(0, commands.Connection.Unblocked)
    peer.expect_silence(1)

"""What a node keeps when it is killed at any moment: the promises about confirms and acks.

Each test draws its amounts and moments from a seed, which it prints; LEVERET_SEED sets another
one. An ack has no answer in AMQP, so a test publishes a marker to the same queue after its acks:
a queue's messages and settlements stand in one ordered log, so once the marker is confirmed the
acks before it are durable too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Final

import pytest
from pamqp import commands

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess
from tests.conformance.rawclient import PATIENCE_S, Closed, Peer

QUEUE: Final = "flights"
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)
MARKER: Final = b"marker"
ROUNDS: Final = 3


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as one:
        with connected(one) as peer:
            peer.call(1, commands.Queue.Declare(queue=QUEUE, durable=True), commands.Queue.DeclareOk)
        yield one


def connected(node: LeveretProcess) -> Peer:
    """A raw connection with channel 1 open, in confirm mode."""
    peer = Peer(node.amqp_port)
    peer.login()
    peer.open_channel(1)
    peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return peer


def publish_confirmed(peer: Peer, bodies: list[bytes], *, before: int = 0) -> None:
    """Publish persistently and wait until all is confirmed; `before` publishes were confirmed earlier."""
    for one in bodies:
        peer.publish(1, one, routing_key=QUEUE, properties=PERSISTENT)
    expect_confirms(peer, set(range(before + 1, before + len(bodies) + 1)))


def expect_confirms(peer: Peer, waiting: set[int]) -> None:
    """Read acks until all these tags are confirmed."""
    while waiting:
        ack = peer.expect(1, commands.Basic.Ack)
        waiting -= {
            tag for tag in waiting if tag == ack.delivery_tag or (ack.multiple and tag < ack.delivery_tag)
        }


def take(peer: Peer) -> tuple[int, bool, bytes] | None:
    """Get one message: delivery tag, redelivered flag, body; None if the queue is empty."""
    peer.send(1, commands.Basic.Get(queue=QUEUE))
    _, answer = peer.receive()
    if isinstance(answer, commands.Basic.GetEmpty):
        return None
    assert isinstance(answer, commands.Basic.GetOk)
    return answer.delivery_tag or 0, bool(answer.redelivered), peer.expect_content(1)


def take_all(node: LeveretProcess) -> list[bytes]:
    """What the queue has, in order; all of it returns when the connection ends."""
    with connected(node) as peer:
        found = [message[2] for message in iter(lambda: take(peer), None)]
    return found


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_unacked_messages_return_after_kill9(node: LeveretProcess, chance: random.Random) -> None:
    bodies = numbered(0, chance.randint(50, 500))
    with connected(node) as peer:
        publish_confirmed(peer, bodies)
        held = [take(peer) for _ in range(chance.randint(1, len(bodies)))]
        assert [one[2] for one in held if one] == bodies[: len(held)]
        node.kill9()
    node.start()
    assert take_all(node) == bodies


def test_acked_messages_never_return_after_kill9(node: LeveretProcess, chance: random.Random) -> None:
    """Round after round: publish, ack some out of order, requeue some, crash, compare."""
    left: list[bytes] = []
    for round_ in range(ROUNDS):
        marker = b"%s %d" % (MARKER, round_)
        bodies = numbered(1000 * round_, chance.randint(20, 300))
        with connected(node) as peer:
            publish_confirmed(peer, bodies)
            left += bodies
            held = [one for one in (take(peer) for _ in left) if one]
            assert [one[2] for one in held] == left
            settled = chance.sample(held, chance.randint(1, len(held)))
            for tag, _, body in settled:
                if chance.random() < 0.2:
                    peer.send(1, commands.Basic.Nack(tag, requeue=True))
                    continue
                peer.send(1, commands.Basic.Ack(tag))
                left.remove(body)
            publish_confirmed(peer, [marker], before=len(bodies))
            node.kill9()
        node.start()
        left.append(marker)
        assert take_all(node) == left, f"round {round_}"


def test_rejected_and_purged_messages_never_return_after_kill9(
    node: LeveretProcess, chance: random.Random
) -> None:
    bodies = numbered(0, chance.randint(20, 200))
    with connected(node) as peer:
        publish_confirmed(peer, bodies)
        held = [one for one in (take(peer) for _ in range(len(bodies) // 2)) if one]
        peer.send(1, commands.Basic.Nack(held[-1][0], multiple=True, requeue=False))
        purged = peer.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk).message_count
        assert purged == len(bodies) - len(held)
        publish_confirmed(peer, [MARKER], before=len(bodies))
        node.kill9()
    node.start()
    assert take_all(node) == [MARKER]


def test_confirmed_messages_survive_kill9_in_the_middle_of_publishing(
    node: LeveretProcess, chance: random.Random
) -> None:
    """The queue then has a prefix of what was published, and all that was confirmed is in it."""
    for _ in range(ROUNDS):
        with connected(node) as peer:
            peer.call(1, commands.Queue.Purge(queue=QUEUE), commands.Queue.PurgeOk)
            publisher = Publisher(peer)
            enough = chance.randint(1, 2000)
            publisher.wait_confirmed(enough)
            node.kill9()
            publisher.join()
        node.start()
        found = take_all(node)
        assert found == numbered(0, len(found))
        assert publisher.confirmed <= len(found) <= publisher.published


class Publisher:
    """Publishes numbers without pause on two threads until the connection breaks."""

    def __init__(self, peer: Peer) -> None:
        self.published = 0
        self.confirmed = 0
        self._peer = peer
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._publish, self._read)]
        for one in self._threads:
            one.start()

    def wait_confirmed(self, count: int) -> None:
        """Wait until at least `count` messages are confirmed."""
        wait_until(lambda: self.confirmed >= count, f"{count} confirms", PATIENCE_S)

    def join(self) -> None:
        """Wait for the end that the broken connection brings."""
        for one in self._threads:
            one.join(PATIENCE_S)
            assert not one.is_alive()

    def _publish(self) -> None:
        try:
            while True:
                self.published += 1
                self._peer.publish(1, b"%d" % (self.published - 1), routing_key=QUEUE, properties=PERSISTENT)
        except OSError:
            return

    def _read(self) -> None:
        """Confirms come in the order of publishing here, for there is one queue."""
        try:
            while True:
                ack = self._peer.expect(1, commands.Basic.Ack)
                assert ack.multiple or ack.delivery_tag == self.confirmed + 1
                self.confirmed = ack.delivery_tag
        except (Closed, OSError):
            return

"""A dead letter that its queue keeps is dead after a restart: consumers do not get it, and its target does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import Peer
from tests.conformance.test_redelivered_after_restart import Process, connected, process

__all__ = ["process"]
SOURCE, GRAVE = "keeping", "grave"
KEEPING: dict[str, Any] = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": GRAVE,
}
BODIES = [b"a", b"b", b"c"]


def declare(peer: Peer, queue: str, arguments: dict[str, Any]) -> None:
    method = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
    peer.call(1, method, commands.Queue.DeclareOk)


def publish(peer: Peer, queue: str, bodies: list[bytes]) -> None:
    """In confirm mode, one after the other."""
    for body in bodies:
        peer.publish(1, body, routing_key=queue, properties=commands.Basic.Properties(delivery_mode=2))
        peer.expect(1, commands.Basic.Ack)


def ready(peer: Peer, queue: str) -> int:
    method = commands.Queue.Declare(queue=queue, passive=True)
    count: int | None = peer.call(1, method, commands.Queue.DeclareOk).message_count
    return count or 0


def take(peer: Peer, queue: str, *, no_ack: bool = True) -> tuple[int, bytes]:
    ok = peer.call(1, commands.Basic.Get(queue=queue, no_ack=no_ack), commands.Basic.GetOk)
    return int(ok.delivery_tag or 0), peer.expect_content(1)


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_a_rejected_message_whose_target_was_full_goes_there_after_the_restart(
    process: Process, end: str
) -> None:
    with connected(process) as peer:
        declare(peer, GRAVE, {"x-max-length": 1, "x-overflow": "reject-publish"})
        declare(peer, SOURCE, KEEPING)
        peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publish(peer, GRAVE, [b"before"])
        publish(peer, SOURCE, BODIES)
        tag, body = take(peer, SOURCE, no_ack=False)
        assert body == BODIES[0]
        peer.send(1, commands.Basic.Reject(delivery_tag=tag, requeue=False))
        # The queue has it once this is answered, and it is on disk soon.
        assert ready(peer, SOURCE) == 2
        time.sleep(1)
        assert take(peer, GRAVE)[1] == b"before"
        time.sleep(0.5)
        getattr(process, end)()
    process.start()
    with connected(process) as peer:
        wait_until(lambda: ready(peer, SOURCE) == 2, "the other messages", 20)
        assert [take(peer, SOURCE)[1] for _ in range(2)] == BODIES[1:]
        wait_until(lambda: ready(peer, GRAVE) == 1, "the dead letter", 20)
        assert take(peer, GRAVE)[1] == BODIES[0]

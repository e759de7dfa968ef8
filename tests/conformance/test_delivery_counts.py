"""A quorum queue knows after a restart how often its messages came back: poison messages end, whoever restarts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pamqp import body, commands, header

from leveret.testing.network.ports import wait_until
from tests.conformance.rawclient import Peer
from tests.conformance.test_redelivered_after_restart import Process, connected, process

__all__ = ["process"]
QUEUE = "poison"
LIMIT = 4


BODIES = (b"a", b"b", b"c")


def publish(process: Process) -> None:
    with connected(process) as peer:
        arguments: Any = {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}
        declare = commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments)
        peer.call(1, declare, commands.Queue.DeclareOk)
        peer.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for payload in BODIES:
            peer.publish(1, payload, routing_key=QUEUE, properties=commands.Basic.Properties(delivery_mode=2))
            peer.expect(1, commands.Basic.Ack)


def fetch(peer: Peer) -> tuple[int, int]:
    """(delivery tag, `x-delivery-count`) of the next message."""
    ok = peer.call(1, commands.Basic.Get(queue=QUEUE), commands.Basic.GetOk)
    content = peer.expect(1, header.ContentHeader)
    peer.expect(1, body.ContentBody)
    headers: Any = content.properties.headers or {}
    return int(ok.delivery_tag or 0), int(headers.get("x-delivery-count", 0))


def counts(process: Process) -> list[int]:
    """Of the messages that are there, taken and given back by the end of the connection."""
    with connected(process) as peer:
        left = peer.call(1, commands.Queue.Declare(queue=QUEUE, passive=True), commands.Queue.DeclareOk)
        return [fetch(peer)[1] for _ in range(left.message_count or 0)]


def refuse(process: Process, times: int) -> None:
    """Take the first message and give it back, so often."""
    with connected(process) as peer:
        for _ in range(times):
            tag, _ = fetch(peer)
            peer.send(1, commands.Basic.Nack(delivery_tag=tag, requeue=True))
            # The queue has it back once this is answered.
            peer.call(1, commands.Queue.Declare(queue=QUEUE, passive=True), commands.Queue.DeclareOk)


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_what_came_back_before_the_end_counts_after_it(process: Process, end: str) -> None:
    publish(process)
    refuse(process, 3)
    if end == "kill9":
        # What nobody was answered is on disk soon.
        time.sleep(1)
    getattr(process, end)()
    process.start()
    found: list[int] = []

    def is_back() -> bool:
        """RabbitMQ's queue takes a moment until it has a leader again."""
        found.extend(counts(process))
        return bool(found)

    wait_until(is_back, "the messages", 20)
    assert sorted(found) == [0, 0, 3]


def test_a_message_that_no_consumer_outlives_ends_though_the_broker_is_restarted(process: Process) -> None:
    publish(process)
    for _ in range(LIMIT + 1):
        assert counts(process)
        process.stop()
        process.start()
    wait_until(lambda: counts(process) == [], "the end of all", 10)

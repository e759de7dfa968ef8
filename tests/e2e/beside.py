"""Queues beside those of a torture: one that nobody uses, one that is drained now and then, one with a straggler.

What these hold is known for certain whenever the node ends, for each step was answered before the next.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import Any, Final

import pika

from leveret.testing.applications.applications import channel_of, parameters
from leveret.testing.servers.broker import LeveretProcess


class Beside:
    """See the module."""

    IDLE: Final = b"idle"
    STRAGGLER: Final = b"straggler"

    def __init__(self, node: LeveretProcess) -> None:
        """Declare them."""
        self._node = node
        with self._channel() as channel:
            for name in ("idle", "drained", "straggler"):
                channel.queue_declare(name, durable=True)
            self._publish(channel, "idle", [self.IDLE])
            self._publish(channel, "straggler", [self.STRAGGLER])

    def use(self, chance: random.Random) -> None:
        """Drain one, and settle all of the other but the first, over as much as some segments."""
        if chance.random() < 0.7:
            with self._channel() as channel:
                bodies = [b"%06d" % number + b"." * 9_994 for number in range(chance.randint(1, 250))]
                self._publish(channel, "drained", bodies)
                assert self._take(channel, "drained") == bodies
        if chance.random() < 0.5:
            with self._channel() as channel:
                bodies = [b"%06d" % number + b"." * 9_994 for number in range(chance.randint(1, 250))]
                held, _, body = channel.basic_get("straggler")
                assert body == self.STRAGGLER
                self._publish(channel, "straggler", bodies)
                assert self._take(channel, "straggler", beside=held.delivery_tag) == bodies

    def check(self) -> None:
        """After a start."""
        with self._channel() as channel:
            for name, held in (("idle", [self.IDLE]), ("drained", []), ("straggler", [self.STRAGGLER])):
                count = channel.queue_declare(name, passive=True).method.message_count
                assert count == len(held), f"{count} messages in '{name}'"
                for body in held:
                    assert channel.basic_get(name)[2] == body

    def _channel(self) -> AbstractContextManager[Any]:
        return channel_of(pika.BlockingConnection(parameters(self._node.amqp_port, "/")))

    def _publish(self, channel: Any, queue: str, bodies: list[bytes]) -> None:
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))

    def _take(self, channel: Any, queue: str, *, beside: int = 0) -> list[bytes]:
        """Get and ack all that is ready, one by one, and be sure that it is logged; not what has the tag `beside`."""
        found = []
        while (answer := channel.basic_get(queue))[0] is not None:
            assert answer[0].delivery_tag != beside
            channel.basic_ack(answer[0].delivery_tag)
            found.append(answer[2])
        channel.queue_declare(queue, passive=True)
        return found

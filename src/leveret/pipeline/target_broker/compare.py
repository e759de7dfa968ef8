"""Compares the messages of a rehearsal with the archive: every message, as a consumer would get it."""

from __future__ import annotations

from collections.abc import Mapping

from leveret.model.errors import LeveretError
from leveret.pipeline.jobs.job import AmqpTarget
from leveret.pipeline.target_broker.connection import AmqpConnection, Delivery
from leveret.wire.record import RECOVERY_STREAM_PREFIX, decode_message
from leveret.wire.stream.publish import MessageRun


class Differs(LeveretError):
    """A queue does not have what the archive has; the text names the message."""


class ComparisonClient:
    """publish.Client: takes messages out of queues where a publisher would put them in.

    Args:
        totals: how many messages each queue is to have.
    """

    def __init__(self, target: AmqpTarget, vhost: str, totals: Mapping[str, int], timeout_s: float) -> None:
        self._connection = AmqpConnection(target, vhost, timeout_s)
        self._totals = totals

    def declare_publisher(self, reference: str, stream: str) -> ComparisonPublisher:
        """Begin to consume a queue.

        Raises:
            Differs: it has more messages than it is to have, or fewer.
        """
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        return ComparisonPublisher(self._connection, queue, self._totals[queue])

    def close(self) -> None:
        """Say goodbye."""
        self._connection.close()


class ComparisonPublisher:
    """publish.Publisher: compares with the archive what a queue gives."""

    last_sequence = 0

    def __init__(self, connection: AmqpConnection, queue: str, total: int) -> None:
        self._connection = connection
        self._queue = queue
        self._channel = connection.open_channel()
        ready, _ = connection.declare_queue(self._channel, queue)
        if ready != total:
            raise Differs(f"queue '{queue}' has {ready} messages, the archive {total}")
        connection.consume(self._channel, queue)

    def publish(self, run: MessageRun) -> None:
        """Take as many messages out, and compare.

        Raises:
            Differs: one is another one.
            AmqpConnectionLost: one is missing.
        """
        for number, entry in run.messages():
            stored = decode_message(entry)
            found = self._connection.next_delivery(self._channel)
            if found != Delivery(stored.exchange, stored.routing_key, stored.properties, stored.body):
                raise Differs(f"queue '{self._queue}': message {number} is not as it is in the archive")

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Nothing is ever under way."""

"""Compares the messages of a rehearsal with the archive: every message, in the form that a consumer gets."""

from __future__ import annotations

from collections.abc import Mapping

from leveret.model.errors import LeveretError
from leveret.pipeline.jobs.job import AmqpTarget
from leveret.pipeline.target_broker.connection import AmqpConnection, Delivery
from leveret.wire.record import RECOVERY_STREAM_PREFIX, decode_message
from leveret.wire.stream.publish import MessageRun


class Differs(LeveretError):
    """A queue and the archive differ; the text names the message."""


class ComparisonClient:
    """publish.IngestClient: consumes messages from queues instead of publishing them.

    Args:
        totals: the number of messages that each queue must have.
    """

    def __init__(self, target: AmqpTarget, vhost: str, totals: Mapping[str, int], timeout_s: float) -> None:
        self._connection = AmqpConnection(target, vhost, timeout_s)
        self._totals = totals

    def declare_publisher(self, reference: str, stream: str) -> ComparisonPublisher:
        """Begin to consume a queue.

        Raises:
            Differs: it has another number of messages.
        """
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        return ComparisonPublisher(self._connection, queue, self._totals[queue])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ComparisonPublisher:
    """publish.IngestPublisher: compares a queue's messages with the archive's."""

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
        """Consume as many messages, and compare.

        Raises:
            Differs: a message differs.
            AmqpConnectionLost: a message is missing.
        """
        for number, entry in run.messages():
            stored = decode_message(entry)
            found = self._connection.next_delivery(self._channel)
            if found != Delivery(stored.exchange, stored.routing_key, stored.properties, stored.body):
                raise Differs(f"queue '{self._queue}': message {number} is not as it is in the archive")

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Return at once: no message is ever in flight."""

"""Streams at an AMQP 0-9-1 broker: publishes recovered streams there, and counts their messages.

A broker reports a stream's message count late (RabbitMQ by five seconds), but the stream can be read any number of
times. The exchange identifies messages that a recovery published.
"""

from __future__ import annotations

import time
from typing import Final

from leveret.model.errors import AccessRefused, LeveretError, NotFound, PreconditionFailed
from leveret.pipeline.archive.stream_messages import StreamMessages
from leveret.pipeline.target_broker.connection import AmqpConnection, ClientChannel, Delivery
from leveret.wire.message10 import OFFSET_HEADER
from leveret.wire.properties import headers_of
from leveret.wire.record import StoredMessage, content_header, decode_message
from leveret.wire.stream_entry import compression_of, unpack_entry

IDLE_S: Final = 1.0
"""A stream without a delivery for so long has no further messages."""


class MessageDeclined(LeveretError):
    """The broker refused a message, or AMQP 0-9-1 cannot carry it."""


class EntryReader:
    """Converts one queue's messages in the archive to messages of AMQP 0-9-1.

    An entry of a stream becomes its messages, in the form that an AMQP 0-9-1 consumer of the stream gets.
    """

    def __init__(self, queue: str) -> None:
        """`queue` is the routing key of messages from publishers of the stream protocol."""
        self._queue = queue
        self._entries = StreamMessages(queue)

    def messages(self, stored: bytes) -> list[StoredMessage]:
        """The messages in a stored one, in order.

        Raises:
            MessageDeclined: it is a batch that only readers can unpack.
        """
        entry = unpack_entry(stored)
        if entry is None:
            return [decode_message(stored)]
        found = self._entries.of(entry)
        if not found:
            raise MessageDeclined(
                f"stream '{self._queue}' has a batch of messages (compressed: {compression_of(entry)}) that cannot be "
                "taken apart here, and AMQP 0-9-1 does not carry it as it is: leave the stream out, by naming the "
                "others with --queues"
            )
        return found


def is_stream(connection: AmqpConnection, queue: str) -> bool:
    """Whether an existing queue is a stream: a contradicting declaration makes the broker name its type.

    Raises:
        AccessRefused: the user may not declare it.
    """
    channel = connection.open_channel()
    try:
        connection.declare_queue(channel, queue, {"x-queue-type": "classic"})
    except PreconditionFailed as error:
        return "'x-queue-type'" in str(error) and "'stream'" in str(error)
    connection.close_channel(channel)
    return False


def declare_stream(connection: AmqpConnection, queue: str, arguments: dict[str, object]) -> None:
    """Make a stream.

    Raises:
        MessageDeclined: the broker has no such streams; the text gives the remedy.
        NotFound: it exists, and cannot be used yet.
    """
    instead = (
        "leave it out, by naming the others with --queues, or declare a queue of that name there first, which then "
        "gets the stream's messages"
    )
    channel = connection.open_channel()
    try:
        connection.declare_queue(channel, queue, arguments)
    except (AccessRefused, NotFound):
        raise
    except LeveretError as error:
        raise MessageDeclined(f"stream '{queue}' cannot be made: {error}; {instead}") from error
    if not is_stream(connection, queue):
        connection.delete_queue(channel, queue)
        raise MessageDeclined(
            f"{connection.peer} made a queue of '{queue}', not a stream, as it has none: {instead}"
        )
    connection.close_channel(channel)


def end_of(connection: AmqpConnection, stream: str, timeout_s: float = IDLE_S) -> int:
    """The offset after the last message of a stream; 0 if none comes within `timeout_s`."""
    channel = _reading(connection, stream, "last")
    end: int | None = None
    until_s = time.monotonic() + timeout_s
    while (delivery := _next(connection, channel, until_s)) is not None:
        if end is None:
            # A time in all, because others may publish all the time.
            until_s = time.monotonic() + IDLE_S
        end = max(end or 0, _offset_of(delivery) + 1)
    connection.close_channel(channel)
    return end or 0


def count_from(
    connection: AmqpConnection, stream: str, offset: int, exchange: str, least: int, timeout_s: float
) -> int:
    """The number of messages of an exchange from an offset on; waits for the end, and at least `least` of them."""
    # A broker under load may pause in the middle, too.
    end = end_of(connection, stream, timeout_s if least else IDLE_S)
    channel = _reading(connection, stream, offset)
    name = exchange.encode()
    count, is_at_end, has_all = 0, offset >= end, offset >= end and not least
    until_s = time.monotonic() + (IDLE_S if has_all else timeout_s)
    while (delivery := _next(connection, channel, until_s)) is not None:
        count += delivery.exchange == name
        if not is_at_end:
            is_at_end = _offset_of(delivery) + 1 >= end
            until_s = time.monotonic() + timeout_s
        if is_at_end and count >= least and not has_all:
            has_all, until_s = True, time.monotonic() + IDLE_S
    connection.close_channel(channel)
    return count


def _reading(connection: AmqpConnection, stream: str, offset: int | str) -> ClientChannel:
    """A channel with deliveries of the messages from an offset on."""
    channel = connection.open_channel()
    connection.consume(channel, stream, {OFFSET_HEADER: offset})
    return channel


def _next(connection: AmqpConnection, channel: ClientChannel, until_s: float) -> Delivery | None:
    """The next delivery before a time of the monotonic clock."""
    while (left := until_s - time.monotonic()) > 0:
        if channel.deliveries:
            return connection.next_delivery(channel)
        connection.receive_within(left)
    return None


def _offset_of(delivery: Delivery) -> int:
    offset = headers_of(content_header(delivery.properties, 0)).get(OFFSET_HEADER, -1)
    return offset if isinstance(offset, int) else -1

"""The messages in the archived entries of streams, in terms of AMQP 0-9-1.

An entry is as its publisher sent it: a message of AMQP 1.0, or a batch of them (`wire.stream_entry`).
"""

from __future__ import annotations

from leveret.wire.message10 import MessageReader, Shape10
from leveret.wire.record import StoredMessage, content_header
from leveret.wire.stream_entry import messages_of


class StreamMessages:
    """Converts the entries of one stream, in the form that an AMQP 0-9-1 consumer of the stream gets."""

    def __init__(self, queue: str) -> None:
        """`queue` is the routing key of messages from publishers of the stream protocol."""
        self._key = queue.encode()
        self._reader = MessageReader()
        self._shape: Shape10 | None = None
        self._header = b""

    def of(self, entry: bytes) -> list[StoredMessage]:
        """The messages of an entry, in order; none of a batch that only readers can unpack."""
        return [self._message(octets) for octets in messages_of(entry)]

    def _message(self, octets: bytes) -> StoredMessage:
        shape = self._shape
        if shape is None or not shape.fits(octets):
            shape = self._shape = Shape10(octets, self._reader)
            self._header = content_header(shape.message.properties, shape.body_bytes)
        exchange, key = shape.message.exchange or b"", shape.message.routing_key
        return StoredMessage(exchange, self._key if key is None else key, self._header, shape.body_of(octets))

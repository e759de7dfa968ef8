"""A message whose frames are arriving: method, header, bodies."""

from __future__ import annotations

from io import BytesIO

from leveret.session.amqp091.replies import Fault
from leveret.wire import amqp091 as wire
from leveret.wire import properties as props


class IncomingMessage:
    """A message on the long path, frame by frame."""

    __slots__ = ("body", "bytes_max", "exchange", "flags", "header", "left", "routing_key")

    def __init__(self, payload: bytes, bytes_max: int) -> None:
        """`payload` is the basic.publish method's; a body of more than `bytes_max` is refused."""
        self.exchange, self.routing_key, self.flags = wire.split_publish(payload)
        self.header: bytes | None = None
        self.left = 0
        self.bytes_max = bytes_max
        # One buffer, because parts of a few octets each would take many times their size. It hands its octets over
        # without a copy, which of a large body would hold up the loop.
        self.body = BytesIO()

    def unexpected(self) -> Fault:
        """The error for a frame other than the next one of this message."""
        if self.header is None:
            return Fault(505, "expected content header for class 60, got non content header frame instead")
        return Fault(505, "expected content body, got non content body frame instead")

    def take_header(self, payload: bytes) -> bool:
        """Take the content header; return whether the message is whole (its body is empty)."""
        if payload[:2] != b"\x00\x3c":
            other = int.from_bytes(payload[:2], "big")
            raise Fault(505, f"expected content header for class 60, got one for class {other} instead")
        self.header = payload
        self.left = props.body_bytes_of(payload)
        if self.left > self.bytes_max:
            raise Fault(406, f"message size {self.left} is larger than configured max size {self.bytes_max}")
        return self.left == 0

    def take_body(self, payload: bytes | memoryview) -> bool:
        """Take a body frame; return whether the message is whole."""
        self.left -= len(payload)
        if self.left < 0:
            raise Fault(501, "body frames hold more than the content header announced")
        self.body.write(payload)
        return self.left == 0

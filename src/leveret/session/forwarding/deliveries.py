"""Decodes deliveries from a leader, many at a time: the hot path of consuming from another node.

Deliveries to one consumer that differ are gathered by columns. Those of one head differ only in tag and body, so a
run of them is recognised by a comparison and sliced; session.amqp091.publishing does the same with publishes.
Everything else is decoded frame by frame.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Final, NamedTuple

from leveret.core.queues.head import Head, head_of_octets
from leveret.core.queues.messages import Messages, alike
from leveret.wire import amqp091 as wire
from leveret.wire.amqp091 import FRAME_HEAD_BYTES
from leveret.wire.properties import SyntaxFault, body_bytes_of

SHAPES_MAX: Final = 1024
SHAPES_BYTES_MAX: Final = 1024 * 1024
_BULK_MAX: Final = 1024
_TAG: Final = 8
_FIXED: Final = struct.Struct(">BHI4xQ")
"""The frame head of a content header, and the body size in it."""


class Delivered(NamedTuple):
    """Deliveries of one consumer with consecutive tags, and their end in the octets."""

    channel: int
    consumer_tag: bytes
    first_tag: int
    redelivered: bool
    messages: Messages
    end: int


class _Shape:
    """The octets before and behind the tag in deliveries of one head to one consumer."""

    __slots__ = (
        "_unpack",
        "before",
        "behind",
        "body_at",
        "channel",
        "consumer_tag",
        "head",
        "redelivered",
        "size",
        "stride",
        "tag_at",
    )

    def __init__(
        self, channel: int, consumer_tag: bytes, before: bytes, behind: bytes, redelivered: bool, head: Head
    ) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.before = before
        self.behind = behind
        self.redelivered = redelivered
        self.head = head
        self.size = head.body_bytes
        self.tag_at = len(before)
        self.body_at = len(before) + _TAG + len(behind)
        self.stride = self.body_at + self.size + 1
        self._unpack = struct.Struct(f">{len(before)}sQ{len(behind)}s{self.size}sB").iter_unpack

    def matches(self, data: bytes, position: int) -> bool:
        """Whether a delivery of this shape begins at `position`."""
        return data.startswith(self.before, position) and data.startswith(
            self.behind, position + self.tag_at + _TAG
        )

    def many(self, data: bytes, position: int, count: int) -> tuple[int, list[bytes]] | None:
        """The first tag and the bodies of the next `count` messages, if all have this shape and consecutive tags."""
        last = position + (count - 1) * self.stride
        if not self.matches(data, last):
            return None
        before, behind, mark = self.before, self.behind, wire.FRAME_END
        tags: list[int] = []
        bodies: list[bytes] = []
        for start, tag, middle, body, end in self._unpack(memoryview(data)[position : last + self.stride]):
            if start != before or middle != behind or end != mark:
                return None
            tags.append(tag)
            bodies.append(body)
        if tags[-1] - tags[0] != count - 1:
            return None
        return tags[0], bodies


class Deliveries:
    """Decodes deliveries, and caches shapes; see the module."""

    def __init__(self) -> None:
        """No shapes yet."""
        self._shapes: dict[bytes, _Shape] = {}
        self._shapes_bytes = 0
        self._last: _Shape | None = None

    def take(self, data: bytes, position: int) -> Delivered | None:
        """Whole like deliveries at `position`; None if none begins there, or its body is empty or incomplete.

        Raises:
            LeveretError: a delivery begins there and is malformed.
        """
        shape = self._last
        if shape is None or not shape.matches(data, position):
            different = _gather(data, position)
            if different is not None:
                return different
            shape = self._shape_at(data, position)
            if shape is None:
                return None
            self._last = shape
        most = (len(data) - position) // shape.stride
        if not most:
            return None
        count = min(most, _BULK_MAX)
        while count > 1:
            found = shape.many(data, position, count)
            if found is not None:
                first, bodies = found
                end = position + count * shape.stride
                messages = alike(shape.head, bodies)
                return Delivered(shape.channel, shape.consumer_tag, first, shape.redelivered, messages, end)
            count //= 4
        start = position + shape.body_at
        end = start + shape.size
        if data[end] != wire.FRAME_END:
            raise wire.FrameError("the octet after a body frame is not a frame end")
        tag = int.from_bytes(data[position + shape.tag_at : position + shape.tag_at + _TAG], "big")
        return Delivered(
            shape.channel,
            shape.consumer_tag,
            tag,
            shape.redelivered,
            alike(shape.head, [data[start:end]]),
            end + 1,
        )

    def _shape_at(self, data: bytes, position: int) -> _Shape | None:
        """The shape of the delivery at `position`, None if it is incomplete or has none."""
        if len(data) - position < FRAME_HEAD_BYTES + 5 or not data.startswith(
            wire.BASIC_DELIVER, position + FRAME_HEAD_BYTES
        ):
            return None
        kind, channel, size = wire.FRAME_HEAD.unpack_from(data, position)
        header_at = position + size + 8
        if kind != wire.FRAME_METHOD or len(data) - header_at < FRAME_HEAD_BYTES:
            return None
        kind, number, header_size = wire.FRAME_HEAD.unpack_from(data, header_at)
        body_at = header_at + header_size + 8
        if kind != wire.FRAME_HEADER or number != channel or len(data) - body_at < FRAME_HEAD_BYTES:
            return None
        kind, number, body_size = wire.FRAME_HEAD.unpack_from(data, body_at)
        if kind != wire.FRAME_BODY or number != channel:
            return None
        tag_at = position + FRAME_HEAD_BYTES + 5 + data[position + FRAME_HEAD_BYTES + 4]
        before, behind = data[position:tag_at], data[tag_at + _TAG : body_at + FRAME_HEAD_BYTES]
        found = self._shapes.get(before + behind)
        if found is not None:
            return found
        head = head_of(
            behind[1 : header_at - 1 - tag_at - _TAG], data[header_at + FRAME_HEAD_BYTES : body_at - 1]
        )
        if head.body_bytes != body_size:
            return None
        shape = _Shape(channel, before[FRAME_HEAD_BYTES + 5 :], before, behind, bool(behind[0]), head)
        self._shapes_bytes += len(before) + len(behind)
        if len(self._shapes) >= SHAPES_MAX or self._shapes_bytes > SHAPES_BYTES_MAX:
            self._shapes.clear()
            self._shapes_bytes = len(before) + len(behind)
        self._shapes[before + behind] = shape
        return shape


def _gather(data: bytes, position: int) -> Delivered | None:
    """Whole deliveries at `position`, up to a like or irregular one; None for fewer than two."""
    end = len(data)
    if (
        end - position < FRAME_HEAD_BYTES + 5
        or data[position] != wire.FRAME_METHOD
        or not data.startswith(wire.BASIC_DELIVER, position + FRAME_HEAD_BYTES)
    ):
        return None
    frame_head = data[position : position + 3]
    channel = int.from_bytes(frame_head[1:], "big")
    method_at = position + FRAME_HEAD_BYTES
    method = data[method_at : method_at + 5 + data[method_at + 4]]
    columns = _Columns()
    while (
        end - position > FRAME_HEAD_BYTES
        and data.startswith(frame_head, position)
        and data.startswith(method, position + FRAME_HEAD_BYTES)
    ):
        behind = columns.take(data, position, end, channel, position + FRAME_HEAD_BYTES + len(method))
        if behind == position:
            break
        position = behind
    if len(columns.bodies) < 2:
        return None
    messages = Messages(columns.routes, columns.headers, columns.bodies)
    return Delivered(channel, method[5:], columns.first_tag, columns.redelivered, messages, position)


class _Columns:
    """Collects deliveries with consecutive tags."""

    def __init__(self) -> None:
        self.routes: list[bytes] = []
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.first_tag = 0
        self.redelivered = False
        self._known: dict[bytes, bytes] = {}

    def take(self, data: bytes, position: int, end: int, channel: int, tag_at: int) -> int:
        """Take the delivery at `position`, whose tag is at `tag_at`.

        Return its end, or `position` if it is not taken.
        """
        header_at = position + 8 + int.from_bytes(data[position + 3 : position + 7], "big")
        if end - header_at < FRAME_HEAD_BYTES + _FIXED.size:
            return position
        kind, number, size, body_size = _FIXED.unpack_from(data, header_at)
        header_end = header_at + FRAME_HEAD_BYTES + size
        body_at = header_end + 8
        stop = body_at + body_size
        tag, redelivered = int.from_bytes(data[tag_at : tag_at + _TAG], "big"), bool(data[tag_at + _TAG])
        if (
            stop >= end
            or not body_size
            or (kind, number) != (wire.FRAME_HEADER, channel)
            or data[header_at - 1] != wire.FRAME_END
            or wire.BETWEEN_FRAMES.unpack_from(data, header_end)
            != (wire.FRAME_END, wire.FRAME_BODY, channel, body_size)
            or data[stop] != wire.FRAME_END
        ):
            return position
        route, header = data[tag_at + _TAG + 1 : header_at - 1], data[header_at + 3 : header_end]
        if not self.bodies:
            self.first_tag, self.redelivered = tag, redelivered
        elif (
            tag != self.first_tag + len(self.bodies)
            or redelivered != self.redelivered
            or (header == self.headers[-1] and route == self.routes[-1])
        ):
            return position
        known = self._known.get(route)
        if known is None:
            if not _is_route(route):
                return position
            known = self._known[route] = route
        self.routes.append(known)
        self.headers.append(header)
        self.bodies.append(data[body_at:stop])
        return int(stop) + 1


def _is_route(route: bytes) -> bool:
    """Whether the octets are two short strings."""
    key_at = 1 + route[0] if route else 0
    return 0 < key_at < len(route) and len(route) == key_at + 1 + route[key_at]


def head_of(route: bytes, header: bytes) -> Head:
    """The head of a delivery: `route` is exchange and routing key as short strings.

    Raises:
        SyntaxFault: the route or the header is cut short.
    """
    if not _is_route(route):
        raise SyntaxFault("exchange and routing key of a delivery are cut short")
    return head_of_octets(route, header)


class IncomingDelivery:
    """A delivery, or a get, whose frames come one by one: its body is empty or large, or its frame came in parts."""

    def __init__(self, method: bytes) -> None:
        """`method` is the payload of a basic.deliver or basic.get-ok."""
        self.method = method
        self._header = b""
        self._body = BytesIO()
        self._left = 0

    def take(self, kind: int, payload: bytes) -> bool:
        """Take header or body; return whether the message is whole."""
        if kind == wire.FRAME_HEADER:
            self._header = payload
            self._left = body_bytes_of(payload)
        else:
            self._body.write(payload)
            self._left -= len(payload)
        return self._left <= 0

    def delivered(self, channel: int) -> Delivered:
        """The whole message.

        Raises:
            SyntaxFault: the method or the header is cut short.
        """
        method, tag_at = self.method, self._tag_at
        tag = int.from_bytes(method[tag_at : tag_at + _TAG], "big")
        consumer_tag = method[5:tag_at] if method[:4] == wire.BASIC_DELIVER else b""
        head = head_of(method[tag_at + _TAG + 1 : self._route_end], self._header)
        redelivered = bool(method[tag_at + _TAG])
        return Delivered(channel, consumer_tag, tag, redelivered, alike(head, [self._body.getvalue()]), 0)

    @property
    def ready_count(self) -> int:
        """For a get, the number of ready messages behind it."""
        return int.from_bytes(self.method[self._route_end :], "big")

    @property
    def _tag_at(self) -> int:
        return 5 + self.method[4] if self.method[:4] == wire.BASIC_DELIVER else 4

    @property
    def _route_end(self) -> int:
        try:
            key_at = self._tag_at + _TAG + 1
            key_at += 1 + self.method[key_at]
            return key_at + 1 + self.method[key_at]
        except IndexError:
            raise SyntaxFault("a delivery is cut short") from None

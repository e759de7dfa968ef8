"""A message's head: the message without its body. Clients that send messages of one kind repeat heads."""

from __future__ import annotations

import re
from typing import Final

from leveret.wire import properties as props
from leveret.wire.properties import body_bytes_of, is_persistent, property_flags, shortstr

_EXPIRATION_MS_MAX: Final = 10**18
_SIGNED: Final = re.compile(rb"\+[0-9]+|-0+")
"""A number that is not negative, with a sign, which RabbitMQ reads too."""
DEFAULT_TERMS: Final = (None, 0)
"""The terms of messages that never expire and have no priority."""


class Head:
    """All of a stored message but its body.

    `entry` precedes each body in a chunk (length and message head); `route` is exchange and routing key as two short
    strings; `header` the content header's payload, `sized_header` the same with its length before it. `expiration_ms`
    is the message's own time to live, None for none. `frames` is the session's cache, by channel, of the octets
    before a body; `counted` is the quorum queues' cache of heads with a delivery count.
    """

    __slots__ = (
        "body_bytes",
        "counted",
        "entry",
        "expiration_ms",
        "frames",
        "header",
        "persistent",
        "priority",
        "route",
    )

    def __init__(
        self,
        entry: bytes,
        route: bytes,
        header: bytes,
        body_bytes: int,
        persistent: bool,
        expiration_ms: int | None = None,
        priority: int = 0,
    ) -> None:
        """Take the encoded parts; see the class."""
        self.entry = entry
        self.route = route
        self.header = header
        self.body_bytes = body_bytes
        self.persistent = persistent
        self.expiration_ms = expiration_ms
        self.priority = priority
        self.frames: dict[int, bytes] = {}
        self.counted: dict[int, Head] = {}

    @property
    def sized_header(self) -> bytes:
        """See the class."""
        return len(self.header).to_bytes(4, "big") + self.header

    @property
    def exchange(self) -> bytes:
        """The exchange that the message was published to."""
        return self.route[1 : 1 + self.route[0]]

    @property
    def routing_key(self) -> bytes:
        """The routing key that the message was published with."""
        return self.route[2 + self.route[0] :]


def make_head(exchange: bytes, routing_key: bytes, header: bytes) -> Head:
    """The common part of messages of one exchange, routing key and content header.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    return head_of_octets(shortstr(exchange) + shortstr(routing_key), header)


def head_of_octets(route: bytes, header: bytes) -> Head:
    """As `make_head`, from exchange and routing key as two short strings.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    start = route + len(header).to_bytes(4, "big") + header
    body_bytes = body_bytes_of(header)
    entry = (len(start) + body_bytes).to_bytes(4, "big") + start
    expiration_ms, priority = terms_of(header) if property_flags(header) & props.TERMS else DEFAULT_TERMS
    return Head(entry, route, header, body_bytes, is_persistent(header), expiration_ms, priority)


def terms_of(header: bytes) -> tuple[int | None, int]:
    """Time to live, None for none, and priority in a content header that has either; `DEFAULT_TERMS` in all others.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    expiration, priority = props.terms(header)
    return expiration_ms_of(expiration), priority


def expiration_ms_of(text: bytes | None) -> int | None:
    """The number in a stored expiration; None if it is negative or no number, and at most the end of time."""
    if text is None or not (text.isdigit() or _SIGNED.fullmatch(text)):
        return None
    return min(int(text), _EXPIRATION_MS_MAX)

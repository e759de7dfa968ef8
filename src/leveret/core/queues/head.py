"""What messages of one shape share, and runs of such messages.

A stored message is its head (exchange, routing key, content header) and its body. Clients repeat
heads, so queues, logs and deliveries handle runs: many bodies, one head, consecutive offsets.
"""

from __future__ import annotations

from leveret.wire import properties as props
from leveret.wire.properties import body_bytes_of, is_persistent, property_flags, shortstr
from leveret.wire.record import message_head

_EXPIRATION_MS_MAX = 10**18


class Head:
    """All of a stored message but its body.

    `entry` precedes each body in a chunk (length and message head); `route` is exchange and routing
    key as two short strings; `header` the content header payload. `expiration_ms` is the message's own
    time to live, None for none. `frames` is for the session, which caches what it puts before a body
    here, by channel; `counted` is for quorum queues, which cache heads with a delivery count here.
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
    def exchange(self) -> bytes:
        """The exchange it was published to."""
        return self.route[1 : 1 + self.route[0]]

    @property
    def routing_key(self) -> bytes:
        """The key it was published with."""
        return self.route[2 + self.route[0] :]


def make_head(exchange: bytes, routing_key: bytes, header: bytes) -> Head:
    """What messages of one exchange, routing key and content header share.

    Raises:
        SyntaxFault: the header ends inside its properties.
    """
    start = message_head(exchange, routing_key, header)
    body_bytes = body_bytes_of(header)
    entry = (len(start) + body_bytes).to_bytes(4, "big") + start
    route = shortstr(exchange) + shortstr(routing_key)
    expiration_ms, priority = None, 0
    if property_flags(header) & ~props.DELIVERY_MODE:
        found = props.split(header)
        expiration_ms = _expiration_ms(found.get(props.EXPIRATION))
        priority = found.get(props.PRIORITY, b"\0")[0]
    return Head(entry, route, header, body_bytes, is_persistent(header), expiration_ms, priority)


def _expiration_ms(text: bytes | None) -> int | None:
    """A stored expiration; one that is no number (checked at publish) counts for none, one beyond all time for that."""
    return min(int(text), _EXPIRATION_MS_MAX) if text is not None and text.isdigit() else None


class Run:
    """Bodies of one head at consecutive offsets from `first` on, arrived in one chunk at `arrived_ms`."""

    __slots__ = ("arrived_ms", "bodies", "first", "head")

    def __init__(self, first: int, head: Head, bodies: list[bytes], arrived_ms: int = 0) -> None:
        """Take a list that is the run's own from now on."""
        self.first = first
        self.head = head
        self.bodies = bodies
        self.arrived_ms = arrived_ms

    @property
    def end(self) -> int:
        """The offset after the last."""
        return self.first + len(self.bodies)

    def cut(self, first: int, end: int) -> Run:
        """The part from offset `first` up to, not including, `end`."""
        return Run(first, self.head, self.bodies[first - self.first : end - self.first], self.arrived_ms)


def count_of(runs: list[Run]) -> int:
    """How many messages these are."""
    return sum(len(run.bodies) for run in runs)


def bytes_of(runs: list[Run]) -> int:
    """How many octets their bodies hold."""
    return sum(len(run.bodies) * run.head.body_bytes for run in runs)

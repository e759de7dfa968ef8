"""Messages as applications send them, with different properties, bodies and sizes.

A publisher has a ring of messages that was encoded beforehand; its consumers make the same ring from the same seed.
Before it is sent, each message gets its number, as its message id and at the begin of its body. One numpy assignment
writes the numbers of a run of messages:

    +---------------+---------------------------------+----------------------------+
    | basic.publish | header ... message id ...       | body frame: number, random |
    +---------------+---------------------------------+----------------------------+
    ^ start         ^ header      ^ name                ^ body
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pamqp import base, body, commands, frame, header

from bench.client import CHANNEL, FRAME_MAX, PERSISTENT

Octets = NDArray[np.uint8]
"""An array of octets, with one row or with a row for each message."""
Integers = NDArray[np.int64]

EXCHANGE: Final = "bench-traffic"
RING_BYTES_MAX: Final = 32_000_000
BODY_FRAME_MAX: Final = FRAME_MAX - 8
NUMBER_BYTES: Final = 8
NAME_CHARS: Final = 2 * NUMBER_BYTES
SEQUENCE_BITS: Final = 48
EVENTS: Final = ("created", "changed", "shipped", "removed")
_NAME: Final = "0" * NAME_CHARS
_BLANK_NUMBER: Final = bytes(NUMBER_BYTES)
FRAME_HEAD_BYTES: Final = 7
_HEX: Final = np.array([list(f"{octet:02x}".encode()) for octet in range(256)], dtype=np.uint8)
AT_NUMBER: Final = np.arange(NUMBER_BYTES)
AT_NAME: Final = np.arange(NAME_CHARS)


@dataclass(frozen=True)
class Load:
    """The messages, queues, publishers and consumers of a run.

    Attributes:
        mixed: messages differ in all their properties; otherwise they have a delivery mode and no other property.
        body_bytes: smallest and largest body; the sizes between them are spread evenly by their logarithm.
        kind: the type of the exchange: `topic` and `headers` route each message to one queue, `fanout` to all.
        tenants: the number of bindings of a headers exchange: one for each tenant, who has one of the queues.
        window: the highest number of unconfirmed messages of each publisher.
        consumers: the number of consuming connections. Each has an equal share of the queues; if there are fewer
            queues than connections, several connections share a queue.
        consumers_each: the number of consumers of each of its queues on such a connection.
        prefetch: the prefetch of each consumer.
        ack_every: the number of deliveries that one `multiple` ack settles; 1 acknowledges each alone.
        priorities: the number of priorities, spread evenly; 0 for none.
        ordered: whether a consumer gets the messages of a queue in the order of their publisher.
        altered: whether the broker adds headers to messages, so that their octets change.
    """

    mixed: bool = True
    queues: int = 1
    publishers: int = 1
    consumers: int = 1
    consumers_each: int = 1
    body_bytes: tuple[int, int] = (120, 4_000)
    kind: str = "topic"
    tenants: int = 0
    window: int = 1_000
    prefetch: int = 500
    ack_every: int = 50
    priorities: int = 0
    ordered: bool = True
    altered: bool = False

    @property
    def copies(self) -> int:
        """The number of deliveries of each message."""
        return self.queues if self.kind == "fanout" else 1

    @property
    def ring_messages(self) -> int:
        """The number of different messages of each publisher: fewer if they are large."""
        return max(16, min(2_000, RING_BYTES_MAX // self.body_bytes[1]))


def queue_name(number: int) -> str:
    """Return the name of a queue. All names have one length, so that all deliveries' method frames have one length."""
    return f"traffic-{number:05}"


def binding_key(number: int) -> str:
    """Return the key that binds a queue to the topic exchange."""
    return f"orders.{number:05}.#"


def tenant_name(number: int) -> str:
    """Return the header by which a headers exchange routes; tenant n has queue n modulo the number of queues."""
    return f"tenant-{number:05}"


@dataclass(frozen=True)
class _Message:
    queue: int
    priority: int
    properties: commands.Basic.Properties
    octets: bytes


class Ring:
    """The encoded messages of one publisher, and the places of their parts."""

    def __init__(self, load: Load, publisher: int) -> None:
        """Encode the messages, which are the same for the same load and publisher."""
        self.load = load
        self.publisher = publisher
        source = random.Random(publisher)
        self._messages = [_message(load, source) for _ in range(load.ring_messages)]
        self.count = len(self._messages)
        self.octets = bytearray(b"".join(one.octets for one in self._messages))
        self._columns = np.frombuffer(self.octets, dtype=np.uint8)
        sizes = np.array([len(one.octets) for one in self._messages])
        self.ends: Integers = np.cumsum(sizes)
        self.starts: Integers = self.ends - sizes
        self.headers: Integers = self.starts + [_frame_bytes(one.octets, 0) for one in self._messages]
        names = [one.octets.find(_NAME.encode()) for one in self._messages]
        self.names: Integers = self.starts + names
        header_sizes = [
            _frame_bytes(one.octets, int(at))
            for one, at in zip(self._messages, self.headers - self.starts, strict=True)
        ]
        self.bodies: Integers = self.headers + header_sizes
        self.queues: Integers = np.array([one.queue for one in self._messages])

    @cached_property
    def ranks(self) -> tuple[Integers, Integers]:
        """For each message its place among those of its order in the ring; for each order its number of messages."""
        counts = np.zeros(self.load.queues * max(1, self.load.priorities), dtype=np.int64)
        ranks = np.zeros(self.count, dtype=np.int64)
        for slot, order in enumerate(self.orders.tolist()):
            ranks[slot] = counts[order]
            counts[order] += 1
        return ranks, counts

    @cached_property
    def orders(self) -> Integers:
        """For each message its order: the number of its queue and priority, within which messages are ordered."""
        priorities = np.array([one.priority for one in self._messages])
        orders: Integers = self.queues * max(1, self.load.priorities) + priorities
        return orders

    def properties(self, slot: int) -> commands.Basic.Properties:
        """Return the properties from which a message of the ring was encoded."""
        return self._messages[slot].properties

    def number(self, first: int, count: int) -> None:
        """Write the numbers of a run of messages, which must not reach beyond the ring's end."""
        slot = first % self.count
        sequences = np.arange(first, first + count, dtype=np.uint64)
        octets = (sequences + (self.publisher << SEQUENCE_BITS)).astype(">u8").view(np.uint8)
        numbers = octets.reshape(count, NUMBER_BYTES)
        bodies = self.bodies[slot : slot + count] + FRAME_HEAD_BYTES
        self._columns[bodies[:, None] + AT_NUMBER] = numbers
        if self.load.mixed:
            self._columns[self.names[slot : slot + count, None] + AT_NAME] = names_of(numbers)

    def run(self, first: int, count: int) -> memoryview:
        """Return the octets of a run of messages, which must not reach beyond the ring's end."""
        slot = first % self.count
        return memoryview(self.octets)[self.starts[slot] : self.ends[slot + count - 1]]


def names_of(numbers: Octets) -> Octets:
    """Return the message ids of numbers, both as rows of octets."""
    return _HEX[numbers].reshape(len(numbers), NAME_CHARS)


def _message(load: Load, source: random.Random) -> _Message:
    queue = source.randrange(load.queues)
    priority = source.randrange(load.priorities) if load.priorities else 0
    low, high = load.body_bytes
    size = max(low, min(high, round(low * (high / low) ** source.random())))
    content = _BLANK_NUMBER + source.randbytes(size - NUMBER_BYTES)
    key = f"orders.{queue:05}.{source.choice(EVENTS)}"
    properties = (
        _mixed_properties(source) if load.mixed else commands.Basic.Properties(delivery_mode=PERSISTENT)
    )
    if load.priorities:
        properties.priority = priority
    if load.tenants:
        turn = source.randrange(load.tenants // load.queues)
        properties.headers = {**(properties.headers or {}), "tenant": tenant_name(turn * load.queues + queue)}
    publish = commands.Basic.Publish(exchange=EXCHANGE, routing_key=key)
    head = header.ContentHeader(body_size=size, properties=properties)
    parts = [body.ContentBody(content[at : at + BODY_FRAME_MAX]) for at in range(0, size, BODY_FRAME_MAX)]
    frames: list[base.Frame | header.ContentHeader | body.ContentBody] = [publish, head, *parts]
    octets = b"".join(frame.marshal(one, CHANNEL) for one in frames)
    return _Message(queue, priority, properties, octets)


def _mixed_properties(source: random.Random) -> commands.Basic.Properties:
    return commands.Basic.Properties(
        message_id=_NAME,
        timestamp=datetime.fromtimestamp(1_700_000_000 + source.randrange(10_000_000), UTC),
        correlation_id=source.randbytes(source.randrange(8, 19)).hex(),
        message_type=f"order.{source.choice(EVENTS)}",
        app_id=f"shop-{source.randrange(100)}",
        content_type=source.choice(("application/json", "application/octet-stream", "text/plain")),
        delivery_mode=PERSISTENT,
        headers={
            "traceparent": f"00-{source.randbytes(16).hex()}-{source.randbytes(8).hex()}-01",
            "tenant": f"tenant-{source.randrange(100_000)}",
            "attempt": source.randrange(100_000, 1_000_000),
        },
    )


def _frame_bytes(octets: bytes, at: int) -> int:
    return FRAME_HEAD_BYTES + int.from_bytes(octets[at + 3 : at + 7], "big") + 1

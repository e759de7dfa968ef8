"""Messages of every kind, identified by their number.

Bodies are empty, small, or large enough for several frames. Messages have headers and other properties or none, and go
through a topic exchange or the default one. All are persistent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pika

EXCHANGE: Final = "parcels"
_LARGE_BYTES: Final = (140_000, 300_000)
_SMALL_BYTES_MAX: Final = 600


class Parcel(NamedTuple):
    """A message (leveret.testing.applications.applications.AppMessage)."""

    number: int
    queue: str
    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties


def parcels(queues: Sequence[str], count: int, *, first: int = 0, seed: int = 0) -> Iterator[Parcel]:
    """Return the messages `first` to `first + count - 1`, distributed over the queues at random."""
    for number in range(first, first + count):
        chance = random.Random(f"{seed} {number}")
        queue = chance.choice(queues)
        straight = chance.random() < 0.2
        yield Parcel(
            number,
            queue,
            "" if straight else EXCHANGE,
            queue if straight else f"{queue}.{chance.randrange(5)}",
            _body(chance),
            _properties(number, chance),
        )


def declare(channel: Any, queues: Sequence[str], arguments: Mapping[str, Any] | None = None) -> None:
    """Declare the exchange and these durable queues, and bind them."""
    channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments=dict(arguments or {}))
        channel.queue_bind(queue, EXCHANGE, f"{queue}.*")


def _body(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        return b""
    if kind < 0.11:
        return chance.randbytes(chance.randint(*_LARGE_BYTES))
    return chance.randbytes(chance.randint(1, _SMALL_BYTES_MAX))


def _properties(number: int, chance: random.Random) -> pika.BasicProperties:
    return pika.BasicProperties(
        delivery_mode=2,
        message_id=str(number),
        content_type=chance.choice([None, "application/json", "text/plain; charset=utf-8"]),
        correlation_id=chance.choice([None, f"order {number}"]),
        timestamp=chance.choice([None, 1_700_000_000 + number]),
        priority=chance.choice([None, 0, 5]),
        headers=chance.choice([None, {}, _headers(number)]),
    )


def _headers(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "negative": -number,
        "large": 1 << 40,
        "text": "Zürich → Genève",
        "yes": True,
        "nothing": None,
        "at": datetime.fromtimestamp(1_700_000_000 + number, UTC),
        "nested": {"list": [1, "two", [3]], "table": {}},
    }

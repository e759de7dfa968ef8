"""Messages of every kind, identified by their number; they go through a topic exchange or the default one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pika

from leveret.testing.applications.contents import content_of

EXCHANGE: Final = "parcels"


class MixedMessage(NamedTuple):
    """A message (leveret.testing.applications.applications.AppMessage)."""

    number: int
    queue: str
    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties


def mixed_message(
    number: int, queue: str, *, seed: object = 0, transient: float = 0.0, exchange: str = EXCHANGE
) -> MixedMessage:
    """Return one message for a queue, through the default exchange or through a topic exchange."""
    chance = random.Random(f"way {seed} {number}")
    straight = not exchange or chance.random() < 0.2
    content = content_of(number, seed, transient=transient)
    return MixedMessage(
        number,
        queue,
        "" if straight else exchange,
        queue if straight else f"{queue}.{chance.randrange(5)}",
        content.body,
        pika.BasicProperties(**content.properties),
    )


def mixed_messages(
    queues: Sequence[str], count: int, *, first: int = 0, seed: int = 0
) -> Iterator[MixedMessage]:
    """Return the persistent messages `first` to `first + count - 1`, distributed over the queues at random."""
    for number in range(first, first + count):
        yield mixed_message(number, random.Random(f"queue {seed} {number}").choice(queues), seed=seed)


def declare(channel: Any, queues: Sequence[str], arguments: Mapping[str, Any] | None = None) -> None:
    """Declare the exchange and these durable queues, and bind them."""
    channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True, arguments=dict(arguments or {}))
        channel.queue_bind(queue, EXCHANGE, f"{queue}.*")

"""The applications of the demo, each in a process of its own and written with pika.

`publish` confirms each flight and notes when the confirm came. `consume` works at the upstream: of each
batch it acks most, out of order, returns some to the queue and sits on the rest; it notes an ack only
once a later reply on the channel has shown that the broker took it. `drain` empties the downstream.
"""

from __future__ import annotations

import random
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from leveret.testing.demo.books import Book
from leveret.testing.demo.flights import EXCHANGE, QUEUES, Flight, flights

WINDOW: Final = 2000
TURN_S: Final = 0.02
BATCH: Final = 250
HELD_MAX: Final = 1500
CONTENT_TYPE: Final = "application/json"


def parameters(port: int, vhost: str) -> pika.ConnectionParameters:
    """Where to connect, as guest from this machine."""
    return pika.ConnectionParameters("127.0.0.1", port, vhost, heartbeat=30, blocked_connection_timeout=30)


def properties(flight: Flight) -> pika.BasicProperties:
    """A message's properties: among them what identifies it, and headers of its own."""
    return pika.BasicProperties(
        content_type=CONTENT_TYPE,
        delivery_mode=2,
        message_id=str(flight.number),
        headers={"carrier": flight.routing_key.partition(".")[2], "number": flight.number},
    )


class Publisher:
    """Publishes flights with confirms, up to WINDOW of them unconfirmed; ends when the broker does."""

    def __init__(self, port: int, vhost: str, count: int, rate: int, book: Path) -> None:
        """Connect; `run` does the rest, at no more than `rate` flights a second."""
        self._count = count
        self._rate = rate
        self._began = 0.0
        self._flights = flights(count)
        self._book = Book(book)
        self._numbers: list[int] = []
        self._confirmed = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            parameters(port, vhost),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda connection, error: connection.ioloop.stop(),
            on_close_callback=lambda connection, error: connection.ioloop.stop(),
        )

    def run(self) -> None:
        """Publish until all is confirmed or the connection is gone."""
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._begin())

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._fill()

    def _fill(self) -> None:
        due = (time.monotonic() - self._began) * self._rate
        room = min(due - len(self._numbers), WINDOW - len(self._numbers) + self._confirmed)
        for flight in islice(self._flights, max(0, int(room))):
            self._numbers.append(flight.number)
            self._channel.basic_publish(EXCHANGE, flight.routing_key, flight.body, properties(flight))
        if self._channel.is_open and len(self._numbers) < self._count:
            self._connection.ioloop.call_later(TURN_S, self._fill)

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.NAME != "Basic.Ack":
            raise SystemExit(f"the broker refused publish {tag}")
        first = self._confirmed if frame.method.multiple else tag - 1
        self._book.write(self._numbers[first:tag], _now_ms())
        self._confirmed = max(self._confirmed, tag)
        if self._confirmed == self._count:
            self._connection.close()


def consume(port: int, vhost: str, rate: int, book: Path, seed: int) -> None:
    """Work at the upstream until it is gone, taking on no more than `rate` flights a second; see the module."""
    began, taken = time.monotonic(), 0
    chance = random.Random(seed)
    acked = Book(book)
    connection = pika.BlockingConnection(parameters(port, vhost))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=HELD_MAX + 2 * BATCH)
    batch: list[tuple[int, int]] = []

    def on_message(_: BlockingChannel, method: Any, props: Any, body: bytes) -> None:
        batch.append((method.delivery_tag, int(props.message_id)))

    for queue in QUEUES:
        channel.basic_consume(queue, on_message)
    held: list[tuple[int, int]] = []
    while True:
        connection.process_data_events(time_limit=1)
        if len(batch) >= BATCH or (batch and len(held) < HELD_MAX):
            taken += len(batch)
            mine = batch + held
            batch.clear()
            held = _work(channel, mine, acked, chance)
            connection.sleep(max(0.0, began + taken / rate - time.monotonic()))


def _work(
    channel: BlockingChannel, held: list[tuple[int, int]], acked: Book, chance: random.Random
) -> list[tuple[int, int]]:
    """Ack most of what is held out of order, requeue a little, return what is kept."""
    chance.shuffle(held)
    keep = min(len(held) // 4, HELD_MAX)
    returned = len(held) // 30
    for tag, _ in held[keep : keep + returned]:
        channel.basic_nack(tag, requeue=True)
    done = held[keep + returned :]
    for tag, _ in done:
        channel.basic_ack(tag)
    # An ack has no reply of its own; this one's shows that the broker has read everything before it.
    channel.basic_qos(prefetch_count=HELD_MAX + 2 * BATCH)
    acked.write((number for _, number in done), _now_ms())
    return held[:keep]


def drain(port: int, vhost: str, queue: str) -> list[tuple[int, str, str, bytes, str, dict[str, Any]]]:
    """Take everything out of a queue: (flight number, exchange, routing key, body, content type, headers)."""
    connection = pika.BlockingConnection(parameters(port, vhost))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    expected = channel.queue_declare(queue, passive=True).method.message_count
    taken = []
    for method, props, body in channel.consume(queue, inactivity_timeout=2):
        if method is None:
            break
        taken.append(
            (
                int(props.message_id),
                method.exchange,
                method.routing_key,
                body,
                props.content_type,
                props.headers,
            )
        )
        if len(taken) % 500 == 0 or len(taken) == expected:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(taken) >= expected and not _ready(channel, queue):
            break
    connection.close()
    return taken


def _ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """`publish PORT VHOST COUNT RATE BOOK` or `consume PORT VHOST RATE BOOK SEED`; ends quietly with the broker."""
    role, port, vhost, *rest = sys.argv[1:]
    try:
        if role == "publish":
            Publisher(int(port), vhost, int(rest[0]), int(rest[1]), Path(rest[2])).run()
        else:
            consume(int(port), vhost, int(rest[0]), Path(rest[1]), int(rest[2]))
    except (AMQPError, OSError):
        return


if __name__ == "__main__":
    main()

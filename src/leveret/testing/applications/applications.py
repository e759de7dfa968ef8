"""Applications under test, written with pika: a publisher, a consumer, and a function that drains a queue.

Each keeps books (leveret.testing.applications.books) and ends quietly when its broker is gone. A message is identified
by its number (leveret.testing.applications.contents).
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

import pika
from pika.exceptions import AMQPError

from leveret.testing.applications.books import Book, Books
from leveret.testing.applications.contents import number_of, properties_of
from leveret.testing.network.ports import LOOPBACK

WINDOW: Final = 2000
BATCH: Final = 100
UNACKED_MAX: Final = 500
CANCEL_ON_FAIL_OVER: Final = "x-cancel-on-ha-failover"
_POLL_S: Final = 0.2
_TURN_S: Final = 0.02


class AppMessage(Protocol):
    """A message to publish: its number, destination and content; `queue` must receive it."""

    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def queue(self) -> str: ...  # noqa: D102
    @property
    def exchange(self) -> str: ...  # noqa: D102
    @property
    def routing_key(self) -> str: ...  # noqa: D102
    @property
    def body(self) -> bytes: ...  # noqa: D102
    @property
    def properties(self) -> pika.BasicProperties: ...  # noqa: D102


class DirectMessage(NamedTuple):
    """A message through the default exchange, straight to its queue."""

    number: int
    queue: str
    body: bytes

    @property
    def exchange(self) -> str:
        """The default exchange."""
        return ""

    @property
    def routing_key(self) -> str:
        """The name of the queue."""
        return self.queue

    @property
    def properties(self) -> pika.BasicProperties:
        """Persistent, with its number; no other message has the same ones."""
        return pika.BasicProperties(**properties_of(self.number))


class ReceivedMessage(NamedTuple):
    """A message as a consumer received it; number -1 if it has none."""

    number: int
    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties
    redelivered: bool = False


def parameters(port: int, vhost: str, host: str = LOOPBACK) -> pika.ConnectionParameters:
    """Return parameters of a connection as guest."""
    return pika.ConnectionParameters(host, port, vhost, heartbeat=30, blocked_connection_timeout=30)


@contextmanager
def channel_of(connection: pika.BlockingConnection, *, confirms: bool = True) -> Iterator[Any]:
    """Yield a channel, in confirm mode or not; close its connection at the end, if the broker is still there."""
    try:
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        yield channel
    finally:
        with suppress(AMQPError, OSError):
            connection.close()


class AppPublisher:
    """Publishes with confirms; a window limits the number of unconfirmed messages.

    Attributes:
        refused: publishes that the broker nacked.
    """

    def __init__(
        self,
        port: int,
        vhost: str,
        messages: Iterator[AppMessage],
        books: Books,
        *,
        window: int = WINDOW,
        rate: float = math.inf,
        host: str = LOOPBACK,
    ) -> None:
        """Connect. `run` publishes at most `rate` messages a second."""
        self.refused = 0
        self._rate = rate
        self._began_s = 0.0
        self._messages = messages
        self._book = Book(books.confirmed)
        self._window = window
        self._numbers: list[int] = []
        self._open: set[int] = set()
        self._channel: Any = None
        self._done = False
        self._connection = pika.SelectConnection(
            parameters(port, vhost, host),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda connection, error: connection.ioloop.stop(),
            on_close_callback=lambda connection, error: connection.ioloop.stop(),
        )

    def run(self) -> None:
        """Publish until everything is confirmed or the connection is gone."""
        loop = self._connection.ioloop
        with self._book:
            loop.start()
        loop.close()

    def stop(self) -> None:
        """From another thread: publish no more, and end when everything is confirmed."""
        self._done = True

    @property
    def is_done(self) -> bool:
        """Return whether everything is published and confirmed; if not after `run`, the broker is gone."""
        return self._done and not self._open

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._begin())

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        self._turn()

    def _turn(self) -> None:
        """Publish the messages that are due; with a rate, again and again."""
        self._fill()
        if self._rate < math.inf and not self._done and self._channel.is_open:
            self._connection.ioloop.call_later(_TURN_S, self._turn)

    def _fill(self) -> None:
        due = max(1.0, (time.monotonic() - self._began_s) * self._rate)
        while (
            self._channel.is_open
            and not self._done
            and len(self._open) < self._window
            and len(self._numbers) < due
        ):
            message = next(self._messages, None)
            if message is None:
                self._done = True
                break
            self._numbers.append(message.number)
            self._open.add(len(self._numbers))
            publish_message(self._channel, message)
        self._close_if_done()

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        tags = (
            sorted(open_tag for open_tag in self._open if open_tag <= tag) if frame.method.multiple else [tag]
        )
        self._open.difference_update(tags)
        if frame.method.NAME == "Basic.Ack":
            self._book.write([self._numbers[tag - 1] for tag in tags], now_ms())
        else:
            self.refused += len(tags)
        self._fill()

    def _close_if_done(self) -> None:
        if self._done and not self._open and self._connection.is_open:
            self._connection.close()


class AppConsumer:
    """Acks most messages of each batch, out of order, requeues some, and holds the rest.

    Attributes:
        disordered: first deliveries that came after a later message of their queue.
    """

    def __init__(
        self,
        port: int,
        vhost: str,
        queues: Sequence[str],
        books: Books,
        seed: int,
        *,
        rate: float = math.inf,
        host: str = LOOPBACK,
    ) -> None:
        """Prepare; `run` connects, and takes at most `rate` messages a second."""
        self.disordered = 0
        self._parameters = parameters(port, vhost, host)
        self._queues = queues
        self._books = books
        self._rate = rate
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self._batch: list[tuple[int, int]] = []
        self._newest: dict[str, int] = defaultdict(lambda: -1)

    def run(self) -> None:
        """Work until told to stop, or until the broker is gone."""
        books = self._books
        try:
            with Book(books.delivered) as delivered, Book(books.tried) as tried, Book(books.acked) as acked:
                self._work(delivered, tried, acked)
        except (AMQPError, OSError):
            return

    def stop(self) -> None:
        """From another thread: end in order; held messages are requeued."""
        self._ending.set()

    def _work(self, delivered: Book, tried: Book, acked: Book) -> None:
        connection = pika.BlockingConnection(self._parameters)
        try:
            self._consume(connection, delivered, tried, acked)
        finally:
            # If only the channel was closed, the connection is still open.
            with suppress(AMQPError):
                connection.close()

    def _consume(
        self, connection: pika.BlockingConnection, delivered: Book, tried: Book, acked: Book
    ) -> None:
        channel = connection.channel()
        self._begin(channel)
        began_s = time.monotonic()
        held: list[tuple[int, int]] = []
        noted = total = 0
        while not self._ending.is_set():
            connection.process_data_events(time_limit=_POLL_S)
            delivered.write((number for _, number in self._batch[noted:]), now_ms())
            noted = len(self._batch)
            if noted >= BATCH or (noted and len(held) < UNACKED_MAX):
                batch, self._batch, noted = self._batch, [], 0
                held = self._settle(channel, batch + held, tried, acked)
                total += len(batch)
                connection.sleep(max(0.0, began_s + total / self._rate - time.monotonic()))

    def _begin(self, channel: Any) -> None:
        """Consume from every queue; the consumer tag is the queue's name."""
        channel.basic_qos(prefetch_count=UNACKED_MAX + 2 * BATCH)
        for queue in self._queues:
            channel.basic_consume(queue, self._on_message, consumer_tag=queue)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        number = number_of(properties.message_id, body)
        self._batch.append((method.delivery_tag, number))
        if not method.redelivered:
            self.disordered += number < self._newest[method.consumer_tag]
            self._newest[method.consumer_tag] = number

    def _settle(
        self, channel: Any, held: list[tuple[int, int]], tried: Book, acked: Book
    ) -> list[tuple[int, int]]:
        """Ack most held messages out of order, requeue a few, return the rest."""
        self._chance.shuffle(held)
        keep = min(len(held) // 4, UNACKED_MAX)
        returned = len(held) // 30
        for tag, _ in held[keep : keep + returned]:
            channel.basic_nack(tag, requeue=True)
        done = held[keep + returned :]
        tried.write((number for _, number in done), now_ms())
        for tag, _ in done:
            channel.basic_ack(tag)
        if self._counts(channel):
            acked.write((number for _, number in done), now_ms())
        return held[:keep]

    def _counts(self, channel: Any) -> bool:
        """Wait until the broker has read the settlements; return whether they count."""
        # An ack has no reply. The reply to this request shows that the broker has read everything before it.
        channel.basic_qos(prefetch_count=UNACKED_MAX + 2 * BATCH)
        return True


class TxConsumer(AppConsumer):
    """Settles in transactions: a committed settlement is at all synchronised mirrors, whichever node leads.

    A plain ack may be lost with a leader, as RabbitMQ's guide says: its answer comes from the node of the client. After
    a queue's fail-over, deliveries of its old leader cannot be settled any more; so the consumer asks for a notice, and
    ends.
    """

    def _begin(self, channel: Any) -> None:
        channel.tx_select()
        # pika would report the cancellation later, after further commits, which do not count.
        channel._impl.add_on_cancel_callback(lambda _: self._ending.set())
        channel.basic_qos(prefetch_count=UNACKED_MAX + 2 * BATCH)
        for queue in self._queues:
            channel.basic_consume(
                queue, self._on_message, consumer_tag=queue, arguments={CANCEL_ON_FAIL_OVER: True}
            )

    def _counts(self, channel: Any) -> bool:
        channel.tx_commit()
        return not self._ending.is_set()


def drain(port: int, vhost: str, queue: str, *, keep: bool = False) -> list[ReceivedMessage]:
    """Take all messages out of a queue, in its order; with `keep` all of them are requeued afterwards."""
    connection = pika.BlockingConnection(parameters(port, vhost))
    channel = connection.channel()
    if not keep:
        channel.basic_qos(prefetch_count=1000)
    taken: list[ReceivedMessage] = []
    while count := channel.queue_declare(queue, passive=True).method.message_count:
        expected = len(taken) + count
        for method, properties, body in channel.consume(queue):
            taken.append(received_message(method, properties, body))
            is_last = len(taken) == expected
            if not keep and (is_last or len(taken) % 500 == 0):
                channel.basic_ack(method.delivery_tag, multiple=True)
            if is_last:
                break
    if not keep:
        # An ack has no reply. The reply to this request shows that the broker has read it.
        channel.basic_qos(prefetch_count=1000)
    connection.close()
    return taken


def drain_all(port: int, vhost: str, queues: Sequence[str]) -> dict[str, list[ReceivedMessage]]:
    """Take all messages out of these queues, all at the same time; see `drain`."""
    with ThreadPoolExecutor(len(queues)) as pool:
        taken = pool.map(lambda queue: drain(port, vhost, queue), queues)
        return dict(zip(queues, taken, strict=True))


def publish_message(channel: Any, message: AppMessage) -> None:
    """Publish a message; every other one is mandatory."""
    mandatory = message.number % 2 == 0
    channel.basic_publish(
        message.exchange, message.routing_key, message.body, message.properties, mandatory=mandatory
    )


def received_message(method: Any, properties: pika.BasicProperties, body: bytes) -> ReceivedMessage:
    """Return a delivery of pika as a message."""
    number = number_of(properties.message_id, body)
    return ReceivedMessage(number, method.exchange, method.routing_key, body, properties, method.redelivered)


def now_ms() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000

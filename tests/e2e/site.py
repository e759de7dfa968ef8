"""The applications at one node, as stories about crashes use them: what was published, and the books."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pika

from leveret.testing.applications.applications import (
    AppConsumer,
    AppMessage,
    AppPublisher,
    ReceivedMessage,
    channel_of,
    drain,
    now_ms,
    parameters,
)
from leveret.testing.applications.audit import Account, Audit, audit
from leveret.testing.applications.books import Books, count_entries
from leveret.testing.applications.mixed_messages import mixed_messages
from leveret.testing.network.ports import wait_until

PATIENCE_S: Final = 60.0
WINDOW: Final = 200
ENDLESS: Final = 1_000_000


class Door(Protocol):
    """A node, for clients."""

    @property
    def amqp_port(self) -> int:
        """Where they connect."""


class Site:
    """Applications at `node`; they find it again after a restart. `consumers` is the kind of its consumers."""

    def __init__(
        self, node: Door, vhost: str, folder: Path, seed: int, consumers: type[AppConsumer] = AppConsumer
    ) -> None:
        self._consumers = consumers
        self.published: list[AppMessage] = []
        self._node = node
        self._vhost = vhost
        self._seed = seed
        self._count = 0
        self._kept: set[int] = set()
        self._forgotten: dict[int, int] = {}
        self._books: list[Books] = []
        self._books_before = 0
        self._folder = folder

    def move_to(self, node: Door) -> None:
        """After a fail-over: whoever is made from now on finds this node."""
        self._node = node

    def channel(self) -> AbstractContextManager[Any]:
        """A channel in confirm mode; its broker may die before it ends."""
        return channel_of(pika.BlockingConnection(parameters(self._node.amqp_port, self._vhost)))

    def publisher(
        self, queues: Sequence[str], count: int = ENDLESS, *, rate: float = math.inf
    ) -> AppPublisher:
        """A publisher of the next `count` messages, so many a second at most; not yet running."""
        mine = mixed_messages(queues, count, first=self._count, seed=self._seed)
        self._count += count
        port, books = self._node.amqp_port, self._new_books()
        return AppPublisher(port, self._vhost, self._noted(mine), books, window=WINDOW, rate=rate)

    def _noted(self, messages: Iterable[AppMessage]) -> Iterator[AppMessage]:
        """Note each message when it is published."""
        for message in messages:
            self.published.append(message)
            yield message

    def publish(self, queues: Sequence[str], count: int) -> None:
        """Publish `count` messages, all of them confirmed."""
        before = self.confirmed()
        self.publisher(queues, count).run()
        assert self.confirmed() == before + count

    def consumer(self, queues: Sequence[str], *, rate: float = math.inf) -> AppConsumer:
        """A consumer that takes on so many a second at most; not yet running."""
        books = self._new_books()
        seed = self._seed + len(self._books)
        return self._consumers(self._node.amqp_port, self._vhost, queues, books, seed, rate=rate)

    def _new_books(self) -> Books:
        self._books.append(Books(self._folder / f"books-{self._books_before + len(self._books)}"))
        return self._books[-1]

    def confirmed(self) -> int:
        """How many messages are confirmed."""
        return sum(count_entries(books.confirmed) for books in self._books)

    def wait_confirmed(self, count: int) -> None:
        """Wait until so many messages are confirmed."""
        wait_until(lambda: self.confirmed() >= count, f"{count} confirms", PATIENCE_S)

    def forget(self, queue: str) -> None:
        """What was published to this queue so far must not be found again."""
        gone = [message.number for message in self.published if message.queue == queue]
        self._forgotten |= dict.fromkeys(gone, now_ms())
        self.published = [message for message in self.published if message.queue != queue]

    def turn_page(self, found: Mapping[str, Sequence[ReceivedMessage]]) -> None:
        """What was found is all there is, and none of it may go; the books begin anew, all else is a stranger."""
        self._kept = {message.number for taken in found.values() for message in taken}
        self.published = [message for message in self.published if message.number in self._kept]
        self._books_before += len(self._books)
        self._books.clear()

    def account(self) -> Account:
        """What the books say by now."""
        account = Account.read(*self._books)
        account.confirmed = dict.fromkeys(self._kept, 0) | account.confirmed
        return account

    def strangers(self) -> set[int]:
        """Messages that were delivered although they had been settled, forgotten, or never published."""
        known = {message.number for message in self.published}
        return {
            number
            for number, at in self.account().delivered.items()
            if number not in known and at > self._forgotten.get(number, 0)
        }

    def audit(
        self,
        found: Mapping[str, Sequence[ReceivedMessage]],
        covered_ms: Mapping[str, int],
        account: Account | None = None,
    ) -> Audit:
        """Judge the queues of `covered_ms` by the books, or by what is made of them."""
        published = [message for message in self.published if message.queue in covered_ms]
        account = account or self.account()
        numbers = {message.number for message in published}
        account.confirmed = {number: at for number, at in account.confirmed.items() if number in numbers}
        return audit(published, account, found, covered_ms)


@contextmanager
def background(*applications: AppPublisher | AppConsumer) -> Iterator[None]:
    """Run applications beside the block; they end by themselves, or with their broker."""
    threads = [threading.Thread(target=each.run, daemon=True) for each in applications]
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException:
        for application in applications:
            application.stop()
        raise
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def drain_all(
    node: Door, vhost: str, queues: Collection[str], *, keep: bool
) -> dict[str, list[ReceivedMessage]]:
    """Take everything out of these queues; with `keep` it goes back."""
    return {queue: drain(node.amqp_port, vhost, queue, keep=keep) for queue in queues}


def as_published(site: Site, found: dict[str, list[ReceivedMessage]]) -> dict[str, list[ReceivedMessage]]:
    """What came through the recovery's exchange, which is all that it changes, as if through its own."""
    exchanges = {message.number: message.exchange for message in site.published}
    return {
        queue: [each._replace(exchange=exchanges.get(each.number, each.exchange)) for each in taken]
        for queue, taken in found.items()
    }

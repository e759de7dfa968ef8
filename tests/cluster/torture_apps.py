"""The applications of a torture of the cluster: they work at any node, and are replaced when theirs is gone."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from leveret.testing.applications import BATCH, HELD_MAX, Consumer, Publisher, now_ms
from leveret.testing.books import Book, Books
from leveret.testing.cluster_site import SiteNode
from leveret.testing.mirror_scenarios.clients import CANCEL_ON_FAIL_OVER
from tests.e2e.site import ENDLESS, PATIENCE_S, Site

Application = Publisher | Consumer


class TxConsumer(Consumer):
    """Settles in transactions: what was committed is settled at all synchronised mirrors, whoever leads.

    A plain ack may be lost with a leader, as RabbitMQ's guide says: its answer comes from the node of the client. When
    a queue fails over, what its old leader had delivered can not be settled any more; so it asks to be told, and ends.
    Order is a matter of each publisher, so the messages of each are looked at by themselves.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As Consumer."""
        super().__init__(*arguments, **named)
        self._last: dict[tuple[str, int], int] = defaultdict(lambda: -1)

    def _begin(self, channel: Any) -> None:
        channel.tx_select()
        # At once, not when pika next tells of it: what is committed after it counts for nothing.
        channel._impl.add_on_cancel_callback(lambda _: self._ending.set())
        channel.basic_qos(prefetch_count=HELD_MAX + 2 * BATCH)
        for queue in self._queues:
            channel.basic_consume(
                queue, self._on_message, consumer_tag=queue, arguments={CANCEL_ON_FAIL_OVER: True}
            )

    def _settle(
        self, channel: Any, held: list[tuple[int, int]], tried: Book, acked: Book
    ) -> list[tuple[int, int]]:
        self._chance.shuffle(held)
        keep = len(held) // 4
        returned = len(held) // 30
        for tag, _ in held[keep : keep + returned]:
            channel.basic_nack(tag, requeue=True)
        done = held[keep + returned :]
        tried.write((number for _, number in done), now_ms())
        for tag, _ in done:
            channel.basic_ack(tag)
        channel.tx_commit()
        if not self._ending.is_set():
            acked.write((number for _, number in done), now_ms())
        return held[:keep]

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        number = int(properties.message_id)
        self._batch.append((method.delivery_tag, number))
        if not method.redelivered:
            origin = (method.consumer_tag, number // ENDLESS)
            self.disordered += number < self._last[origin]
            self._last[origin] = number


class TxSite(Site):
    """Its consumers settle in transactions."""

    def consumer(self, queues: Sequence[str], *, rate: float = float("inf")) -> Consumer:
        """See Site."""
        books: Books = self._new_books()
        seed = self._seed + len(self._books)
        return TxConsumer(self._node.amqp_port, self._vhost, queues, books, seed, rate=rate)


class Crew:
    """Applications at work, each at a node of its own choice; who ends is followed by another."""

    def __init__(self, apps: Site, chance: random.Random) -> None:
        self._apps = apps
        self._chance = chance
        self._roles: list[Callable[[], Application]] = []
        self._at_work: list[tuple[Application, threading.Thread] | None] = []
        self._ended: list[Application] = []

    def hire(self, *roles: Callable[[], Application]) -> None:
        """What there is to do; `tend` has somebody do it."""
        self._roles += roles
        self._at_work += [None] * len(roles)

    def tend(self, nodes: Sequence[SiteNode]) -> None:
        """Have everything done at one of these nodes that nobody does."""
        for index, role in enumerate(self._roles):
            current = self._at_work[index]
            if current is not None and current[1].is_alive():
                continue
            if current is not None:
                self._ended.append(current[0])
            self._apps.move_to(self._chance.choice(nodes))
            application = role()
            thread = threading.Thread(target=application.run, daemon=True)
            thread.start()
            self._at_work[index] = (application, thread)

    def end(self) -> int:
        """Have all end in order, everything confirmed; returns how many messages came out of order."""
        at_work = [each for each in self._at_work if each is not None]
        for application, _ in at_work:
            application.stop()
        for application, thread in at_work:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an application does not end: is it blocked, or a confirm missing?"
            self._ended.append(application)
        disordered = sum(each.disordered for each in self._ended if isinstance(each, Consumer))
        self._roles, self._at_work, self._ended = [], [], []
        return disordered

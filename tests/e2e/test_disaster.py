"""A disaster, small, and every crash on the way to it: two real nodes, Spark between them, exact books.

Two stories are played once each; every test then looks at one side of how a story ended. Numbers, bodies
and consumers' choices follow from a seed, which is printed; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from leveret.testing.applications import Consumer, Message, Publisher, Taken, drain, now_ms, parameters
from leveret.testing.audit import Account, Audit, QueueBooks, audit
from leveret.testing.books import Books, count_entries
from leveret.testing.parcels import declare, parcels
from leveret.testing.ports import wait_until
from leveret.testing.standby_pair import BEACON, StandbyPair, get

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

VHOST: Final = "orders"
PATIENCE_S: Final = 60.0
WINDOW: Final = 200
WORK: Final = ("work-1", "work-2", "work-3")
ASIDE: Final = ("gone", "purged", "reborn", "once", "again", "late", "local")
JUDGED: Final = (*WORK, "reborn", "again", "late")
BULK: Final = ("bulk-1", "bulk-2", "bulk-3", "bulk-4")
BULK_MESSAGES: Final = 6000


class Site:
    """The applications at the upstream: what they published, and their books."""

    def __init__(self, pair: StandbyPair, folder: Path) -> None:
        self.pair = pair
        self.books = Books(folder / "books")
        self.published: list[Message] = []
        self.seed = int(os.environ.get("LEVERET_SEED", "1"))
        print(f"LEVERET_SEED={self.seed}")

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel to the upstream, in confirm mode."""
        with pika.BlockingConnection(parameters(self.pair.upstream.amqp_port, VHOST)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def publisher(self, queues: tuple[str, ...], count: int) -> Publisher:
        """A publisher of the next `count` messages; not yet running."""
        first = len(self.published)
        mine = list(parcels(queues, count, first=first, seed=self.seed))
        self.published += mine
        return Publisher(self.pair.upstream.amqp_port, VHOST, iter(mine), self.books, WINDOW)

    def publish(self, queues: tuple[str, ...], count: int) -> None:
        """Publish `count` messages to the end."""
        before = self.confirmed()
        self.publisher(queues, count).run()
        assert self.confirmed() == before + count

    def confirmed(self) -> int:
        """How many messages are confirmed."""
        return count_entries(self.books.confirmed)

    def consumer(self) -> Consumer:
        """A consumer of the work queues; not yet running."""
        return Consumer(self.pair.upstream.amqp_port, VHOST, WORK, self.books, self.seed)

    def audit(self, queues: tuple[str, ...], found: dict[str, list[Taken]], covered: dict[str, int]) -> Audit:
        """Judge these queues."""
        published = [message for message in self.published if message.queue in queues]
        account = Account.read(self.books)
        numbers = {message.number for message in published}
        account.confirmed = {n: at for n, at in account.confirmed.items() if n in numbers}
        return audit(published, account, found, covered)


@contextmanager
def background(*applications: Publisher | Consumer) -> Iterator[None]:
    """Run applications beside the block; they end by themselves, or with their broker."""
    threads = [threading.Thread(target=each.run, daemon=True) for each in applications]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def drained(pair: StandbyPair, queues: tuple[str, ...], *, keep: bool) -> dict[str, list[Taken]]:
    port = pair.downstream.amqp_port
    return {queue: drain(port, VHOST, queue, keep=keep) for queue in queues}


# -- the first story: a life at the upstream, its end, a promotion ---------------------------------


@dataclass
class Aftermath:
    """How the first story ended.

    Attributes:
        found: what the queues had after the promotion.
        found_later: what they had after a second promotion and a restart.
        had: messages of each queue that had been transferred before things were undone upstream.
    """

    books: Audit
    found: dict[str, list[Taken]]
    found_later: dict[str, list[Taken]]
    had: dict[str, int]
    queues: set[str]
    summary: list[dict[str, Any]]
    second: list[dict[str, Any]]
    displayed: list[dict[str, Any]]
    available: list[str]
    standby: dict[str, Any]
    schema: dict[str, Any]
    pipelines: list[int]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("disaster")
    with StandbyPair(VHOST, folder) as pair:
        site = Site(pair, folder)
        _live(site)
        had = pair.transferred()
        _undo(site)
        killed_at = _die(site)
        covered = pair.covered(JUDGED)
        assert killed_at > max(covered.values())
        yield _promoted(site, had, covered)


def _live(site: Site) -> None:
    """Publish and consume; collect a queue that is full already, while it is published to."""
    pair = site.pair
    pair.start()
    pair.replicate("osr", "^(work-.*|gone|purged|reborn|beacon)$")
    pair.replicate("once", "^once$")
    pair.replicate("again", "^again$")
    with site.channel() as channel:
        declare(channel, [*WORK, *ASIDE])
    site.publish(("late",), 200)
    for queue in ("gone", "purged", "reborn", "once", "again", "local"):
        site.publish((queue,), 40)
    pair.follow()
    consumer = site.consumer()
    with background(consumer, site.publisher(WORK, 2000), site.publisher(("late",), 600)):
        pair.replicate("late", "^late$")
        wait_until(lambda: site.confirmed() == len(site.published), "all confirms", PATIENCE_S)
        consumer.stop()
    wait_until(lambda: pair.transferred().get("late") == 800, "the full queue at the standby", PATIENCE_S)
    pair.wait_transferred()


def _undo(site: Site) -> None:
    """Delete, purge and stop to replicate what the standby has already."""
    ctl = site.pair.upstream.ctl
    with site.channel() as channel:
        channel.queue_delete("gone")
        channel.queue_purge("purged")
        channel.queue_delete("reborn")
        declare(channel, ["reborn"])
    site.published = [message for message in site.published if message.queue != "reborn"] + [
        # Numbers go on where they were.
        *parcels(("none",), 40, first=0, seed=site.seed)
    ]
    ctl("clear_policy", "--vhost", VHOST, "once")
    ctl("clear_policy", "--vhost", VHOST, "again")
    site.pair.replicate("again", "^again$")

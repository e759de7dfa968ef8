"""A leader with followers, applications at whoever leads, what may happen to them, and the books of it all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pika

from leveret.testing.applications import Consumer, Message, Publisher, Taken, now_ms
from leveret.testing.audit import FOREVER, Audit
from leveret.testing.books import Books, read_book
from leveret.testing.follower_site import FollowerSite, Member
from leveret.testing.link_proxy import Direction
from leveret.testing.parcels import EXCHANGE
from leveret.testing.ports import wait_until
from tests.e2e.follower_clients import count, read_stream
from tests.e2e.site import PATIENCE_S, Site, drain_all

QUORUM: Final = "quorum"
QUEUES: Final = ("one", "two", QUORUM)
STREAM: Final = "events"
DYING: Final = "dying"
GRAVE: Final = "grave"
BEACON: Final = "beacon"
ACK_TIMEOUT_S: Final = 1.0
CONFIG: Final = {
    "replication.confirm": "in_sync",
    "replication.min_in_sync": "1",
    "replication.ack_timeout": f"{ACK_TIMEOUT_S:g}s",
    # So that segments are rolled and dropped on the way.
    "segment_bytes_max": str(1 << 20),
}
RATE: Final = 500
SIDE_RATE: Final = 60
_TTL_MS: Final = 100
_BODY_BYTES: Final = 1000
_WINDOW: Final = 200


class Numbered(NamedTuple):
    """A plain message through the default exchange (leveret.testing.applications.Message)."""

    number: int
    queue: str

    @property
    def exchange(self) -> str:
        """The default one."""
        return ""

    @property
    def routing_key(self) -> str:
        """The queue."""
        return self.queue

    @property
    def body(self) -> bytes:
        """The number, and more."""
        return f"{self.number} ".encode().ljust(_BODY_BYTES, b"x")

    @property
    def properties(self) -> pika.BasicProperties:
        """Persistent, told by its number."""
        return pika.BasicProperties(delivery_mode=2, message_id=str(self.number))


class Side:
    """Numbered messages to one queue, beside the parcels."""

    def __init__(self, queue: str, folder: Path) -> None:
        self._queue = queue
        self._count = 0
        self._books = Books(folder / queue)

    def publisher(self, port: int) -> Publisher:
        """The next publisher; not yet running."""
        return Publisher(port, "/", self._messages(), self._books, window=_WINDOW, rate=SIDE_RATE)

    def _messages(self) -> Iterator[Numbered]:
        while True:
            self._count += 1
            yield Numbered(self._count, self._queue)

    def confirmed(self) -> set[int]:
        """Numbers that were confirmed."""
        return {number for number, _ in read_book(self._books.confirmed)}


class Crew:
    """Applications that run together at one node."""

    def __init__(self, *applications: Publisher | Consumer) -> None:
        self.applications = applications
        self._threads = [threading.Thread(target=each.run, daemon=True) for each in applications]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop in order, everything confirmed; or, when the node is gone, notice it."""
        for each in self.applications:
            each.stop()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an application does not end: is it blocked, or a confirm missing?"

    @property
    def disordered(self) -> int:
        """What consumers got out of order."""
        return sum(each.disordered for each in self.applications if isinstance(each, Consumer))


class Story:
    """Rounds in the life of a replication.

    Attributes:
        told: what happened in this round.
        counts: of all rounds.
    """

    def __init__(self, site: FollowerSite, folder: Path, chance: random.Random) -> None:
        self.site = site
        self.told: list[str] = []
        self.counts: dict[str, int] = {}
        self._chance = chance
        self._apps = Site(site.leader.node, "/", folder, chance.randrange(1 << 32))
        self._stream = Side(STREAM, folder)
        self._dying = Side(DYING, folder)
        self._doubtful: list[tuple[int, int]] = []
        self._disordered = 0
        self._crew = Crew()

    def begin(self) -> None:
        """Start all, declare everything."""
        self.site.start()
        with self._apps.channel() as channel:
            declare(channel)

    def round(self, events: list[str]) -> Audit:
        """Work while these things happen; then all must be in order."""
        self.told = []
        self._doubtful = []
        self._disordered = 0
        self._work()
        self._wait_working()
        for event in events:
            self._pause(0.2, 1.2)
            self.counts[event] = self.counts.get(event, 0) + 1
            self.told.append(event)
            EVENTS[event](self)
        self._pause(0.2, 1.0)
        for member in self.site.members:
            member.link.heal()
        self._wait_working()
        self._rest()
        self.site.wait_in_sync()
        result = self._judge()
        assert self._disordered == 0
        return result

    # -- applications -------------------------------------------------------------------------

    def _rest(self) -> None:
        self._crew.end()
        self._disordered += self._crew.disordered
        self._crew = Crew()

    def _work(self) -> None:
        port = self.site.leader.node.amqp_port
        self._apps.move_to(self.site.leader.node)
        consumers = [self._apps.consumer(QUEUES) for _ in range(self._chance.choice([0, 1, 2, 2]))]
        self._crew = Crew(
            self._apps.publisher(QUEUES[:1], rate=RATE),
            self._apps.publisher(QUEUES[1:], rate=RATE),
            self._stream.publisher(port),
            self._dying.publisher(port),
            *consumers,
        )

    def _wait_working(self) -> None:
        """Wait until what is published is confirmed."""
        self._apps.wait_confirmed(self._apps.confirmed() + 10)

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._chance.uniform(least_s, most_s))

    def beacon(self) -> int:
        """Publish, wait for the confirm; what the leader had before the time that is returned is on all in sync."""
        before_ms = now_ms()
        with self._apps.channel() as channel:
            channel.basic_publish("", BEACON, b"", pika.BasicProperties(delivery_mode=2))
            channel.basic_get(BEACON, auto_ack=True)
        return before_ms

    # -- what happens -------------------------------------------------------------------------

    def _someone(self) -> Member:
        return self._chance.choice(self.site.followers)

    def kill_follower(self) -> None:
        """Kill -9, and back after a while."""
        follower = self._someone()
        follower.node.kill9()
        self._pause(0.0, 1.5)
        follower.follow(self.site.leader)

    def restart_follower(self) -> None:
        """End in order, and back at once."""
        follower = self._someone()
        follower.node.stop()
        follower.follow(self.site.leader)

    def join_fresh(self) -> None:
        """A follower with nothing joins under load."""
        follower = self._someone()
        follower.node.kill9()
        follower.wipe()
        follower.follow(self.site.leader)
        self._pause(0.0, 2.0)

    def cut_link(self) -> None:
        """At once or in the middle of something, politely or not, once or more."""
        link = self._someone().link
        for _ in range(self._chance.randint(1, 4)):
            abruptly = self._chance.random() < 0.5
            if self._chance.random() < 0.3:
                link.cut(abruptly=abruptly)
            else:
                way = self._chance.choice([Direction.FORTH, Direction.BACK, Direction.BACK])
                most = 200 if way is Direction.FORTH else 300_000
                link.cut_after(self._chance.randrange(most), way, abruptly=abruptly)
            self._pause(0.1, 0.7)

    def turn_bit(self) -> None:
        """A bit of what is sent is another one."""
        link = self._someone().link
        link.flip(self._chance.randrange(200_000), Direction.BACK, self._chance.randrange(8))
        self._pause(0.2, 1.0)

    def slow_link(self) -> None:
        """Little passes, late."""
        link = self._someone().link
        link.limit_bytes_s = self._chance.choice([50_000, 200_000, 500_000])
        link.delay_s = self._chance.choice([0.0, 0.02, 0.1])
        self._pause(0.5, 2.5)
        link.limit_bytes_s, link.delay_s = None, 0.0

    def stall_link(self) -> None:
        """Nothing passes, one way or both, and nobody is told."""
        link = self._someone().link
        link.stall(*self._chance.choice([(), (Direction.FORTH,), (Direction.BACK,)]))
        self._pause(0.1, 2.0 * ACK_TIMEOUT_S)
        link.resume()

    def freeze_shortly(self) -> None:
        """A follower stands still for less than it is waited for."""
        with self._someone().frozen():
            self._pause(0.1, 0.7 * ACK_TIMEOUT_S)

    def freeze_long(self) -> None:
        """A follower stands still for longer."""
        with self._someone().frozen():
            self._pause(1.2 * ACK_TIMEOUT_S, 2.5 * ACK_TIMEOUT_S)

    def freeze_leader(self) -> None:
        """The leader stands still."""
        with self.site.leader.frozen():
            self._pause(0.2, 2.0 * ACK_TIMEOUT_S)

    def kill_leader(self) -> None:
        """Kill -9, and it leads on."""
        self.site.leader.node.kill9()
        self._rest()
        self.site.leader.lead()
        self._work()

    def restart_leader(self) -> None:
        """End in order, and it leads on."""
        self.site.leader.node.stop()
        self._rest()
        self.site.leader.lead()
        self._work()

    def fail_over(self) -> None:
        """Kill -9 of the leader, promotion of a follower in sync; the old leader comes back and follows."""
        old = self.site.leader
        if len(self.site.followers) > 1 and self._chance.random() < 0.5:
            # One is behind, and may be out of sync by now: it is not to be chosen, and must cope.
            self._chance.choice(self.site.followers).link.stall()
            self._pause(0.0, 2.0 * ACK_TIMEOUT_S)
        self._wait_one_in_sync()
        since_ms = self.beacon()
        self._pause(0.0, 0.5)
        in_sync = set(old.status()["in_sync"])
        old.node.kill9()
        self._rest()
        self._doubtful.append((since_ms, now_ms()))
        for follower in self.site.followers:
            follower.link.resume()
        chosen = max(
            (each for each in self.site.followers if each.node_name in in_sync),
            key=lambda each: each.status()["leader"]["applied_position"],
        )
        self.site.promote(chosen)
        self._work()
        self._pause(0.0, 1.0)
        old.follow(self.site.leader)

    def _wait_one_in_sync(self) -> None:
        leader = self.site.leader
        wait_until(lambda: leader.status()["in_sync"] != [], "a follower in sync", PATIENCE_S)

    def purge(self) -> None:
        """Empty a queue while nobody is at work, and kill -9 the leader as soon as a later confirm came."""
        self._rest()
        queue = self._chance.choice(QUEUES)
        with self._apps.channel() as channel:
            channel.queue_purge(queue)
        self.beacon()
        self._apps.forget(queue)
        self._work()
        self.fail_over()

    # -- the books ----------------------------------------------------------------------------

    def _judge(self) -> Audit:
        """Compare what whoever leads has with the books, and each follower's directory with the leader's."""
        leader = self.site.leader.node
        account = self._apps.account()
        for since_ms, until_ms in self._doubtful:
            # Acked by a leader that died before it said that its followers have it: taken back or not.
            account.acked = {
                number: at for number, at in account.acked.items() if not since_ms <= at <= until_ms
            }
        found = drain_all(leader, "/", QUEUES, keep=True)
        without_delivery_counts(found[QUORUM], self._apps.published)
        result = self._apps.audit(found, dict.fromkeys(QUEUES, FOREVER), account)
        assert result.balances, f"{self.told}: {result}"
        assert not self._apps.strangers(), self.told
        self._apps.turn_page(found)
        self._judge_sides(leader.amqp_port)
        self._judge_divergent({message.number for taken in found.values() for message in taken})
        self.site.assert_identical()
        self._start_again()
        return result

    def _judge_sides(self, port: int) -> None:
        streamed = read_stream(port, STREAM)
        numbers = [message.number for message in streamed]
        assert sorted(set(numbers)) == numbers, f"{self.told}: the stream is out of order, or has doubles"
        lost = self._stream.confirmed() - set(numbers)
        assert not lost, (
            f"{self.told}: {len(lost)} confirmed messages are not in the stream: {sorted(lost)[:5]}"
        )
        assert all(message.body == Numbered(message.number, STREAM).body for message in streamed)
        wait_until(lambda: count(port, DYING) == 0, "all that dies", PATIENCE_S)
        buried = {
            message.number for message in drain_all(self.site.leader.node, "/", [GRAVE], keep=True)[GRAVE]
        }
        lost = self._dying.confirmed() - buried
        assert not lost, f"{self.told}: {len(lost)} dead messages are not in the grave: {sorted(lost)[:5]}"

    def _judge_divergent(self, kept: set[int]) -> None:
        """What was set aside was confirmed to nobody, or is there as well."""
        confirmed = self._apps.account().confirmed.keys()
        for member in self.site.members:
            for message in member.divergent_messages():
                if message["queue"] in QUEUES and not message["settled"]:
                    number = int(message["properties"]["message_id"])
                    assert number not in confirmed or number in kept, f"{self.told}: {message}"

    def _start_again(self) -> None:
        for member in self.site.members:
            assert member.node.server.exit_status == 0, member.node.server.log_tail()
        self.site.leader.lead(wait=False)
        for follower in self.site.followers:
            follower.follow(self.site.leader, wait=False)
        self.site.leader.node.wait_ready()
        self.site.wait_in_sync()


EVENTS: Final[dict[str, Callable[[Story], None]]] = {
    each.__name__: each
    for each in (
        Story.kill_follower,
        Story.restart_follower,
        Story.join_fresh,
        Story.cut_link,
        Story.turn_bit,
        Story.slow_link,
        Story.stall_link,
        Story.freeze_shortly,
        Story.freeze_long,
        Story.freeze_leader,
        Story.kill_leader,
        Story.restart_leader,
        Story.fail_over,
        Story.purge,
    )
}


def without_delivery_counts(found: Iterable[Taken], published: Iterable[Message]) -> None:
    """Take out what a quorum queue puts into the headers of what it delivers again."""
    bare = {message.number for message in published if message.properties.headers is None}
    for message in found:
        headers = message.properties.headers
        if (
            headers is not None
            and headers.pop("x-delivery-count", None) is not None
            and message.number in bare
        ):
            message.properties.headers = None


def declare(channel: Any) -> None:
    """Make the exchange and all queues."""
    channel.exchange_declare(EXCHANGE, exchange_type="topic", durable=True)
    kinds: dict[str, dict[str, Any]] = {
        **{name: {} for name in QUEUES},
        QUORUM: {"x-queue-type": "quorum"},
        STREAM: {"x-queue-type": "stream"},
        DYING: {
            "x-message-ttl": _TTL_MS,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": GRAVE,
        },
        GRAVE: {},
        BEACON: {},
    }
    for name, arguments in kinds.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    for name in QUEUES:
        channel.queue_bind(name, EXCHANGE, f"{name}.*")

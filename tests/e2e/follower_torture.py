"""A leader with followers, applications at whoever leads, what may happen to them, and the books of it all."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pika
import pika.exceptions

from leveret.testing.applications.applications import AppMessage, ReceivedMessage, now_ms
from leveret.testing.applications.audit import FOREVER, Audit
from leveret.testing.applications.compare import compare
from leveret.testing.applications.contents import is_same, is_shown, is_streamed, shown_number
from leveret.testing.applications.mixed_messages import EXCHANGE
from leveret.testing.network.link_proxy import Direction
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import count, read_stream
from tests.e2e.follower_crew import Crew, Side
from tests.e2e.site import PATIENCE_S, Site, drain_all

QUORUM: Final = "quorum"
QUEUES: Final = ("one", "two", QUORUM)
STREAM: Final = "events"
DYING: Final = "dying"
GRAVE: Final = "grave"
BEACON: Final = "beacon"
IDLE: Final = "idle"
"""Never used: an empty log has to outlive everything as well."""
DRAINED: Final = "drained"
"""Filled and emptied at times, but for one message that tells that what came before it is settled."""
ACK_TIMEOUT_S: Final = 1.0
CONFIG: Final = {
    "replication.confirm": "in_sync",
    "replication.min_in_sync": "1",
    "replication.ack_timeout": f"{ACK_TIMEOUT_S:g}s",
    # So that segments are rolled and dropped on the way.
    "segment_bytes_max": str(1 << 20),
}
RATE: Final = 500
DELAYS_S: Final = (0.0, 0.05, 0.2)
MADE: Final = "made"
MADE_MAX: Final = 3
_TTL_MS: Final = 100
_DRAINED_AT_ONCE: Final = 300


class Story:
    """Rounds in the life of a replication.

    Attributes:
        happened: in this round, in its order.
        counts: what happened how often, in all rounds, and how many messages were confirmed and settled.
    """

    def __init__(self, site: FollowerSite, folder: Path, chance: random.Random) -> None:
        self.site = site
        self.happened: list[str] = []
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._apps = Site(site.leader.node, "/", folder, chance.randrange(1 << 32))
        self._stream = Side(STREAM, folder)
        self._dying = Side(DYING, folder)
        self._doubtful: list[tuple[int, int]] = []
        self._disordered = 0
        self._made: set[str] = set()
        self._made_so_far = 0
        self._left = 0
        self._crew = Crew()

    def begin(self) -> None:
        """Start all, declare everything."""
        self.site.start()
        with self._apps.channel() as channel:
            declare(channel)

    def round(self, events: list[str]) -> Audit:
        """Work while these things happen; then all must be in order."""
        self.happened = []
        self._doubtful = []
        self._disordered = 0
        self._work()
        self._wait_working()
        for event in events:
            self._pause(0.2, 1.2)
            self.counts[event] += 1
            self.happened.append(event)
            EVENTS[event](self)
        self._pause(0.2, 1.0)
        self._heal_links()
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

    def _heal_links(self) -> None:
        for member in self.site.members:
            member.link.heal()

    def _wait_in_sync(self, *, but: FollowerSiteNode | None = None) -> list[FollowerSiteNode]:
        """Wait until followers are in sync, one at least but this one."""
        found: list[FollowerSiteNode] = []

        def in_sync() -> bool:
            names = set(self.site.leader.status()["in_sync"])
            found[:] = [each for each in self.site.followers if each.node_name in names and each is not but]
            return bool(found)

        wait_until(in_sync, "a follower in sync", PATIENCE_S)
        return found

    def _lose_leader(self) -> None:
        """Kill -9, and what was on its way is lost as well: the whole machine is gone."""
        self.site.leader.node.kill9()
        for each in self.site.followers:
            each.link.cut(abruptly=True)
        self._heal_links()

    def _was_given_up(self, since: int) -> bool:
        """Whether the leader said, behind so many characters of its log, that somebody is not in sync any more."""
        return "follower_not_in_sync" in self.site.leader.node.log_text()[since:]

    # -- what happens -------------------------------------------------------------------------

    def _someone(self) -> FollowerSiteNode:
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

    def kill_all(self) -> None:
        """Kill -9 of everybody: whoever was in sync has a prefix of what the leader has. It leads on."""
        leader = self.site.leader
        self._heal_links()
        in_sync = self._wait_in_sync()
        for each in self._chance.sample(self.site.members, len(self.site.members)):
            each.node.kill9()
        for each in in_sync:
            comparison = compare(leader.data_dir, each.data_dir)
            assert comparison.is_prefix, f"{self.happened}: {each.name} is no prefix: {comparison}"
        self._rest()
        leader.lead(wait=False)
        for each in self.site.followers:
            each.follow(leader, wait=False)
        leader.node.wait_ready()
        self._work()

    def fail_over(self) -> None:
        """Kill -9 of the leader, any follower in sync is promoted; the old leader comes back and follows."""
        old = self.site.leader
        self._heal_links()
        blocked = None
        if len(self.site.followers) > 1 and self._chance.random() < 0.5:
            # One is behind, and may be out of sync by now: it is not to be chosen, and must cope.
            blocked = self._someone()
            blocked.link.stall()
            self._pause(0.0, 2.0 * ACK_TIMEOUT_S)
        self._wait_in_sync(but=blocked)
        since_ms = self.beacon()
        self._pause(0.0, 0.5)
        chosen = self._chance.choice(self._wait_in_sync(but=blocked))
        since = len(old.node.log_text())
        for each in self.site.followers:
            if each is chosen or self._chance.random() < 0.25:
                each.link.stall(Direction.BACK)
        # Nothing more reaches the one that takes over: so nothing more may be confirmed.
        self._pause(0.0, 0.4 * ACK_TIMEOUT_S)
        self._lose_leader()
        self._rest()
        if self._was_given_up(since):
            # The machine was too slow for this: others may have more than the chosen one.
            old.lead()
            self._work()
            return
        self._doubtful.append((since_ms, now_ms()))
        if self._chance.random() < 0.25:
            chosen.node.kill9()
            self.site.promote_by_restart(chosen)
        else:
            self.site.promote(chosen)
        self._work()
        self._pause(0.0, 1.0)
        if self._chance.random() < 0.3:
            # Started by somebody who knows of no promotion.
            old.lead(wait=False)
            self._wait_fenced(old)
            old.node.stop()
        old.follow(self.site.leader)

    def hand_over(self) -> None:
        """A follower in sync is promoted while the leader leads; that is fenced, and follows."""
        old = self.site.leader
        self._heal_links()
        for each in self.site.followers:
            each.link.delay_s = self._chance.choice(DELAYS_S)
        self._pause(0.2, 0.7)
        chosen = self._chance.choice(self._wait_in_sync())
        since_ms = self.beacon()
        self.site.promote(chosen)
        self._heal_links()
        self._rest()
        # Until the old leader hears of it, it takes acknowledgements that nobody else has any more.
        self._doubtful.append((since_ms, now_ms()))
        self._work()
        self._wait_fenced(old)
        old.node.stop()
        old.follow(self.site.leader)

    def _wait_fenced(self, old: FollowerSiteNode) -> None:
        old.wait_answers()
        wait_until(lambda: old.status()["role"] == "fenced", "the fence", PATIENCE_S)

    def purge(self) -> None:
        """Empty a queue while nobody is at work, kill -9 the leader as soon as it has answered, and fail over."""
        self._rest()
        old, queue = self.site.leader, self._chance.choice(QUEUES)
        self._heal_links()
        chosen = self._chance.choice(self._wait_in_sync())
        since = len(old.node.log_text())
        chosen.link.delay_s = max(DELAYS_S)
        with self._apps.channel() as channel:
            channel.queue_purge(queue)
            self._lose_leader()
        self._apps.forget(queue)
        if self._was_given_up(since):
            old.lead()
            self._work()
            return
        self.site.promote(chosen)
        self._work()
        old.follow(self.site.leader)

    def define(self) -> None:
        """Declare queues, delete some, set a policy: what was answered is so, whoever leads."""
        leader = self.site.leader
        with self._apps.channel() as channel:
            for _ in range(self._chance.randint(1, MADE_MAX)):
                self._made_so_far += 1
                name = f"{MADE}-{self._made_so_far}"
                kind = self._chance.choice(["classic", "quorum", "stream"])
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
                self._made.add(name)
                if len(self._made) > MADE_MAX:
                    gone = self._chance.choice(sorted(self._made))
                    channel.queue_delete(gone)
                    self._made.remove(gone)
        answer = leader.ask("PUT", f"policies/%2F/{MADE}", self._policy())
        assert answer.is_success, answer

    def _policy(self) -> dict[str, Any]:
        return {"pattern": f"^{MADE}", "definition": {"max-length": self._made_so_far}}

    def drain_queue(self) -> None:
        """Empty a queue, more than a segment of it, and leave one message behind: its confirm covers the acks."""
        self._left += 1
        with self._apps.channel() as channel:
            for number in range(_DRAINED_AT_ONCE):
                channel.basic_publish(
                    "", DRAINED, (b"%d " % number) * 1000, pika.BasicProperties(delivery_mode=2)
                )
            while channel.basic_get(DRAINED, auto_ack=True)[0] is not None:
                pass
            channel.basic_publish("", DRAINED, b"%d" % self._left, pika.BasicProperties(delivery_mode=2))

    def rolling_restart(self) -> None:
        """Every node is ended in order and started, one after the other, as for an upgrade; the leader last."""
        self._heal_links()
        for follower in self.site.followers:
            follower.node.stop()
            follower.follow(self.site.leader)
            self.site.leader.wait_in_sync(follower)
        self.restart_leader()

    # -- the books ----------------------------------------------------------------------------

    def _judge(self) -> Audit:
        """Compare what whoever leads has with the books, and each follower's directory with the leader's."""
        leader = self.site.leader.node
        account = self._apps.account()
        for since_ms, until_ms in self._doubtful:
            # Acked by a leader that died, or was replaced, before its followers had it: taken back or not.
            account.acked = {
                number: at for number, at in account.acked.items() if not since_ms <= at <= until_ms
            }
        found = drain_all(leader, "/", QUEUES, keep=True)
        without_delivery_counts(found[QUORUM], self._apps.published)
        result = self._apps.audit(found, dict.fromkeys(QUEUES, FOREVER), account)
        assert result.balances, f"{self.happened}: {result}"
        assert not self._apps.strangers(), self.happened
        unflagged = {
            message.number
            for taken in found.values()
            for message in taken
            if message.number in account.delivered and not message.redelivered
        }
        assert not unflagged, f"{self.happened}: {len(unflagged)} come again as if for the first time"
        self.counts["confirmed"] += self._apps.confirmed()
        self.counts["settled"] += result.total.acked
        self._apps.turn_page(found)
        self._judge_sides(leader.amqp_port)
        self._judge_definitions()
        self._judge_drained(leader.amqp_port)
        self._judge_divergent({message.number for taken in found.values() for message in taken})
        self.site.assert_identical()
        self._start_again()
        return result

    def _judge_sides(self, port: int) -> None:
        streamed = read_stream(port, STREAM)
        numbers = [message.number for message in streamed]
        assert sorted(set(numbers)) == numbers, f"{self.happened}: the stream is out of order, or has doubles"
        lost = self._stream.confirmed() - set(numbers)
        assert not lost, (
            f"{self.happened}: {len(lost)} confirmed messages are not in the stream: {sorted(lost)[:5]}"
        )
        assert not (altered := self._stream.altered(streamed, is_streamed)), f"{self.happened}: {altered[:5]}"
        wait_until(lambda: count(port, DYING) == 0, "all that dies", PATIENCE_S)
        buried = drain_all(self.site.leader.node, "/", [GRAVE], keep=True)[GRAVE]
        assert not (altered := self._dying.altered(buried, is_same)), f"{self.happened}: {altered[:5]}"
        lost = self._dying.confirmed() - {message.number for message in buried}
        assert not lost, (
            f"{self.happened}: {len(lost)} dead messages are not in the grave: {sorted(lost)[:5]}"
        )

    def _judge_drained(self, port: int) -> None:
        assert count(port, IDLE) == 0, self.happened
        expected = [b"%d" % self._left] if self._left else []
        with self._apps.channel() as channel:
            got = iter(lambda: channel.basic_get(DRAINED)[2], None)
            found = [body if len(body) < 10 else body[:10] + b"..." for body in got]
        assert found == expected, f"{self.happened}: {found[:5]} of {len(found)} where {expected} was left"

    def _judge_definitions(self) -> None:
        leader = self.site.leader
        names = {row["name"] for row in leader.get("queues")}
        assert names == {*QUEUES, STREAM, DYING, GRAVE, BEACON, IDLE, DRAINED} | self._made, self.happened
        if self._made:
            policy, wanted = leader.get(f"policies/%2F/{MADE}"), self._policy()
            assert {key: policy[key] for key in wanted} == wanted, self.happened

    def _judge_divergent(self, kept: set[int]) -> None:
        """What was set aside was confirmed to nobody, or is there as well."""
        confirmed = self._apps.account().confirmed.keys()
        published = {each.number: each for each in self._apps.published}
        for member in self.site.members:
            for message in member.divergent_messages():
                if message["queue"] in QUEUES and not message["settled"]:
                    number = shown_number(message)
                    assert number not in confirmed or number in kept, f"{self.happened}: {message}"
                    if one := published.get(number):
                        assert is_shown(vars(one.properties), one.body, message), (
                            f"{self.happened}: {message}"
                        )

    def _start_again(self) -> None:
        for member in self.site.members:
            assert member.node.server.exit_status == 0, member.node.server.log_tail()
        self._configure()
        self.site.leader.lead(wait=False)
        for follower in self.site.followers:
            follower.follow(self.site.leader, wait=False)
        self.site.leader.node.wait_ready()
        self.site.wait_in_sync()

    def _configure(self) -> None:
        """Each round is lived through with another configuration."""
        chosen = {
            "replication.compression": self._chance.choice(["none", "zstd"]),
            "replication.min_in_sync": self._chance.choice(["0", "1", "1"]),
        }
        for member in self.site.members:
            member.node.config |= chosen


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
        Story.kill_all,
        Story.fail_over,
        Story.hand_over,
        Story.purge,
        Story.define,
        Story.drain_queue,
        Story.rolling_restart,
    )
}


def without_delivery_counts(found: Iterable[ReceivedMessage], published: Iterable[AppMessage]) -> None:
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
        DYING: {"x-message-ttl": _TTL_MS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE},
        GRAVE: {},
        BEACON: {},
        IDLE: {},
        DRAINED: {},
    }
    for name, arguments in kinds.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    for name in QUEUES:
        channel.queue_bind(name, EXCHANGE, f"{name}.*")

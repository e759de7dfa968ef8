"""A cluster, applications at all of its nodes, what may happen to them, and the books of it all."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pika.exceptions import ChannelClosedByBroker

from leveret.testing.applications.applications import AppConsumer, AppPublisher, Taken
from leveret.testing.applications.audit import FOREVER, Audit
from leveret.testing.applications.parcels import declare
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from tests.cluster.torture_apps import Crew, TxSite
from tests.e2e.follower_torture import without_delivery_counts
from tests.e2e.site import ENDLESS, PATIENCE_S, drain_all

MIRRORED: Final = ("one", "two")
GROUP: Final = "group"
"""A quorum queue."""
GROUP_SIZE: Final = 3
KEPT: Final = (*MIRRORED, GROUP)
LONELY: Final = "lonely"
"""Has no mirror: it is away with its node, and back with it."""
KEPT_MAX: Final = 10_000
READS_MAX: Final = 5
QUEUES: Final = (*KEPT, LONELY)
LEASE_S: Final = 2.0
RATE: Final = 300
DELAYS_S: Final = (0.0, 0.02, 0.1)
MADE: Final = "made"
MADE_MAX: Final = 3
CONFIG: Final = {
    "cluster.etcd.lease_ttl": f"{LEASE_S:g}s",
    # So that segments are rolled and dropped on the way.
    "segment_bytes_max": str(1 << 20),
}


class Story:
    """Rounds in the life of a cluster.

    Attributes:
        told: what happened in this round.
        counts: what happened how often, in all rounds, and how many messages were confirmed and settled.
    """

    def __init__(self, site: ClusterSite, folder: Path, chance: random.Random) -> None:
        self.site = site
        self.told: list[str] = []
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._apps = TxSite(site.members[0], "/", folder, chance.randrange(1 << 32))
        self._crew = Crew(self._apps, chance)
        self._made: set[str] = set()
        self._made_so_far = 0
        self._consumed = False

    def begin(self) -> None:
        """Declare everything; the cluster runs."""
        self._mirror("all", None)
        for queue in QUEUES:
            with self.site.channel(self._someone()) as channel:
                declare(channel, [queue], {"x-queue-type": "quorum"} if queue == GROUP else None)
        self._wait_synchronised()

    def round(self, events: Sequence[str]) -> Audit:
        """Work while these things happen; then all must be in order."""
        self.told = []
        consumers = self._chance.choice([0, 1, 2, 2])
        self._crew.hire(
            # One publisher a queue: order is kept for each of them.
            *(self._publisher(queue) for queue in QUEUES),
            *(self._consumer() for _ in range(consumers)),
        )
        self._consumed = self._consumed or consumers > 0
        self._wait_working()
        for event in events:
            self._pause(0.2, 1.2)
            self.counts[event] += 1
            self.told.append(event)
            EVENTS[event](self)
            self._crew.tend(self._awake())
        self._pause(0.2, 1.0)
        self.site.heal()
        self._wait_all_run()
        self._wait_working()
        self._wait_synchronised()
        disordered = self._crew.end()
        result = self._judge()
        assert disordered == 0, f"{self.told}: {disordered} messages came out of order"
        return result

    # -- applications -------------------------------------------------------------------------

    def _publisher(self, queue: str) -> Callable[[], AppPublisher]:
        return lambda: self._apps.publisher([queue], rate=RATE)

    def _consumer(self) -> Callable[[], AppConsumer]:
        # Not of the quorum queue: its consumers cannot ask to be cancelled by a fail-over.
        return lambda: self._apps.consumer(MIRRORED)

    def _awake(self) -> list[SiteNode]:
        return [each for each in self.site.members if each.alive]

    def _wait_working(self) -> None:
        """Wait until what is published is confirmed, applications found their place again, and queues their leader."""
        wanted = self._apps.confirmed() + 30

        def working() -> bool:
            self._crew.tend(self._awake())
            return self._apps.confirmed() >= wanted

        self._wait(working, "confirms")

    def _wait_all_run(self) -> None:
        down = [each for each in self.site.members if not each.alive]
        for each in down:
            each.launch()
        for each in self.site.members:
            each.wait_ready()
        self.site.wait_members()

    def _wait_synchronised(self) -> None:
        """Wait until every queue is led, and each of its mirrors is synchronised."""

        def synchronised() -> bool:
            found = self.site.queues(self._awake()[0])
            return all(
                found[queue].state == "running"
                and set(found[queue].mirrors or ()) == set(found[queue].synchronised)
                and (queue == LONELY or bool(found[queue].mirrors))
                and (queue != GROUP or len(found[queue].mirrors or ()) == GROUP_SIZE - 1)
                for queue in QUEUES
            )

        self._wait(synchronised, "synchronised mirrors")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        self.site.wait(holds, f"{self.told}: {what}", 2 * PATIENCE_S)

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._chance.uniform(least_s, most_s))

    # -- what happens -------------------------------------------------------------------------

    def _someone(self) -> SiteNode:
        return self._chance.choice(self._awake())

    def _leader(self) -> SiteNode:
        """Who leads one of the mirrored queues, as a node says that answers."""
        queue, found = self._chance.choice(KEPT), ""

        def led() -> bool:
            nonlocal found
            placed = self.site.queues(self._someone()).get(queue)
            found = placed.leader if placed is not None and placed.state == "running" else ""
            return any(each.node == found and each.alive for each in self.site.members)

        self._wait(led, f"a leader of {queue}")
        return next(each for each in self.site.members if each.node == found)

    def _back(self, *nodes: SiteNode) -> None:
        """Start nodes again, and wait until they are members."""
        for each in nodes:
            each.launch()
        for each in nodes:
            each.wait_ready()

    def kill_leader(self) -> None:
        """Kill -9 of who leads a queue, and back after a while."""
        leader = self._leader()
        leader.kill9()
        self._pause(0.0, 2.0 * LEASE_S)
        self._crew.tend(self._awake())
        self._pause(0.0, 1.0)
        self._back(leader)

    def kill_someone(self) -> None:
        """Kill -9 of any node, and back at once: its lease may not have ended."""
        node = self._someone()
        node.kill9()
        self._back(node)

    def kill_two(self) -> None:
        """Kill -9 of two nodes, one after the other, the leader first."""
        first = self._leader()
        first.kill9()
        self._pause(0.0, 1.5 * LEASE_S)
        second = self._someone()
        second.kill9()
        self._pause(0.0, 1.0)
        self._back(*self._chance.sample([first, second], 2))

    def kill_all(self) -> None:
        """Kill -9 of everybody; all come back, in any order."""
        for each in self._chance.sample(self.site.members, len(self.site.members)):
            each.kill9()
        self._back(*self._chance.sample(self.site.members, len(self.site.members)))

    def stop_leader(self) -> None:
        """End who leads a queue in order: it hands over; back after a while."""
        leader = self._leader()
        leader.stop()
        self._pause(0.0, 1.0)
        self._crew.tend(self._awake())
        self._back(leader)

    def restart_all(self) -> None:
        """A rolling restart."""
        for each in self._chance.sample(self.site.members, len(self.site.members)):
            each.stop()
            self._back(each)
            self._crew.tend(self._awake())
            self._wait_synchronised()

    def freeze_shortly(self) -> None:
        """A node stands still for less than its lease."""
        with self.site.paused(self._someone()):
            self._pause(0.1, 0.4 * LEASE_S)

    def freeze_long(self) -> None:
        """A node stands still for longer: it must know, when it goes on, that it leads no more."""
        with self.site.paused(self._leader()):
            self._pause(1.5 * LEASE_S, 3.0 * LEASE_S)

    def cut_off(self) -> None:
        """A partition: nothing passes between a node and etcd, and nothing to it."""
        with self.site.cut_off(self._chance.choice([self._leader(), self._someone()])):
            self._pause(0.2, 3.0 * LEASE_S)

    def cut_etcd(self) -> None:
        """A node does not reach etcd, and is reached by all others."""
        link = self._someone().etcd_link
        assert link is not None
        link.refuse()
        self._pause(0.2, 3.0 * LEASE_S)
        link.allow()

    def cut_link(self) -> None:
        """Who is connected to a node is cut off, once or more, politely or not."""
        link = self._someone().link
        assert link is not None
        for _ in range(self._chance.randint(1, 4)):
            link.cut(abruptly=self._chance.random() < 0.5)
            self._pause(0.05, 0.7)

    def stall_link(self) -> None:
        """Nothing gets to a node, and nobody is told."""
        link = self._someone().link
        assert link is not None
        link.stall()
        self._pause(0.1, 2.0 * LEASE_S)
        link.resume()

    def slow_link(self) -> None:
        """Little gets to a node, late."""
        link = self._someone().link
        assert link is not None
        link.limit_bytes_s = self._chance.choice([50_000, 200_000, 500_000])
        link.delay_s = self._chance.choice(DELAYS_S)
        self._pause(0.5, 2.5)
        link.limit_bytes_s, link.delay_s = None, 0.0

    def restart_etcd(self) -> None:
        """Etcd is killed, and back before or after the leases would have ended."""
        member = self._chance.choice(self.site.etcd.members)
        member.kill9()
        self._pause(0.0, 2.0 * LEASE_S)
        member.restart()

    def replace_node(self) -> None:
        """A node is lost with its disk and forgotten; one without anything joins in its place."""
        node = self._someone()
        other = next(each for each in self._awake() if each is not node)
        self._wait_synchronised()
        led = {name for name, placed in self.site.queues(other).items() if placed.leader == node.node}
        if LONELY in led:
            # Nobody else has what it has.
            return
        node.kill9()
        self.site.wait_members()
        assert self.site.forget(node, at=other), f"{other.node} does not forget {node.node}"
        # What had no mirror went with its node.
        self._made -= led
        node.wipe()
        self.site.give_secret(node)
        self._back(node)

    def change_policy(self) -> None:
        """Mirrors go elsewhere, or become fewer or more."""
        mode = self._chance.choice(["all", "all", "exactly", "nodes"])
        count = self._chance.randint(2, len(self.site.members))
        if mode == "exactly":
            self._mirror(mode, count)
        elif mode == "nodes":
            self._mirror(mode, [each.node for each in self._chance.sample(self.site.members, count)])
        else:
            self._mirror(mode, None)

    def rebalance(self) -> None:
        """Leaders are spread."""
        self._done(lambda node: self.site.api("POST", "rebalance/queues", {}, at=node), "a rebalance")

    def define(self) -> None:
        """Declare queues at any node, delete some at another: what was answered is so, wherever one asks."""
        for _ in range(self._chance.randint(1, MADE_MAX)):
            self._made_so_far += 1
            name = f"{MADE}-{self._made_so_far}"
            self._done(partial(self._declare, name), f"a declare of {name}")
            self._made.add(name)
            self._done(partial(self._see, name), f"a look at {name}")
            if len(self._made) > MADE_MAX:
                gone = self._chance.choice(sorted(self._made))
                self._done(partial(self._delete, gone), f"a delete of {gone}")
                self._made.remove(gone)

    def _done(self, act: Callable[[SiteNode], object], what: str) -> None:
        """Have any node do it that runs; what was not answered is asked of another one."""

        def done() -> bool:
            act(self._someone())
            return True

        self._wait(done, what)

    def _declare(self, name: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            channel.queue_declare(name, durable=True)

    def _see(self, name: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            try:
                channel.queue_declare(name, passive=True)
            except ChannelClosedByBroker as error:
                if "no queue" in error.reply_text:
                    raise AssertionError(f"{node.node}: {error}, and it was declared") from None
                raise

    def _delete(self, name: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            channel.queue_delete(name)

    def _mirror(self, mode: str, params: int | list[str] | None) -> None:
        """A policy under which nothing that was confirmed may be lost: who is not synchronised never leads."""
        definition: dict[str, Any] = {
            "ha-mode": mode,
            "ha-sync-mode": "automatic",
            "ha-promote-on-failure": "when-synced",
            "ha-confirm": self._chance.choice(["all", "all", "majority"]),
        }
        if params is not None:
            definition["ha-params"] = params
        pattern = f"^({'|'.join(MIRRORED)})$"
        self._done(
            lambda node: self.site.set_policy("ha", pattern, definition, at=node), f"a policy: {definition}"
        )

    # -- the books ----------------------------------------------------------------------------

    def _judge(self) -> Audit:
        """Compare what a node finds in the queues with the books, and what all nodes know with each other."""
        account = self._apps.account()
        found = self._found()
        result = self._apps.audit(found, dict.fromkeys(QUEUES, FOREVER), account)
        for line in result.lines:
            line.disordered = disordered(found[line.queue])
        assert result.balances, f"{self.told}: {result}"
        assert not self._apps.strangers(), self.told
        self.counts["confirmed"] += self._apps.confirmed()
        self.counts["settled"] += result.total.acked
        assert self.counts["settled"] or not self._consumed, f"{self.told}: consumers settle nothing"
        for queue in QUEUES:
            if len(found[queue]) > KEPT_MAX:
                self._done(partial(self._purge, queue), f"a purge of {queue}")
                found[queue] = []
                # It is answered before mirrors have heard of it.
                self._pause(0.5, 0.5)
        self._apps.turn_page(found)
        self._judge_agreement()
        return result

    def _found(self) -> dict[str, list[Taken]]:
        """What is in the queues, and stays there.

        Read again if that was disturbed, by a node that is short of time and loses its lease: a queue that fails over
        while it is read delivers again what it had delivered. What is there twice is so each time.
        """
        found: dict[str, list[Taken]] = {}
        for _ in range(READS_MAX):
            self._done(
                lambda node: found.update(drain_all(node, "/", QUEUES, keep=True)), "the queues to be read"
            )
            if all(len({each.number for each in taken}) == len(taken) for taken in found.values()):
                break
        without_delivery_counts(found[GROUP], self._apps.published)
        return found

    def _purge(self, queue: str, node: SiteNode) -> None:
        """What nobody consumes takes longer to read each time."""
        with self.site.channel(node) as channel:
            channel.queue_purge(queue)

    def _judge_agreement(self) -> None:
        """All nodes have the same queues, in the same places."""

        known = {*QUEUES, *self._made}
        views: dict[str, dict[str, Any]] = {}

        def agree() -> bool:
            views.update((each.node, self._places(self.site.queues(each))) for each in self.site.members)
            first = views[self.site.members[0].node]
            return set(first) == known and all(view == first for view in views.values())

        try:
            self._wait(agree, "the same queues at all nodes")
        except AssertionError as error:
            raise AssertionError(f"{error}; wanted {sorted(known)}, found {views}") from None

    @staticmethod
    def _places(view: Mapping[str, Any]) -> dict[str, tuple[str, frozenset[str]]]:
        return {name: (placed.leader, frozenset(placed.mirrors or ())) for name, placed in view.items()}


def disordered(taken: Sequence[Taken]) -> int:
    """Messages behind a later one of the same publisher."""
    origins: dict[int, list[int]] = defaultdict(list)
    for message in taken:
        origins[message.number // ENDLESS].append(message.number)
    return sum(later < earlier for numbers in origins.values() for earlier, later in pairwise(numbers))


EVENTS: Final[dict[str, Callable[[Story], None]]] = {
    each.__name__: each
    for each in (
        Story.kill_leader,
        Story.kill_someone,
        Story.kill_two,
        Story.kill_all,
        Story.stop_leader,
        Story.restart_all,
        Story.freeze_shortly,
        Story.freeze_long,
        Story.cut_off,
        Story.cut_etcd,
        Story.cut_link,
        Story.stall_link,
        Story.slow_link,
        Story.restart_etcd,
        Story.replace_node,
        Story.change_policy,
        Story.rebalance,
        Story.define,
    )
}

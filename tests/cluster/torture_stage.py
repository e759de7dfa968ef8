"""A cluster, its queues, applications at all of its nodes, and how it is judged by their books."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from leveret.testing.applications.applications import AppConsumer, AppPublisher, ReceivedMessage
from leveret.testing.applications.audit import FOREVER, Account, Audit
from leveret.testing.applications.mixed_messages import declare
from leveret.testing.network.ports import NotReady
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.mirror_cluster import QueuePlace
from tests.cluster import torture_quiet
from tests.cluster.torture_apps import Crew, CrewConsumer
from tests.cluster.torture_beyond import Outposts
from tests.cluster.torture_lossy import LOSSY, TERMS, Quarantined
from tests.cluster.torture_quiet import QuietQueues, directories
from tests.cluster.torture_stream import STREAM, StreamCrew
from tests.e2e.follower_torture import without_delivery_counts
from tests.e2e.site import ENDLESS, PATIENCE_S, Site, drain_all

MIRRORED: Final = ("one", "two")
GROUP: Final = "group"
"""A quorum queue."""
GROUP_SIZE: Final = 3
GROUPS: Final = (GROUP, torture_quiet.IDLE_GROUP)
KEPT: Final = (*MIRRORED, GROUP)
LONELY: Final = "lonely"
"""Has no mirror: it is away with its node, and back with it."""
KEPT_MAX: Final = 10_000
READS_MAX: Final = 5
QUEUES: Final = (*KEPT, LONELY, LOSSY)
"""Those that publishers fill."""
LEASE_S: Final = float(os.environ.get("LEVERET_TORTURE_LEASE_S", "4"))
"""Twice the default: so much of the machine is used by what publishes and consumes that 2 s pass without a keepalive.

More of it where others use the machine as well: nodes are to lose their leases by what is done to them.
"""
RATE: Final = 100
CONFIG: Final = {
    "cluster.etcd.lease_ttl": f"{LEASE_S:g}s",
    # So that segments are rolled and dropped on the way.
    "segment_bytes_max": str(1 << 20),
    "replication.ack_timeout": "3s",
}


class Stage:
    """A cluster, its queues, who works at them, and the judgement; what happens is torture.Story's.

    Attributes:
        happened: in this round, in its order.
        counts: what happened how often, in all rounds, and how many messages were confirmed and settled.
    """

    def __init__(self, site: ClusterSite, folder: Path, chance: random.Random) -> None:
        self.site = site
        self.happened: list[str] = []
        self.counts: Counter[str] = Counter()
        self._chance = chance
        self._apps = Site(site.members[0], "/", folder, chance.randrange(1 << 32), CrewConsumer)
        self._crew = Crew(self._apps, chance)
        self._quiet = QuietQueues(site, chance)
        self._quarantined = Quarantined(site)
        self._made: set[str] = set()
        self._made_so_far = 0
        self._consumed = False
        self._lossy_log = ""
        self._streaming = StreamCrew(self._stream_ports, random.Random(chance.randrange(1 << 32)))
        self.outposts = Outposts(site.members[0], site.members[1], folder)

    def close(self) -> None:
        """End what is not the cluster's."""
        self.outposts.close()

    def begin(self) -> None:
        """Declare everything; the cluster runs."""
        self._mirror("all", None)
        self._done(lambda node: self.site.set_policy(LOSSY, f"^{LOSSY}$", TERMS, at=node), "a policy")
        self._quiet.begin()
        for queue in QUEUES:
            if queue != LOSSY:
                with self.site.channel(self._someone()) as channel:
                    declare(channel, [queue], {"x-queue-type": "quorum"} if queue == GROUP else None)
        with self.site.channel(self._someone()) as channel:
            channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        self._declare_lossy()
        self.outposts.start()
        self._wait_synchronised()

    def _declare_lossy(self) -> None:
        """Make it, and learn what its log is called everywhere, when all else has its log."""
        before = directories(self.site)
        with self.site.channel(self._someone()) as channel:
            declare(channel, [LOSSY])
        self._apps.move_to(self._someone())
        self._apps.publish([LOSSY], 1)
        [self._lossy_log] = directories(self.site) - before

    # -- applications -------------------------------------------------------------------------

    def _publisher(self, queue: str) -> Callable[[], AppPublisher]:
        return lambda: self._apps.publisher([queue], rate=RATE)

    def _consumer(self) -> Callable[[], AppConsumer]:
        # Not of the quorum queue: its consumers cannot ask to be cancelled by a fail-over.
        return lambda: self._apps.consumer(MIRRORED)

    def _awake(self) -> list[SiteNode]:
        return [each for each in self.site.members if each.alive]

    def _stream_ports(self) -> list[int]:
        return [each.stream_port for each in self._awake()]

    def tend(self) -> None:
        """Have everything done that nobody does, at a node that runs or through the follower."""
        doors = self._awake()
        beyond = self.outposts.beyond
        self._crew.tend([*doors, beyond.node.node] if beyond.alive else doors)

    def _wait_working(self) -> None:
        """Wait until what is published is confirmed, applications found their place again, and queues their leader."""
        wanted, streamed = self._apps.confirmed() + 30, self._streaming.confirmed() + 10

        def working() -> bool:
            self.tend()
            return self._apps.confirmed() >= wanted and self._streaming.confirmed() >= streamed

        self._wait(working, "confirms")

    def _wait_synchronised(self) -> None:
        """Wait until every queue is led, and each of its mirrors is synchronised."""

        def synchronised() -> bool:
            found = self.site.queues(self._awake()[0])
            return (
                all(
                    found[queue].state == "running"
                    and (queue == LOSSY or set(found[queue].mirrors or ()) == set(found[queue].synchronised))
                    and (queue == LONELY or bool(found[queue].mirrors))
                    and (queue not in GROUPS or len(found[queue].mirrors or ()) == GROUP_SIZE - 1)
                    for queue in (*QUEUES, *torture_quiet.ALL)
                )
                and self._are_replicas_whole()
            )

        self._wait(synchronised, "synchronised mirrors")

    def _are_replicas_whole(self) -> bool:
        rows = self.site.api("GET", f"queues/%2F/{STREAM}/replicas", at=self._awake()[0])
        states = sorted(row["state"] for row in rows)
        return states == ["running", *["synchronised"] * (len(self.site.members) - 1)]

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        self.site.wait(holds, f"{self.happened}: {what}", 2 * PATIENCE_S)

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._chance.uniform(least_s, most_s))

    def _someone(self) -> SiteNode:
        return self._chance.choice(self._awake())

    def _done(self, act: Callable[[SiteNode], object], what: str) -> None:
        """Have any node do it that runs; what was not answered is asked of another one."""

        def done() -> bool:
            act(self._someone())
            return True

        self._wait(done, what)

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
        pattern = f"^({'|'.join((*MIRRORED, *torture_quiet.MIRRORED))})$"
        self._done(
            lambda node: self.site.set_policy("ha", pattern, definition, at=node), f"a policy: {definition}"
        )

    # -- the books ----------------------------------------------------------------------------

    def _judge(self) -> Audit:
        """Compare what a node finds in the queues with the books, and what all nodes know with each other."""
        account = self._apps.account()
        found = self._found()
        self._judge_quarantined(account, found)
        result = self._apps.audit(found, dict.fromkeys(QUEUES, FOREVER), account)
        for line in result.lines:
            line.disordered = disordered(found[line.queue])
        assert result.balances, f"{self.happened}: {result}"
        assert not self._apps.strangers(), self.happened
        self.counts["confirmed"] += self._apps.confirmed()
        self.counts["settled"] += result.total.acked
        assert self.counts["settled"] or not self._consumed, f"{self.happened}: consumers settle nothing"
        self._make_room(found)
        self._judge_quiet()
        self._judge_agreement()
        self._streaming.judge(self._stream_ports())
        self.counts["streamed"] = self._streaming.confirmed()
        self._judge_beyond()
        return result

    def _judge_beyond(self) -> None:
        try:
            self.counts["compared"] += self.outposts.judge()
        except AssertionError as error:
            raise AssertionError(f"{self.happened}: {error}") from None

    def _make_room(self, found: dict[str, list[ReceivedMessage]]) -> None:
        """What nobody consumes takes longer to read each time."""
        full = [queue for queue in QUEUES if len(found[queue]) > KEPT_MAX]
        for queue in full:
            # Mirrors that are not synchronised do not hear of a purge.
            act = self._delete if queue == LOSSY else self._purge
            self._done(partial(act, queue), f"an end of what is in {queue}")
            found[queue] = []
            # It is answered before mirrors have heard of it.
            self._pause(0.5, 0.5)
        self._apps.turn_page(found)
        if LOSSY in full:
            self._declare_lossy()

    def _judge_quarantined(self, account: Account, found: Mapping[str, list[ReceivedMessage]]) -> None:
        """What is confirmed and not in the queue that may lose messages is quarantined; then it counts no more."""
        published = [each for each in self._apps.published if each.queue == LOSSY]
        missing = {each.number for each in published if each.number in account.confirmed}
        missing -= {each.number for each in found[LOSSY]}

        def is_there() -> bool:
            for node in self.site.members:
                self._quarantined.collect(node)
            return missing <= self._quarantined.rows.keys()

        try:
            self._wait(is_there, "all that was lost to be quarantined")
        except NotReady as late:
            nowhere = sorted(missing - self._quarantined.rows.keys())
            raise AssertionError(f"{len(nowhere)} are nowhere: {nowhere[:5]}; {late}") from None
        assert not (altered := self._quarantined.altered(published)), (
            f"{self.happened}: {altered[:5]} are others"
        )
        self._wait(lambda: not self._quarantined.alarms(), "no alarm of what was dealt with")
        self.counts["quarantined"] += len(missing)
        for number in missing:
            del account.confirmed[number]

    def _judge_quiet(self) -> None:
        self._done(self._quiet.hold_what_they_must, "the quiet queues to be read")
        try:
            self._wait(lambda: not self._quiet.take_room(), "the room of what is drained")
        except NotReady as late:
            raise AssertionError(f"what is drained takes {self._quiet.take_room()} octets; {late}") from None

    def _found(self) -> dict[str, list[ReceivedMessage]]:
        """What is in the queues, and stays there.

        Read again if that was disturbed, by a node that is short of time and loses its lease: a queue that fails over
        while it is read delivers again what it had delivered. What is there twice is so each time.
        """
        found: dict[str, list[ReceivedMessage]] = {}
        for _ in range(READS_MAX):
            self._done(
                lambda node: found.update(drain_all(node, "/", QUEUES, keep=True)), "the queues to be read"
            )
            if all(len({each.number for each in taken}) == len(taken) for taken in found.values()):
                break
        without_delivery_counts(found[GROUP], self._apps.published)
        return found

    def _purge(self, queue: str, node: SiteNode) -> None:
        with self.site.channel(node) as channel:
            channel.queue_purge(queue)

    def _judge_agreement(self) -> None:
        """All nodes have the same queues, in the same places."""

        known = {*QUEUES, *torture_quiet.ALL, *self._made, STREAM}
        views: dict[str, dict[str, Any]] = {}

        def agree() -> bool:
            views.update((each.node, self._places(self.site.queues(each))) for each in self.site.members)
            first = views[self.site.members[0].node]
            return (
                set(first) == known
                and all(view == first for view in views.values())
                and all(state == "running" for _, _, state in first.values())
            )

        try:
            self._wait(agree, "the same queues at all nodes")
        except AssertionError as error:
            raise AssertionError(f"{error}; wanted {sorted(known)}, found {views}") from None

    @staticmethod
    def _places(view: Mapping[str, QueuePlace]) -> dict[str, tuple[str, frozenset[str], str]]:
        return {
            name: (placed.leader, frozenset(placed.mirrors or ()), placed.state)
            for name, placed in view.items()
        }


def disordered(taken: Sequence[ReceivedMessage]) -> int:
    """Messages behind a later one of the same publisher."""
    origins: dict[int, list[int]] = defaultdict(list)
    for message in taken:
        origins[message.number // ENDLESS].append(message.number)
    return sum(later < earlier for numbers in origins.values() for earlier, later in pairwise(numbers))

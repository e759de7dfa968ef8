"""A simulated site and its warm standby, whose Spark may die at every step; then the first site is lost for good.

A site is a node, or a cluster of three. In the world `returns` the lost site comes back as a downstream of the other
one, which is lost in its turn.

While both run, a watch notes *covered moments*: the positions in the outgoing logs at which all that was promised
before is in the logs. After the disaster the standby is promoted, and promoted again after each kill. The last moment
whose positions are in the archive divides the books: nothing confirmed before is lost, nothing settled before is back.
Nothing is there twice or in another order, whenever it was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from leveret.core.replication.cluster import Placement
from leveret.core.replication.election import StoreTransaction
from leveret.core.replication.standby_site import RecoveryRequest
from leveret.core.schema.delta import SCHEMA_UPSTREAM, STANDBY_UPSTREAM
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.testing.applications.run_books import BooksFault, RunBooks
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.operator import SimulatedOperator
from leveret.testing.simulation.applications.publishers import PublishingPace, SimulatedPublisher
from leveret.testing.simulation.applications.site_books import SiteBooks
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.blocking import BlockingProcess
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.pipelines.patches import simulated_pipelines
from leveret.testing.simulation.worlds.placements import PlacedLogs
from leveret.testing.simulation.worlds.sites.site import (
    DOWNSTREAM,
    FOLLOWS,
    MIRRORED,
    VHOST,
    CollectedEnd,
    Site,
    broker_of,
    change_at,
)
from leveret.testing.simulation.worlds.sites.site_command import STEPS_MAX, SiteCommand
from leveret.testing.simulation.worlds.sites.site_situations import (
    DEAD_LETTERS_MATTER,
    SITUATIONS,
    OwnerSuspended,
    SiteSituations,
)
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, PossibleFault, SimulatedWorld

SITES: Final = ("a", "b")
"""The names of the sites, each one letter: the first of the names of its nodes."""
QUEUES: Final = ("q1", "q2", "dead", "letters")
STREAM: Final = "events"
COLLECTED: Final = len(QUEUES) + 1
SWITCHED: Final = ("q2", "dead", "letters", STREAM)
"""The queues whose policy is switched off and on."""
CONFIRMED_AT_BOTH: Final = 0.5
"""The share of runs in which confirms of one queue wait for the downstream."""
_TRUNCATES: Final = "standby.replication.retention.truncate_transferred.messages"
_USER: Final = "replicator"
_PASSWORD: Final = "a password"
_LOOK_S: Final = 0.1
_REFUSALS_LOOKED_AT: Final = 5
"""How many looks there are for one at the downstream's errors, which costs more."""
FOLLOW_TIMEOUT_S: Final = 120.0
ABSENT_S: Final = 30.0
"""The wait for a node of the upstream. Nobody starts one while faults end; a fault with two waits must end in time."""
_AFTERWARDS_S: Final = 10.0
_REPORTED_S: Final = 5.0
_HURRIED_S: Final = 1.5
_HURRIED_COPIES: Final = 100
"""The time of hurry before a disaster, and the most copies of messages that are published fast in it."""
_OWNER_SUSPENDED: Final = 0.5
"""The share of disasters of a shared archive in which its owner is suspended in the midst of its work."""
_BUSY: Final = PublishingPace(0.008)
_CLUSTER: Final = {
    "cluster.etcd.endpoints": "http://127.0.0.1:2379",
    "cluster.etcd.lease_ttl": "2s",
    "cluster_formation.peer_discovery_backend": "etcd",
    "replication.bind": "127.0.0.1",
    "replication.ack_timeout": "2s",
    "cluster.bind": "127.0.0.1",
}


class CoveredMoment(NamedTuple):
    """A moment, and the ends of the upstream's outgoing logs, by id, up to which everything promised before it is."""

    at_s: float
    ends: dict[int, int]


class SitesWorld(SimulatedWorld):
    """See the module.

    Attributes:
        clusters: the share of runs whose downstream is a cluster.
        shared: the share of clusters whose nodes share an archive.
        clusters_upstream: the share of runs whose upstream is a cluster.
        upstream, downstream: the sites.
        etcd: the store of all clusters.
        moments_covered: the moments, oldest first.
    """

    clusters = 0.3
    shared = 0.5
    clusters_upstream = 0.0
    upstream: Site
    downstream: Site
    etcd: SimulatedEtcd
    books: SiteBooks

    def make_books(self) -> RunBooks:
        """See SimulatedWorld."""
        return SiteBooks()

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.books.clock = self.loop.time
        self.etcd = self.make_etcd()
        self._placed_logs = {site: PlacedLogs(f"/{site}") for site in SITES}
        self.moments_covered: list[CoveredMoment] = []
        self.chance = Random(f"disaster {self.seed}")
        self._situations = SiteSituations(self)
        self._serving: list[SimulatedNode] = []
        self._switched: list[CoveredMoment] = []
        """The latest moments at which some queues were not replicated, and the logs' ends before that."""
        self._is_switched = self._is_lost = self._is_etcd_down = False
        self.operator = SimulatedOperator(
            self._serving, self.network, self.books, Random(f"operator {self.seed}")
        )
        self._operator = self.operator.process

    def _recorded(self, transaction: StoreTransaction) -> None:
        for each in self._placed_logs.values():
            each.recorded(transaction)
        super()._recorded(transaction)

    def accounted(self, leader: str, node: str, log: str, end: int) -> None:
        """See SimulatedWorld; the return of a site deletes its queues."""
        if self._placed_logs[leader[0]].binds(leader, log):
            super().accounted(leader, node, log, end)

    async def _play(self, seconds: float) -> int:
        segments_min, compact_s = self.habits.choice((20, 2000)), self.habits.choice((3.0, 60.0))
        with simulated_pipelines(segments_min, compact_s):
            return await super()._play(seconds)

    # -- before the disaster ----------------------------------------------------------------------

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        truncates = str(self.habits.random() < 0.5 or bool(self.often)).lower()
        common = {"segment_bytes_max": "65536", _TRUNCATES: truncates}
        self.upstream = self._add_site(SITES[0], self.clusters_upstream, {**common, **FOLLOWS})
        self.downstream = self._add_site(SITES[1], self.clusters, {**common, **DOWNSTREAM})
        if self.habits.random() < CONFIRMED_AT_BOTH:
            self.books.confirmed_at_both.add("q1")
        self.serve(self.upstream)
        for node in self.nodes:
            node.start()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all start", START_TIMEOUT_S)
        await self.prepare_upstream()
        for queue in QUEUES:
            dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
            await self.declare(queue, **(dead if queue == "letters" else {}))
        self._stream = await self.declare_stream(STREAM)
        await self.point(self.downstream.nodes[0])
        await self.until(
            lambda: self.downstream.follows(COLLECTED), "the downstream follows", FOLLOW_TIMEOUT_S
        )
        self._employ()
        self._operator.spawn(self._watch())

    def _add_site(self, name: str, clusters: float, settings: dict[str, str]) -> Site:
        """Add the nodes of a site: one, or in this share of runs those of a cluster."""
        is_cluster = self.habits.random() < clusters
        site = Site(name, is_cluster=is_cluster, is_shared=self.habits.random() < self.shared)
        common = {**settings, "cluster_name": name}
        if site.is_cluster:
            common |= {**_CLUSTER, "cluster.etcd.prefix": f"/{name}"}
        if site.is_shared:
            common["standby.replication.downstream.data_dir"] = str(self._folder / f"shared-{name}")
            common["standby.replication.downstream.shared_data_dir"] = "true"
        for number in range(3 if site.is_cluster else 1):
            own = {}
            if site.is_cluster:
                own = {
                    "replication.port": str(self.network.free_port()),
                    "cluster.port": str(self.network.free_port()),
                }
            node = self.add_node(f"{name}{number + 1}", {**common, **own})
            if site.is_cluster:
                self.give_secret(node)
            site.nodes.append(node)
        return site

    def serve(self, site: Site) -> None:
        """Have the operator and all applications use the nodes of this site from now on."""
        self._serving[:] = site.nodes
        self._ports[:] = [node.amqp_port for node in site.nodes]

    async def at(self, node: SimulatedNode, work: Callable[[SimulatedNode], Any]) -> None:
        """Run an operator's command at a node."""
        assert node.process is not None
        await node.process.spawn(work(node))

    async def prepare_upstream(self) -> None:
        """Set the upstream up: the user of the links, the tag, the policies."""
        await self.at(self.upstream.opened[0], self._set_up_upstream)

    async def _set_up_upstream(self, node: SimulatedNode) -> None:
        broker = broker_of(node)
        async with broker.changing():
            await broker.schema_sync.add_user(_USER, _PASSWORD)
        await change_at(
            node,
            d.Put(d.Vhost(name=VHOST, tags=("standby_replication",))),
            d.Put(d.Permission(user=_USER, vhost=VHOST, configure=".*", write=".*", read=".*")),
            *map(d.Put, self.policies(self.upstream)),
        )

    def policies(self, site: Site) -> list[d.Policy]:
        """Return the policies of an upstream, of which all but the first are switched off and on."""
        replicated: dict[str, Any] = {"remote-dc-replicate": True}
        mirrored = {**replicated, **MIRRORED} if site.is_cluster else replicated
        both = {**mirrored, "remote-dc-confirm": True, "remote-dc-confirm-on-timeout": "nack"}
        definitions = {
            "^q1$": both if self.books.confirmed_at_both else mirrored,
            "^q2$": mirrored,
            "^[^q]": replicated,
        }
        return [
            d.Policy(
                vhost=VHOST,
                name=f"p{index}",
                pattern=pattern,
                definition=definition,
                apply_to="queues",
            )
            for index, (pattern, definition) in enumerate(definitions.items())
        ]

    async def point(self, node: SimulatedNode) -> None:
        """Point a node of the downstream at the upstream, with both links."""
        value = {"username": _USER, "password": _PASSWORD}
        named = {
            SCHEMA_UPSTREAM: self.upstream.endpoints("amqp_port"),
            STANDBY_UPSTREAM: self.upstream.endpoints("stream_port"),
        }

        async def set_endpoints(node: SimulatedNode) -> None:
            changes = [
                d.Put(d.GlobalParameter(name=name, value={**value, "endpoints": endpoints}))
                for name, endpoints in named.items()
            ]
            await change_at(node, *changes)
            broker_of(node).schema_sync.endpoints_changed()

        await self.at(node, set_endpoints)

    def _employ(self) -> None:
        users, habits = self.users, self.habits
        steady = PublishingPace(habits.choice((0.02, 0.05, 0.2)))
        rejecting = ConsumingHabit(0.3, 0.2, 0.4, "dead")
        crews: list[Callable[[], Crew]] = [
            lambda: (users.publisher(("q1", "q2"), steady), users.consumer("q1")),
            lambda: (users.publisher(("q2",), PublishingPace(0.005, 30, 5.0)), users.consumer("q2")),
            lambda: (users.publisher(("q1", "q2"), steady, in_transactions=True), users.consumer("q2")),
            lambda: (
                users.publisher(("letters",), steady),
                users.consumer("letters", rejecting),
                users.consumer("dead", ConsumingHabit(0.5, 0.2)),
            ),
            lambda: (users.publisher((STREAM, "q2"), steady), users.reader(self._stream)),
        ]
        if self.often == DEAD_LETTERS_MATTER:
            self.applications += crews[3]()
        elif self.often:
            # There are promises at each moment, and segments of the outgoing logs are soon full.
            self.applications += [
                users.publisher(("q1", "q2"), _BUSY),
                users.publisher(("q2",), _BUSY),
                users.consumer("q1"),
            ]
        else:
            self.employ(crews)

    async def _watch(self) -> None:
        """Note covered moments: the ends count once they are durable in the outgoing logs."""
        noted: list[tuple[float, list[CollectedEnd]]] = []
        overtaken_s, looks = 0.0, 0
        while True:
            await asyncio.sleep(_LOOK_S)
            # A downstream that has more than an upstream knows after a loss of power says so soon.
            overtaken_s = overtaken_s + _LOOK_S if self.upstream.is_overtaken() else 0.0
            if overtaken_s > _REPORTED_S and self.fault is None:
                self.fault = BooksFault(
                    "dropped: the upstream's outgoing log lacks what its downstream lacks"
                )
            looks += 1
            # A refusal stays until the downstream follows again.
            is_due = looks % _REFUSALS_LOOKED_AT == 0 and not self._is_lost
            if is_due and self.fault is None and (refusal := self.downstream.refusal()):
                self.fault = BooksFault(f"cut off: {refusal}")
            # What was not durable may get another position after a crash.
            noted = [each for each in noted if not any(end.is_over for end in each[1])]
            ends = self.upstream.collected(COLLECTED)
            if ends is not None:
                noted.append((self.loop.time(), ends))
            durable = [each for each in noted if all(end.is_durable for end in each[1])]
            self.moments_covered += [
                CoveredMoment(at_s, {end.log_id: end.end for end in ends}) for at_s, ends in durable
            ]
            noted = [each for each in noted if each not in durable]

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        faults = [PossibleFault("cut", partial(self._cut, node), node.name) for node in self.downstream.nodes]
        clustered = [
            node for site in (self.upstream, self.downstream) if site.is_cluster for node in site.nodes
        ]
        if clustered:
            faults.append(PossibleFault("restart etcd", self._restart_etcd))
        faults += [PossibleFault("cut etcd", partial(self._cut_etcd, node), node.name) for node in clustered]
        if self.upstream.opened:
            faults.append(PossibleFault("switch policy", self._switch_policy))
            if self.upstream.is_cluster:
                faults.append(PossibleFault("move", self._move))
        faults += [PossibleFault(name, partial(act, self._situations)) for name, act in SITUATIONS.items()]
        for node in self.nodes:
            if node.is_up:
                faults += self.faults_of(node)
                faults.append(PossibleFault("fill disk", partial(self.fill_disk, node), node.name))
            else:
                faults.append(PossibleFault("start", node.start, node.name))
        for process in self.downstream.pipelines():
            faults += [
                PossibleFault("kill pipeline", partial(self._kill, process), process.title),
                PossibleFault("pause pipeline", partial(self._stall, process), process.title),
            ]
        return faults

    def _move(self) -> None:
        """Have another node of the upstream lead a queue."""
        node = self.random.choice(self.upstream.opened)
        cluster = broker_of(node).cluster
        key = (VHOST, self.random.choice(QUEUES))
        placement = cluster.placement(key)
        to = self.random.choice(self.upstream.nodes).full_name
        planned = Placement(1, placement.leader, "", 1)
        self.operator.at(node, partial(cluster.ask_to_move, key, planned, to))

    async def _cut(self, node: SimulatedNode) -> None:
        pairs = [
            pair for each in self.upstream.nodes for pair in ((each.name, node.name), (node.name, each.name))
        ]
        both = self.random.random() < 0.7
        for each in self.upstream.nodes:
            self.network.cut(each.name, node.name, both=both)
        await asyncio.sleep(self.random.choice((0.3, 2.0, 12.0)))
        self.network.mend(pairs)

    async def _cut_etcd(self, node: SimulatedNode) -> None:
        self.etcd.cut(node.name)
        await asyncio.sleep(self.random.choice((0.5, 2.0, 6.0)))
        self.etcd.heal(node.name)

    async def _restart_etcd(self) -> None:
        if not self._is_etcd_down:
            self._is_etcd_down = True
            self.etcd.kill()
            await asyncio.sleep(self.random.choice((0.2, 1.0, 4.0)))
            self.etcd.start()
            self._is_etcd_down = False

    async def _switch_policy(self) -> None:
        """Have some queues replicated no more for a while, which ends their incarnations, and then again."""
        switched = self.policies(self.upstream)[1:]
        ends = self.upstream.ends()
        if self._is_switched or not ends:
            return
        self._is_switched = True
        # A node without its lease may take a change much later.
        self._switched.append(CoveredMoment(inf, ends))
        await self._change(*(d.Delete("policies", each.key) for each in switched))
        await asyncio.sleep(self.random.choice((0.1, 1.0, 4.0)))
        await self._change(*map(d.Put, switched))
        self._switched[-1] = CoveredMoment(self.loop.time(), ends)
        self._is_switched = False

    async def _change(self, *changes: d.Put | d.Delete) -> None:
        """Change the upstream's definitions, again after each end of a node, unless all stay down."""
        while not await self._is_changed(changes):
            if not await wait_until(lambda: bool(self.upstream.opened) or self._is_lost, ABSENT_S):
                return

    async def _is_changed(self, changes: Sequence[d.Put | d.Delete]) -> bool:
        """Try to change the upstream's definitions; return whether that need not be tried again."""
        opened = self.upstream.opened
        if self._is_lost or not opened:
            return self._is_lost
        process = opened[0].process
        assert process is not None
        changing = process.spawn(change_at(opened[0], *changes))
        await wait_until(lambda: changing.done() or not process.is_alive, 20.0)
        return changing.done() and changing.exception() is None

    def _kill(self, process: BlockingProcess) -> None:
        """Kill a process of the pipeline, at once or at one of its next steps."""
        if self.random.random() < 0.3:
            process.end(-9)
        else:
            process.last_step = process.steps + self.random.randint(1, STEPS_MAX)

    async def _stall(self, process: BlockingProcess) -> None:
        process.pause()
        await asyncio.sleep(self.random.choice((0.5, 5.0, 20.0)))
        self.loop.resume(process)

    # -- the disaster -----------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld: lose the upstream, promote the downstream, and let it work for a while."""
        await self.lose_upstream()
        await asyncio.sleep(_AFTERWARDS_S)

    async def lose_upstream(self) -> None:
        """Lose the whole upstream, promote the downstream, and have the applications use it."""
        lost, promoted = self.upstream, self.downstream
        self._hurry()
        await asyncio.sleep(_HURRIED_S)
        late = OwnerSuspended(lost, promoted, self.chance)
        if promoted.is_shared and self.chance.random() < _OWNER_SUSPENDED:
            await late.suspend()
        self.story.note(f"-- the upstream is lost: site {lost.name}")
        self._is_lost = True
        for node in lost.nodes:
            if self.chance.random() < 0.5:
                node.kill()
            else:
                node.lose_power(self.chance)
        if not late.suspended and self.chance.random() < 0.5:
            for node in promoted.nodes:
                node.lose_power(self.chance)
        resuming = asyncio.get_running_loop().create_task(late.resume())
        promotion = SiteCommand(
            self,
            promoted,
            "promotion",
            lambda node: self._promote(node, promotion),
            promoted.is_promoted,
            self.chance,
        )
        # Nodes with a shared archive do without a lost one. What a suspended owner leaves shows in the first attempt.
        command = promotion.run(may_leave_down=promoted.is_shared, is_calm=bool(late.suspended))
        await self._operator.spawn(command)
        await resuming
        self._fail_over(promoted)
        self._serving[:] = promoted.nodes
        await self._operator.spawn(self.look_at(promoted))
        self.serve(promoted)
        for application in self.applications:
            for node in lost.nodes:
                # They do not wait for the answers of a machine that lost its power.
                self.network.reset(application.name, node.name)
        self._stream.begin_anew()

    async def _promote(self, node: Any, promotion: SiteCommand) -> None:
        """Give the command as an operator does who reads why it is refused, once no node is about to come back."""
        try:
            await node.standby.promote()
        except LeveretError as error:
            if promotion.is_disturbed or "records more" not in str(error):
                raise
            await node.standby.promote(RecoveryRequest(all_available=True))

    def _hurry(self) -> None:
        """Have the publishers publish as fast as at the begin: a disaster is to meet messages on their way."""
        fast_copies = len(self.books.messages) + _HURRIED_COPIES
        for application in self.applications:
            if isinstance(application, SimulatedPublisher):
                application.pace = application.pace._replace(fast_copies=fast_copies)

    def begin_anew(self) -> None:
        """Forget the covered moments of before: the sites have other roles now."""
        self.moments_covered.clear()
        self._switched.clear()
        self._is_lost = self._is_switched = False

    async def look_at(self, promoted: Site) -> None:
        """Look at a promoted site before any application uses it."""

    def _fail_over(self, promoted: Site) -> None:
        """Divide the books by the last covered moment whose ends are in the archive."""
        stored: dict[int, int] = {}
        for log_id, end in promoted.decided.promotions[-1].transferred.values():
            stored[log_id] = max(end, stored.get(log_id, 0))
        self._check_left_out(promoted, stored)
        covered_s = self._covered_by(stored)
        # Moves, and what leaders before the last ones have settled, may wait for the order of the logs.
        settled_s = self._covered_by(promoted.ordered(stored))
        is_ended = any(
            each.at_s >= covered_s and any(end > each.ends.get(log_id, 0) for log_id, end in stored.items())
            for each in self._switched
        )
        # The end of the queues' incarnations is in the archive, and perhaps not what was collected anew.
        unsure = SWITCHED if is_ended else ()
        doubtful, back = self.books.fail_over(covered_s, unsure, settled_s=settled_s)
        self.story.note(
            f"-- promoted; covered up to {covered_s:.2f}, moves up to {settled_s:.2f}; "
            f"{doubtful} confirms and {back} settlements are in doubt"
        )
        self.faults["in doubt"] += doubtful + back

    def _check_left_out(self, promoted: Site, stored: dict[int, int]) -> None:
        """Raise BooksFault if an archive has later records than the recovered ends, and the operator was not told."""
        if promoted.decided.promotions[-1].wanted.all_available:
            return
        left_out = {
            log_id: end - stored[log_id]
            for log_id, end in promoted.archived().items()
            if log_id in stored and end > stored[log_id]
        }
        if left_out:
            raise BooksFault(f"left out: the promotion said nothing of later records by log: {left_out}")

    def _covered_by(self, stored: dict[int, int]) -> float:
        """Return the last covered moment whose ends are before these, by the logs' ids."""
        covered = (
            each.at_s
            for each in self.moments_covered
            if all(stored.get(log_id, 0) >= end for log_id, end in each.ends.items())
        )
        return max(covered, default=0.0)


class SharedArchiveWorld(SitesWorld):
    """Sites whose downstream is a cluster of nodes that share an archive."""

    clusters = shared = 1.0

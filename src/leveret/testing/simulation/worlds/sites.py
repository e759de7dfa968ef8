"""A simulated upstream and its warm standby, whose Spark may die at every step; then the upstream is lost for good.

The standby is a node, or a cluster of three, whose nodes share an archive, or each have one of their own.

While both run, a watch notes *covered moments*: the position in the outgoing log at which all that was promised before
is in the log. After the disaster the standby is promoted, and promoted again after each kill. The last moment whose
position is in the archive divides the books: nothing confirmed before is lost, nothing settled before is back. Nothing
is there twice or in another order, whenever it was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, cast

from leveret.core.queues.queue import Queue
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.standby.downstream import UPSTREAM_PARAMETER
from leveret.testing.applications.run_books import BooksFault, RunBooks
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.operator import NeverAtRest, SimulatedOperator
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.site_books import SiteBooks
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.blocking import BlockingProcess
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.pipelines.patches import simulated_pipelines
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, PossibleFault, SimulatedWorld

VHOST: Final = "/"
QUEUES: Final = ("q1", "q2", "dead", "letters")
CONFIRMED_AT_BOTH: Final = 0.5
"""The share of runs in which confirms of one queue wait for the downstream."""
_TRUNCATES: Final = "standby.replication.retention.truncate_transferred.messages"
_USER: Final = "replicator"
_PASSWORD: Final = "a password"
_LOOK_S: Final = 0.1
_FOLLOW_TIMEOUT_S: Final = 120.0
_PROMOTIONS_MAX: Final = 12
_PROMOTE_TIMEOUT_S: Final = 300.0
_AFTERWARDS_S: Final = 10.0
_OBEY_S: Final = 20.0
_STEPS_MAX: Final = 300
DOWNSTREAM: Final = {
    "schema_definition_sync.operating_mode": "downstream",
    "schema_definition_sync.downstream.minimum_sync_interval": "1",
    "schema_definition_sync.downstream.locals.global_parameters": "^standby",
    "standby.replication.operating_mode": "downstream",
}

CLUSTER: Final = {
    "cluster.etcd.endpoints": "http://127.0.0.1:2379",
    "cluster.etcd.prefix": "/b",
    "cluster.etcd.lease_ttl": "2s",
    "cluster_formation.peer_discovery_backend": "etcd",
    "replication.ack_timeout": "2s",
}


class CoveredMoment(NamedTuple):
    """A moment, and the position in the upstream's outgoing log up to which everything promised before it is."""

    at_s: float
    position: int


class SitesWorld(SimulatedWorld):
    """See the module.

    Attributes:
        clusters: the share of runs whose downstream is a cluster.
        shared: the share of these whose nodes share an archive.
        upstream: the node of the one site.
        standbys: the nodes of the other site.
        etcd: the store of a downstream cluster.
        moments_covered: the moments, oldest first.
    """

    clusters = 0.3
    shared = 0.5
    upstream: SimulatedNode
    standbys: list[SimulatedNode]
    etcd: SimulatedEtcd
    books: SiteBooks

    def make_books(self) -> RunBooks:
        """See SimulatedWorld."""
        return SiteBooks()

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.books.clock = self.loop.time
        self.standbys = []
        self.etcd = SimulatedEtcd(cast("asyncio.AbstractEventLoop", self.loop), Random(f"etcd {self.seed}"))
        self.etcd.use_here()
        self.moments_covered: list[CoveredMoment] = []
        self._chance = Random(f"disaster {self.seed}")
        self._serving: list[SimulatedNode] = []
        self._switched: list[CoveredMoment] = []
        """The moments at which some queues began not to be replicated."""
        self._is_switched = self._is_lost = self._is_etcd_down = False
        self.operator = SimulatedOperator(
            self._serving, self.network, self.books, Random(f"operator {self.seed}")
        )
        self._operator = self.operator.process

    async def _play(self, seconds: float) -> int:
        segments_min, compact_s = self.habits.choice((20, 2000)), self.habits.choice((3.0, 60.0))
        with simulated_pipelines(segments_min, compact_s):
            return await super()._play(seconds)

    # -- before the disaster ----------------------------------------------------------------------

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        truncates = str(self.habits.random() < 0.5).lower()
        small = {"segment_bytes_max": "65536"}
        self.upstream = self.add_node("a1", {**small, "cluster_name": "a", _TRUNCATES: truncates})
        self._add_standbys()
        if self.habits.random() < CONFIRMED_AT_BOTH:
            self.books.confirmed_at_both.add("q1")
        self._serve(self.upstream)
        for node in self.nodes:
            node.start()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all start", START_TIMEOUT_S)
        await self._at(self.upstream, self._prepare_upstream)
        for queue in QUEUES:
            dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
            await self.declare(queue, **(dead if queue == "letters" else {}))
        await self._at(self.standbys[0], self._point)
        await self.until(self._follows, "the downstream follows", _FOLLOW_TIMEOUT_S)
        self._employ()
        self._operator.spawn(self._watch())

    def _add_standbys(self) -> None:
        """Add the nodes of the downstream: one, or the nodes of a cluster."""
        self.is_cluster = self.habits.random() < self.clusters
        self.is_shared = self.is_cluster and self.habits.random() < self.shared
        common = {**DOWNSTREAM, "cluster_name": "b"}
        if not self.is_cluster:
            self.standbys.append(self.add_node("b1", common))
            return
        if self.is_shared:
            common["standby.replication.downstream.data_dir"] = str(self._folder / "shared")
            common["standby.replication.downstream.shared_data_dir"] = "true"
        for number in range(3):
            own = {
                "replication.bind": "127.0.0.1",
                "replication.port": str(self.network.free_port()),
                "cluster.bind": "127.0.0.1",
                "cluster.port": str(self.network.free_port()),
            }
            node = self.add_node(f"b{number + 1}", {**common, **CLUSTER, **own})
            self.give_secret(node)
            self.standbys.append(node)

    def _serve(self, *nodes: SimulatedNode) -> None:
        """Have the operator and all applications use these nodes from now on."""
        self._serving[:] = nodes
        self._ports[:] = [node.amqp_port for node in nodes]

    async def _at(self, node: SimulatedNode, work: Callable[[SimulatedNode], Any]) -> None:
        """Run an operator's command at a node."""
        assert node.process is not None
        await node.process.spawn(work(node))

    async def _prepare_upstream(self, node: SimulatedNode) -> None:
        broker = _node(node)
        await broker.schema_sync.add_user(_USER, _PASSWORD)
        async with broker.changing():
            broker.broker.apply(d.Put(d.Vhost(name=VHOST, tags=("standby_replication",))))
            broker.broker.apply(
                d.Put(d.Permission(user=_USER, vhost=VHOST, configure=".*", write=".*", read=".*"))
            )
            for policy in self._policies():
                broker.broker.apply(d.Put(policy))
            await broker.commit()

    def _policies(self) -> list[d.Policy]:
        """Return the policies of the upstream, the last of which is switched off and on."""
        replicated = {"remote-dc-replicate": True}
        both = {**replicated, "remote-dc-confirm": True, "remote-dc-confirm-on-timeout": "nack"}
        definitions = {"^q1$": both if self.books.confirmed_at_both else replicated, "^[^q]|^q2$": replicated}
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

    async def _point(self, node: SimulatedNode) -> None:
        """Point a node at the upstream, with both links."""
        broker = _node(node)
        value = {"username": _USER, "password": _PASSWORD}
        named = {
            "schema_definition_sync_upstream": f"127.0.0.1:{self.upstream.amqp_port}",
            UPSTREAM_PARAMETER: f"127.0.0.1:{self.upstream.stream_port}",
        }
        async with broker.changing():
            for name, endpoint in named.items():
                broker.broker.apply(
                    d.Put(d.GlobalParameter(name=name, value={**value, "endpoints": [endpoint]}))
                )
            await broker.commit()
        broker.schema_sync.endpoints_changed()

    def _follows(self) -> bool:
        return any(map(self._is_connected, self.standbys))

    def _is_connected(self, node: SimulatedNode) -> bool:
        """Return whether a node has all queues and follows, or is the owner that does."""
        if not node.is_open:
            return False
        broker = _node(node)
        rows = broker.standby.status()["vhosts"]
        has_queues = len(broker.broker.queues) >= len(QUEUES)
        return has_queues and any(row["state"] == "connected" and not row["lag_records"] for row in rows)

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
        ]
        self.employ(crews)

    async def _watch(self) -> None:
        """Note covered moments: a position counts once it is durable in the outgoing log."""
        noted: list[CoveredMoment] = []
        run: object = None
        while True:
            await asyncio.sleep(_LOOK_S)
            node = self.upstream
            if not node.is_open or node.process is not run:
                # What was not durable may get another position after a crash.
                noted, run = [], node.process
                continue
            log = self._collected_log()
            if log is None:
                continue
            noted.append(CoveredMoment(self.loop.time(), log.log.next_offset))
            durable = [each for each in noted if each.position <= log.committed_offset]
            self.moments_covered += durable
            noted = noted[len(durable) :]

    def _collected_log(self) -> OutgoingLog | None:
        """Return the upstream's outgoing log if everything that is promised is in it, synced or not."""
        broker = _node(self.upstream)
        log: OutgoingLog | None = broker.collector.logs.get(VHOST)
        followed = broker.collector._following
        are_followed = all(queue.replicated and queue in followed for queue in broker.broker.queues.values())
        return log if log is not None and are_followed and not log.catching_up and not log.stopped else None

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        faults = [PossibleFault("cut", partial(self._cut, node), node.name) for node in self.standbys]
        if self.is_cluster:
            faults.append(PossibleFault("restart etcd", self._restart_etcd))
            faults += [
                PossibleFault("cut etcd", partial(self._cut_etcd, node), node.name) for node in self.standbys
            ]
        if self.upstream.is_open:
            faults.append(PossibleFault("switch policy", self._switch_policy))
        for node in self.nodes:
            faults += self._faults_of(node)
        for process in self._pipelines():
            faults += [
                PossibleFault("kill pipeline", partial(self._kill, process), process.title),
                PossibleFault("pause pipeline", partial(self._stall, process), process.title),
            ]
        return faults

    def _faults_of(self, node: SimulatedNode) -> list[PossibleFault]:
        if not node.is_up:
            return [PossibleFault("start", partial(_start, node), node.name)]
        return [
            PossibleFault("kill", node.kill, node.name),
            PossibleFault("lose power", partial(node.lose_power, self.random), node.name),
            PossibleFault("stop", node.stop, node.name),
            PossibleFault("pause", partial(self._pause, node), node.name),
            PossibleFault("fill disk", partial(self.fill_disk, node), node.name),
        ]

    async def _pause(self, node: SimulatedNode) -> None:
        node.pause()
        await asyncio.sleep(self.random.uniform(0.1, 5))
        node.resume()

    async def _cut(self, node: SimulatedNode) -> None:
        pairs = [(self.upstream.name, node.name), (node.name, self.upstream.name)]
        self.network.cut(*pairs[0], both=self.random.random() < 0.7)
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
        policy = self._policies()[-1]
        log = _node(self.upstream).collector.logs.get(VHOST)
        if self._is_switched or log is None:
            return
        self._is_switched = True
        self._switched.append(CoveredMoment(self.loop.time(), log.log.next_offset))
        await self._change(d.Delete("policies", policy.key))
        await asyncio.sleep(self.random.choice((0.1, 1.0, 4.0)))
        await self._change(d.Put(policy))
        self._is_switched = False

    async def _change(self, change: d.Put | d.Delete) -> None:
        """Change the upstream's definitions, again after each end of its process, unless it stays down."""
        while not await self._is_changed(change):
            if not await wait_until(lambda: self.upstream.is_open or self._is_lost, START_TIMEOUT_S):
                return

    async def _is_changed(self, change: d.Put | d.Delete) -> bool:
        """Try to change the upstream's definitions; return whether that need not be tried again."""
        node, process = self.upstream, self.upstream.process
        if self._is_lost or process is None or not node.is_open:
            return self._is_lost

        async def apply() -> None:
            broker = _node(node)
            async with broker.changing():
                broker.broker.apply(change)
                await broker.commit()

        changing = process.spawn(apply())
        await wait_until(lambda: changing.done() or not process.is_alive, 20.0)
        return changing.done() and changing.exception() is None

    def _pipelines(self) -> list[BlockingProcess]:
        """Return the living processes of the downstream's pipeline: drivers, sources, sinks and workers."""
        return [process for node in self.standbys for process in _blocking_below(node)]

    def _kill(self, process: BlockingProcess) -> None:
        """Kill a process of the pipeline, at once or at one of its next steps."""
        if self.random.random() < 0.3:
            process.end(-9)
        else:
            process.last_step = process.steps + self.random.randint(1, _STEPS_MAX)

    async def _stall(self, process: BlockingProcess) -> None:
        process.pause()
        await asyncio.sleep(self.random.choice((0.5, 5.0, 20.0)))
        self.loop.resume(process)

    # -- the disaster -----------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld: lose the upstream, promote the downstream, and let it work for a while."""
        self.story.note("-- the upstream is lost")
        self._is_lost = True
        if self._chance.random() < 0.5:
            self.upstream.kill()
        else:
            self.upstream.lose_power(self._chance)
        if self._chance.random() < 0.5:
            for node in self.standbys:
                node.lose_power(self._chance)
        await self._operator.spawn(self._promote())
        decided = self._decided()
        _, stored = decided.promotions[-1].transferred.get(VHOST, (0, 0))
        covered = [each.at_s for each in self.moments_covered if each.position <= stored]
        covered_s = max(covered, default=0.0)
        if any(each.at_s >= covered_s and each.position < stored for each in self._switched):
            # The end of the queues' incarnations is in the archive, and perhaps not what was collected anew.
            self.books.may_lose = True
        lost, back = self.books.fail_over(covered_s)
        self.story.note(
            f"-- promoted; covered up to {covered_s:.2f}; {lost} confirms and {back} settlements are in doubt"
        )
        self.faults["in doubt"] = self.faults.get("in doubt", 0) + lost + back
        self._serve(*self.standbys)
        for application in self.applications:
            # They do not wait for the answers of a machine that lost its power.
            self.network.reset(application.name, self.upstream.name)
        await asyncio.sleep(_AFTERWARDS_S)

    async def _promote(self) -> None:
        """Promote the downstream, killed up to three times meanwhile, until all its nodes are upstreams.

        Raises:
            NeverAtRest: it does not become one, although nothing kills it any more.
        """
        kills = self._chance.choice((0, 1, 1, 2, 3))
        failure = ""
        for number in range(_PROMOTIONS_MAX):
            # Nodes with a shared archive do without a lost one; it is back for the end of the story.
            left_down = self._chance.choice(self.standbys) if self.is_shared and number < kills else None
            for node in self.standbys:
                if not node.is_up and node is not left_down:
                    node.start()
            up = [node for node in self.standbys if node.is_up]
            await self.until(lambda up=up: any(node.is_open for node in up), "it starts", START_TIMEOUT_S)  # type: ignore[misc]
            if number and await wait_until(self._is_promoted, _OBEY_S if number >= kills else 0.0):
                return
            node = self._chance.choice([node for node in up if node.is_open])
            failure = await self._try_to_promote(node, is_disturbed=number < kills)
        if not await wait_until(self._is_promoted, _OBEY_S):
            raise NeverAtRest(f"the downstream cannot be promoted: {failure}")

    def _decided(self) -> Any:
        """Return what the downstream has decided, as an open node knows it."""
        return next(_node(node).standby for node in self.standbys if node.is_open).decided

    def _is_promoted(self) -> bool:
        """Return whether all nodes of the downstream are open, and upstreams, and no promotion is unfinished.

        A promoted site may be promoted again; that one may be the unfinished one.
        """
        if not all(
            node.is_open and _node(node).standby.mode is OperatingMode.UPSTREAM for node in self.standbys
        ):
            return False
        if not self._decided().promotions:
            raise BooksFault("promoted too early: the site is an upstream, and has recovered no messages")
        return self._decided().promoting is None

    async def _try_to_promote(self, node: SimulatedNode, *, is_disturbed: bool) -> str:
        """Run the command once; return the reason of its failure, empty if it or the node ended otherwise."""
        process = node.process
        assert process is not None
        promoting = process.spawn(_node(node).standby.promote())
        if is_disturbed:
            await self._disturb(self._chance.choice(self.standbys), promoting)
        if not await wait_until(lambda: promoting.done() or not process.is_alive, _PROMOTE_TIMEOUT_S):
            return f"not within {_PROMOTE_TIMEOUT_S:g} s"
        if promoting.done():
            try:
                promoting.result()
            except LeveretError as error:
                self.story.note(f"-- the promotion failed: {error}")
                return f"{type(error).__name__}: {error}"
        return ""

    def _has_messages(self) -> bool:
        """Return whether some of the messages are recovered."""
        opened = [node for node in self.standbys if node.is_open]
        queues = [queue for node in opened for queue in _node(node).broker.queues.values()]
        return any(queue.backlog.next_offset for queue in queues if isinstance(queue, Queue))

    async def _disturb(self, node: SimulatedNode, promoting: asyncio.Task[Any]) -> None:
        """Kill the node or a process of its pipeline in the middle of a promotion."""
        if self._chance.random() < 0.5:
            await wait_until(lambda: self._has_messages() or promoting.done(), 60.0, 0.002)
        await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.1, 1.0, 3.0)) * self._chance.random())
        kind = self._chance.choice(("kill", "lose power", "pipeline", "pipeline", "pipeline"))
        self.faults[f"{kind} in promotion"] = self.faults.get(f"{kind} in promotion", 0) + 1
        self.story.note(f"-- {kind} in the promotion")
        if kind == "kill":
            node.kill()
        elif kind == "lose power":
            node.lose_power(self._chance)
        else:
            await wait_until(lambda: bool(self._pipelines()) or promoting.done(), 20.0, 0.01)
            for process in self._pipelines():
                process.last_step = process.steps + self._chance.randint(1, _STEPS_MAX)


class SharedArchiveWorld(SitesWorld):
    """Sites whose downstream is a cluster of nodes that share an archive."""

    clusters = shared = 1.0


def _blocking_below(node: SimulatedNode) -> list[BlockingProcess]:
    found: list[BlockingProcess] = []
    waiting = [*node.process.children] if node.process is not None else []
    while waiting:
        process = waiting.pop(0)
        waiting += process.children
        if isinstance(process, BlockingProcess) and process.is_alive:
            found.append(process)
    return found


def _node(node: SimulatedNode) -> Any:
    """Return the broker's node that runs in a simulated node's process."""
    assert node.roles is not None
    return node.roles.node


def _start(node: SimulatedNode) -> None:
    if not node.is_up:
        node.start()

"""A simulated upstream and its warm standby, whose Spark may die at every step; then the upstream is lost for good.

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
from typing import Any, Final, NamedTuple

from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions as d
from leveret.model.errors import LeveretError
from leveret.pipeline.archive.manifest import Manifest
from leveret.runtime.standby.downstream import UPSTREAM_PARAMETER, StandbyDownstream
from leveret.testing.applications.run_books import RunBooks
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.operator import NeverAtRest, SimulatedOperator
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.site_books import SiteBooks
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.machine.blocking import BlockingProcess
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.pipelines.patches import simulated_pipelines
from leveret.testing.simulation.worlds.world import START_TIMEOUT_S, PossibleFault, SimulatedWorld

VHOST: Final = "/"
QUEUES: Final = ("q1", "q2", "dead", "letters")
_USER: Final = "replicator"
_PASSWORD: Final = "a password"
_LOOK_S: Final = 0.1
_FOLLOW_TIMEOUT_S: Final = 120.0
_PROMOTIONS_MAX: Final = 12
_PROMOTE_TIMEOUT_S: Final = 300.0
_AFTERWARDS_S: Final = 10.0
_STEPS_MAX: Final = 300
DOWNSTREAM: Final = {
    "schema_definition_sync.operating_mode": "downstream",
    "schema_definition_sync.downstream.minimum_sync_interval": "1",
    "schema_definition_sync.downstream.locals.global_parameters": "^standby",
    "standby.replication.operating_mode": "downstream",
}


class CoveredMoment(NamedTuple):
    """A moment, and the position in the upstream's outgoing log up to which everything promised before it is."""

    at_s: float
    position: int


class SitesWorld(SimulatedWorld):
    """See the module.

    Attributes:
        upstream, downstream: the nodes of the sites.
        moments_covered: the moments, oldest first.
    """

    upstream: SimulatedNode
    downstream: SimulatedNode
    books: SiteBooks

    def make_books(self) -> RunBooks:
        """See SimulatedWorld."""
        return SiteBooks()

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.books.clock = self.loop.time
        self.moments_covered: list[CoveredMoment] = []
        self._chance = Random(f"disaster {self.seed}")
        self._serving: list[SimulatedNode] = []
        self.operator = SimulatedOperator(
            self._serving, self.network, self.books, Random(f"operator {self.seed}")
        )
        self._operator = self.operator.process

    async def _play(self, seconds: float) -> int:
        with simulated_pipelines():
            return await super()._play(seconds)

    # -- before the disaster ----------------------------------------------------------------------

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        self.upstream = self.add_node("a1", {"cluster_name": "a"})
        self.downstream = self.add_node("b1", {**DOWNSTREAM, "cluster_name": "b"})
        self._serve(self.upstream)
        for node in self.nodes:
            node.start()
        await self.until(lambda: all(node.is_open for node in self.nodes), "both start", START_TIMEOUT_S)
        await self._at(self.upstream, self._prepare_upstream)
        for queue in QUEUES:
            dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
            await self.declare(queue, **(dead if queue == "letters" else {}))
        await self._at(self.downstream, self._point)
        await self.until(self._follows, "the downstream follows", _FOLLOW_TIMEOUT_S)
        self._employ()
        self._operator.spawn(self._watch())

    def _serve(self, node: SimulatedNode) -> None:
        """Have the operator and all applications use this node from now on."""
        self._serving[:] = [node]
        self._ports[:] = [node.amqp_port]

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
            policy = d.Policy(
                vhost=VHOST,
                name="replicated",
                pattern=".*",
                definition={"remote-dc-replicate": True},
                apply_to="queues",
            )
            broker.broker.apply(d.Put(policy))
            await broker.commit()

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
        if not self.downstream.is_open:
            return False
        has_queues = len(_node(self.downstream).broker.queues) >= len(QUEUES)
        rows = self._standby.status()["vhosts"]
        return has_queues and any(row["state"] == "connected" and not row["lag_records"] for row in rows)

    @property
    def _standby(self) -> StandbyDownstream:
        standby: StandbyDownstream = _node(self.downstream).standby
        return standby

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
            log = _node(node).collector.logs.get(VHOST)
            if log is None or log.catching_up or log.stopped:
                continue
            noted.append(CoveredMoment(self.loop.time(), log.log.next_offset))
            durable = [each for each in noted if each.position <= log.committed_offset]
            self.moments_covered += durable
            noted = noted[len(durable) :]

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        faults = [PossibleFault("cut", self._cut)]
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

    async def _cut(self) -> None:
        pair = (self.upstream.name, self.downstream.name)
        self.network.cut(*pair, both=self.random.random() < 0.7)
        await asyncio.sleep(self.random.choice((0.3, 2.0, 12.0)))
        self.network.mend()

    def _pipelines(self) -> list[BlockingProcess]:
        """Return the living processes of the downstream's pipeline: drivers, sources, sinks and workers."""
        return _blocking_below(self.downstream)

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
        if self._chance.random() < 0.5:
            self.upstream.kill()
        else:
            self.upstream.lose_power(self._chance)
        await self._operator.spawn(self._promote())
        stored = Manifest(self.downstream.data_dir / "standby").next_by_log.get(VHOST, 0)
        covered = [each.at_s for each in self.moments_covered if each.position <= stored]
        covered_s = max(covered, default=0.0)
        lost, back = self.books.fail_over(covered_s)
        self.story.note(
            f"-- promoted; covered up to {covered_s:.2f}; {lost} confirms and {back} settlements are in doubt"
        )
        self.faults["in doubt"] = self.faults.get("in doubt", 0) + lost + back
        self._serve(self.downstream)
        await asyncio.sleep(_AFTERWARDS_S)

    async def _promote(self) -> None:
        """Promote the downstream, killed up to three times meanwhile, until it is an upstream.

        Raises:
            NeverAtRest: it does not become one, although nothing kills it any more.
        """
        kills = self._chance.choice((0, 1, 1, 2, 3))
        node, failure = self.downstream, ""
        for number in range(_PROMOTIONS_MAX):
            if not node.is_up:
                node.start()
            await self.until(lambda: node.is_open, "the downstream starts", START_TIMEOUT_S)
            standby = self._standby
            if number and standby.mode is OperatingMode.UPSTREAM:
                return
            failure = await self._try_to_promote(node, is_disturbed=number < kills)
        if self._standby.mode is not OperatingMode.UPSTREAM:
            raise NeverAtRest(f"the downstream cannot be promoted: {failure}")

    async def _try_to_promote(self, node: SimulatedNode, *, is_disturbed: bool) -> str:
        """Run the command once; return the reason of its failure, empty if it or the node ended otherwise."""
        process = node.process
        assert process is not None
        promoting = process.spawn(self._standby.promote())
        if is_disturbed:
            await self._disturb(node, promoting)
        if not await wait_until(lambda: promoting.done() or not process.is_alive, _PROMOTE_TIMEOUT_S):
            return f"not within {_PROMOTE_TIMEOUT_S:g} s"
        if promoting.done():
            try:
                promoting.result()
            except LeveretError as error:
                self.story.note(f"-- the promotion failed: {error}")
                return f"{type(error).__name__}: {error}"
        return ""

    async def _disturb(self, node: SimulatedNode, promoting: asyncio.Task[Any]) -> None:
        """Kill the node or a process of its pipeline in the middle of a promotion."""
        await asyncio.sleep(self._chance.choice((0.0, 0.1, 1.0, 3.0)) * self._chance.random())
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

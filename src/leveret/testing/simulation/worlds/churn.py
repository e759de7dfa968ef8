"""A simulated cluster whose queues come and go: many are declared, used and deleted at once, whatever happens.

The queues of ClusterWorld stay for a run. Here each queue name has several lives, and an operator changes policies,
leaders, users and virtual hosts meanwhile. At rest, each application has got its answers, all nodes and etcd have the
same definitions, and each queue works at each node; then all queues are deleted, and nothing is left of them: no record
in etcd, no directory on a disk, no mention in a table of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, Final

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.replication.cluster import Placement
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.model import definitions as d
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.applications.application import SimulatedApplication
from leveret.testing.simulation.applications.churn_books import ChurnBooks
from leveret.testing.simulation.applications.churn_users import (
    FleetConsumer,
    FleetPublisher,
    FleetReader,
    FleetTransactions,
)
from leveret.testing.simulation.applications.churners import SimulatedChurner
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.fleet import KINDS, Fleet, kind_of
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.applications.patience import PatientApplication
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.replacer import SimulatedReplacer
from leveret.testing.simulation.applications.vhost_owner import SimulatedVhostOwner
from leveret.testing.simulation.machine.waiting import wait_until
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.churn_rest import ChurnRest
from leveret.testing.simulation.worlds.churn_situations import REPLACED, ReplacedQueues
from leveret.testing.simulation.worlds.cluster import KEYS, PLACEMENTS, ClusterWorld
from leveret.testing.simulation.worlds.placements import decoded
from leveret.testing.simulation.worlds.situations import SITUATIONS
from leveret.testing.simulation.worlds.world import REST_TIMEOUT_S, PossibleFault

HEALTHY: Final = 0.25
"""The share of runs without faults: only an operator is at work."""
LARGE: Final = 0.2
"""The share of runs with five nodes."""
SIZES: Final = (4, 10, 40, 110)
"""The most queues of a fleet."""
SMALL_SIZES: Final = (4, 10, 30)
"""The same with five nodes, each of which follows each queue."""
REPLACING: Final = 0.4
"""The share of runs in which the same names are deleted and declared again most of the time."""
REPLACED_SIZE: Final = 8
"""The most queues of a fleet in such a run."""
BUSY_MAX: Final = 6
_OPERATOR: Final = ("policy", "no policy", "move", "rebalance")


class ChurnWorld(ClusterWorld):
    """See the module.

    Attributes:
        booked: the books, as this world has them.
        is_healthy: whether only an operator is at work.
        replaces: whether the same names are deleted and declared again most of the time.
    """

    situations = frozenset((*SITUATIONS, *REPLACED))

    def __init__(self, *args: Any, **given: Any) -> None:
        """Choose the run's size, and whether there are faults."""
        seed = args[0] if args else given["seed"]
        kind = Random(f"churn {seed}")
        given.setdefault("size", 5 if kind.random() < LARGE else 3)
        super().__init__(*args, **given)
        assert isinstance(self.books, ChurnBooks)
        self.booked: ChurnBooks = self.books
        self.is_healthy = kind.random() < HEALTHY and not given.get("often")
        if self.is_healthy:
            self.often = ""
        self._fleets: list[Fleet] = []
        self._recorded_epochs: set[int] = set()
        self._kind = kind
        again = Random(f"again {seed}")
        self.replaces = again.random() < REPLACING or given.get("often") in REPLACED
        self._replacers: dict[str, SimulatedReplacer] = {}
        if self.replaces and not self.is_healthy and not given.get("often"):
            self.often = again.choice(("", *REPLACED))

    def make_situations(self) -> ReplacedQueues:
        """See ClusterWorld."""
        return ReplacedQueues(self)

    def make_books(self) -> ChurnBooks:
        """See SimulatedWorld."""
        return ChurnBooks()

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        await self.begin()
        if not self.is_healthy and self._kind.random() < 0.2:
            self._add_follower(self.nodes[0])
        self._look_at_leaders()
        for number in range(self._kind.randint(1, 2)):
            size = self._kind.choice(SIZES if self.size == 3 else SMALL_SIZES)
            fleet = Fleet(f"f{number}", self.booked, min(size, REPLACED_SIZE) if self.replaces else size)
            self._fleets.append(fleet)
            for make in self._crew(fleet):
                self.applications.append(make())

    def _crew(self, fleet: Fleet) -> list[Callable[[], SimulatedApplication]]:
        """Return what makes the applications of a fleet."""
        kind, users = self._kind, self.users
        pace = PublishingPace(kind.choice((0.01, 0.03, 0.1)), fast_copies=users.fast_copies)
        consuming = ConsumingHabit(0.6, 0.2, prefetch=kind.choice((1, 3, 10)), commits=kind.random() < 0.5)
        given = users.given
        crew: list[Callable[[], SimulatedApplication]] = [
            *[lambda: SimulatedChurner(*given("o"), fleet=fleet, replaces=self.replaces)]
            * kind.randint(1, 3),
            *[lambda: FleetPublisher(*given("p"), fleet=fleet, pace=pace)] * kind.randint(1, 3),
            *[lambda: FleetConsumer(*given("c"), fleet=fleet, habit=consuming)] * kind.randint(0, 3),
        ]
        if kind.random() < 0.3:
            crew.append(lambda: FleetTransactions(*given("t"), fleet=fleet, pace=pace))
        if kind.random() < 0.5:
            crew.append(lambda: FleetReader(*given("r"), fleet=fleet))
        if kind.random() < 0.4 or self.replaces:
            crew.append(
                lambda: SimulatedVhostOwner(*given("v"), operator=self.operator, replaces=self.replaces)
            )
        if self.replaces:
            crew.append(lambda: self._replacer_of(fleet))
        return crew

    def _replacer_of(self, fleet: Fleet) -> SimulatedReplacer:
        replacer = self._replacers[fleet.name] = SimulatedReplacer(*self.users.given("w"), fleet=fleet)
        return replacer

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        found = list(super().possible_faults())
        if self.opened:
            node = self.random.choice(self.opened)
            found.append(PossibleFault("no policy", lambda: self._remove_policy(node), node.name))
        if self.is_healthy:
            found = [each for each in found if each.kind in _OPERATOR]
        return found

    def _remove_policy(self, node: SimulatedNode) -> None:
        if node.is_open:
            self.operator.change(node, d.Delete("policies", ("/", "ha")))

    def replace(self, names: Collection[str]) -> Callable[[], bool]:
        """See ReplacingWorld."""
        asked = [each.replace(names) for each in self._replacers.values()]
        return lambda: all(is_answered() for is_answered in asked)

    def declare_crowd(self) -> None:
        """See ReplacingWorld."""
        if self._replacers:
            self.random.choice(list(self._replacers.values())).declare_crowd()

    def watched(self) -> dict[tuple[str, str], Placement]:
        """See ClusterWorld."""
        return self.placed()

    def movable(self) -> list[tuple[str, str]]:
        """See ClusterWorld."""
        return list(self.placed())

    def busy(self) -> dict[tuple[str, str], Placement]:
        """See SituatedWorld."""
        mirrored = [(key, each) for key, each in self.placed().items() if each.mirrors and not each.members]
        return dict(mirrored[-BUSY_MAX:])

    # -- promises ---------------------------------------------------------------------------------

    def is_audited(self, queue: Queue) -> bool:
        """See SimulatedWorld; a stream has its own kind of log."""
        return queue.definition.durable and not isinstance(queue, Stream)

    def _recorded(self, transaction: StoreTransaction) -> None:
        self._recorded_epochs.update(
            decoded(write.value).epoch
            for write in transaction.writes
            if isinstance(write, PutKey) and write.key.startswith(PLACEMENTS)
        )
        super()._recorded(transaction)
        if not self.etcd_stops.locked():
            self._judge_pairs(transaction)

    def _judge_pairs(self, transaction: StoreTransaction) -> None:
        """Check that etcd has the definition and the record of each queue of a transaction, of one life, or neither."""
        entries = self.etcd.state.entries
        for key in filter(None, (KEYS.parse(write.key) for write in transaction.writes)):
            queue = key.names[1:] if key.names[:1] == ("queues",) else key.names
            if key.family not in ("definitions", "placements") or len(queue) != 2:
                continue
            stored = entries.get(KEYS.definition("queues", queue))
            definition = d.decode_change(stored.value) if stored is not None else None
            placed = entries.get(KEYS.placement(*queue))
            record = decoded(placed.value).epoch if placed is not None else 0
            match definition:
                case None if not record:
                    continue
                case d.Put(d.Queue(epoch=epoch)) if epoch == record:
                    continue
            self.fault = self.fault or BooksFault(
                f"unpaired: etcd has for queue {queue[1]} the definition {definition}, and the record of life {record}"
            )

    def promised(self, node: str, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """See SimulatedWorld; a node that ends would remove a queue that etcd does not know."""
        super().promised(node, batch, queues)
        for queue in queues:
            is_known = queue.epoch in self._recorded_epochs or not queue.definition.durable
            if not is_known and self.fault is None and not self.etcd_stops.locked():
                self.fault = BooksFault(
                    f"unshared: {node} confirms for {queue.key[1]}, which etcd never knew"
                )

    # -- the end ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld: each application gets its answers, and ends."""
        await self.until_open()
        self._stop_applications()
        patient = [each for each in self.applications if isinstance(each, PatientApplication)]
        if not await wait_until(lambda: all(each.has_ended for each in patient), REST_TIMEOUT_S):
            self.look()
            waiting = [f"{each.name} for {each.awaited()}" for each in patient if not each.has_ended]
            raise NeverConverged(f"unanswered for {REST_TIMEOUT_S:g} s: {'; '.join(waiting)}")
        self.look()
        await self.synchronise()
        if not self.is_healthy:
            await self.examine()

    def missing(self) -> list[str]:
        """See EtcdWorld."""
        found: list[str] = self._outside_follower.missing() if self._outside_follower is not None else []
        placed = self.placed()
        for node in self.nodes:
            if not node.is_open:
                found.append(f"{node.name} is not open")
                continue
            for key in placed:
                is_mirrored = key[0] == "/" and key[1].startswith("m") and KINDS[kind_of(key[1])].durable
                found += self.unsynchronised(node, key, is_mirrored=is_mirrored)
        return found

    async def _count(self) -> int:
        """See SimulatedWorld."""
        await self.rest()
        await self.compare()
        rest = ChurnRest(self.operator, self.network, self.etcd, KEYS, self.nodes, self.booked, self.random)
        rest.compare_definitions()
        found = await rest.count()
        await rest.probe()
        await rest.delete_all()
        return found

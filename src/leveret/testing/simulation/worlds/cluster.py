"""A simulated cluster: nodes, an etcd, mirrored queues, and clients at all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from leveret.core.queues.queue import Queue
from leveret.core.replication.cluster import ClusterKeys, Placement
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.runtime.cluster.operations import ClusterCommands
from leveret.runtime.logs.log_home import directory_of
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.simulation.applications.consumers import ConsumingHabit
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.applications.publishers import PublishingPace
from leveret.testing.simulation.applications.users import Crew
from leveret.testing.simulation.etcd.state import EtcdState
from leveret.testing.simulation.machine.waiting import LOOK_S
from leveret.testing.simulation.nodes.audit import CountedOn
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.leader_loss import LeaderLoss
from leveret.testing.simulation.worlds.outside_follower import NAME as BEYOND
from leveret.testing.simulation.worlds.outside_follower import OutsideFollower
from leveret.testing.simulation.worlds.placements import PlacedLogs, decoded, placements_below
from leveret.testing.simulation.worlds.situations import (
    ADDITION,
    SITUATIONS,
    STOPPED_IN_TURN,
    ClusterSituations,
)
from leveret.testing.simulation.worlds.with_etcd import ETCD_SETTINGS, EtcdWorld
from leveret.testing.simulation.worlds.world import SMALL_LOGS, START_TIMEOUT_S, PossibleFault

POLICY: Final = {
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}
_PREFIX: Final = ETCD_SETTINGS["cluster.etcd.prefix"]
KEYS: Final = ClusterKeys.under(_PREFIX)
PLACEMENTS: Final = placements_below(_PREFIX)
LOSING: Final = ("always", "when-synced")
MIRRORED: Final = ("m1", "m2", "m3", "quorum")
FANOUT: Final = "fan"
DEAD_QUEUE: Final = "mdead"
STREAM_NAME: Final = "stream"
REPLACED_MAX: Final = 2
PROXYING: Final = 0.5
"""The share of runs in which a node without its lease passes its clients on to others."""
HEARTBEAT_S: Final = 3
FOLLOWED: Final = 0.5
"""The share of runs in which a node has a follower."""
SITUATED: Final = 0.3
"""The share of runs in which one situation happens most of the time."""
LEADERS_S: Final = 0.05
_FORGOTTEN: Final = "was taken out of cluster"
_IN_BURSTS: Final = PublishingPace(0.005, 30, 5.0)
_DRAINS: Final = ConsumingHabit(1.0, 0.0)


class ClusterWorld(EtcdWorld):
    """See the module."""

    small_logs_share = SMALL_LOGS
    situations = frozenset(SITUATIONS)

    def __init__(self, *args: Any, **given: Any) -> None:
        """Choose the run's policy: some runs let incomplete mirrors lead, and may lose messages."""
        super().__init__(*args, **given)
        self.books.may_lose = self.habits.random() < 0.1 and not self.often
        self._gone: list[SimulatedNode] = []
        self._outside_follower: OutsideFollower | None = None
        self._chance = Random(f"beyond {self.seed}")
        self._passes_on = Random(f"proxy {self.seed}").random() < PROXYING
        self._situations = self.make_situations()
        if not self.often and self._chance.random() < SITUATED:
            self.often = self._chance.choice(SITUATIONS)

    def make_situations(self) -> ClusterSituations:
        """Return what carries out the situations."""
        return ClusterSituations(self)

    def prepare(self) -> None:
        """See SimulatedWorld."""
        super().prepare()
        self.etcd.on_request = self._asked_for
        self._placed_logs = PlacedLogs(_PREFIX)

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        await self.begin()
        for queue in ("m1", "m2", "m3", DEAD_QUEUE):
            await self.declare(queue)
        await self.declare("quorum", x_queue_type="quorum")
        await self.declare("alone")
        await self.declare("mletters", x_dead_letter_exchange="", x_dead_letter_routing_key=DEAD_QUEUE)
        await self.operator.declare_fanout(FANOUT, (*MIRRORED, "alone"))
        await self.declare_more()
        stream = await self.declare_stream(STREAM_NAME)
        if self._chance.random() < FOLLOWED:
            self._add_follower(self.nodes[0])
        await self.until_whole()
        self._begin_work(stream)

    async def begin(self) -> None:
        """Start the nodes, and set a policy that mirrors queues."""
        for _ in range(self.size):
            self._add_member()
        self.start_all()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all nodes start", START_TIMEOUT_S)
        await self._mirror(self.nodes[0], self._definition())

    async def declare_more(self) -> None:
        """Declare what a special world needs."""

    def _add_follower(self, followed: SimulatedNode) -> None:
        """Make a node outside the cluster a follower of one of its nodes."""
        settings = {"replication.follow": f"tcp://127.0.0.1:{followed.config.followers.port}"}
        if self._chance.random() < 0.3:
            settings["replication.apply_delay"] = "10m"
        node = SimulatedNode(
            BEYOND, self._folder, self.network, self.disk, settings, has_small_logs=self.has_small_logs
        )
        node.clock_offset_s, node.clock_rate = followed.clock_offset_s, followed.clock_rate
        self.give_secret(node)
        self._outside_follower = OutsideFollower(node, followed, self.network, self._chance)
        self._outside_follower.node.start()

    def _add_member(self) -> SimulatedNode:
        number = len(self.nodes) + len(self._gone) + 1
        return self.add_node(
            f"n{number}",
            {
                **ETCD_SETTINGS,
                "replication.bind": "127.0.0.1",
                "replication.port": str(self.network.free_port()),
                "replication.ack_timeout": "2s",
                "replication.proxy": str(self._passes_on).lower(),
                "cluster_formation.peer_discovery_backend": "etcd",
                "cluster.bind": "127.0.0.1",
                "cluster.port": str(self.network.free_port()),
            },
        )

    def _begin_work(self, stream: StreamBooks) -> None:
        """Start a choice of the users' applications, which differs between runs."""
        steady = PublishingPace(self.habits.choice((0.02, 0.02, 0.05, 0.2)))
        small = ConsumingHabit(0.5, 0.3, 0.1, prefetch=self.habits.choice((1, 3)))
        self._look_at_leaders()
        if self.often:
            self._employ_few(small)
        else:
            self.employ(self.crews(stream, steady, small))
        if self._passes_on:
            # A node that passes clients on and loses power closes no connection of theirs to another node.
            for application in self.applications:
                application.heartbeat_s = HEARTBEAT_S

    def crews(
        self, stream: StreamBooks, steady: PublishingPace, small: ConsumingHabit
    ) -> list[Callable[[], Crew]]:
        """The choice of applications, by those that belong together."""
        users, fans = self.users, (*MIRRORED, "alone")
        rejecting = ConsumingHabit(0.3, 0.2, 0.4, DEAD_QUEUE)
        return [
            lambda: (users.publisher(("m1", "quorum"), steady), users.consumer("quorum")),
            lambda: (users.publisher(("m1", "m2"), steady), users.consumer("m1")),
            lambda: (users.publisher(fans, steady, exchange=FANOUT), users.consumer("m2", small)),
            lambda: (users.publisher(("m3",), _IN_BURSTS), users.consumer("m3", _DRAINS)),
            lambda: (users.publisher(("m2", "alone", "quorum"), steady, in_transactions=True),),
            lambda: (
                users.publisher(("mletters",), steady),
                users.consumer("mletters", rejecting),
                users.consumer(DEAD_QUEUE, ConsumingHabit(0.5, 0.2)),
            ),
            lambda: (users.owner("mown", 1.0), users.owner("own", 3.0)),
            lambda: (users.owner("ownquorum", 2.0, x_queue_type="quorum"),),
            lambda: (users.consumer("m1", _DRAINS), users.consumer("quorum", small)),
            lambda: (users.publisher((STREAM_NAME,), steady), users.reader(stream), users.reader(stream)),
            lambda: (users.publisher((STREAM_NAME, "m1"), _IN_BURSTS), users.reader(stream)),
            lambda: (
                users.numbering_publisher(stream, steady),
                users.storing_reader(stream),
                users.storing_reader(stream),
            ),
            lambda: (users.numbering_publisher(stream, _IN_BURSTS), users.storing_reader(stream)),
        ]

    def _employ_few(self, small: ConsumingHabit) -> None:
        """Make few applications, so a run is short: there are promises at each moment, and m2 is mostly at rest."""
        users, is_drained = self.users, self.often == STOPPED_IN_TURN
        self.applications += [
            users.publisher(("m1", "m3", "quorum", "alone"), PublishingPace(0.03)),
            users.publisher(("m2",), PublishingPace(0.005, 5, 15.0) if is_drained else _IN_BURSTS),
            users.consumer("m3", _DRAINS),
            users.consumer("m1", small),
        ]
        if is_drained:
            # Mirrors begin at a queue that is drained, and nothing comes before they stop.
            self.applications.append(users.consumer("m2", _DRAINS))

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        found = list(super().possible_faults())
        opened = self.opened
        if opened:
            node = self.random.choice(opened)
            found += [
                PossibleFault("policy", lambda: self._change_policy(node), node.name),
                PossibleFault("move", lambda: self._move(node), node.name),
                PossibleFault("rebalance", lambda: self._rebalance(node), node.name),
                PossibleFault("lose etcd", self._lose_etcd),
            ]
            if len(self._gone) < REPLACED_MAX and len(opened) > 1:
                found.append(PossibleFault("replace", lambda: self._replace(node), node.name))
        if self._outside_follower is not None:
            found += self._outside_follower.possible_faults()
        if self.often in self.situations:
            found.append(PossibleFault(self.often, partial(self._situations.run, self.often)))
        return found

    async def lose_leader(self) -> None:
        """See EtcdWorld: a policy changes or a leader moves shortly before."""
        changes = [
            partial(change, node) for node in self.opened for change in (self._change_policy, self._move)
        ]
        await LeaderLoss(self, changes).run()

    async def _lose_etcd(self) -> None:
        """Replace etcd by one without data for a while: no node may found a cluster or delete data because of that."""
        async with self.etcd_stops:
            content = self.etcd.state.copy()
            self.etcd.kill()
            self.etcd.start(EtcdState())
            await asyncio.sleep(self.random.choice((0.3, 3.0, 8.0)))
            self.etcd.kill()
            await asyncio.sleep(self.random.choice((0.1, 3.0)))
            self.etcd.start(content)

    def _definition(self) -> dict[str, Any]:
        names = [node.full_name for node in self.nodes]
        mode: dict[str, Any] = self.random.choice(
            (
                {"ha-mode": "all"},
                {"ha-mode": "all"},
                {"ha-mode": "exactly", "ha-params": self.random.randint(2, len(names))},
                {
                    "ha-mode": "nodes",
                    "ha-params": self.random.sample(names, self.random.randint(2, len(names))),
                },
            )
        )
        found: dict[str, Any] = {**POLICY, **mode}
        if self.random.random() < 0.4:
            found["ha-confirm"] = "majority"
        if self.random.random() < 0.2:
            found["ha-sync-mode"] = "manual"
        if self.books.may_lose:
            found["ha-promote-on-failure"] = self.random.choice(LOSING)
            found["ha-promote-on-shutdown"] = self.random.choice(LOSING)
        return found

    def _look_at_leaders(self) -> None:
        """Check, again and again, that no node with a lease serves a queue that another one leads by the record.

        Without a lease, a leader may have been replaced. With one, it hands a queue over before the record changes,
        unless it cannot read the queue's log.
        """
        self.loop.call_later(LEADERS_S, self._look_at_leaders, context=self._context)
        if self.etcd_stops.locked() or self.fault is not None:
            return
        placed = [(key, _host(each.leader), each.epoch) for key, each in self.watched().items()]
        for node in self.opened:
            for key, leader, epoch in placed if self.has_lease(node.name) else ():
                if leader not in ("", node.name) and _serves(node, key, epoch):
                    text = f"two leaders: {node.name} serves queue {key[1]}, which {leader} leads"
                    self.fault = BooksFault(text)

    def watched(self) -> dict[tuple[str, str], Placement]:
        """Return etcd's records of the queues that one node serves at a time."""
        found = ((("/", name), self._placement(("/", name))) for name in self.queues)
        return {key: placement for key, placement in found if placement is not None}

    def _asked_for(self, transaction: StoreTransaction) -> None:
        """Note the moment at which a record that counts on another mirror is on its way to etcd."""
        for write in transaction.writes:
            if isinstance(write, PutKey) and write.key.startswith(PLACEMENTS):
                recorded = self.etcd.state.entries.get(write.key)
                before = decoded(recorded.value).synchronised if recorded is not None else ()
                if not set(decoded(write.value).synchronised) <= set(before):
                    self.moment(ADDITION)

    def busy(self) -> dict[tuple[str, str], Placement]:
        """See SituatedWorld."""
        found = ((("/", queue), self._placement(("/", queue))) for queue in MIRRORED)
        return {key: placement for key, placement in found if placement is not None}

    def set_mirrors(self, definition: Mapping[str, Any]) -> None:
        """See SituatedWorld."""
        if self.opened:
            self.operator.set_policy(self.random.choice(self.opened), "ha", "^m", {**POLICY, **definition})

    def move(self, key: tuple[str, str], to: str) -> None:
        """See SituatedWorld."""
        placement = self._placement(key)
        if self.opened and placement is not None:
            node, planned = self.opened[0], Placement(1, placement.leader, "", 1)
            self.operator.at(node, partial(_cluster(node).ask_to_move, key, planned, to))

    def remove_log(self, node: SimulatedNode, key: tuple[str, str]) -> None:
        """See SituatedWorld."""
        placement = self._placement(key)
        if placement is None or node.is_up or placement.leader == node.full_name:
            return
        log = node.data_dir / _log_name(placement)
        if log.is_dir():
            self.disk.remove_at_rest(log)
            self.audit.damaged(log / "removed")
            self.story.note(f"log removed: {node.name} {log.name}")

    def _change_policy(self, node: SimulatedNode) -> None:
        if node.is_open:
            self.operator.set_policy(node, "ha", "^m", self._definition())

    async def _mirror(self, node: SimulatedNode, definition: dict[str, Any]) -> None:
        """Set the policy, and wait for the answer."""
        change = self.operator.set_policy(node, "ha", "^m", definition)
        await self.until(change.done, "the policy is set")

    def _move(self, node: SimulatedNode) -> None:
        if not node.is_open:
            return
        cluster, keys = _cluster(node), self.movable()
        if keys:
            key = self.random.choice(keys)
            leader = cluster.placement(key).leader
            to = self.random.choice(cluster.members())
            self.operator.at(node, partial(cluster.ask_to_move, key, Placement(1, leader, "", 1), to))

    def movable(self) -> list[tuple[str, str]]:
        """Return the queues whose leaders an operator moves."""
        return [("/", name) for name in (*self.queues, STREAM_NAME)]

    def _rebalance(self, node: SimulatedNode) -> None:
        if node.is_open:
            self.operator.at(node, partial(_cluster(node).rebalance, "all", ".*", ".*"))

    async def _replace(self, node: SimulatedNode) -> None:
        """Stop a node, make the others forget it, and add another one with an empty disk."""
        await node.stop()
        teller = next((each for each in self.opened if each is not node), None)
        name = node.full_name
        if node.is_up or teller is None:
            return
        cluster = _cluster(teller)
        if name in cluster.alive() or name in self.leaders():
            return  # Queues would be lost with the node.
        forgetting = self.operator.at(teller, partial(cluster.forget_node, name))
        process = teller.process
        await self.until(
            lambda: forgetting.done() or process is None or not process.is_alive, "it is forgotten"
        )
        if name in cluster.members() or node not in self.nodes or node.is_up:
            return  # It is still there, or an earlier fault has replaced it meanwhile.
        self._renew(node)

    def _renew(self, node: SimulatedNode) -> None:
        """Replace a node that the others have forgotten by another one with an empty disk."""
        self.nodes.remove(node)
        self._gone.append(node)
        if self._outside_follower is not None and self._outside_follower.followed is node:
            # The node's copy stays as it is.
            self._outside_follower.node.kill()
            self._gone.append(self._outside_follower.node)
            self._outside_follower = None
        self._ports.remove(node.amqp_port)
        self._stream_ports.remove(node.stream_port)
        fresh = self._add_member()
        self.give_secret(fresh)
        fresh.start()

    def leader_of(self, queue: Queue) -> str:
        """See EtcdWorld."""
        placement = self._placement(queue.key)
        return _host(placement.leader) if placement is not None and placement.epoch == queue.epoch else ""

    def _placement(self, key: tuple[str, ...]) -> Placement | None:
        found = self.etcd.state.entries.get(KEYS.placement(key[0], key[1]))
        return None if found is None else decoded(found.value)

    def has_lease(self, node: str) -> bool:
        """See EtcdWorld."""
        return KEYS.alive(f"{node}@localhost") in self.etcd.state.entries

    def counted_on(self, key: tuple[str, ...], epoch: int) -> CountedOn | None:
        """See EtcdWorld."""
        placement = self._placement(key)
        return _counted_on(placement) if placement is not None and placement.epoch == epoch else None

    def records(self, since: int) -> Iterable[tuple[int, CountedOn]]:
        """See EtcdWorld."""
        for key, entry in self.etcd.state.entries.items():
            if entry.modified > since and key.startswith(PLACEMENTS):
                placement = decoded(entry.value)
                yield placement.epoch, _counted_on(placement)

    def _recorded(self, transaction: StoreTransaction) -> None:
        self._placed_logs.recorded(transaction)
        super()._recorded(transaction)

    def accounted(self, leader: str, node: str, log: str, end: int) -> None:
        """See SimulatedWorld."""
        if self._placed_logs.binds(leader, log):
            super().accounted(leader, node, log, end)

    def leaders(self) -> set[str]:
        """See EtcdWorld: from the placements in etcd."""
        if self.etcd_stops.locked():
            # The etcd in its place may be one without placements.
            return {node.full_name for node in self.nodes}
        return {placement.leader for placement in self.placed().values()}

    def placed(self) -> dict[tuple[str, str], Placement]:
        """Return the placements in etcd."""
        placed: dict[tuple[str, str], Placement] = {}
        for key, entry in self.etcd.state.entries.items():
            if key.startswith(PLACEMENTS):
                parsed = KEYS.parse(key)
                assert parsed is not None
                placed[parsed.names[0], parsed.names[1]] = decoded(entry.value)
        return placed

    def has_returned(self, node: SimulatedNode) -> bool:
        """See EtcdWorld: whether the node is a synchronised mirror again."""
        return not self.missing()

    # -- the end ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld: sets a policy that synchronises all mirrors."""
        await self.until_open()
        await self.synchronise()
        await self.examine()

    async def until_open(self) -> None:
        """End all faults; return once all nodes that run for good are open."""
        await self.until_up()
        await self.until(lambda: all(node.is_open or node.ended for node in self.nodes), "all nodes start")
        for node in list(self.nodes):
            if _FORGOTTEN in (node.ended or ""):
                # The node that received the command to forget this one ended before its success was visible.
                self._renew(node)
        await self.until(lambda: bool(self.opened), "a node is open")

    async def synchronise(self) -> None:
        """Set a policy that synchronises all mirrors, and wait until they are synchronised."""
        while True:
            node = self.opened[0]
            await self._mirror(node, {**POLICY, "ha-mode": "all"})
            await asyncio.sleep(LOOK_S)
            if node.is_open:
                break
        await self.until_whole()

    def copies(self) -> list[tuple[Path, Path, list[str]]]:
        """See EtcdWorld."""
        nodes = {node.full_name: node for node in self.opened}
        found: list[tuple[Path, Path, list[str]]] = []
        for placement in self.placed().values():
            leader, logs = nodes.get(placement.leader), [_log_name(placement)]
            if leader is not None:
                mirrors = [nodes[each] for each in placement.synchronised if each in nodes]
                found += [(leader.data_dir, mirror.data_dir, logs) for mirror in mirrors]
        return found

    async def until_up(self) -> None:
        """See EtcdWorld."""
        if self._outside_follower is not None:
            self._outside_follower.node.start()
        await super().until_up()

    def all_nodes(self) -> list[SimulatedNode]:
        """See SimulatedWorld."""
        beyond = [self._outside_follower.node] if self._outside_follower is not None else []
        return [*self.nodes, *self._gone, *beyond]

    def look(self) -> None:
        """See SimulatedWorld."""
        super().look()
        if self._outside_follower is not None and self._outside_follower.node.bug is not None:
            raise NeverConverged(
                f"{BEYOND} ended: {self._outside_follower.node.bug!r}"
            ) from self._outside_follower.node.bug

    def differing(self) -> str:
        """See EtcdWorld."""
        found = super().differing()
        return found if found or self._outside_follower is None else self._outside_follower.differing()

    def missing(self) -> list[str]:
        """See EtcdWorld: each queue is led, and its mirrors are synchronised, as all nodes see it."""
        found: list[str] = self._outside_follower.missing() if self._outside_follower is not None else []
        for node in self.nodes:
            if not node.is_open:
                found.append(f"{node.name} is not open")
                continue
            for queue in (*self.queues, STREAM_NAME):
                found += self.unsynchronised(node, ("/", queue), is_mirrored=queue != "alone")
        return found

    def unsynchronised(self, node: SimulatedNode, key: tuple[str, str], *, is_mirrored: bool) -> list[str]:
        """Return a text if a queue is not led, or if its mirrors are not synchronised, as an open node sees it."""
        placement = _cluster(node).placement(key)
        if is_mirrored and not placement.mirrors:
            return [f"{node.name}: {key[1]} has no mirrors"]
        if placement.state != "running" or len(placement.synchronised_mirrors) < len(placement.mirrors):
            return [f"{node.name}: {key[1]} {placement}"]
        return []


def _host(name: str) -> str:
    return name.partition("@")[0]


def _counted_on(placement: Placement) -> CountedOn:
    """Return the nodes that a placement counts on: all of its leader and mirrors, or a majority of them."""
    mirrors = len(placement.synchronised)
    needed = 1 + ((mirrors + 1) // 2 if placement.majority else mirrors)
    return CountedOn(frozenset(map(_host, (placement.leader, *placement.synchronised))), needed)


def _serves(node: SimulatedNode, key: tuple[str, str], epoch: int) -> bool:
    """Return whether a node takes itself for the leader of a queue, whose log it can read."""
    assert node.roles is not None
    queue = node.roles.node.broker.queues.get(key)
    return queue is not None and queue.epoch == epoch and not queue.is_remote and queue.damage is None


def _cluster(node: SimulatedNode) -> ClusterCommands:
    assert node.roles is not None
    return cast("ClusterCommands", node.roles.node.cluster)


def _log_name(placement: Placement) -> str:
    """Return the name of a queue's log in the tree; only streams have members."""
    return f"{'streams' if placement.members else 'queues'}/{directory_of(placement.epoch)}"

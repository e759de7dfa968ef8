"""A simulated world with an etcd, several nodes, and faults of nodes, links and etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.storage.summary import summary_path
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.applications.operator import NeverConverged
from leveret.testing.simulation.etcd.companion import hang_companions, kill_companions
from leveret.testing.simulation.etcd.paths import DELAY_S_MAX
from leveret.testing.simulation.etcd.server import SimulatedEtcd
from leveret.testing.simulation.machine.waiting import LOOK_S, wait_until
from leveret.testing.simulation.nodes.audit import CountedOn
from leveret.testing.simulation.nodes.copies import difference
from leveret.testing.simulation.nodes.node import SimulatedNode
from leveret.testing.simulation.worlds.leader_loss import LeaderLoss
from leveret.testing.simulation.worlds.world import (
    MOMENTS,
    REST_TIMEOUT_S,
    PossibleFault,
    SimulatedWorld,
)

LEASE_TTL_S: Final = 2
RESTART_TIMEOUT_S: Final = 20.0
EXAMINED: Final = 2
COPIED_S: Final = 10.0
TURNS: Final = "/turns/"
_LOGS: Final = ("definitions", "queues", "streams")
ETCD_SETTINGS: Final = {
    "cluster.etcd.endpoints": "http://127.0.0.1:2379",
    "cluster.etcd.prefix": "/leveret",
    "cluster.etcd.lease_ttl": f"{LEASE_TTL_S}s",
}


class EtcdWorld(SimulatedWorld):
    """See the module.

    Attributes:
        etcd: the store of all nodes.
        size: the number of nodes.
        etcd_delay_s: the usual delay of the run, to which a slow etcd returns.
        etcd_stops: held while etcd is down or replaced.
    """

    def __init__(self, *args: Any, size: int = 3, **given: Any) -> None:
        """Make a world of `size` nodes; see SimulatedWorld for the other arguments."""
        super().__init__(*args, **given)
        self.size = size
        self.etcd_stops = asyncio.Lock()
        self.etcd_delay_s = self.habits.choice((DELAY_S_MAX, DELAY_S_MAX, 0.05, 0.2))
        self.moments = (*MOMENTS, "record")
        self.etcd: SimulatedEtcd
        self._judged_revision = 0
        self._is_judging = False
        self._turns: dict[str, int] = {}

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.etcd = self.make_etcd()
        self.etcd.paths.delay_s_max = self.etcd_delay_s
        self.disk.on_removed = self._removed

    def start_all(self) -> None:
        """Copy the shared secret to all nodes, as an operator does, and start them."""
        for node in self.nodes:
            self.give_secret(node)
        for node in self.nodes:
            node.start()

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        up = [node for node in self.nodes if node.is_up]
        down = [node for node in self.nodes if not node.is_up]
        found: list[PossibleFault] = []
        if up:
            node = self.random.choice(up)
            found += [
                *self.faults_of(node),
                PossibleFault("cut etcd", lambda: self._cut_etcd(node), node.name),
                PossibleFault("shift clock", lambda: self._shift_clock(node), node.name),
                PossibleFault("fill disk", lambda: self.fill_disk(node), node.name),
                PossibleFault("harm companion", lambda: self._harm_companion(node), node.name),
            ]
        if down:
            other_node = self.random.choice(down)
            found += [PossibleFault("start", lambda: self.start(other_node), other_node.name)] * 3
            if self._is_spare(other_node):
                found += [
                    PossibleFault("flip bit", lambda: self._flip_bit(other_node), other_node.name),
                    PossibleFault("remove log", lambda: self._remove_log(other_node), other_node.name),
                ]
        one, other = self.random.sample(self.nodes, 2)
        pair = f"{one.name} {other.name}"
        found += [
            PossibleFault("lose leader", self.lose_leader),
            PossibleFault("lose leader", self.lose_leader),
            PossibleFault("cut", lambda: self._cut(one, other), pair),
            PossibleFault("reset", lambda: self.network.reset(one.name, other.name), pair),
            PossibleFault("mend", self.network.mend),
            PossibleFault("restart etcd", self._restart_etcd),
            PossibleFault("slow etcd", self._slow_etcd),
            PossibleFault("compact etcd", self._compact_etcd),
            PossibleFault("restart in turn", self.restart_in_turn),
            PossibleFault("lose all power", self._lose_all_power),
        ]
        return found

    async def lose_leader(self) -> None:
        """See LeaderLoss."""
        await LeaderLoss(self).run()

    def start(self, node: SimulatedNode) -> None:
        """Start a node that is down, unless it has been replaced."""
        if node in self.nodes:
            node.start()

    def _lose_all_power(self) -> None:
        for node in self.nodes:
            node.lose_power(self.random)

    def _harm_companion(self, node: SimulatedNode) -> None:
        """Kill the companion of a node's lease, or delay its notice of the node's death."""
        if node.process is not None:
            if self.random.random() < 0.5:
                kill_companions(node.process)
            else:
                hang_companions(node.process, self.random.choice((0.3, 1.5, 6.0)))

    def stops_s(self) -> float:
        """See SimulatedWorld: shorter or longer than a lease."""
        return self.random.choice((0.3, 1.0, 3.0, 6.0))

    async def _cut(self, one: SimulatedNode, other: SimulatedNode) -> None:
        self.network.cut(one.name, other.name, both=self.random.random() < 0.7)
        await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))
        if self.random.random() < 0.7:
            self.network.mend()

    async def _cut_etcd(self, node: SimulatedNode) -> None:
        requests, answers = self.random.choice(((True, True), (True, False), (False, True)))
        self.etcd.cut(node.name, requests=requests, answers=answers)
        await asyncio.sleep(self.random.choice((0.5, 2.0, 6.0)))
        self.etcd.heal(node.name)

    async def _restart_etcd(self) -> None:
        async with self.etcd_stops:
            self.etcd.kill()
            await asyncio.sleep(self.random.choice((0.2, 1.0, 4.0)))
            self.etcd.start()

    async def _slow_etcd(self) -> None:
        self.etcd.paths.delay_s_max = self.random.choice((0.05, 0.3, 0.8))
        await asyncio.sleep(self.random.choice((1.0, 5.0)))
        self.etcd.paths.delay_s_max = self.etcd_delay_s

    def _compact_etcd(self) -> None:
        if self.etcd.state.revision > self.etcd.state.compacted:
            self.etcd.compact()

    def _shift_clock(self, node: SimulatedNode) -> None:
        node.clock_offset_s = self.random.uniform(-7200, 7200)
        if node.process is not None:
            node.process.clock_offset_s = node.clock_offset_s

    async def restart_in_turn(self) -> None:
        """Stop and start one node after the other, each once the one before is open again."""
        for node in list(self.nodes):
            if node.is_up:
                await node.stop()
                self.start(node)
                await wait_until(lambda node=node: self.has_returned(node), RESTART_TIMEOUT_S)  # type: ignore[misc]

    def _flip_bit(self, node: SimulatedNode) -> None:
        """Damage a log at rest of a spare node."""
        if self._is_spare(node):
            # A start does not read a segment that has a summary: only a scrub would find the damage.
            flipped = self.disk.flip_bit(
                node.data_dir,
                self.random,
                lambda path: self.may_be_damaged(path) and not summary_path(path).exists(),
            )
            self.story.note(f"bit flipped: {flipped}")
            if flipped is not None:
                self.audit.damaged(flipped[0])

    def _remove_log(self, node: SimulatedNode) -> None:
        """Remove the directory of a log at rest of a spare node."""
        if self._is_spare(node):
            found = (each.relative_to(node.data_dir) for each in node.data_dir.rglob("*.segment*"))
            logs = sorted(
                {each.parent for each in found if each.parts[0] in _LOGS and self.may_be_damaged(each)}
            )
            if logs:
                log = self.random.choice(logs)
                self.disk.remove_at_rest(node.data_dir / log)
                self.audit.damaged(node.data_dir / log / "removed")
                self.story.note(f"log removed: {node.name} {log}")

    def _is_spare(self, node: SimulatedNode) -> bool:
        """Return whether a node is down, and leads no queue: other nodes have all confirmed messages."""
        return not node.is_up and node.full_name not in self.leaders()

    def may_be_damaged(self, path: Path) -> bool:
        """Return whether a bit of this file may flip."""
        return "queues" in path.parts

    def promised(self, node: str, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """See SimulatedWorld: only the recorded leader with a lease may confirm, and only messages that others have."""
        ends = self.audit.confirms(batch)
        if self.etcd_stops.locked() or self.books.may_lose:
            return
        try:
            if queues and len(batch.queues) == 1:
                # The last of several queues decides the confirm of a message: the others may have been handed over
                # since, with the message.
                self._judge_leader(node, queues[0])
            for queue, end in ends.items():
                self.audit.confirm(node, queue.epoch, end)
                counted_on = self.counted_on(queue.key, queue.epoch)
                if counted_on is not None:
                    # A relocated message is unsettled, and stands behind the segments that were dropped for it.
                    floor = None if self.has_small_logs else queue.log_floor
                    self.audit.judge(queue.epoch, counted_on, floor)
        except BooksFault as fault:
            self.fault = self.fault or fault

    def _judge_leader(self, node: str, queue: Queue) -> None:
        leader = self.leader_of(queue)
        if leader not in ("", node):
            raise BooksFault(f"two leaders: {node} confirms for queue {queue.key[1]}, which {leader} leads")
        if not self.has_lease(node):
            raise BooksFault(f"without a lease: {node} confirms for queue {queue.key[1]}")

    def _recorded(self, transaction: StoreTransaction) -> None:
        """Check, after a change of a record in etcd, that the nodes that it counts on have all confirmed messages."""
        super()._recorded(transaction)
        self.moment("record")
        self._judge_turns(transaction)
        since, self._judged_revision = self._judged_revision, self.etcd.state.revision
        self._judge_records(since)

    def _judge_turns(self, transaction: StoreTransaction) -> None:
        """Check that a node's writes take effect once, in its order: their numbers are in the key of its turns."""
        for write in transaction.writes:
            if isinstance(write, PutKey) and TURNS in write.key:
                turn = int(write.value.split()[0])
                if turn <= self._turns.get(write.key, 0) and self.fault is None:
                    self.fault = BooksFault(
                        f"a write comes late: turn {turn} of {write.key} was taken before"
                    )
                self._turns[write.key] = turn

    def _removed(self) -> None:
        """Check, after a node has removed a file, that no record counts on it."""
        if not self._is_judging:
            self._is_judging = True
            self.loop.call_soon(self._judge_all, context=self._context)

    def _judge_all(self) -> None:
        self._is_judging = False
        self._judge_records(0)

    def _judge_records(self, since: int) -> None:
        if self.etcd_stops.locked() or self.books.may_lose:
            return
        try:
            for epoch, counted_on in self.records(since):
                if since:
                    self.audit.recorded(epoch, counted_on)
                self.audit.judge(epoch, counted_on)
        except BooksFault as fault:
            self.fault = self.fault or fault

    def records(self, since: int) -> Iterable[tuple[int, CountedOn]]:
        """Return, by epoch, the nodes that etcd's records count on, for records that changed since this revision."""
        raise NotImplementedError

    def counted_on(self, key: tuple[str, ...], epoch: int) -> CountedOn | None:
        """Return the nodes that a queue's record counts on now; None without a record."""
        raise NotImplementedError

    def has_lease(self, node: str) -> bool:
        """Return whether a node's lease lasts, in etcd's view."""
        raise NotImplementedError

    def leader_of(self, queue: Queue) -> str:
        """Return the leader of a queue in etcd's record now; empty for none."""
        raise NotImplementedError

    def leaders(self) -> set[str]:
        """Return the nodes that alone may have the last confirmed messages."""
        raise NotImplementedError

    def has_returned(self, node: SimulatedNode) -> bool:
        """Return whether a restarted node is back, so that the next one may be restarted."""
        return node.is_open

    # -- the end ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld."""
        await self.until_up()
        await self.until_whole()
        await self.examine()

    async def examine(self) -> None:
        """Lose one node after the other: that shows a successor without all confirmed messages."""
        for node in self.random.sample(self.nodes, EXAMINED):
            self.story.note(f"-- {node.name} is lost")
            if self.random.random() < 0.5:
                node.kill()
            else:
                node.lose_power(self.random)
            await asyncio.sleep(2 * LEASE_TTL_S)
            self.start(node)
            await self.until_whole()

    async def compare(self) -> None:
        """See SimulatedWorld: each copy that counts as complete has its leader's chunks."""
        if await wait_until(lambda: not self.differing(), COPIED_S):
            return
        raise BooksFault(f"diverged: {self.differing()}")

    def differing(self) -> str:
        """Return a text about the first difference of copies that must be equal; empty without one."""
        return next(filter(None, (difference(*copies) for copies in self.copies())), "")

    def copies(self) -> list[tuple[Path, Path, list[str]]]:
        """Return, for each copy, the data directories of its leader and of itself, and the logs that must be equal."""
        raise NotImplementedError

    async def until_up(self) -> None:
        """End all faults, and start the nodes that are down."""
        self.network.mend()
        for node in self.nodes:
            self.etcd.heal(node.name)
            node.resume()
            self.start(node)

    async def until_whole(self) -> None:
        """Wait until `missing` is empty. Raises NeverConverged, with the last content of `missing`."""
        until_s = self.loop.time() + REST_TIMEOUT_S
        while missing := self.missing():
            if self.loop.time() > until_s:
                raise NeverConverged(f"after {REST_TIMEOUT_S:g} s: {'; '.join(missing)}")
            await asyncio.sleep(LOOK_S)

    def missing(self) -> list[str]:
        """Return a text for each deviation from the healed state."""
        raise NotImplementedError

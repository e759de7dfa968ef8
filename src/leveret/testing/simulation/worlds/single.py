"""One simulated node that is killed, stopped, paused and started again."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.nodes.audit import CountedOn
from leveret.testing.simulation.worlds.node_users import employ
from leveret.testing.simulation.worlds.world import SMALL_LOGS, START_TIMEOUT_S, PossibleFault, SimulatedWorld


class SingleWorld(SimulatedWorld):
    """One node that is killed, stopped, paused and started."""

    small_logs_share = SMALL_LOGS

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        node = self.add_node("n1", {})
        node.start()
        await self.until(lambda: node.is_open, "the node starts", START_TIMEOUT_S)
        await employ(self)

    def promised(self, node: str, batch: ConfirmBatch, queues: list[Queue]) -> None:
        """See SimulatedWorld: confirmed messages must be on the node's own disk."""
        try:
            for queue, end in self.audit.confirms(batch).items():
                self.audit.confirm(node, queue.epoch, end)
                self.audit.judge(queue.epoch, CountedOn(frozenset((node,)), 1), queue.log_floor)
        except BooksFault as fault:
            self.fault = self.fault or fault

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        node = self.nodes[0]
        if not node.is_up:
            return [PossibleFault("start", node.start)]
        return [*self.faults_of(node), PossibleFault("fill disk", lambda: self.fill_disk(node))]

    async def heal(self) -> None:
        """See SimulatedWorld."""
        self.nodes[0].start()
        await self.until(lambda: self.nodes[0].is_open, "the node starts", START_TIMEOUT_S)

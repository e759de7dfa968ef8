"""A simulated leader with followers: etcd has one of them lead, and clients find the leader by trying."""

from __future__ import annotations

from leveret.testing.simulation.etcd_world import ETCD_SETTINGS, EtcdWorld
from leveret.testing.simulation.world import START_TIMEOUT_S


class FollowerWorld(EtcdWorld):
    """See the module."""

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        for number in range(self.size):
            self.add_node(
                f"n{number + 1}",
                {
                    **ETCD_SETTINGS,
                    "replication.bind": "127.0.0.1",
                    "replication.port": str(self.network.free_port()),
                    "replication.ack_timeout": "2s",
                },
            )
        self.start_all()
        await self.until(lambda: any(node.is_open for node in self.nodes), "one leads", START_TIMEOUT_S)
        for queue in ("q1", "q2"):
            await self.declare(queue)
        await self.declare("quorum", x_queue_type="quorum")
        await self.until_whole()
        self.publishers(2, 0.05)
        self.consumers(["q1", "quorum"])

    def missing(self) -> list[str]:
        """See EtcdWorld: one node leads, and all others are in sync with it."""
        leaders = [node for node in self.nodes if node.is_open]
        if len(leaders) != 1:
            return [f"leaders: {', '.join(node.name for node in leaders) or 'none'}"]
        roles = leaders[0].roles
        assert roles is not None
        status = roles.node.replication.status()
        if status["in_sync_count"] < self.size - 1:
            return [f"{leaders[0].name} leads, in sync are only {status['in_sync']}"]
        return []

"""A simulated cluster: nodes, an etcd, mirrored queues, and clients at all nodes."""

from __future__ import annotations

from typing import Final, cast

from leveret.runtime.cluster.operations import ClusterCommands
from leveret.testing.simulation.etcd_world import ETCD_SETTINGS, EtcdWorld
from leveret.testing.simulation.world import START_TIMEOUT_S

POLICY: Final = {
    "ha-mode": "all",
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}
_MODES: Final = (
    {"ha-mode": "all"},
    {"ha-mode": "exactly", "ha-params": 2},
    {"ha-mode": "all", "ha-confirm": "majority"},
)


class ClusterWorld(EtcdWorld):
    """See the module."""

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        for number in range(self.size):
            self.add_node(
                f"n{number + 1}",
                {
                    **ETCD_SETTINGS,
                    "cluster_formation.peer_discovery_backend": "etcd",
                    "cluster.bind": "127.0.0.1",
                    "cluster.port": str(self.network.free_port()),
                },
            )
        self.start_all()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all nodes start", START_TIMEOUT_S)
        await self.set_policy(self.nodes[0], "ha", "^m", {**POLICY, **self.random.choice(_MODES)})
        for queue in ("m1", "m2"):
            await self.declare(queue)
        await self.declare("quorum", x_queue_type="quorum")
        await self.until_whole()
        self.publishers(2, 0.05)
        self.consumers(["m1", "quorum"])

    def missing(self) -> list[str]:
        """See EtcdWorld: each queue is led, and its mirrors are synchronised, as all nodes see it."""
        found: list[str] = []
        for node in self.nodes:
            if not node.is_open:
                found.append(f"{node.name} is not open")
                continue
            assert node.roles is not None
            cluster = cast("ClusterCommands", node.roles.node.cluster)
            for queue in self.queues:
                placement = cluster.placement(("/", queue))
                if not placement.mirrors:
                    found.append(f"{node.name}: {queue} has no mirrors")
                elif placement.state != "running" or len(placement.synchronised_mirrors) < len(
                    placement.mirrors
                ):
                    found.append(f"{node.name}: {queue} {placement}")
        return found

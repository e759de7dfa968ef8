"""A simulated cluster: nodes, an etcd, mirrored queues, clients at all nodes, and faults of all of these."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final, cast

from leveret.runtime.cluster.operations import ClusterCommands
from leveret.storage.secret_file import SECRET_FILE
from leveret.testing.simulation.etcd import SimulatedEtcd
from leveret.testing.simulation.node import SimulatedNode
from leveret.testing.simulation.world import START_TIMEOUT_S, PossibleFault, SimulatedWorld

LEASE_TTL_S: Final = 2
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


class ClusterWorld(SimulatedWorld):
    """See the module.

    Attributes:
        etcd: the store of the cluster.
    """

    def __init__(self, seed: int, folder: Path, *, skip: frozenset[int] = frozenset(), size: int = 3) -> None:
        """Of so many nodes."""
        super().__init__(seed, folder, skip=skip)
        self.size = size
        self.etcd: SimulatedEtcd

    def prepare(self) -> None:
        """See SimulatedWorld."""
        self.etcd = SimulatedEtcd(cast("asyncio.AbstractEventLoop", self.loop), Random(f"etcd {self.seed}"))
        self.etcd.use_here()

    async def set_up(self) -> None:
        """See SimulatedWorld."""
        for number in range(self.size):
            self.add_node(
                f"n{number + 1}",
                {
                    "cluster_formation.peer_discovery_backend": "etcd",
                    "cluster.etcd.endpoints": "http://127.0.0.1:2379",
                    "cluster.etcd.lease_ttl": f"{LEASE_TTL_S}s",
                    "cluster.bind": "127.0.0.1",
                    "cluster.port": str(self.network.free_port()),
                },
            )
        for node in self.nodes:
            node.data_dir.mkdir(mode=0o700, parents=True)
            secret = node.data_dir / SECRET_FILE
            secret.write_bytes(b"5" * 64 + b"\n")
            secret.chmod(0o400)
            self.disk.settle(node.data_dir)
        for node in self.nodes:
            node.start()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all nodes start", START_TIMEOUT_S)
        await self.set_policy(self.nodes[0], "ha", "^m", {**POLICY, **self.random.choice(_MODES)})
        for queue in ("m1", "m2"):
            await self.declare(queue)
        await self.declare("quorum", x_queue_type="quorum")
        await self.until(self._is_whole, "all queues are mirrored", START_TIMEOUT_S)
        self.publishers(2, 0.05)
        self.consumers(["m1", "quorum"])

    # -- faults -----------------------------------------------------------------------------------

    def possible_faults(self) -> Sequence[PossibleFault]:
        """See SimulatedWorld."""
        up = [node for node in self.nodes if node.is_up]
        down = [node for node in self.nodes if not node.is_up]
        found: list[PossibleFault] = []
        if up:
            node = self.random.choice(up)
            found += [
                PossibleFault("kill", node.kill, node.name),
                PossibleFault("lose power", lambda: node.lose_power(self.random), node.name),
                PossibleFault("stop", node.stop, node.name),
                PossibleFault("pause", lambda: self._pause(node), node.name),
                PossibleFault("cut etcd", lambda: self._cut_etcd(node), node.name),
            ]
        if down:
            other_node = self.random.choice(down)
            found += [PossibleFault("start", other_node.start, other_node.name)] * 3
        one, other = self.random.sample(self.nodes, 2)
        pair = f"{one.name} {other.name}"
        found += [
            PossibleFault("cut", lambda: self._cut(one, other), pair),
            PossibleFault("reset", lambda: self.network.reset(one.name, other.name), pair),
            PossibleFault("mend", self.network.mend),
            PossibleFault("restart etcd", self._restart_etcd),
        ]
        return found

    async def _pause(self, node: SimulatedNode) -> None:
        node.pause()
        await asyncio.sleep(self.random.choice((0.3, 1.0, 3.0, 6.0)))
        node.resume()

    async def _cut(self, one: SimulatedNode, other: SimulatedNode) -> None:
        self.network.cut(one.name, other.name)
        await asyncio.sleep(self.random.choice((0.1, 1.0, 5.0)))
        if self.random.random() < 0.7:
            self.network.mend()

    async def _cut_etcd(self, node: SimulatedNode) -> None:
        requests, answers = self.random.choice(((True, True), (True, False), (False, True)))
        self.etcd.cut(node.name, requests=requests, answers=answers)
        await asyncio.sleep(self.random.choice((0.5, 2.0, 6.0)))
        self.etcd.heal(node.name)

    async def _restart_etcd(self) -> None:
        self.etcd.kill()
        await asyncio.sleep(self.random.choice((0.2, 1.0, 4.0)))
        self.etcd.start()

    # -- the end ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """See SimulatedWorld."""
        self.network.mend()
        for node in self.nodes:
            self.etcd.heal(node.name)
            node.resume()
            if not node.is_up:
                node.start()
        await self.until(lambda: all(node.is_open for node in self.nodes), "all nodes are open")
        await self.until(self._is_whole, "all queues have a leader, and all mirrors have everything")

    def _is_whole(self) -> bool:
        """Whether each queue is led, with as many synchronised mirrors as its policy wants, as all nodes see it."""
        return not self.missing()

    def missing(self) -> list[str]:
        """Return what is not as it should be yet."""
        found: list[str] = []
        for node in self.nodes:
            if not node.is_open:
                found.append(f"{node.name} is not open")
                continue
            assert node.roles is not None
            cluster = cast("ClusterCommands", node.roles.node.cluster)
            for queue in self.queues:
                placement = cluster.placement(("/", queue))
                if placement.state != "running" or len(placement.synchronised_mirrors) < len(
                    placement.mirrors
                ):
                    found.append(f"{node.name}: {queue} {placement}")
                elif not placement.mirrors:
                    found.append(f"{node.name}: {queue} has no mirrors")
        return found

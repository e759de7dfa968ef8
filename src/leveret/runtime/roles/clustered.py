"""A node's membership in a cluster: entered at its start, and again whenever its lease was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from leveret.config import Config
from leveret.config.uris import CLUSTER_PORT, NodeUri, parse_node_uri
from leveret.core.replication.cluster import ClusterKeys, ClusterState
from leveret.model.errors import LeveretError
from leveret.runtime.cluster.coordinator import Coordinator
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.suspended_commands import SuspendedCommands
from leveret.runtime.cluster.wiring import enter_cluster
from leveret.runtime.coordination.etcd import EtcdError
from leveret.runtime.coordination.etcd_outages import EtcdOutages
from leveret.runtime.coordination.lease import boot_clock_s
from leveret.runtime.proxying.passed_on_clients import PassedOnClients
from leveret.runtime.sockets.backoff import delay_s

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node
    from leveret.storage.secret_file import Secret

logger = logging.getLogger(__name__)

_RETRY_S: Final = (0.1, 0.2, 0.3)
"""Nobody is served until etcd answers, so the wait stays short."""


class NodeHost(Protocol):
    """Builds and ends nodes: runtime.roles.roles."""

    failed: asyncio.Event
    """Set when the process must end."""

    async def serve_with(self, attach: Callable[[Node], Coordinator]) -> None:
        """Build a node, attach it to the cluster before it recovers, and open its listeners."""

    async def fence(self) -> None:
        """Serve no client any more."""

    passed_on_clients: PassedOnClients
    """The clients that other nodes pass on to this one."""


class Clustered:
    """See the module.

    Attributes:
        coordinator: the serving node's coordinator; None while no node serves.
    """

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        node_id: str,
        secret: Secret,
        host: NodeHost,
        *,
        copied_cluster: Callable[[], str] = str,
    ) -> None:
        """Begin outside of the cluster. For `copied_cluster` see ClusterMember."""
        self.coordinator: Coordinator | None = None
        self._config = config
        self._data_dir = data_dir
        self._node_id = node_id
        self._secret = secret
        self._copied_cluster = copied_cluster
        self._host = host
        self._member: ClusterMember | None = None
        self._lost = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._former_leases: set[int] = set()
        self._outages = EtcdOutages(logger, boot_clock_s)
        self._others: tuple[NodeUri, ...] = ()

    async def start(self) -> None:
        """Serve as one of the cluster's nodes; waits for etcd if necessary.

        Raises:
            LeveretError: this node cannot be one of them; the text gives the remedy.
        """
        failures = 0
        while not await self._try():
            await self._host.fence()
            await self._leave()
            await asyncio.sleep(delay_s(_RETRY_S, failures))
            failures += 1
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._lost))

    async def _try(self) -> bool:
        """Enter the cluster once; return whether this node serves, which a lost lease or a silent etcd prevents."""
        loop = asyncio.get_running_loop()
        lost = self._lost = asyncio.Event()
        self._member = ClusterMember(
            self._config,
            self._data_dir,
            self._node_id,
            self._secret,
            lambda reason: lost.set(),
            former_leases=self._former_leases,
            outages=self._outages,
            copied_cluster=self._copied_cluster(),
        )
        entering = loop.create_task(self._serve(self._member))
        losing = loop.create_task(lost.wait())
        try:
            await asyncio.wait((entering, losing), return_when=asyncio.FIRST_COMPLETED)
            if entering.done():
                entering.result()
            is_serving = entering.done() and not lost.is_set()
        except EtcdError as error:
            self._outages.failed("cluster_not_entered", str(error))
            is_serving = False
        except (Exception, asyncio.CancelledError):
            # Not a GeneratorExit: a coroutine that is closed may not await any more.
            try:
                await self._leave()
            finally:
                await _end(entering, losing)
            raise
        await _end(entering, losing)
        return is_serving

    async def _serve(self, member: ClusterMember) -> None:
        await member.enter()
        await self._host.serve_with(partial(self._attach, member))

    def _attach(self, member: ClusterMember, node: Node) -> Coordinator:
        self.coordinator = enter_cluster(
            member, node, self._secret, self._host.passed_on_clients.accept_client
        )
        return self.coordinator

    async def _watch(self, lost: asyncio.Event) -> None:
        """Enter anew when the lease is lost; no promise was kept since then (replication_port.ClusterBarrier)."""
        await lost.wait()
        if self._is_stopping:
            return
        try:
            await self._host.fence()
            await self._leave()
            await self.start()
        except Exception as error:
            is_bug = not isinstance(error, LeveretError)
            logger.critical("cluster_not_entered error=%s action=stop", error, exc_info=is_bug)
            self._host.failed.set()

    def others(self) -> Sequence[NodeUri]:
        """Where the other nodes are that run, as far as this one knows; when it hears nothing, those that ran last."""
        member = self._member
        alive = member.state.alive if member is not None else {}
        uris = [each.uri for name, each in alive.items() if name != self._config.node_name and each.uri]
        if uris:
            self._others = tuple(parse_node_uri(uri, CLUSTER_PORT) for uri in uris)
        return self._others

    async def _leave(self) -> None:
        self.others()
        member, self._member = self._member, None
        if member is not None:
            await member.leave()

    def suspended(self) -> SuspendedCommands:
        """The view of the cluster while this node serves no client."""
        state = self._member.state if self._member is not None else ClusterState(ClusterKeys.under(""))
        return SuspendedCommands(self._config.node_name, self._config.etcd, state)

    async def hand_over(self) -> None:
        """Hand over the node's queues before an orderly stop."""
        self._is_stopping = True
        if self.coordinator is not None:
            await self.coordinator.hand_over_all()

    async def detach(self) -> None:
        """Stop the coordinator, because the node has stopped, or must serve no client."""
        if self.coordinator is not None:
            await self.coordinator.stop()
            self.coordinator = None

    async def stop(self) -> None:
        """Leave the cluster."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        await self._leave()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""One site of a simulated world: a node, or a cluster of three, whose nodes share an archive or each have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from leveret.core.queues.queue import Queue
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions as d
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.machine.blocking import BlockingProcess
from leveret.testing.simulation.machine.process import SimulatedProcess
from leveret.testing.simulation.nodes.node import SimulatedNode

VHOST: Final = "/"
FOLLOWS: Final = {
    "schema_definition_sync.downstream.minimum_sync_interval": "1",
    "schema_definition_sync.downstream.locals.global_parameters": "^standby",
}
"""Settings of a site that follows, or will."""
DOWNSTREAM: Final = {
    **FOLLOWS,
    "schema_definition_sync.operating_mode": "downstream",
    "standby.replication.operating_mode": "downstream",
}
MIRRORED: Final = {
    "ha-mode": "all",
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}
"""With RabbitMQ's defaults an incomplete mirror leads when all others are lost, and settled messages come back."""
_ANOTHER_LOG: Final = (
    "are gone, the first",
    "but the upstream has only",
    "has other records",
    "another one than that of the transferred",
)
"""The begins of errors that no upstream may give reason for that keeps its promises to downstreams."""


class CollectedEnd(NamedTuple):
    """The end of a node's outgoing log, appended and perhaps not yet synced, in one run of its process."""

    node: SimulatedNode
    process: SimulatedProcess | None
    log_id: int
    end: int

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, so that the end may mean other records after a crash."""
        return self.node.process is not self.process

    @property
    def is_durable(self) -> bool:
        """Whether the log is on disk up to this end."""
        if self.is_over or not self.node.is_open:
            return False
        log = broker_of(self.node).collector.logs.get(VHOST)
        return log is not None and log.log_id == self.log_id and log.committed_offset >= self.end


class Site:
    """See the module.

    Attributes:
        name: the cluster's name, and the begin of the nodes' names.
        nodes: its nodes.
        is_cluster: whether they are a cluster.
        is_shared: whether they share an archive.
    """

    def __init__(self, name: str, *, is_cluster: bool, is_shared: bool) -> None:
        """Begin without nodes."""
        self.name = name
        self.nodes: list[SimulatedNode] = []
        self.is_cluster = is_cluster
        self.is_shared = is_cluster and is_shared

    @property
    def opened(self) -> list[SimulatedNode]:
        """Its nodes that serve clients."""
        return [node for node in self.nodes if node.is_open]

    @property
    def decided(self) -> Any:
        """What the site has decided, as an open node knows it."""
        return broker_of(self.opened[0]).standby.decided

    def is_whole_as(self, mode: OperatingMode) -> bool:
        """Return whether all nodes are open, and in this mode."""
        return all(node.is_open and broker_of(node).standby.mode is mode for node in self.nodes)

    def is_promoted(self) -> bool:
        """Return whether all nodes are open, and upstreams, and no promotion is unfinished.

        A promoted site may be promoted again; that one may be the unfinished one.

        Raises:
            BooksFault: they are upstreams before any promotion has ended.
        """
        if not self.is_whole_as(OperatingMode.UPSTREAM):
            return False
        if not self.decided.promotions:
            raise BooksFault("promoted too early: the site is an upstream, and has recovered no messages")
        return self.decided.promoting is None

    def has_returned(self) -> bool:
        """Return whether all nodes are open, and downstreams, and the return is over."""
        if not self.is_whole_as(OperatingMode.DOWNSTREAM):
            return False
        return not any(broker_of(node).rejoin.is_under_way for node in self.nodes) and (
            self.decided.site.returning is None
        )

    def follows(self, queues: int) -> bool:
        """Return whether a node has all queues and follows, or is the owner that does."""
        for node in self.opened:
            broker = broker_of(node)
            rows = broker.standby.status()["vhosts"]
            is_equal = any(row["state"] == "connected" and not row["lag_records"] for row in rows)
            if len(broker.broker.queues) >= queues and is_equal:
                return True
        return False

    def collected(self, queues: int) -> list[CollectedEnd] | None:
        """Return the ends of the outgoing logs if everything that is promised is in these, synced or not.

        None while one of the queues has no open leader, or more than one that takes itself for it, or is not collected
        live.
        """
        ends: list[CollectedEnd] = []
        names: list[str] = []
        for node in self.opened:
            broker = broker_of(node)
            led = [each for each in broker.broker.queues.values() if isinstance(each, Queue)]
            led = [each for each in led if not each.is_remote]
            log = broker.collector.logs.get(VHOST)
            followed = broker.collector.following
            if led and (
                log is None
                or log.catching_up
                or log.stopped
                or not all(each.replicated and each in followed for each in led)
            ):
                return None
            if led:
                ends.append(CollectedEnd(node, node.process, log.log_id, log.log.next_offset))
                names += [each.key[1] for each in led]
        return ends if len(names) == len(set(names)) == queues else None

    def ends(self) -> dict[int, int]:
        """Return the ends of the outgoing logs of open nodes, by the logs' ids."""
        logs = [broker_of(node).collector.logs.get(VHOST) for node in self.opened]
        return {log.log_id: log.log.next_offset for log in logs if log is not None}

    def ordered(self, stored: dict[int, int]) -> dict[int, int]:
        """Return the ends up to which moves count at a promoted site, by the logs' ids; `stored` are the logs' ends."""
        found = dict(stored)
        ids = {log: log_id for log, (log_id, _) in self.decided.promotions[-1].transferred.items()}
        for node in self.opened:
            for file in Manifest(
                Path(broker_of(node).standby.own_archive.place["data_dir"])
            ).waiting.values():
                if file.log in ids:
                    found[ids[file.log]] = min(file.first, found[ids[file.log]])
        return found

    def archived(self) -> dict[int, int]:
        """Return the ends of the upstream's logs in any archive of the site, by the logs' ids."""
        found: dict[int, int] = {}
        for node in self.opened:
            place = Path(broker_of(node).standby.own_archive.place["data_dir"])
            identities = UpstreamIdentities(place, is_shared=self.is_shared)
            for log, end in Manifest(place).next_by_log.items():
                log_id = identities.of(log).log_id
                found[log_id] = max(end, found.get(log_id, 0))
        return found

    def is_overtaken(self) -> bool:
        """Return whether an outgoing log lacks records that a known downstream does not have."""
        logs = [broker_of(node).collector.logs.get(VHOST) for node in self.opened]
        return any(
            log.downstreams.all_have(log.first_offset) < log.first_offset for log in logs if log is not None
        )

    def refusal(self) -> str:
        """Return why a node can follow its upstream no more, whose log is another one than it transferred; or empty."""
        for node in self.opened:
            for row in broker_of(node).standby.status()["vhosts"]:
                if any(text in row["error"] for text in _ANOTHER_LOG):
                    return f"{node.name}: {row['error']}"
        return ""

    def pipelines(self) -> list[BlockingProcess]:
        """Return the living processes of the pipeline: drivers, sources, sinks and workers."""
        return [process for node in self.nodes for process in pipelines_of(node)]

    def endpoints(self, port: str) -> list[str]:
        """Return the places of all nodes' listeners; `port` names the attribute."""
        return [f"127.0.0.1:{getattr(node, port)}" for node in self.nodes]


async def change_at(node: SimulatedNode, *changes: d.Put | d.Delete) -> None:
    """Change definitions, in the node's process. Raises LeveretError."""
    broker = broker_of(node)
    async with broker.changing():
        for change in changes:
            broker.broker.apply(change)
        await broker.commit()


def pipelines_of(node: SimulatedNode) -> list[BlockingProcess]:
    """Return the living processes of a node's pipeline."""
    found: list[BlockingProcess] = []
    waiting = [*node.process.children] if node.process is not None else []
    while waiting:
        process = waiting.pop(0)
        waiting += process.children
        if isinstance(process, BlockingProcess) and process.is_alive:
            found.append(process)
    return found


def broker_of(node: SimulatedNode) -> Any:
    """Return the broker's node that runs in a simulated node's process."""
    assert node.roles is not None
    return node.roles.node

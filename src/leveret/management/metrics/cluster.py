"""The metrics of a cluster: its nodes, this one's place among them, and the mirrors of the queues that it leads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from leveret.core.queues.queue import Queue
from leveret.management.metrics.objects import Vhosts
from leveret.management.metrics.text import Family, Labels, Metric, Number, Row
from leveret.management.node import ManagedNode
from leveret.management.request.single_node import cluster_of
from leveret.management.views.queue_view import synced_messages

_NODES: Final = (
    Metric("cluster_members", "gauge", "Nodes that belong to the cluster"),
    Metric("cluster_members_alive", "gauge", "Nodes of the cluster that run"),
    Metric("cluster_members_unreachable", "gauge", "Nodes of the cluster that this node cannot reach"),
)
_OWN: Final = (
    Metric("cluster_has_pen", "gauge", "1 on the node that holds the definitions lock"),
    Metric(
        "cluster_lease_seconds", "gauge", "Remaining time of this node's lease, which is renewed continually"
    ),
    Metric("cluster_revision", "gauge", "The revision of etcd that this node has applied"),
    Metric("cluster_etcd_up", "gauge", "1 while etcd answers"),
    Metric("cluster_etcd_full", "gauge", "1 while etcd refuses all writes, because its database has no room"),
)
_QUEUE: Final = (
    Metric("queue_mirrors", "gauge", "Running mirrors of a queue"),
    Metric("queue_synchronised_mirrors", "gauge", "Synchronised mirrors of a queue"),
    Metric(
        "queue_sync_messages",
        "gauge",
        "Messages, estimated, that mirrors have received in their synchronisation",
    ),
)
_MIRROR: Final = (
    Metric("mirror_lag_bytes", "gauge", "Bytes that a mirror of a queue has not acknowledged yet"),
    Metric(
        "mirror_lag_records",
        "gauge",
        "Messages and settlements that a mirror of a queue has not acknowledged yet",
    ),
    Metric("mirror_sync_done_bytes", "gauge", "Bytes that a mirror has received in its synchronisation"),
    Metric("mirror_sync_total_bytes", "gauge", "Bytes of a mirror's whole synchronisation"),
)


class ClusterMetrics:
    """The families of one scrape; a single node has none."""

    def __init__(self, node: ManagedNode) -> None:
        """Read this node."""
        self._broker = node.broker
        self._cluster = cluster_of(node)

    def families(self) -> tuple[Family, ...]:
        """The families of the node."""
        if not self._cluster.is_member:
            return ()
        return (
            Family("cluster_nodes", _NODES, lambda vhosts: [Row((), self._nodes())]),
            Family("cluster_node", _OWN, lambda vhosts: [Row((), self._own_node())]),
        )

    def mirror_families(self) -> tuple[Family, ...]:
        """The families of mirrored queues that this node leads."""
        if not self._cluster.is_member:
            return ()
        return (
            Family("queue_mirrors", _QUEUE, self._queues),
            Family("mirrors", _MIRROR, self._mirrors),
        )

    @cached_property
    def _status(self) -> dict[str, Any]:
        return self._cluster.status()

    def _nodes(self) -> list[Number | None]:
        unreachable = self._status["partitions"].get(self._cluster.name, ())
        return [len(self._cluster.members()), len(self._cluster.alive()), len(unreachable)]

    def _own_node(self) -> list[Number | None]:
        status = self._status
        is_up = status["etcd"] is not None and status["etcd"]["error"] is None
        is_full = status["etcd"] is not None and status["etcd"]["is_full"]
        return [int(status["has_pen"]), status["lease_s"], status["revision"], int(is_up), int(is_full)]

    def _led_here(self, vhosts: Vhosts) -> list[Queue]:
        return [queue for queue in self._broker.led_queues() if vhosts is None or queue.key[0] in vhosts]

    def _queues(self, vhosts: Vhosts) -> Iterator[Row]:
        for queue in self._led_here(vhosts):
            placed = self._cluster.placement(queue.key)
            if placed.is_mirrored:
                done = synced_messages(queue, self._cluster.mirror_states(queue.key))
                values = (len(placed.mirrors), len(placed.synchronised_mirrors), done)
                yield Row(_labels(queue), values)

    def _mirrors(self, vhosts: Vhosts) -> Iterator[Row]:
        for queue in self._led_here(vhosts):
            for each in self._cluster.mirror_states(queue.key):
                progress = each["progress"] or {}
                values = (
                    each["lag_bytes"],
                    each["lag_records"],
                    progress.get("bytes_done"),
                    progress.get("bytes_total"),
                )
                yield Row((*_labels(queue), ("node", each["node"])), values)


def _labels(queue: Queue) -> Labels:
    vhost, name = queue.key
    return ("vhost", vhost), ("queue", name)

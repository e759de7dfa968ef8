"""`/metrics`: counts and lags for Prometheus, by RabbitMQ's names where RabbitMQ has the same thing.

Collected when asked for, from the node's own state; so they need no place in the hot path. Totals are
over all vhosts; `/metrics/per-object` has a row a queue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import leveret
from leveret.management.consumer_view import channels_of, connections_of, consumers_of
from leveret.management.node import ManagedNode
from leveret.management.resources.nodes import open_files, resident_bytes

_SCHEMA_STATES: Final = ("running", "connecting", "recover", "connected", "syncing", "disconnected")


class NodeCollector(Collector):
    """Reads a node once for each scrape."""

    def __init__(self, node: ManagedNode, *, per_object: bool) -> None:
        """`per_object` adds a row a queue."""
        self._node = node
        self._per_object = per_object

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        yield from self._node_metrics()
        yield from self._totals()
        yield from self._schema()
        yield from self._standby()
        if self._per_object:
            yield from self._queues()

    def _node_metrics(self) -> Iterator[Metric]:
        config = self._node.config
        info = {"rabbitmq_node": config.node_name, "rabbitmq_cluster": config.cluster_name}
        yield InfoMetricFamily(
            "rabbitmq_identity", "Names of node and cluster", {**info, "leveret_version": leveret.__version__}
        )
        disk = os.statvfs(self._node.data_dir)
        uptime_s = time.time() - self._node.started_at_ms / 1000
        yield _gauge("rabbitmq_erlang_uptime_seconds", "Node uptime", uptime_s)
        yield _gauge("rabbitmq_process_open_fds", "Open file descriptors", open_files())
        yield _gauge("rabbitmq_process_resident_memory_bytes", "Memory used in bytes", resident_bytes())
        free = disk.f_bavail * disk.f_frsize
        yield _gauge("rabbitmq_disk_space_available_bytes", "Disk space available in bytes", free)

    def _totals(self) -> Iterator[Metric]:
        queues = self._node.broker.queues.values()
        ready = sum(queue.ready_count for queue in queues)
        unacked = sum(queue.unacked_count for queue in queues)
        yield _gauge("rabbitmq_connections", "Connections currently open", len(connections_of(self._node)))
        yield _gauge("rabbitmq_channels", "Channels currently open", len(channels_of(self._node)))
        yield _gauge("rabbitmq_consumers", "Consumers currently connected", len(consumers_of(self._node)))
        yield _gauge("rabbitmq_queues", "Queues available", len(queues))
        yield _gauge("rabbitmq_queue_messages", "Sum of ready and unacknowledged messages", ready + unacked)
        yield _gauge("rabbitmq_queue_messages_ready", "Messages ready to be delivered to consumers", ready)
        yield _gauge(
            "rabbitmq_queue_messages_unacked", "Messages delivered but not yet acknowledged", unacked
        )
        published = sum(queue.published_total for queue in queues)
        yield CounterMetricFamily(
            "rabbitmq_queue_messages_published", "Messages that queues there are now have taken", published
        )

    def _queues(self) -> Iterator[Metric]:
        names = ["vhost", "queue"]
        ready = GaugeMetricFamily(
            "rabbitmq_detailed_queue_messages_ready",
            "Messages ready to be delivered to consumers",
            labels=names,
        )
        unacked = GaugeMetricFamily(
            "rabbitmq_detailed_queue_messages_unacked",
            "Messages delivered but not yet acknowledged",
            labels=names,
        )
        consumers = GaugeMetricFamily(
            "rabbitmq_detailed_queue_consumers", "Consumers on a queue", labels=names
        )
        for key, queue in self._node.broker.queues.items():
            ready.add_metric(key, queue.ready_count)
            unacked.add_metric(key, queue.unacked_count)
            consumers.add_metric(key, queue.consumer_count)
        yield from (ready, unacked, consumers)

    def _schema(self) -> Iterator[Metric]:
        status = self._node.schema_sync.status()
        state = GaugeMetricFamily(
            "leveret_schema_sync_state", "1 for the state of the schema link", labels=["state"]
        )
        for name in _SCHEMA_STATES:
            state.add_metric([name], float(status["state"] == name))
        yield state
        duration_ms = status.get("last_sync_duration")
        if duration_ms is not None:
            help = "How long the last schema sync took"
            yield _gauge("leveret_schema_sync_last_duration_seconds", help, duration_ms / 1000)

    def _standby(self) -> Iterator[Metric]:
        labels = ["vhost"]
        records = GaugeMetricFamily(
            "leveret_standby_lag_records", "Records of the upstream not yet transferred", labels=labels
        )
        lag = GaugeMetricFamily(
            "leveret_standby_lag_seconds", "Age of the newest record not yet transferred", labels=labels
        )
        for row in self._node.standby.status()["vhosts"]:
            records.add_metric([row["virtual_host"]], row["lag_records"])
            lag.add_metric([row["virtual_host"]], row["lag_ms"] / 1000)
        yield from (records, lag)
        yield from self._upstream()

    def _upstream(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily(
            "leveret_standby_upstream_messages",
            "Messages held by a replicated queue",
            labels=["vhost", "queue"],
        )
        for row in self._node.upstream_metrics():
            pending.add_metric([row["vhost"], row["queue"]], row["messages"])
        yield pending


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value)


async def show(request: Request) -> Response:
    """Totals; open to whoever may connect, as RabbitMQ's are."""
    return _scrape(request, per_object=False)


async def show_per_object(request: Request) -> Response:
    """Totals, and a row a queue."""
    return _scrape(request, per_object=True)


def _scrape(request: Request, *, per_object: bool) -> Response:
    registry = CollectorRegistry()
    registry.register(NodeCollector(request.app.state.node, per_object=per_object))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


ROUTES = [Route("/metrics", show), Route("/metrics/per-object", show_per_object)]

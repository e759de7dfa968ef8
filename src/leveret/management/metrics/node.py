"""The metrics of the node as a whole: churn, process, limits, alarms, identity, and all protocols' messages.

Names, types and labels are RabbitMQ's. Metrics of Erlang's machine exist only if they have a meaning here.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

import leveret
from leveret.core.queues.counters import Counters
from leveret.core.rules.queue_arguments import AT_LEAST_ONCE, AT_MOST_ONCE
from leveret.core.rules.validation import queue_type
from leveret.management.metrics.text import Family, Metric, Number, Row
from leveret.management.node import ManagedNode
from leveret.management.peers import amqp_connections, channels, other_connections, stream_connections
from leveret.management.rates.rates import CHURN
from leveret.management.resources.nodes.overview import cluster_name
from leveret.management.views import node_stats
from leveret.model.served_release import RABBITMQ_VERSION
from leveret.runtime.process.proc import open_files, used_memory_bytes
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.storage.disk import free_disk_bytes
from leveret.wire.stream.codec import Code

QUEUE_TYPES: Final = ("classic", "quorum", "stream")

_CHURN_METRICS: Final = (
    Metric("connections_opened_total", "counter", "Connections opened"),
    Metric("connections_closed_total", "counter", "Connections that ended"),
    Metric("channels_opened_total", "counter", "Channels opened"),
    Metric("channels_closed_total", "counter", "Channels that ended"),
    Metric("queues_declared_total", "counter", "Declarations of queues, of existing ones too"),
    Metric("queues_created_total", "counter", "Queues made"),
    Metric("queues_deleted_total", "counter", "Queues deleted"),
)
_USE_METRICS: Final = (
    Metric("process_open_fds", "gauge", "Open file descriptors"),
    Metric("process_open_tcp_sockets", "gauge", "Clients connected"),
    Metric("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM"),
    Metric("disk_space_available_bytes", "gauge", "Free bytes on the disk of the data directory"),
)
_LIMIT_METRICS: Final = (
    Metric("process_max_fds", "gauge", "Most open file descriptors"),
    Metric(
        "process_max_tcp_sockets",
        "gauge",
        "Most connections that the file descriptors allow, over all listeners",
    ),
    Metric("resident_memory_limit_bytes", "gauge", "Memory above which publishers are blocked"),
    Metric("disk_space_available_limit_bytes", "gauge", "Free disk space below which publishers are blocked"),
    Metric("erlang_uptime_seconds", "gauge", "Time since the node started"),
)
_IO_METRICS: Final = (
    Metric("io_read_ops_total", "counter", "Reads of the process"),
    Metric("io_read_bytes_total", "counter", "Bytes the process had read from the disk"),
    Metric("io_write_ops_total", "counter", "Writes of the process"),
    Metric("io_write_bytes_total", "counter", "Bytes the process had written to the disk"),
    Metric("io_sync_ops_total", "counter", "Waits for the disk"),
    Metric("io_sync_time_seconds_total", "counter", "Time of waits for the disk"),
)
_LOGIN_METRICS: Final = (
    Metric("auth_attempts_total", "counter", "Attempts to log in"),
    Metric("auth_attempts_succeeded_total", "counter", "Attempts to log in that succeeded"),
    Metric("auth_attempts_failed_total", "counter", "Attempts to log in that failed"),
)
_ALARM_METRICS: Final = (
    Metric(
        "alarms_file_descriptor_limit",
        "untyped",
        "1 while connections are refused for want of file descriptors",
    ),
    Metric(
        "alarms_free_disk_space_watermark",
        "untyped",
        "1 while publishers are blocked because the disk is low",
    ),
    Metric("alarms_memory_used_watermark", "untyped", "1 while publishers are blocked because memory is low"),
)
_START: Final = (Metric("process_start_time_seconds", "gauge", "Unix time of the node's start"),)
_TOTAL_METRICS: Final = (
    Metric("connections", "gauge", "Connections open"),
    Metric("channels", "gauge", "Channels open"),
    Metric("consumers", "gauge", "Consumers of all queues"),
    Metric("queues", "gauge", "Queues of all virtual hosts"),
)
_BUILD: Final = (Metric("build_info", "untyped", "Versions"),)
_IDENTITY: Final = (Metric("identity_info", "untyped", "Names of node and cluster"),)
_GLOBAL: Final = (
    Metric("global_messages_received_total", "counter", "Messages published"),
    Metric("global_messages_received_confirm_total", "counter", "Messages published on confirming channels"),
    Metric("global_messages_confirmed_total", "counter", "Messages confirmed to their publisher"),
    Metric("global_messages_routed_total", "counter", "Copies of messages put into queues"),
    Metric("global_messages_unroutable_returned_total", "counter", "Mandatory messages returned"),
    Metric(
        "global_messages_unroutable_dropped_total",
        "counter",
        "Messages that were not mandatory and went to no queue",
    ),
    Metric("global_publishers", "gauge", "Channels that have published"),
    Metric("global_consumers", "gauge", "Consumers of all queues"),
)
_GLOBAL_BY_TYPE: Final = (
    Metric("global_messages_delivered_total", "counter", "Messages delivered or fetched"),
    Metric(
        "global_messages_delivered_consume_manual_ack_total",
        "counter",
        "Messages delivered, to be acknowledged",
    ),
    Metric(
        "global_messages_delivered_consume_auto_ack_total",
        "counter",
        "Messages delivered, not to be acknowledged",
    ),
    Metric(
        "global_messages_delivered_get_manual_ack_total", "counter", "Messages fetched, to be acknowledged"
    ),
    Metric(
        "global_messages_delivered_get_auto_ack_total", "counter", "Messages fetched, not to be acknowledged"
    ),
    Metric("global_messages_get_empty_total", "counter", "basic.get on an empty queue"),
    Metric("global_messages_redelivered_total", "counter", "Deliveries that were not the first"),
    Metric("global_messages_acknowledged_total", "counter", "Messages acknowledged"),
)
_DEAD: Final = {
    "expired": Metric("global_messages_dead_lettered_expired_total", "counter", "Dead-lettered: expired"),
    "maxlen": Metric(
        "global_messages_dead_lettered_maxlen_total",
        "counter",
        "Dead-lettered: over the queue's length limit",
    ),
    "rejected": Metric("global_messages_dead_lettered_rejected_total", "counter", "Dead-lettered: rejected"),
    "delivery_limit": Metric(
        "global_messages_dead_lettered_delivery_limit_total", "counter", "Dead-lettered: returned too often"
    ),
    "confirmed": Metric(
        "global_messages_dead_lettered_confirmed_total",
        "counter",
        "Dead-lettered: all target queues have them",
    ),
}
_STREAM_ERRORS: Final = {
    Code.STREAM_DOES_NOT_EXIST: "stream_does_not_exist",
    Code.SUBSCRIPTION_ID_EXISTS: "subscription_id_already_exists",
    Code.SUBSCRIPTION_ID_UNKNOWN: "subscription_id_does_not_exist",
    Code.STREAM_EXISTS: "stream_already_exists",
    Code.STREAM_NOT_AVAILABLE: "stream_not_available",
    Code.SASL_MECHANISM_UNSUPPORTED: "sasl_mechanism_not_supported",
    Code.AUTHENTICATION_FAILURE: "authentication_failure",
    Code.SASL_ERROR: "sasl_error",
    Code.SASL_CHALLENGE: "sasl_challenge",
    Code.AUTHENTICATION_FAILURE_LOOPBACK: "sasl_authentication_failure_loopback",
    Code.VHOST_ACCESS_FAILURE: "vhost_access_failure",
    Code.UNKNOWN_FRAME: "unknown_frame",
    Code.FRAME_TOO_LARGE: "frame_too_large",
    Code.INTERNAL_ERROR: "internal_error",
    Code.ACCESS_REFUSED: "access_refused",
    Code.PRECONDITION_FAILED: "precondition_failed",
    Code.PUBLISHER_UNKNOWN: "publisher_does_not_exist",
}
_GLOBAL_STREAM_ERRORS: Final = tuple(
    Metric(f"global_stream_error_{name}_total", "counter", f"Stream clients that received {code.name}")
    for code, name in _STREAM_ERRORS.items()
)
_NOTHING: Final = Counters()
_by_type: Final[Callable[[Counters], tuple[Number, ...]]] = attrgetter(
    "deliver_get",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "redeliver",
    "ack",
)
_NO_REASONS: Final = {
    # A classic queue has no delivery limit.
    ("classic", AT_MOST_ONCE): {"delivery_limit", "confirmed"},
    ("quorum", AT_MOST_ONCE): {"confirmed"},
    # A queue that rejects publishes drops no message for its length.
    ("quorum", AT_LEAST_ONCE): {"maxlen"},
}
"""By queue type and strategy, what is never counted."""


class NodeMetrics:
    """The families of a node; each has one row, or one for each protocol or queue type."""

    def __init__(self, node: ManagedNode) -> None:
        """Read this node."""
        self._node = node
        self._broker = node.broker

    def families(self) -> tuple[Family, ...]:
        """The families of `/metrics` and of `/metrics/per-object`."""
        return (
            Family("connection_churn_metrics", _CHURN_METRICS, self._churn),
            Family("node_coarse_metrics", _USE_METRICS, self._use),
            Family("node_metrics", _LIMIT_METRICS, self._limits),
            Family("node_persister_metrics", _IO_METRICS, self._transferred),
            Family("auth_attempt_metrics", _LOGIN_METRICS, self._logins),
        )

    def alarms(self) -> Family:
        """The families of `/metrics` alone."""
        return Family("alarms", _ALARM_METRICS, self._alarms)

    def start(self) -> Family:
        """The family without a prefix."""
        return Family("process", _START, lambda vhosts: [Row((), (self._node.started_at_ms / 1000,))])

    def totals(self) -> Family:
        """The numbers of objects of each kind."""
        return Family("totals", _TOTAL_METRICS, self._totals)

    def identity(self) -> tuple[Family, ...]:
        """The node's identity; every endpoint has it, so that all can be joined with it."""
        return (Family("build_info", _BUILD, self._build), Family("identity_info", _IDENTITY, self._names))

    def globals(self) -> tuple[Family, ...]:
        """The messages of all clients since the node's start, also of deleted queues."""
        return (
            Family("global", _GLOBAL, self._global),
            Family("global_by_type", _GLOBAL_BY_TYPE, self._global_by_type, is_summed=True),
            Family("global_dead_lettered", tuple(_DEAD.values()), self._dead_lettered),
            Family("global_stream_errors", _GLOBAL_STREAM_ERRORS, self._stream_errors),
        )

    def _churn(self, vhosts: object) -> Iterable[Row]:
        return [Row((), [getattr(self._broker.churn, name) for name in CHURN])]

    def _use(self, vhosts: object) -> Iterable[Row]:
        node = self._node
        use = (
            open_files(),
            node_stats.open_sockets(node),
            used_memory_bytes(),
            free_disk_bytes(node.data_dir),
        )
        return [Row((), use)]

    def _limits(self, vhosts: object) -> Iterable[Row]:
        found = node_stats.limits(self._node)
        uptime_s = self._node.uptime_ms / 1000
        alarms = self._node.alarms
        limits = (
            found["fd_total"],
            found["sockets_total"],
            alarms.memory_limit_bytes,
            alarms.disk_limit_bytes,
        )
        return [Row((), (*limits, uptime_s))]

    def _transferred(self, vhosts: object) -> Iterable[Row]:
        done, commits = node_stats.transferred(), self._node.commits
        moved = (done["syscr"], done["read_bytes"], done["syscw"], done["write_bytes"])
        return [Row((), (*moved, commits.rounds, commits.waited_s))]

    def _logins(self, vhosts: object) -> Iterator[Row]:
        for protocol, attempts in list(self._broker.logins.by_protocol.items()):
            values = (attempts.total, attempts.succeeded, attempts.failed)
            yield Row((("protocol", protocol),), values)

    def _alarms(self, vhosts: object) -> Iterable[Row]:
        alarms = self._node.alarms
        is_short = process_sockets().is_short
        return [Row((), (int(is_short), int(alarms.disk_free_alarm), int(alarms.mem_alarm)))]

    def _totals(self, vhosts: object) -> Iterable[Row]:
        connections = [*amqp_connections(self._node), *other_connections(self._node)]
        return [
            Row(
                (),
                (
                    len(connections),
                    len(channels(self._node)),
                    self._consumers(),
                    len(self._broker.led_queues()),
                ),
            )
        ]

    def _consumers(self) -> int:
        return sum(len(queue.consumers) for queue in self._broker.led_queues())

    def _build(self, vhosts: object) -> Iterable[Row]:
        labels = (
            ("rabbitmq_version", RABBITMQ_VERSION),
            ("product_version", leveret.__version__),
            ("product_name", "Leveret"),
            ("python_version", platform.python_version()),
        )
        return [Row(labels, (1,))]

    def _names(self, vhosts: object) -> Iterable[Row]:
        labels = (
            ("rabbitmq_node", self._node.config.node_name),
            ("rabbitmq_cluster", cluster_name(self._node)),
        )
        return [Row(labels, (1,))]

    def _global(self, vhosts: object) -> Iterable[Row]:
        counters = self._broker.counters
        publishers = sum(1 for channel in channels(self._node) if channel.counters.publish)
        values = (
            counters.publish,
            counters.publish_confirm,
            counters.confirm,
            counters.publish_out,
            counters.return_unroutable,
            counters.drop_unroutable,
            publishers,
            self._consumers(),
        )
        return [Row((("protocol", "amqp091"),), values), Row((("protocol", "stream"),), self._of_streams())]

    def _of_streams(self) -> tuple[Number, ...]:
        """The counts of stream clients' messages; none is unroutable."""
        counters = self._broker.stream_counters
        connections = stream_connections(self._node)
        publishers = sum(len(each.publishers) for each in connections)
        consumers = sum(len(each.subscriptions) for each in connections)
        return (counters.publish, counters.publish_confirm, counters.confirm, 0, 0, 0, publishers, consumers)

    def _stream_errors(self, vhosts: object) -> Iterable[Row]:
        counts = self._broker.stream_errors
        return [Row((("protocol", "stream"),), [counts[code] for code in _STREAM_ERRORS])]

    def _global_by_type(self, vhosts: object) -> Iterator[Row]:
        """A part of each queue type, then one of each queue."""
        labels = {
            kind: (("protocol", "amqp091"), ("queue_type", f"rabbit_{kind}_queue")) for kind in QUEUE_TYPES
        }
        for kind in QUEUE_TYPES:
            yield Row(labels[kind], _by_type(self._broker.departed.get(kind, _NOTHING)))
        streams = (("protocol", "stream"), ("queue_type", "rabbit_stream_queue"))
        yield Row(streams, (self._broker.stream_counters.deliver_no_ack, 0, 0, 0, 0, 0, 0, 0))
        for queue in self._broker.led_queues():
            yield Row(labels[queue_type(queue.definition.arguments)], _by_type(queue.counters))

    def _dead_lettered(self, vhosts: object) -> Iterator[Row]:
        broker = self._broker
        for (kind, strategy), never in _NO_REASONS.items():
            counts = {reason: broker.dead_lettered[kind, strategy, reason] for reason in _DEAD}
            counts["confirmed"] = broker.dead_letters_confirmed[kind]
            labels = (
                ("queue_type", f"rabbit_{kind}_queue"),
                ("dead_letter_strategy", strategy.replace("-", "_")),
            )
            yield Row(labels, [None if reason in never else count for reason, count in counts.items()])

"""The metrics of queues, channels, connections and exchanges: a row each, or their sums.

Names, types and labels are RabbitMQ's. Where RabbitMQ counts by channel and queue (or exchange), Leveret counts by
channel alone, and so do these rows; see docs/deviations.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

from leveret.core.queues.queue import Queue
from leveret.management.metrics.text import Family, Metric, Number, Row
from leveret.management.node import ManagedNode
from leveret.management.peers import amqp_connections, channels, other_connections
from leveret.management.rates.rates import PUBLISHED, Rates
from leveret.management.request.leadership import serves
from leveret.management.views.peer_view import unsettled
from leveret.management.views.queue_view import sizes
from leveret.session.amqp091.channel import Channel

Vhosts = frozenset[str] | None

_published: Final[Callable[[object], tuple[int, ...]]] = attrgetter(*PUBLISHED)
_delivered: Final[Callable[[object], tuple[int, ...]]] = attrgetter(
    "get", "get_no_ack", "deliver", "deliver_no_ack", "redeliver", "ack", "get_empty"
)

_QUEUE_LENGTHS: Final = (
    Metric("queue_messages_ready", "gauge", "Messages that a consumer could get now"),
    Metric("queue_messages_unacked", "gauge", "Messages that consumers have and have not acknowledged"),
    Metric("queue_messages", "gauge", "Ready and unacknowledged messages"),
)
_QUEUE_CONSUMERS: Final = Metric("queue_consumers", "gauge", "Consumers of a queue")
_QUEUE_METRICS: Final = (
    _QUEUE_CONSUMERS,
    Metric("queue_consumer_capacity", "gauge", "Share of time in which no message waited for a consumer"),
    Metric("queue_consumer_utilisation", "gauge", "The same as queue_consumer_capacity"),
    Metric("queue_process_memory_bytes", "gauge", "Memory of a queue and of its messages in memory"),
    Metric("queue_messages_ram_bytes", "gauge", "Bytes of the bodies in memory"),
    Metric("queue_messages_persistent", "gauge", "Messages in a log"),
    Metric("queue_messages_persistent_bytes", "gauge", "Bytes of the bodies in a log"),
    Metric("queue_messages_bytes", "gauge", "Bytes of the bodies of all messages"),
    Metric("queue_messages_ready_bytes", "gauge", "Bytes of the bodies of ready messages"),
    Metric("queue_messages_unacked_bytes", "gauge", "Bytes of the bodies of unacknowledged messages"),
)
_SIZES: Final = (
    "memory",
    "message_bytes_ram",
    "messages_persistent",
    "message_bytes_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
)
_QUEUE_PUBLISHED: Final = (Metric("queue_messages_published_total", "counter", "Messages put into queues"),)
_CHANNEL_METRICS: Final = (
    Metric("channel_consumers", "gauge", "Consumers of a channel"),
    Metric("channel_messages_unacked", "gauge", "Messages that a channel has and has not acknowledged"),
    Metric("channel_messages_unconfirmed", "gauge", "Messages published and not yet confirmed"),
    Metric("channel_messages_uncommitted", "gauge", "Messages of a transaction that is not yet committed"),
    Metric(
        "channel_acks_uncommitted", "gauge", "Acknowledgements of a transaction that is not yet committed"
    ),
    Metric("consumer_prefetch", "gauge", "Most unacknowledged messages of each new consumer"),
    Metric("channel_prefetch", "gauge", "Most unacknowledged messages of all consumers together"),
)
_CHANNEL_PUBLISHED: Final = (
    Metric("channel_messages_published_total", "counter", "Messages published"),
    Metric("channel_messages_confirmed_total", "counter", "Messages confirmed to their publisher"),
    Metric("channel_messages_unroutable_returned_total", "counter", "Mandatory messages returned"),
    Metric(
        "channel_messages_unroutable_dropped_total",
        "counter",
        "Messages that were not mandatory and went to no queue",
    ),
)
_CHANNEL_DELIVERED: Final = (
    Metric("channel_get_ack_total", "counter", "Messages fetched with basic.get, to be acknowledged"),
    Metric("channel_get_total", "counter", "Messages fetched with basic.get, not to be acknowledged"),
    Metric("channel_messages_delivered_ack_total", "counter", "Messages delivered, to be acknowledged"),
    Metric("channel_messages_delivered_total", "counter", "Messages delivered, not to be acknowledged"),
    Metric("channel_messages_redelivered_total", "counter", "Deliveries that were not the first"),
    Metric("channel_messages_acked_total", "counter", "Messages acknowledged"),
    Metric("channel_get_empty_total", "counter", "basic.get on an empty queue"),
)
_CONNECTION_OCTETS: Final = (
    Metric("connection_incoming_bytes_total", "counter", "Bytes received"),
    Metric("connection_outgoing_bytes_total", "counter", "Bytes sent"),
)
_CONNECTION_METRICS: Final = (Metric("connection_channels", "gauge", "Channels of a connection"),)
_VHOST_STATUS: Final = (Metric("vhost_status", "gauge", "Whether a virtual host is served"),)
_EXCHANGE_BINDINGS: Final = (Metric("exchange_bindings", "gauge", "Bindings from an exchange"),)
_EXCHANGE_NAMES: Final = (Metric("exchange_name", "gauge", "1 for each exchange"),)


class ObjectFamilies:
    """The families of a node's objects, in the order of the output."""

    def __init__(self, node: ManagedNode, rates: Rates) -> None:
        """Read this node; `rates` has the consumers' capacity."""
        self._node = node
        self._broker = node.broker
        self._rates = rates

    def families(self) -> tuple[Family, ...]:
        """The families of every endpoint."""
        return (
            Family("queue_coarse_metrics", _QUEUE_LENGTHS, self._by_queue(_lengths)),
            Family("queue_metrics", _QUEUE_METRICS, self._by_queue(self._queue_values)),
            Family("channel_metrics", _CHANNEL_METRICS, self._by_channel(_channel_values)),
            Family(
                "channel_exchange_metrics",
                _CHANNEL_PUBLISHED,
                self._by_channel(lambda channel: _published(channel.counters)),
            ),
            Family(
                "channel_queue_metrics",
                _CHANNEL_DELIVERED,
                self._by_channel(lambda channel: _delivered(channel.counters)),
            ),
            Family("connection_coarse_metrics", _CONNECTION_OCTETS, self._octets),
            Family("connection_metrics", _CONNECTION_METRICS, self._connection_channels),
            Family(
                "channel_queue_exchange_metrics",
                _QUEUE_PUBLISHED,
                self._by_queue(lambda queue: (queue.counters.publish,), ("queue_vhost", "queue")),
            ),
        )

    def detailed_families(self) -> tuple[Family, ...]:
        """The families that appear only when they are asked for by name."""
        consumers = self._by_queue(lambda queue: (len(queue.consumers),))
        return (Family("queue_consumer_count", (_QUEUE_CONSUMERS,), consumers),)

    def cluster_families(self) -> tuple[Family, ...]:
        """The families with the prefix `rabbitmq_cluster_`."""
        return (
            Family("vhost_status", _VHOST_STATUS, self._vhost_status),
            Family("exchange_bindings", _EXCHANGE_BINDINGS, self._exchange_bindings),
            Family("exchange_names", _EXCHANGE_NAMES, self._exchange_names),
        )

    def _by_queue(
        self,
        measure: Callable[[Queue], tuple[Number, ...]],
        labels: tuple[str, str] = ("vhost", "queue"),
    ) -> Callable[[Vhosts], Iterator[Row]]:
        first, second = labels

        def rows(vhosts: Vhosts) -> Iterator[Row]:
            for queue in self._broker.led_queues():
                vhost, name = queue.key
                if vhosts is None or vhost in vhosts:
                    yield Row(((first, vhost), (second, name)), measure(queue))

        return rows

    def _by_channel(
        self, measure: Callable[[Channel], tuple[Number, ...]]
    ) -> Callable[[Vhosts], Iterator[Row]]:
        def rows(vhosts: Vhosts) -> Iterator[Row]:
            for channel in channels(self._node):
                name = f"{channel.connection.peer} ({channel.number})"
                yield Row((("channel", name),), measure(channel))

        return rows

    def _queue_values(self, queue: Queue) -> tuple[Number, ...]:
        capacity = self._rates.consumer_utilisation(queue)
        found = sizes(queue)
        return (len(queue.consumers), capacity, capacity, *(found[name] for name in _SIZES))

    def _octets(self, vhosts: Vhosts) -> Iterator[Row]:
        for each in amqp_connections(self._node):
            yield Row((("channel", each.peer),), (each.received_bytes, each.sent_bytes))
        for other in other_connections(self._node):
            yield Row((("channel", other.name),), (other.octets_received, other.octets_sent))

    def _connection_channels(self, vhosts: Vhosts) -> Iterator[Row]:
        for each in amqp_connections(self._node):
            yield Row((("channel", each.peer),), (len(each.channels),))

    def _vhost_status(self, vhosts: Vhosts) -> Iterable[Row]:
        status = 1 if serves(self._node) else 0
        return [Row((("vhost", name),), (status,)) for name in self._broker.topologies]

    def _exchange_bindings(self, vhosts: Vhosts) -> Iterator[Row]:
        for labels, bindings in self._exchanges():
            yield Row(labels, (bindings,))

    def _exchange_names(self, vhosts: Vhosts) -> Iterator[Row]:
        for labels, _ in self._exchanges():
            yield Row(labels, (1,))

    def _exchanges(self) -> Iterator[tuple[tuple[tuple[str, str], ...], int]]:
        """The exchanges with a name that clients may publish to."""
        for vhost, topology in list(self._broker.topologies.items()):
            for name, state in list(topology.exchanges.items()):
                if name and not state.definition.internal:
                    labels = (("vhost", vhost), ("exchange", name), ("type", state.definition.type))
                    yield labels, len(state.bindings)


def _lengths(queue: Queue) -> tuple[Number, ...]:
    messages, unacked = queue.unsettled_count, queue.delivered_count
    return messages - unacked - queue.kept_count, unacked, messages


def _channel_values(channel: Channel) -> tuple[Number, ...]:
    waiting = unsettled(channel)
    return (
        len(channel.consumers),
        channel.unacked.count,
        waiting["messages_unconfirmed"],
        waiting["messages_uncommitted"],
        waiting["acks_uncommitted"],
        channel.prefetch,
        channel.global_prefetch,
    )

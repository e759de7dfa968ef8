"""Tracing, RabbitMQ's firehose: copies of the published and delivered messages of a vhost.

A copy goes to the vhost's exchange amq.rabbitmq.trace, with the key `publish.EXCHANGE` or `deliver.QUEUE`. Its
headers have the message's properties, its sender or receiver, and its targets. Copies are sent at most once, and not
copied themselves.
"""

from __future__ import annotations

from typing import Final

from leveret.core.broker.deaths import carbon_copies, header_entries
from leveret.core.broker.routing import TooManyPatterns, no_headers
from leveret.core.broker.topology import TRACE_EXCHANGE
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import Messages, alike
from leveret.core.queues.queue import Queue
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.wire import properties as props
from leveret.wire import tables

_NAMES: Final = {
    props.CONTENT_TYPE: b"content_type",
    props.CONTENT_ENCODING: b"content_encoding",
    props.HEADERS: b"headers",
    props.DELIVERY_MODE: b"delivery_mode",
    props.PRIORITY: b"priority",
    props.CORRELATION_ID: b"correlation_id",
    props.REPLY_TO: b"reply_to",
    props.EXPIRATION: b"expiration",
    props.MESSAGE_ID: b"message_id",
    props.TIMESTAMP: b"timestamp",
    props.TYPE: b"type",
    props.USER_ID: b"user_id",
    props.APP_ID: b"app_id",
    props.CLUSTER_ID: b"cluster_id",
}
_NUMBERS: Final = props.DELIVERY_MODE | props.PRIORITY | props.TIMESTAMP
_KEY_BYTES_MAX: Final = 255


def trace_published(
    connection: ConnectionBase, channel: int, queues: list[Queue], messages: Messages
) -> None:
    """Copy messages that came in on a channel, if their vhost is traced; `queues` are their targets."""
    routed = tables.array(tables.long_string(queue.key[1].encode()) for queue in queues)
    for head, bodies in messages.by_head():
        _trace(connection, channel, b"publish." + head.exchange, head, bodies, {b"routed_queues": routed})


def trace_delivered(
    connection: ConnectionBase,
    channel: int,
    queue: DeliverySource,
    messages: Messages,
    redelivered: bool,
) -> None:
    """Copy messages that go out on a channel, to a consumer or a get, if their vhost is traced."""
    headers_of_trace = {b"redelivered": tables.integer(redelivered)}
    for head, bodies in messages.by_head():
        _trace(connection, channel, b"deliver." + queue.key[1].encode(), head, bodies, headers_of_trace)


def _trace(
    connection: ConnectionBase,
    channel: int,
    key: bytes,
    head: Head,
    bodies: list[bytes],
    headers_of_trace: dict[bytes, bytes],
) -> None:
    broker, vhost = connection.broker, connection.vhost or ""
    if vhost not in broker.traced_vhosts or head.exchange == TRACE_EXCHANGE.encode():
        return
    if not connection.is_traced:
        return
    try:
        queues = broker.route(vhost, TRACE_EXCHANGE, key.decode(errors="surrogateescape"), no_headers)
    except TooManyPatterns:
        return
    if not queues:
        return
    headers = _of_message(head) | headers_of_trace | _of_channel(connection, channel)
    header = props.join({props.HEADERS: tables.join(headers)}, head.body_bytes)
    copy = make_head(TRACE_EXCHANGE.encode(), key[:_KEY_BYTES_MAX], header)
    for queue in queues:
        taken = bodies[: queue.room(head.body_bytes)]
        if taken:
            queue.gathered.add(alike(copy, taken))
            broker.dirty[queue] = None


def _of_message(head: Head) -> dict[bytes, bytes]:
    """The headers for the message itself."""
    properties = props.split(head.header)
    keys = [head.routing_key, *carbon_copies(header_entries(head.header))]
    return {
        b"exchange_name": tables.long_string(head.exchange),
        b"routing_keys": tables.array(map(tables.long_string, keys)),
        b"properties": tables.table({_NAMES[flag]: _value(flag, each) for flag, each in properties.items()}),
    }


def _of_channel(connection: ConnectionBase, channel: int) -> dict[bytes, bytes]:
    """The headers for its sender or receiver."""
    return {
        b"node": tables.long_string(connection.host.node_name.encode()),
        b"vhost": tables.long_string((connection.vhost or "").encode()),
        b"connection": tables.long_string(connection.peer.encode()),
        b"channel": tables.integer(channel),
        b"user": tables.long_string((connection.user or "").encode()),
    }


def _value(flag: int, octets: bytes) -> bytes:
    """A property as a value of a table."""
    if flag == props.HEADERS:
        return tables.table_value(octets)
    if flag & _NUMBERS:
        return tables.integer(int.from_bytes(octets, "big"))
    return tables.long_string(octets)

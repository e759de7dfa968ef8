"""Connections, channels and consumers as RabbitMQ shows them."""

from __future__ import annotations

from typing import Any

from leveret.core.queues.consumers import DeliverySource
from leveret.management.node import ManagedNode
from leveret.management.peers import OtherPeer
from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.delivery import ChannelConsumer, DeliveryChannel
from leveret.session.certificate import TlsPeer
from leveret.session.forwarding.leader_server import ForwardedChannelConsumer, ForwardedConsumer
from leveret.session.stream.types import Subscription

Json = dict[str, Any]


def amqp_connection_json(node: ManagedNode, connection: ClientConnection) -> Json:
    """A connection of AMQP 0-9-1, without its rates."""
    return {
        **ends(connection.peer),
        **_who(connection.user, connection.vhost, node),
        **_security(connection.tls),
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.mechanism,
        "type": "network",
        "state": connection.shown_state,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max_bytes,
        "timeout": connection.heartbeat_ms // 1000,
        "connected_at": connection.connected_at_ms,
        "send_pend": connection.out_bytes,
        **_client(connection.client_properties),
        **_proxied(connection.proxied_by),
    }


def other_connection_json(node: ManagedNode, connection: OtherPeer) -> Json:
    """A connection of the stream protocol, or of AMQP 1.0."""
    return {
        **ends(connection.name),
        **_who(connection.user or None, connection.vhost or None, node),
        **_security(connection.tls),
        "protocol": connection.protocol,
        "auth_mechanism": connection.mechanism,
        "type": "network",
        "state": connection.state,
        "channels": connection.channels,
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max_bytes,
        "timeout": connection.heartbeat_s,
        "connected_at": connection.since_ms,
        "send_pend": connection.unsent_bytes,
        **_client(connection.peer_properties),
        **_proxied(connection.proxied_by),
    }


def _security(tls: TlsPeer | None) -> Json:
    return {
        "ssl": tls is not None,
        "ssl_protocol": tls.protocol if tls else None,
        "ssl_key_exchange": tls.key_exchange if tls else None,
        "ssl_cipher": tls.cipher if tls else None,
        "ssl_hash": tls.hash if tls else None,
        "peer_cert_subject": tls.subject if tls else None,
        "peer_cert_issuer": tls.issuer if tls else None,
        "peer_cert_validity": tls.validity if tls else None,
    }


def channel_json(node: ManagedNode, channel: Channel) -> Json:
    """A channel, without its rates."""
    connection = channel.connection
    name = connection.peer
    return {
        **_who(connection.user, connection.vhost, node),
        "name": channel_name(channel),
        "number": channel.number,
        "state": "closing" if channel.is_closing else "running",
        "confirm": channel.confirms is not None,
        "transactional": channel.transaction is not None,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": channel.unacked.count,
        **unsettled(channel),
        "pending_raft_commands": 0,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "connection_details": connection_details(name),
    }


def consumer_json(node: ManagedNode, consumer: ChannelConsumer) -> Json:
    """A consumer of AMQP 0-9-1."""
    vhost, name = consumer.queue.key
    is_active = consumer.queue.consumers.is_active(consumer)
    client = consumer.client if isinstance(consumer, ForwardedChannelConsumer) else None
    return {
        "queue": {"name": name, "vhost": vhost},
        "consumer_tag": tag_of(consumer),
        "exclusive": consumer.exclusive,
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.prefetch,
        "active": is_active,
        "activity_status": _activity(consumer.queue, is_active),
        "arguments": consumer.arguments,
        "channel_details": channel_details(node, consumer.channel) if client is None else _forwarded(client),
    }


def tag_of(consumer: ChannelConsumer) -> str:
    """The consumer tag as its client set it, also for a client of another node."""
    if isinstance(consumer, ForwardedChannelConsumer) and consumer.client is not None:
        return consumer.client.tag
    return consumer.tag.decode("utf-8", "replace")


def user_of(consumer: ChannelConsumer) -> str | None:
    """The user of a consumer's client, also of one at another node."""
    client = consumer.client if isinstance(consumer, ForwardedChannelConsumer) else None
    return consumer.channel.connection.user if client is None else client.user


def _forwarded(client: ForwardedConsumer) -> Json:
    """The channel of a consumer whose client is connected to another node."""
    return _channel_details(client.connection, client.number, client.user, client.node)


def stream_consumer_json(
    node: ManagedNode, connection: StreamPeer, number: int, subscription: Subscription
) -> Json:
    """A consumer of the stream protocol, in the form of AMQP 0-9-1's."""
    named = _channel_details(connection.name, 0, connection.user, node.config.node_name)
    return {
        "queue": {"name": subscription.stream, "vhost": connection.vhost},
        "consumer_tag": f"stream.subid-{number}",
        "exclusive": False,
        "ack_required": False,
        "prefetch_count": 0,
        "active": subscription.active,
        "activity_status": "up" if not subscription.group else _turn(subscription.active),
        "arguments": {},
        "channel_details": {**named, "name": ""},
    }


def subscription_json(node: ManagedNode, connection: StreamPeer, number: int) -> Json:
    """A consumer of the stream protocol, in the form of its own list."""
    subscription = connection.subscriptions[number]
    return {
        "connection_details": _connection(node, connection),
        "queue": {"name": subscription.stream, "vhost": connection.vhost},
        "subscription_id": number,
        "credits": subscription.credit,
        "offset": subscription.next_offset,
        "offset_lag": connection.offset_lag(subscription),
        "consumed": subscription.consumed,
        "active": subscription.active,
        "properties": subscription.properties,
    }


def publisher_json(node: ManagedNode, connection: StreamPeer, number: int) -> Json:
    """A publisher of the stream protocol."""
    publisher = connection.publishers[number]
    return {
        "connection_details": _connection(node, connection),
        "queue": {"name": publisher.queue, "vhost": connection.vhost},
        "publisher_id": number,
        "reference": publisher.reference,
        "published": publisher.published,
        "confirmed": publisher.confirmed,
        "errored": publisher.errored,
    }


def channel_details(node: ManagedNode, channel: DeliveryChannel) -> Json:
    """The fields that identify a channel."""
    connection = channel.connection
    return _channel_details(connection.peer, channel.number, connection.user, node.config.node_name)


def _channel_details(connection: str, number: int, user: str | None, node: str) -> Json:
    own = connection_details(connection)
    return {
        "name": f"{connection} ({number})",
        "number": number,
        "user": user,
        "connection_name": own["name"],
        "peer_host": own["peer_host"],
        "peer_port": own["peer_port"],
        "node": node,
    }


def channel_name(channel: Channel) -> str:
    """The connection's name, and the channel's number."""
    return f"{channel.connection.peer} ({channel.number})"


def connection_details(name: str) -> Json:
    """The fields that identify a connection."""
    known = ends(name)
    return {key: known[key] for key in ("name", "peer_host", "peer_port")}


def _connection(node: ManagedNode, connection: StreamPeer) -> Json:
    return {
        **connection_details(connection.name),
        "user": connection.user,
        "node": node.config.node_name,
    }


def unsettled(channel: Channel) -> Json:
    """The counts of a channel's publishes and acknowledgements that wait."""
    confirms, transaction = channel.confirms, channel.transaction
    publishes = [] if transaction is None else transaction.publishes
    settlements = [] if transaction is None else transaction.settlements
    return {
        "messages_unconfirmed": 0 if confirms is None else confirms.published - confirms.confirmed,
        "messages_uncommitted": sum(len(bodies) for _, bodies in publishes),
        "acks_uncommitted": sum(run.count for _, runs in settlements for run in runs),
    }


def _activity(queue: DeliverySource, is_active: bool) -> str:
    return _turn(is_active) if queue.consumers.single_active else "up"


def _turn(is_active: bool) -> str:
    """The state of a consumer of a queue with a single active consumer."""
    return "single_active" if is_active else "waiting"


def ends(name: str) -> Json:
    """Both ends from a connection's name, `PEER:PORT -> OWN:PORT`."""
    peer, _, own = name.partition(" -> ")
    peer_host, _, peer_port = peer.rpartition(":")
    host, _, port = own.rpartition(":")
    ports = {"peer_port": _port(peer_port), "port": _port(port)}
    return {"name": name, "peer_host": peer_host, "host": host, **ports}


def _who(user: str | None, vhost: str | None, node: ManagedNode) -> Json:
    return {
        "user": user,
        "user_who_performed_action": user,
        "vhost": vhost,
        "node": node.config.node_name,
    }


def _client(properties: Json) -> Json:
    """A client's properties; its own name for the connection is also a field."""
    name = properties.get("connection_name")
    named = {"user_provided_name": name} if isinstance(name, str) else {}
    return {"client_properties": properties, **named}


def _proxied(by: str) -> Json:
    """The node that passes the connection on to this one, a field that RabbitMQ does not have."""
    return {"proxied_by": by} if by else {}


def _port(text: str) -> int:
    return int(text) if text.isdecimal() else 0

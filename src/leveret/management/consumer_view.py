"""Connections, channels and consumers as RabbitMQ shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leveret.management.node import ManagedNode
from leveret.runtime.node import clock_ms
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.certificate import TlsPeer


def amqp_connections(node: ManagedNode) -> list[ClientConnection]:
    """The open AMQP 0-9-1 connections, oldest first."""
    found = [each for each in node.broker.connections if isinstance(each, ClientConnection)]
    return sorted(found, key=lambda each: (each.connected_at_ms, each.peer))


def connections_of(node: ManagedNode) -> list[dict[str, Any]]:
    """All open connections: AMQP 0-9-1, then the stream protocol's."""
    return [_amqp_json(node, each) for each in amqp_connections(node)] + list(_stream_jsons(node))


def channels_of(node: ManagedNode) -> list[dict[str, Any]]:
    """All open channels."""
    return [
        _channel_json(node, channel)
        for connection in amqp_connections(node)
        for channel in connection.channels.values()
    ]


def consumers_of(node: ManagedNode) -> list[dict[str, Any]]:
    """All consumers."""
    return [
        {
            "queue": {"name": consumer.queue.key[1], "vhost": consumer.queue.key[0]},
            "consumer_tag": consumer.tag.decode("utf-8", "replace"),
            "exclusive": consumer.exclusive,
            "ack_required": not consumer.no_ack,
            "prefetch_count": consumer.prefetch,
            "active": True,
            "activity_status": "up",
            "arguments": {},
            "channel_details": _channel_details(node, channel),
        }
        for connection in amqp_connections(node)
        for channel in connection.channels.values()
        for consumer in channel.consumers.values()
    ]


def _amqp_json(node: ManagedNode, connection: ClientConnection) -> dict[str, Any]:
    return {
        **_ends(connection.peer),
        "node": node.config.node_name,
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": connection.mechanism,
        "user": connection.user,
        "vhost": connection.vhost,
        "state": connection.shown_state(clock_ms()),
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max_bytes,
        "timeout": connection.heartbeat_ms // 1000,
        "connected_at": connection.connected_at_ms,
        "client_properties": connection.client_properties,
        "recv_oct": connection.received_bytes,
        "send_oct": connection.sent_bytes,
        **_tls_json(connection.tls),
    }


def _tls_json(tls: TlsPeer | None) -> dict[str, Any]:
    if tls is None:
        return {"ssl": False}
    return {
        "ssl": True,
        "ssl_protocol": tls.protocol,
        "ssl_key_exchange": tls.key_exchange,
        "ssl_cipher": tls.cipher,
        "ssl_hash": tls.hash,
        "peer_cert_subject": tls.subject,
        "peer_cert_issuer": tls.issuer,
        "peer_cert_validity": tls.validity,
    }


def _stream_jsons(node: ManagedNode) -> Iterator[dict[str, Any]]:
    for connection in sorted(node.streams.connections, key=lambda each: (each.since_ms, each.name)):
        yield {
            **_ends(connection.name),
            "node": node.config.node_name,
            "protocol": connection.protocol,
            "auth_mechanism": "PLAIN",
            "user": connection.user or None,
            "vhost": connection.vhost or None,
            "state": connection.state,
            "channels": connection.channels,
            "connected_at": connection.since_ms,
            "client_properties": connection.peer_properties,
            "recv_oct": connection.octets_received,
            "send_oct": connection.octets_sent,
            "ssl": False,
        }


def _channel_json(node: ManagedNode, channel: Channel) -> dict[str, Any]:
    connection = channel.connection
    details = _channel_details(node, channel)
    return {
        "name": details["name"],
        "node": node.config.node_name,
        "number": channel.number,
        "user": connection.user,
        "vhost": connection.vhost,
        "state": "closing" if channel.is_closing else "running",
        "confirm": channel.confirms is not None,
        "transactional": False,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": channel.unacked.count,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "connection_details": {
            "name": connection.peer,
            "peer_host": details["peer_host"],
            "peer_port": details["peer_port"],
        },
    }


def _channel_details(node: ManagedNode, channel: Channel) -> dict[str, Any]:
    ends = _ends(channel.connection.peer)
    return {
        "name": f"{ends['name']} ({channel.number})",
        "number": channel.number,
        "user": channel.connection.user,
        "connection_name": ends["name"],
        "peer_host": ends["peer_host"],
        "peer_port": ends["peer_port"],
        "node": node.config.node_name,
    }


def _ends(name: str) -> dict[str, Any]:
    """Both ends from a connection's name, `PEER:PORT -> OWN:PORT`."""
    peer, _, own = name.partition(" -> ")
    peer_host, _, peer_port = peer.rpartition(":")
    host, _, port = own.rpartition(":")
    ports = {"peer_port": _port(peer_port), "port": _port(port)}
    return {"name": name, "peer_host": peer_host, "host": host, **ports}


def _port(text: str) -> int:
    return int(text) if text.isdigit() else 0

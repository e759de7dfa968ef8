"""The connections, channels and consumers of a node, as objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from leveret.core.queues.queue import Queue
from leveret.management.node import ManagedNode
from leveret.runtime.clients.amqp10_connection import Amqp10Connection
from leveret.runtime.clients.stream_peer import StreamPeer
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.amqp091.delivery import ChannelConsumer
from leveret.session.forwarding.leader_server import ForwardedChannelConsumer

OtherPeer: TypeAlias = StreamPeer | Amqp10Connection
"""A connection that is not AMQP 0-9-1's."""
AnyPeer: TypeAlias = ClientConnection | OtherPeer


def amqp_connections(node: ManagedNode) -> list[ClientConnection]:
    """The open AMQP 0-9-1 connections, oldest first."""
    found = [each for each in node.broker.connections if isinstance(each, ClientConnection)]
    return sorted(found, key=lambda each: (each.connected_at_ms, each.peer))


def stream_connections(node: ManagedNode) -> list[StreamPeer]:
    """The open connections of the stream protocol, oldest first."""
    return sorted(node.streams.connections, key=lambda each: (each.since_ms, each.name))


def other_connections(node: ManagedNode) -> list[OtherPeer]:
    """The open connections other than AMQP 0-9-1's, of the stream protocol and of AMQP 1.0, oldest first."""
    amqp10 = sorted(node.amqp.amqp10_connections, key=lambda each: (each.since_ms, each.name))
    return [*stream_connections(node), *amqp10]


def channels(node: ManagedNode) -> list[Channel]:
    """The open channels, by connection and number."""
    return [channel for each in amqp_connections(node) for channel in each.channels.values()]


def consumers(node: ManagedNode) -> list[ChannelConsumer]:
    """The AMQP 0-9-1 consumers, by channel; in a cluster, all consumers of queues that are led here."""
    found = [consumer for channel in channels(node) for consumer in channel.consumers.values()]
    if node.cluster is None:
        return found
    forwarded = [
        each
        for queue in node.broker.led_queues()
        for each in queue.consumers
        if isinstance(each, ForwardedChannelConsumer)
    ]
    return [*(each for each in found if not each.queue.is_remote), *forwarded]


def consumers_of_queue(queue: Queue) -> Iterator[ChannelConsumer]:
    """The AMQP 0-9-1 consumers of one queue."""
    return (each for each in queue.consumers if isinstance(each, ChannelConsumer))

"""The node's listeners, under RabbitMQ's names of their protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from leveret.config import Config
from leveret.management.node import ManagedNode
from leveret.management.request.leadership import serves

_FOR_OPERATORS: Final = ("http", "replication", "clustering")
"""The prefixes of the protocols that a node serves in every role."""


class ListenerView(NamedTuple):
    """One listener."""

    protocol: str
    ip: str
    port: int


def listeners_of(config: Config) -> list[ListenerView]:
    """All listeners of the settings, by protocol."""
    return sorted(_listeners(config))


def open_listeners(node: ManagedNode) -> list[ListenerView]:
    """The listeners that are open now: those for clients only while clients are served."""
    served = serves(node)
    return [
        listener
        for listener in listeners_of(node.config)
        if served or listener.protocol.startswith(_FOR_OPERATORS)
    ]


def _listeners(config: Config) -> Iterator[ListenerView]:
    listeners, management, followers = config.listeners, config.management, config.followers
    for address in listeners.amqp:
        yield ListenerView("amqp", address.ip, address.port)
    for address in listeners.amqp_tls:
        yield ListenerView("amqp/ssl", address.ip, address.port)
    for address in listeners.stream:
        yield ListenerView("stream", address.ip, address.port)
    for address in config.streams.listeners_tls:
        yield ListenerView("stream/ssl", address.ip, address.port)
    if followers.bind is not None:
        secured = followers.tls.certfile is not None
        yield ListenerView("replication/ssl" if secured else "replication", followers.bind, followers.port)
    if config.cluster.is_member:
        secured = config.cluster.tls.certfile is not None
        yield ListenerView(
            "clustering/ssl" if secured else "clustering", config.cluster.bind, config.cluster.port
        )
    yield ListenerView("http", management.ip, management.port)
    if management.tls_port is not None:
        yield ListenerView("https", management.tls_ip, management.tls_port)
    if config.metrics.port is not None:
        yield ListenerView("http/prometheus", config.metrics.ip, config.metrics.port)

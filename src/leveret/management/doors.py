"""Where the node's doors are: listeners by RabbitMQ's names of their protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from leveret.config import Config


class Door(NamedTuple):
    """One listener."""

    protocol: str
    ip: str
    port: int


def doors_of(config: Config) -> list[Door]:
    """All listeners, by protocol."""
    return sorted(_doors(config))


def _doors(config: Config) -> Iterator[Door]:
    listeners, management = config.listeners, config.management
    for address in listeners.amqp:
        yield Door("amqp", address.ip, address.port)
    for address in listeners.amqp_tls:
        yield Door("amqp/ssl", address.ip, address.port)
    for address in listeners.stream:
        yield Door("stream", address.ip, address.port)
    yield Door("http", management.ip, management.port)
    if management.tls_port is not None:
        yield Door("https", management.tls_ip, management.tls_port)
    if config.metrics.port is not None:
        yield Door("http/prometheus", config.metrics.ip, config.metrics.port)

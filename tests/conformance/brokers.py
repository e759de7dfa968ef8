"""The two brokers every conformance test runs against, behind one face.

RabbitMQ is the oracle: what a test states was first seen there. Definitions that AMQP can not
make (users, vhosts, permissions) are made by the management API, which both brokers have.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika

from leveret.testing.network.ports import LOOPBACK, free_ports
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode
from tests.conformance.rawclient import PATIENCE_S, Peer

RABBITMQ: Final = "rabbitmq"
LEVERET: Final = "leveret"

BLOCKED_TIMEOUT_S: Final = 30.0
"""A broker that blocks a connection answers nothing on it, not even its close: pika would wait for ever."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One running broker with user guest (password guest) and vhost `/`."""

    kind: str
    amqp_port: int
    management_port: int
    metrics_port: int
    stream_port: int
    ctl: Callable[..., subprocess.CompletedProcess[str]]
    """Runs rabbitmqctl or leveretctl with these arguments; `check=False` lets it fail."""

    @property
    def url(self) -> str:
        """Where guest connects to vhost `/`."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.amqp_port}/%2F"

    def connect(
        self, username: str = "guest", password: str = "guest", *, vhost: str = "/", **options: Any
    ) -> pika.BlockingConnection:
        """Connect with pika; no heartbeats unless `options` ask for them."""
        credentials = pika.PlainCredentials(username, password)
        settings: dict[str, Any] = {
            "heartbeat": 0,
            "socket_timeout": PATIENCE_S,
            "blocked_connection_timeout": BLOCKED_TIMEOUT_S,
        } | options
        parameters = pika.ConnectionParameters(
            LOOPBACK, self.amqp_port, virtual_host=vhost, credentials=credentials, **settings
        )
        return pika.BlockingConnection(parameters)

    def peer(self) -> Peer:
        """Connect without saying anything yet."""
        return Peer(self.amqp_port)

    def add_vhost(self, vhost: str) -> None:
        """Make a vhost that guest may use."""
        self._put(f"vhosts/{quote(vhost, safe='')}", {})
        self.set_permissions("guest", vhost)

    def add_user(self, username: str, password: str) -> None:
        """Make a user without permissions."""
        self._put(f"users/{quote(username, safe='')}", {"password": password, "tags": ""})

    def set_permissions(
        self, username: str, vhost: str, *, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Say what a user may do in a vhost; an empty pattern allows nothing."""
        path = f"permissions/{quote(vhost, safe='')}/{quote(username, safe='')}"
        self._put(path, {"configure": configure, "write": write, "read": read})

    def set_topic_permission(
        self, username: str, vhost: str, exchange: str, *, write: str, read: str
    ) -> None:
        """Say which routing keys a user may use on a topic exchange."""
        path = f"topic-permissions/{quote(vhost, safe='')}/{quote(username, safe='')}"
        self._put(path, {"exchange": exchange, "write": write, "read": read})

    def metrics(self, path: str = "/metrics") -> str:
        """What Prometheus would scrape now."""
        url = f"http://{LOOPBACK}:{self.metrics_port}{path}"
        return httpx.get(url, timeout=PATIENCE_S).raise_for_status().text

    def api(self, path: str, **query: Any) -> Any:
        """What the management API says, as JSON."""
        url = f"http://{LOOPBACK}:{self.management_port}/api/{path}"
        reply = httpx.get(url, params=query, auth=("guest", "guest"), timeout=PATIENCE_S)
        return reply.raise_for_status().json()

    def _put(self, path: str, body: dict[str, str]) -> None:
        url = f"http://{LOOPBACK}:{self.management_port}/api/{path}"
        httpx.put(url, json=body, auth=("guest", "guest"), timeout=PATIENCE_S).raise_for_status()


@contextmanager
def running(
    kind: str, config: Mapping[str, str] | None = None, plugins: Sequence[str] = ()
) -> Iterator[Broker]:
    """Run a fresh broker of this kind as long as the block lasts.

    Args:
        kind: RABBITMQ or LEVERET.
        config: more lines for its configuration.
        plugins: more plugins for RabbitMQ.
    """
    if kind == RABBITMQ:
        always = ("rabbitmq_management", "rabbitmq_prometheus")
        with RabbitNode(plugins=(*always, *plugins), config=config) as rabbit:
            yield Broker(
                kind,
                rabbit.amqp_port,
                rabbit.management_port,
                rabbit.prometheus_port,
                rabbit.stream_port,
                rabbit.ctl,
            )
    else:
        [metrics_port] = free_ports(1)
        with LeveretProcess(config={"prometheus.tcp.port": str(metrics_port), **(config or {})}) as node:
            yield Broker(kind, node.amqp_port, node.management_port, metrics_port, node.stream_port, node.ctl)

"""What a suite talks to: a fresh broker with all of its doors open, on free ports of loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leveret.testing.network.ports import LOOPBACK, free_port
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode

RABBITMQ: Final = "rabbitmq"
LEVERET: Final = "leveret"
PLUGINS: Final = ("rabbitmq_management", "rabbitmq_stream")


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority, and a certificate of it for `localhost` that serves servers and clients."""

    ca: Path
    certificate: Path
    key: Path

    def settings(self) -> dict[str, str]:
        """The lines of a broker's configuration file that show the certificate to its peers."""
        return {
            "ssl_options.cacertfile": str(self.ca),
            "ssl_options.certfile": str(self.certificate),
            "ssl_options.keyfile": str(self.key),
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",
        }


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a running broker listens, on loopback."""

    amqp: int
    amqps: int
    stream: int
    management: int
    certificates: Certificates
    user: str = "guest"
    password: str = "guest"

    def usual(self) -> str:
        """The usual ports and where they are to be found, as `suite_doors` reads it."""
        pairs = {5672: self.amqp, 5671: self.amqps, 5552: self.stream, 15672: self.management}
        return " ".join(f"{usual}={port}" for usual, port in pairs.items())


@contextmanager
def running(kind: str, certificates: Certificates, log_file: Path) -> Iterator[Doors]:
    """Run a fresh broker as long as the block lasts, and keep its log in `log_file`.

    Raises:
        NotReady: it did not start.
    """
    amqps = free_port()
    config = {"listeners.ssl.1": f"{LOOPBACK}:{amqps}"} | certificates.settings()
    node = RabbitNode(plugins=PLUGINS, config=config) if kind == RABBITMQ else LeveretProcess(config=config)
    if isinstance(node, RabbitNode):
        # Clients of streams connect to where the broker says that the stream is.
        advertised = {"stream.advertised_host": LOOPBACK, "stream.advertised_port": str(node.stream_port)}
        with (node.home / "rabbitmq.conf").open("a") as settings:
            settings.writelines(f"{key} = {value}\n" for key, value in advertised.items())
    with node:
        try:
            yield Doors(node.amqp_port, amqps, node.stream_port, node.management_port, certificates)
        finally:
            log_file.write_text(node.log_text())


def usual(kind: str, certificates: Certificates) -> LeveretProcess | RabbitNode:
    """Prepare a broker at the usual ports of loopback, for use in a world; nothing runs yet.

    A stream's place is `localhost`, the host in the name of RabbitMQ's node.
    """
    config = {
        "listeners.tcp.1": f"{LOOPBACK}:5672",
        "listeners.ssl.1": f"{LOOPBACK}:5671",
        "stream.listeners.tcp.1": f"{LOOPBACK}:5552",
        "stream.advertised_host": "localhost",
        "stream.advertised_port": "5552",
        "management.tcp.port": "15672",
        **certificates.settings(),
    }
    plugins = (*PLUGINS, "rabbitmq_stream_management")
    node = RabbitNode(plugins=plugins, config=config) if kind == RABBITMQ else LeveretProcess(config=config)
    node.amqp_port, node.stream_port, node.management_port = 5672, 5552, 15672
    return node

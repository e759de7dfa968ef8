"""The brokers that are measured, behind one small interface.

Both run as an operator would start them: own process, default settings but for ports, folders and the
plugins that the rows need, as many schedulers as RabbitMQ likes, data on the same disk.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

from leveret.testing.servers import rabbitmq
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode

LEVERET: Final = "leveret"
RABBITMQ: Final = "rabbitmq"
RABBITMQ_PLUGINS: Final = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_stream")


class Node(Protocol):
    """What the rows ask of a broker's process; guest may do everything."""

    amqp_port: int
    management_port: int
    stream_port: int

    def start(self) -> object:
        """Start, on the data of an earlier start if there was one; return when it answers."""

    def stop(self) -> int:
        """End in order."""

    def kill9(self) -> None:
        """End as a crash would."""

    def close(self) -> None:
        """End and remove all data."""

    def rss_bytes(self) -> int:
        """Resident memory now."""

    def cpu_seconds(self) -> float:
        """Processor time since the start."""


def make_leveret(folder: Path) -> Node:
    """Make a Leveret node with its data under `folder`; it is not started."""
    return LeveretProcess(parent_dir=folder)


def make_rabbitmq(folder: Path) -> Node:
    """Make a RabbitMQ node with its data under `folder`; it is not started."""
    return RabbitNode(parent_dir=folder, schedulers=None, plugins=RABBITMQ_PLUGINS)


MAKERS: Final[dict[str, Callable[[Path], Node]]] = {
    LEVERET: make_leveret,
    RABBITMQ: make_rabbitmq,
}


def unavailable(name: str) -> str | None:
    """Return None if this broker can be run here, else why not."""
    return rabbitmq.available() if name == RABBITMQ else None


def version(name: str) -> str:
    """Return the version of a broker that can be run here."""
    if name == LEVERET:
        return metadata.version("leveret")
    return rabbitmq.version()

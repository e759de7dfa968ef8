"""The measured brokers, behind one small interface.

All run as an operator starts them: a process of its own, RabbitMQ's default number of schedulers, data on the same
disk, and default settings except for ports, folders and the rows' plugins.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol
from unittest import mock

from bench import lavinmq
from leveret.testing.servers import rabbitmq
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.rabbitmq import RabbitNode

LEVERET: Final = "leveret"
RABBITMQ: Final = "rabbitmq"
LAVINMQ: Final = "lavinmq"
BEFORE: Final = "before"
"""Leveret from another checkout, for a comparison with this one."""
RABBITMQ_PLUGINS: Final = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_stream")


class Node(Protocol):
    """A broker's process, as the rows use it; guest has all permissions."""

    amqp_port: int
    management_port: int
    stream_port: int

    def start(self) -> object:
        """Start on existing data; return when the broker answers."""

    def stop(self) -> int:
        """End in order."""

    def kill9(self) -> None:
        """End as a crash would."""

    def close(self) -> None:
        """End and remove all data."""

    def rss_bytes(self) -> int:
        """Return the present resident memory."""

    def cpu_seconds(self) -> float:
        """Return the processor time since the start."""


def make_leveret(folder: Path) -> Node:
    """Make a Leveret node with its data under `folder`; it is not started."""
    return LeveretProcess(parent_dir=folder)


def make_rabbitmq(folder: Path) -> Node:
    """Make a RabbitMQ node with its data under `folder`; it is not started."""
    return RabbitNode(parent_dir=folder, schedulers=None, plugins=RABBITMQ_PLUGINS)


MAKERS: Final[dict[str, Callable[[Path], Node]]] = {
    LEVERET: make_leveret,
    RABBITMQ: make_rabbitmq,
    LAVINMQ: lavinmq.LavinNode,
}


class Checkout:
    """Another checkout of Leveret, whose nodes run in this checkout's interpreter."""

    def __init__(self, folder: Path) -> None:
        """Take the checkout in `folder`.

        Raises:
            ValueError: the folder has no checkout.
        """
        self.folder = folder.resolve()
        self.sources = self.folder / "src"
        if not (self.sources / "leveret").is_dir():
            raise ValueError(f"{folder}: no checkout of Leveret, it has no src/leveret")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start nodes and commands from that checkout for the block, also followers and nodes of clusters."""
        with mock.patch.dict(os.environ, {"PYTHONPATH": str(self.sources)}):
            yield

    def version(self) -> str:
        """Return the commit that is checked out."""
        command = ["git", "-C", str(self.folder), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"


def unavailable(name: str) -> str | None:
    """Return None if this broker can be run here, else the reason."""
    if name == LAVINMQ:
        return lavinmq.available()
    return rabbitmq.available() if name == RABBITMQ else None


def present() -> list[str]:
    """Return the brokers of a run by default: Leveret, RabbitMQ, and LavinMQ if it is installed."""
    return [LEVERET, RABBITMQ] if lavinmq.available() else [LEVERET, RABBITMQ, LAVINMQ]


def version(name: str) -> str:
    """Return the version of a broker that can be run here."""
    if name == LEVERET:
        return metadata.version("leveret")
    if name == LAVINMQ:
        return lavinmq.version()
    return rabbitmq.version()

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from leveret.cli import server
from leveret.cli.logs import Logs
from leveret.cli.service import ServiceManager, pid_file
from leveret.config import load
from leveret.model.errors import ConfigError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.settimeout(5)
        yield one


def test_a_name_that_begins_with_at_is_in_the_kernels_name_space(listener: socket.socket) -> None:
    name = f"leveret-test-{os.getpid()}"
    listener.bind(f"\0{name}")
    ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).stopping()
    assert listener.recv(100) == b"STOPPING=1\nSTATUS=stopping"


async def test_a_frozen_service_manager_does_not_stop_the_node(
    listener: socket.socket, tmp_path: Path
) -> None:
    listener.bind(str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
        other.setblocking(False)
        other.connect(str(tmp_path / "s"))
        while True:
            other.send(b"STATUS=x")
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "s")})
    for said in (lambda: service.status("busy"), lambda: service.ready("up"), service.stopping):
        await asyncio.wait_for(asyncio.to_thread(said), 20)


async def test_without_a_service_manager_nothing_is_sent_and_nothing_fails(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "nobody")}):
        service = ServiceManager(dict(environ))
        service.ready("ready")
        service.stopping()


def test_processes_that_are_started_later_do_not_see_the_service_manager() -> None:
    environ = {"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "HOME": "/"}
    assert ServiceManager(environ).watchdog_s is None
    assert environ == {"HOME": "/"}


def test_the_watchdog_is_ours_if_it_names_us_or_nobody() -> None:
    named = {"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}
    assert ServiceManager(named).watchdog_s == 0.5
    assert ServiceManager({"WATCHDOG_USEC": "2000000"}).watchdog_s == 2


def test_the_process_id_is_in_the_file_while_the_node_is_up(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pid_file(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()
    with pid_file(None):
        pass


def test_a_process_id_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pid_file: cannot write"), pid_file(tmp_path / "none" / "pid"):
        pass


async def test_a_second_signal_ends_the_node_although_its_process_id_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may be another user's, or its disk read-only by now."""
    handlers: list[Callable[[], None]] = []
    ended: list[int] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(), "add_signal_handler", lambda number, handler: handlers.append(handler)
    )
    monkeypatch.setattr(os, "_exit", ended.append)
    config = load(None, {"pid_file": str(tmp_path)})
    stop = server._on_signals(config, cast(Logs, SimpleNamespace(reopen=None)))
    handlers[0]()
    assert (stop.is_set(), ended) == (True, [])
    handlers[0]()
    assert ended == [143]

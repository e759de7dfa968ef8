from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.cli.service import ServiceManager, pid_file
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

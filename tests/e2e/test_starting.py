"""How a node starts for an operator: definitions, service manager, logs, and what keeps it from starting."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

DEFINITIONS: dict[str, Any] = {
    "users": [{"name": "app", "password": "s3cret", "tags": "management"}],
    "vhosts": [{"name": "shop"}],
    "permissions": [{"user": "app", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
    "queues": [{"name": "orders", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {}}],
}


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(DEFINITIONS))
    return path


def depth(node: LeveretProcess, user: str, vhost: str, queue: str) -> int:
    credentials = pika.PlainCredentials(user, "s3cret")
    parameters = pika.ConnectionParameters("127.0.0.1", node.amqp_port, vhost, credentials)
    with pika.BlockingConnection(parameters) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def test_definitions_are_there_when_the_first_client_comes_and_no_guest_is(
    tmp_path: Path, definitions: Path
) -> None:
    config = {"definitions.import_backend": "local_filesystem", "definitions.local.path": str(definitions)}
    with LeveretProcess(data_dir=tmp_path / "data", config=config) as node:
        assert depth(node, "app", "shop", "orders") == 0
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port))
        assert "login_refused user=guest" in node.log_text()
        definitions.unlink()
        node.config.clear()
        node.restart()
        assert depth(node, "app", "shop", "orders") == 0


def queue(name: str) -> dict[str, Any]:
    return {**DEFINITIONS["queues"][0], "name": name}


def refused(
    tmp_path: Path, *settings: str, file_bytes_max: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Start a node that is expected not to come up; no file may grow beyond `file_bytes_max`."""
    limit = [] if file_bytes_max is None else ["prlimit", f"--fsize={file_bytes_max}"]
    argv = [sys.executable, "-m", "leveret.cli.server", "serve", "--data-dir", str(tmp_path / "data")]
    listeners = ("listeners.tcp=none", "stream.listeners.tcp=none", "management.tcp.port=0")
    options = [part for setting in (*listeners, *settings) for part in ("--set", setting)]
    return subprocess.run([*limit, *argv, *options], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"permissions": [{"user": "nobody", "vhost": "shop"}]}, "permissions[0]"),
        ({"queues": [{"name": "orders", "vhost": "nosuch"}]}, "queues 'nosuch orders'"),
        ({"queues": "orders"}, "queues: expected a list"),
    ],
)
def test_wrong_definitions_stop_the_start_with_file_and_entity_and_leave_nothing(
    tmp_path: Path, definitions: Path, change: dict[str, Any], text: str
) -> None:
    definitions.write_text(json.dumps(DEFINITIONS | change))
    ended = refused(tmp_path, f"load_definitions={definitions}")
    assert ended.returncode == 78
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"leveret: {definitions}: ")
    assert text in last
    with LeveretProcess(data_dir=tmp_path / "data") as node:
        listed = node.ctl("--formatter", "json", "list_users").stdout
        assert [row["user"] for row in json.loads(listed)] == ["guest"]


@pytest.mark.parametrize(
    "setting", ["definitions.local.path=/d", "definitions.import_backend=local_filesystem"]
)
def test_a_half_configured_import_stops_the_start(tmp_path: Path, setting: str) -> None:
    ended = refused(tmp_path, setting)
    assert (ended.returncode, "definitions.local.path" in ended.stderr) == (78, True)


@pytest.fixture
def service_manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        yield listener


def test_the_service_manager_is_told_of_readiness_life_and_the_stop(
    tmp_path: Path, service_manager: socket.socket
) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    with LeveretProcess(data_dir=tmp_path / "data", environment=environment) as node:
        notices: list[str] = []
        while notices.count("WATCHDOG=1") < 2:
            notices.append(service_manager.recv(4096).decode())
        assert notices[0] == "STATUS=recovering queues"
        assert notices[1].startswith(f"READY=1\nSTATUS=ready amqp=127.0.0.1:{node.amqp_port}")
        assert node.stop() == 0
        while not notices[-1].startswith("STOPPING=1"):
            notices.append(service_manager.recv(4096).decode())


def test_the_log_file_is_opened_anew_on_sighup_and_holds_what_the_console_does(tmp_path: Path) -> None:
    config = {
        "log.dir": str(tmp_path / "log"),
        "log.file": "leveret.log",
        "log.file.formatter": "json",
        "log.console": "false",
    }
    with LeveretProcess(data_dir=tmp_path / "data", config=config) as node:
        file = tmp_path / "log" / "leveret.log"
        moved = tmp_path / "log" / "moved"
        file.rename(moved)
        node.server.signal(signal.SIGHUP)
        wait_until(file.exists, "the new file", 60)
        assert node.stop() == 0
        first = [json.loads(line)["msg"] for line in moved.read_text().splitlines()]
        second = [json.loads(line)["msg"] for line in file.read_text().splitlines()]
        assert first[0] == "starting"
        assert second[-1] == "stopped"
        assert "level=" not in node.log_text()
        assert os.stat(file).st_mode & 0o077 == 0


def test_a_disk_that_takes_nothing_ends_the_start_with_one_line_that_says_where(tmp_path: Path) -> None:
    ended = refused(tmp_path, file_bytes_max=0)
    assert ended.returncode == 74
    assert ended.stderr == f"leveret: data directory {tmp_path / 'data'} cannot be written: File too large\n"


def test_a_first_start_whose_definitions_cannot_be_written_is_no_start(tmp_path: Path) -> None:
    ended = refused(tmp_path, file_bytes_max=480)
    assert ended.returncode == 74
    assert ended.stderr.splitlines()[-1].startswith(f"leveret: {tmp_path / 'data' / 'definitions'}: ")
    assert "leveret ready" not in ended.stdout


def test_the_first_vhost_has_the_default_queue_type_and_the_node_no_more_queues_than_its_limit(
    tmp_path: Path,
) -> None:
    config = {"default_queue_type": "quorum", "cluster_queue_limit": "1"}
    with LeveretProcess(data_dir=tmp_path / "data", config=config) as node:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)) as connection:
            connection.channel().queue_declare("orders", durable=True)
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="queue limit in cluster"):
                connection.channel().queue_declare("", exclusive=True)
        assert node.ctl("list_queues", "-q", "name", "type").stdout.splitlines()[-1] == "orders\tquorum"

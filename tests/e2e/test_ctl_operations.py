"""The commands that look after a running node: health, alarms, log, limits, clients, stopping it."""

from __future__ import annotations

import json
import os
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

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    config = {"log.file": "leveret.log", "nodename": "leveret@here"}
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("node"), config=config) as node:
        yield node


def document(node: LeveretProcess, *arguments: str) -> Any:
    return json.loads(node.ctl(*arguments, "--formatter", "json").stdout)


def failed(node: LeveretProcess, *arguments: str) -> tuple[int, str]:
    ended = node.ctl(*arguments, check=False)
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.returncode, ended.stderr.removeprefix("leveretctl: ").rstrip("\n")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ping", "Ping succeeded"),
        ("is_running", "is fully booted and running"),
        ("is_booting", "is fully booted (check with is_running)"),
        ("check_running", "is fully booted and running"),
        ("alarms", "reported no alarms, local or clusterwide"),
        ("check_alarms", "reported no alarms, local or clusterwide"),
        ("check_local_alarms", "reported no local alarms"),
        ("check_virtual_hosts", "reported all vhosts as running"),
        ("check_if_node_is_quorum_critical", "the check does not apply"),
        ("check_if_node_is_mirror_sync_critical", "the check does not apply"),
        ("check_port_connectivity", "Successfully connected to ports"),
        ("restart_vhost", "Vhost '/' is already running on node 'leveret@here'"),
    ],
)
def test_a_healthy_node_passes_every_check(node: LeveretProcess, command: str, text: str) -> None:
    assert text in node.ctl(command).stdout
    assert document(node, command)["result"] in ("ok", True, False)


def test_listeners_are_told_and_looked_for_by_port_and_protocol(node: LeveretProcess) -> None:
    line = f"Interface: 127.0.0.1, port: {node.amqp_port}, protocol: amqp, purpose: AMQP 0-9-1 and AMQP 1.0"
    assert line in node.ctl("listeners").stdout.splitlines()
    assert "A listener for port" in node.ctl("check_port_listener", str(node.stream_port)).stdout
    assert "A listener for protocol" in node.ctl("check_protocol_listener", "amqp").stdout
    status, text = failed(node, "check_port_listener", "1")
    assert (status, "No listener for port 1 is active" in text) == (69, True)
    status, text = failed(node, "check_protocol_listener", "mqtt")
    assert (status, "No listener for protocol mqtt is active" in text) == (69, True)


def test_only_the_node_that_was_named_is_spoken_to(node: LeveretProcess) -> None:
    assert node.ctl("-n", "leveret@here", "ping").returncode == 0
    assert failed(node, "-n", "other@here", "ping") == (
        69,
        "unable to reach node other@here: the node that answers is leveret@here",
    )


def test_the_log_is_located_read_and_made_louder(node: LeveretProcess) -> None:
    file = str(node.data_dir / "log" / "leveret.log")
    assert file in node.ctl("log_location").stdout.splitlines()
    node.ctl("set_log_level", "debug")
    [line] = node.ctl("-q", "log_tail", "-N", "1").stdout.splitlines()
    assert line == Path(file).read_text().splitlines()[-1]
    node.ctl("set_log_level", "none")
    node.ctl("add_vhost", "unheard")
    assert "unheard" not in Path(file).read_text()
    node.ctl("set_log_level", "info")
    node.ctl("add_vhost", "heard")
    assert "heard" in Path(file).read_text()


def test_the_log_is_followed(node: LeveretProcess) -> None:
    argv = [sys.executable, "-m", "leveret.cli.ctl", "--data-dir", str(node.data_dir)]
    with subprocess.Popen([*argv, "log_tail_stream"], stdout=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "Streaming logs from node leveret@here ...\n"
            seen: list[str] = []

            def is_followed() -> bool:
                # Named anew each time: the follower starts at the file's end, whenever that is.
                node.ctl("add_vhost", f"followed-{len(seen)}")
                seen.append(follower.stdout.readline() if follower.stdout else "")
                return "followed-" in seen[-1]

            wait_until(is_followed, "a followed line", PATIENCE_S)
        finally:
            follower.terminate()


def test_a_node_without_a_log_file_says_where_its_log_goes(tmp_path: Path) -> None:
    with LeveretProcess(parent_dir=tmp_path) as silent:
        assert "<stderr>" in silent.ctl("log_location").stdout
        status, text = failed(silent, "log_tail")
        assert (status, "the log goes to <stderr>, not to a file" in text) == (69, True)


def test_connections_of_a_user_are_closed_up_to_a_limit(node: LeveretProcess) -> None:
    connections = [
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port)) for _ in range(3)
    ]
    node.ctl("close_all_user_connections", "guest", "bye", "--limit", "2")
    ended = 0
    for connection in connections:
        try:
            connection.process_data_events(0.2)
            connection.close()
        except pika.exceptions.ConnectionClosedByBroker:
            ended += 1
    assert ended == 2
    assert failed(node, "close_all_connections", "bye") == (
        64,
        "name a virtual host with --vhost, or all of them with --global",
    )
    assert "Closed 0 connections" in node.ctl("close_all_connections", "--global", "bye").stdout


def test_a_password_may_be_handed_over_as_its_hash(node: LeveretProcess) -> None:
    hashed = node.ctl("hash_password", "-", input_text="s3cret\n").stdout.strip()
    node.ctl("add_user", "hashed", hashed, "--pre-hashed-password")
    node.ctl("authenticate_user", "hashed", "-", input_text="s3cret\n")


def test_permissions_are_set_in_all_vhosts_at_once(node: LeveretProcess) -> None:
    node.ctl("add_vhost", "one-more")
    node.ctl("add_user", "everywhere", "p")
    node.ctl("set_permissions_globally", "everywhere", "a", "b", "c")
    vhosts = {each["name"] for each in document(node, "list_vhosts")}
    assert {each["vhost"] for each in document(node, "list_user_permissions", "everywhere")} == vhosts


def test_definitions_that_are_there_already_are_not_imported_again(
    node: LeveretProcess, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    node.ctl("add_vhost", "defined")
    node.ctl("export_definitions", str(file))
    assert "unchanged" in node.ctl("import_definitions", str(file), "--skip-if-unchanged").stdout
    node.ctl("delete_vhost", "defined")
    text = node.ctl("import_definitions", "--skip-if-unchanged", input_text=file.read_text()).stdout
    assert "Successfully imported definitions" in text
    assert {"name": "defined"} in document(node, "list_vhosts")


def test_policies_that_would_apply_to_a_name_are_found(node: LeveretProcess) -> None:
    node.ctl("set_policy", "low", "^tmp", '{"max-length": 1}')
    node.ctl("set_policy", "high", "tmp", '{"max-length": 2}', "--priority", "5")
    node.ctl("set_policy", "for-exchanges", "tmp", '{"alternate-exchange": "x"}', "--apply-to", "exchanges")
    assert [each["name"] for each in document(node, "list_policies_that_match", "tmp.1")] == ["high", "low"]
    for name in ("low", "high", "for-exchanges"):
        node.ctl("clear_policy", name)


def test_a_super_stream_is_an_exchange_with_its_streams(node: LeveretProcess) -> None:
    sizes = ("--max-age", "P1DT2H", "--leader-locator", "least-leaders", "--initial-cluster-size", "1")
    node.ctl("add_super_stream", "invoices", "--partitions", "2", *sizes)
    [arguments] = [
        each["arguments"]
        for each in document(node, "list_queues", "name", "arguments")
        if each["name"] == "invoices-1"
    ]
    assert (arguments["x-max-age"], arguments["x-initial-cluster-size"]) == ("93600s", 1)
    assert arguments["x-queue-leader-locator"] == "least-leaders"
    queues = document(node, "list_queues", "name", "type")
    assert [each for each in queues if each["name"].startswith("invoices")] == [
        {"name": "invoices-0", "type": "stream"},
        {"name": "invoices-1", "type": "stream"},
    ]
    assert failed(node, "add_super_stream", "invoices") == (70, "there is already an exchange named invoices")
    assert document(node, "stream_status", "invoices-0")[0]["role"] == "writer"
    node.ctl("delete_super_stream", "invoices")
    assert not [each for each in document(node, "list_queues") if each["name"].startswith("invoices")]
    assert failed(node, "delete_super_stream", "invoices")[0] == 70


def test_a_report_has_the_output_of_every_listing(node: LeveretProcess) -> None:
    text = node.ctl("-q", "report").stdout
    for command in ("status", "list_users", "list_queues", "schema_replication_status"):
        assert f"$ leveretctl {command} -p /" in text


def test_a_shell_completes_the_names_that_the_node_has(node: LeveretProcess) -> None:
    node.ctl("add_vhost", "completed-1")
    node.ctl("add_vhost", "completed-2")
    environment = {
        "PATH": os.environ["PATH"],
        "LEVERET_DATA_DIR": str(node.data_dir),
        "_LEVERETCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "leveretctl delete_vhost complet",
        "COMP_CWORD": "2",
    }
    argv = [sys.executable, "-m", "leveret.cli.ctl"]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stdout.split() == ["completed-1", "completed-2"]


def test_a_node_is_waited_for_and_stopped_by_its_data_directory(tmp_path: Path) -> None:
    node = LeveretProcess(data_dir=tmp_path / "data")
    try:
        assert failed(node, "stop")[0] == 69
        assert node.ctl("stop", "--idempotent").returncode == 0
        node.launch()
        pid_file = tmp_path / "pid"
        pid_file.write_text(f"{node.pid}\n")
        node.ctl("wait", "--timeout", "60", str(pid_file))
        assert node.ctl("stop").stdout.splitlines() == [
            f"Stopping the node of process {node.pid} ...",
            f"The node of process {node.pid} has ended",
        ]
        assert failed(node, "wait", str(pid_file)) == (
            69,
            f"process {node.pid} ended before the node answered",
        )
        assert failed(node, "shutdown")[0] == 69
    finally:
        node.close()

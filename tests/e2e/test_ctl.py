"""The operator's commands and the HTTP doors of a real node, while a real client uses it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest

from leveret.pipeline.upstream.stream_client import connect
from leveret.testing.network.ports import wait_until
from leveret.testing.servers import warm_start
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.record import OUTGOING_STREAM

UPSTREAM = '{"endpoints": ["127.0.0.1:1"], "username": "replicator", "password": "s3kRe7"}'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def connection(node: LeveretProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.amqp_port))
    yield connection
    if connection.is_open:
        connection.close()


def rows(node: LeveretProcess, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.ctl("--formatter", "json", *arguments).stdout)
    return found


def failed(node: LeveretProcess, *arguments: str) -> tuple[int, str]:
    ended = node.ctl(*arguments, check=False)
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.returncode, ended.stderr


def test_a_connection_is_closed_by_the_operator_and_told_why(node: LeveretProcess, connection: Any) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{node.management_port}", auth=("guest", "guest")) as client:
        [shown] = client.get("/api/connections").json()
        url = f"/api/connections/{shown['name'].replace(' ', '%20')}"
        assert client.delete(url, headers={"x-reason": "maintenance"}).status_code == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="maintenance"):
            connection.process_data_events(10)
        assert client.delete(url).status_code == 404


def test_a_user_lives_through_all_its_commands(node: LeveretProcess) -> None:
    node.ctl("add_user", "app", "first")
    assert failed(node, "add_user", "app", "other") == (70, 'leveretctl: User "app" already exists\n')
    node.ctl("authenticate_user", "app", "first")
    node.ctl("set_user_tags", "app", "management", "monitoring")
    node.ctl("change_password", "app", "second")
    assert failed(node, "authenticate_user", "app", "first")[0] == 65
    node.ctl("authenticate_user", "app", "second")
    assert {"user": "app", "tags": ["management", "monitoring"]} in rows(node, "list_users")
    url = f"http://app:second@127.0.0.1:{node.management_port}"
    assert node.ctl("--url", url, "list_vhosts").returncode == 0
    assert failed(node, "--url", url, "list_users") == (77, "leveretctl: Not administrator user\n")
    node.ctl("delete_user", "app")
    assert failed(node, "delete_user", "app") == (67, 'leveretctl: User "app" does not exist\n')


def test_a_wrong_password_ends_with_no_permission(node: LeveretProcess) -> None:
    status, text = failed(node, "--url", f"http://guest:wrong@127.0.0.1:{node.management_port}", "list_users")
    assert (status, "Login failed" in text) == (77, True)


def test_a_password_from_standard_input_is_taken(node: LeveretProcess) -> None:
    node.ctl("add_user", "given", "-", input_text="on a line\n")
    node.ctl("authenticate_user", "given", "on a line")


def test_definitions_go_out_to_a_private_file_and_in_again(node: LeveretProcess, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    node.ctl("add_vhost", "kept")
    node.ctl("export_definitions", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    node.ctl("delete_vhost", "kept")
    node.ctl("import_definitions", str(file))
    assert {"name": "kept"} in rows(node, "list_vhosts")
    assert json.loads(node.ctl("export_definitions", "-").stdout) == json.loads(file.read_text())


def test_the_schema_side_is_operated(node: LeveretProcess) -> None:
    node.ctl("add_schema_replication_user", "schema-replicator", "s3kRe7")
    assert {"name": "rabbitmq_schema_definition_sync"} in rows(node, "list_vhosts")
    node.ctl("set_schema_replication_upstream_endpoints", UPSTREAM)
    shown = node.ctl("schema_replication_status").stdout
    assert "Operating mode: upstream\nState: running\nUpstream endpoint(s): 127.0.0.1:1\n" in shown
    node.ctl("disable_schema_replication")
    assert "State: disconnected" in node.ctl("schema_replication_status").stdout
    node.ctl("enable_schema_replication")
    node.ctl("restart_schema_replication")
    node.ctl("set_schema_replication_mode", "upstream")


@pytest.mark.parametrize(
    "command", ["set_schema_replication_upstream_endpoints", "set_standby_replication_upstream_endpoints"]
)
@pytest.mark.parametrize("missing", ["endpoints", "username", "password"])
def test_endpoints_with_a_missing_field_are_refused_by_its_name(
    node: LeveretProcess, command: str, missing: str
) -> None:
    wanted = {key: value for key, value in json.loads(UPSTREAM).items() if key != missing}
    status, text = failed(node, command, json.dumps(wanted))
    assert (status, missing in text) == (65, True)


@pytest.mark.parametrize(
    "command",
    [
        "promote_standby_replication_downstream",
        "connect_standby_replication_downstream",
        "disconnect_standby_replication_downstream",
        "promote_standby_replication_downstream_cluster",
        "promote_warm_standby",
    ],
)
def test_a_node_that_is_no_downstream_says_so(node: LeveretProcess, command: str) -> None:
    status, text = failed(node, command)
    assert (status, "this node is not a downstream" in text) == (65, True)


def test_there_is_nothing_to_recover_on_a_node_that_followed_nobody(node: LeveretProcess) -> None:
    for command in (
        "list_vhosts_available_for_standby_replication_recovery",
        "display_standby_promotion_summary",
        "display_disk_space_used_by_standby_replication_data",
        "inspect_standby_upstream_metrics",
        "inspect_standby_downstream_metrics",
        "inspect_local_data_available_for_standby_replication_recovery",
        "delete_orphaned_data_on_standby_replication_downstream_cluster",
        "list_standby_replication_downstreams",
    ):
        assert rows(node, command) == []
    assert "Operating mode: upstream" in node.ctl("standby_replication_status").stdout


def test_what_the_node_collects_is_shown_by_queue(node: LeveretProcess, connection: Any) -> None:
    node.ctl("add_vhost", "osr", "--tags", "standby_replication")
    node.ctl("set_permissions", "-p", "osr", "guest", ".*", ".*", ".*")
    node.ctl("set_policy", "-p", "osr", "osr", "^.*", '{"remote-dc-replicate": true}', "--apply-to", "queues")
    parameters = pika.ConnectionParameters("127.0.0.1", node.amqp_port, "osr")
    with pika.BlockingConnection(parameters) as own:
        channel = own.channel()
        channel.queue_declare("myqueue", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "myqueue", b"x")
    header, row = (
        line.split("\t") for line in node.ctl("-q", "inspect_standby_upstream_metrics").stdout.splitlines()
    )
    shown = dict(zip(header, row, strict=True))
    assert header[:3] == ["queue", "timestamp", "vhost"]
    assert (shown["queue"], shown["vhost"], len(shown["timestamp"])) == ("myqueue", "osr", 13)


def test_what_is_collected_is_deleted_and_collected_anew(node: LeveretProcess, connection: Any) -> None:
    node.ctl("add_vhost", "anew", "--tags", "standby_replication")
    node.ctl("set_permissions", "-p", "anew", "guest", ".*", ".*", ".*")
    policy = '{"remote-dc-replicate": true}'
    node.ctl("set_policy", "-p", "anew", "osr", "^.*", policy, "--apply-to", "queues")
    parameters = pika.ConnectionParameters("127.0.0.1", node.amqp_port, "anew")
    with pika.BlockingConnection(parameters) as own:
        channel = own.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    endpoints = [f"127.0.0.1:{node.stream_port}"]
    with connect(endpoints, vhost="anew", username="guest", password="guest") as client:
        wait_until(lambda: client.stats(OUTGOING_STREAM)["committed_offset"] == 1, "the message", 60)
        client.store_offset("eu.9", OUTGOING_STREAM, 1)
        assert client.query_offset("eu.9", OUTGOING_STREAM) == 1
        [row] = rows(node, "list_standby_replication_downstreams")
        assert (row["virtual_host"], row["downstream"], row["lag_records"]) == ("anew", "eu.9", 0)
        deleted = rows(node, "delete_internal_streams_on_standby_replication_upstream_cluster")
        assert "anew" in [row["vhost"] for row in deleted]
        wait_until(lambda: client.stats(OUTGOING_STREAM)["committed_offset"] == 2, "the message again", 60)
        assert client.stats(OUTGOING_STREAM)["first_chunk_id"] == 1
        assert len(list(client.fetch(OUTGOING_STREAM, 1, 2))) == 1
    node.ctl("forget_standby_replication_downstream", "eu.9")
    status, text = failed(node, "forget_standby_replication_downstream", "eu.9")
    assert (status, "eu.9" in text) == (65, True)
    node.ctl("delete_vhost", "anew")


def test_the_umbrella_commands_do_both_kinds_of_replication(node: LeveretProcess) -> None:
    node.ctl("disable_warm_standby")
    assert "State: disconnected" in node.ctl("schema_replication_status").stdout
    node.ctl("enable_warm_standby")
    assert "State: running" in node.ctl("schema_replication_status").stdout
    node.ctl("set_standby_replication_mode", "downstream")
    try:
        node.ctl("disable_warm_standby")
        assert "State: disconnected" in node.ctl("standby_replication_status").stdout
        node.ctl("restart_warm_standby")
        assert "State: connecting" in node.ctl("standby_replication_status").stdout
        assert "State: running" in node.ctl("schema_replication_status").stdout
    finally:
        node.ctl("set_standby_replication_mode", "upstream")


def test_the_status_tells_what_the_node_is(node: LeveretProcess) -> None:
    shown = node.ctl("status").stdout
    assert f"OS PID: {node.pid}" in shown
    assert f"Interface: 127.0.0.1, port: {node.amqp_port}, protocol: amqp, purpose: " in shown


def test_the_metrics_of_a_node_are_scraped(node: LeveretProcess) -> None:
    text = httpx.get(f"http://127.0.0.1:{node.management_port}/metrics").text
    assert "rabbitmq_queue_messages_ready" in text
    assert "leveret_standby_lag_seconds" in text


def test_a_second_node_on_the_same_data_is_refused(node: LeveretProcess) -> None:
    arguments = ["serve", "--data-dir", str(node.data_dir)]
    ended = warm_start.run(warm_start.NODE, arguments, env=os.environ, timeout_s=30)
    assert ended.returncode == 75
    assert f"in use by another node (process {node.pid})" in ended.stderr.splitlines()[-1]
    assert node.ctl("status").returncode == 0


def test_a_port_in_use_ends_a_start_with_one_line(node: LeveretProcess, tmp_path: Path) -> None:
    config = tmp_path / "leveret.conf"
    config.write_text(
        f"listeners.tcp = none\nstream.listeners.tcp = none\nmanagement.tcp.port = {node.management_port}\n"
        "log.default.level = none\n"
    )
    arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--config", str(config)]
    ended = warm_start.run(warm_start.NODE, arguments, env=os.environ, timeout_s=30)
    assert ended.returncode == 69
    assert ended.stderr == (
        f"leveret: management.tcp: cannot listen on 127.0.0.1:{node.management_port}: Address already in use\n"
    )


def test_secrets_are_in_no_log(node: LeveretProcess) -> None:
    node.ctl("set_schema_replication_upstream_endpoints", UPSTREAM)
    assert "s3kRe7" not in node.log_text()


def test_startup_is_awaited_and_definitions_outlive_a_crash(tmp_path: Path) -> None:
    node = LeveretProcess(data_dir=tmp_path / "data")
    try:
        node.launch()
        node.ctl("await_startup", "--timeout", "30")
        node.ctl("add_vhost", "durable", "--description", "d")
        node.kill9()
        assert failed(node, "list_vhosts")[0] == 69
        node.start()
        assert {"name": "durable", "description": "d"} in rows(node, "list_vhosts", "name", "description")
        assert node.stop() == 0
        assert "leveret ready" in node.log_text()
    finally:
        node.close()

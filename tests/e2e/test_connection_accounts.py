"""Connections of every protocol count, and end with their user and their vhost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import AMQPConnectionError

from leveret.core.schema.delta import SCHEMA_VHOST
from leveret.model.errors import LeveretError
from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess

PATIENCE_S = 30.0


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[LeveretProcess]:
    with LeveretProcess(parent_dir=tmp_path) as node:
        node.ctl("add_schema_replication_user", "replicator", "-", input_text="secret")
        yield node


@pytest.fixture
def downstream(tmp_path: Path, upstream: LeveretProcess) -> Iterator[LeveretProcess]:
    config = {
        "schema_definition_sync.operating_mode": "downstream",
        "schema_definition_sync.downstream.minimum_sync_interval": "1",
    }
    endpoints = {
        "endpoints": [f"{LOOPBACK}:{upstream.amqp_port}"],
        "username": "replicator",
        "password": "secret",
    }
    with LeveretProcess(config=config, parent_dir=tmp_path) as node:
        node.ctl("set_schema_replication_upstream_endpoints", "-", input_text=json.dumps(endpoints))
        wait_until(lambda: status_of(node)["syncs"], "a first sync", PATIENCE_S)
        yield node


def status_of(node: LeveretProcess) -> Any:
    path = f"http://{LOOPBACK}:{node.management_port}/api/tanzu/osr/schema/status"
    return httpx.get(path, auth=("guest", "guest")).raise_for_status().json()


def connections(node: LeveretProcess) -> list[tuple[str, str]]:
    rows = json.loads(node.ctl("--formatter", "json", "list_connections", "user", "protocol").stdout)
    return [(row["user"], row["protocol"]) for row in rows]


def wait_refused(node: LeveretProcess, text: str) -> None:
    wait_until(lambda: text in str(status_of(node)["last_error"]), text, PATIENCE_S)


def amqp(node: LeveretProcess, vhost: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials("replicator", "secret")
    return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port, vhost, credentials))


def stream(node: LeveretProcess) -> StreamClient:
    return connect([(LOOPBACK, node.stream_port)], vhost="/", username="reader", password="r", timeout_s=5)


def test_a_link_ends_with_its_user_and_with_its_vhost(
    upstream: LeveretProcess, downstream: LeveretProcess
) -> None:
    assert connections(upstream) == [("replicator", "AMQP 1-0")]
    upstream.ctl("delete_user", "replicator")
    wait_refused(downstream, "the upstream refuses user 'replicator' or its password")
    assert connections(upstream) == []

    upstream.ctl("add_schema_replication_user", "replicator", "-", input_text="secret")
    wait_until(lambda: status_of(downstream)["last_error"] is None, "a new login", PATIENCE_S)
    upstream.ctl("delete_vhost", SCHEMA_VHOST)
    wait_refused(downstream, f"vhost '{SCHEMA_VHOST}' does not exist")
    assert connections(upstream) == []


def test_limits_count_links_and_hold_for_them(upstream: LeveretProcess, downstream: LeveretProcess) -> None:
    upstream.ctl("set_user_limits", "replicator", '{"max-connections": 1}')
    with pytest.raises(AMQPConnectionError, match="user connection limit \\(1\\) is reached"):
        amqp(upstream, SCHEMA_VHOST)
    for limits in (
        ("set_user_limits", "replicator", '{"max-connections": 0}'),
        ("set_vhost_limits", "-p", SCHEMA_VHOST, '{"max-connections": 0}'),
    ):
        upstream.ctl(*limits)
        upstream.ctl("close_all_user_connections", "replicator", "limits")
        wait_refused(downstream, "connection limit (0) is reached")
        upstream.ctl("clear_user_limits", "replicator", "all")
    upstream.ctl("clear_vhost_limits", "-p", SCHEMA_VHOST)
    wait_until(lambda: status_of(downstream)["state"] == "syncing", "a link", PATIENCE_S)
    assert connections(upstream) == [("replicator", "AMQP 1-0")]


def test_connections_of_streams_count_and_end_with_their_user(upstream: LeveretProcess) -> None:
    upstream.ctl("add_user", "reader", "r")
    upstream.ctl("set_permissions", "reader", ".*", ".*", ".*")
    upstream.ctl("set_user_limits", "reader", '{"max-connections": 1}')
    with stream(upstream):
        assert connections(upstream) == [("reader", "stream")]
        with pytest.raises(LeveretError):
            stream(upstream)
        upstream.ctl("delete_user", "reader")
        wait_until(lambda: connections(upstream) == [], "the end of the connection", PATIENCE_S)

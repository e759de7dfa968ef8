"""Two real nodes, the schema link over TLS, worked by the operator's commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.network.ports import LOOPBACK, free_port, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority, available

PATIENCE_S = 30.0


def rows(node: LeveretProcess, *command: str) -> Any:
    return json.loads(node.ctl("--formatter", "json", *command).stdout)


def api(node: LeveretProcess, path: str) -> Any:
    reply = httpx.get(f"http://{LOOPBACK}:{node.management_port}/api/{path}", auth=("guest", "guest"))
    return reply.raise_for_status().json()


def status_of(node: LeveretProcess) -> Any:
    return api(node, "tanzu/osr/schema/status")


def queues(node: LeveretProcess, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[column] for column in columns) for row in api(node, "queues"))


def declare(node: LeveretProcess, name: str, messages: int = 0, **arguments: Any) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for _ in range(messages):
            channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))


def _up(authority: CertificateAuthority, tls_port: int) -> dict[str, str]:
    server = authority.issue("server", names=f"IP:{LOOPBACK}")
    return {"cluster_name": "eu.1", "listeners.ssl.1": f"{LOOPBACK}:{tls_port}", **server.settings()}


def _down(authority: CertificateAuthority) -> dict[str, str]:
    options = "schema_definition_sync.downstream.ssl_options"
    return {
        "cluster_name": "eu.2",
        "schema_definition_sync.operating_mode": "downstream",
        # A change that arrives has been noticed, then.
        "schema_definition_sync.downstream.minimum_sync_interval": "12h",
        f"{options}.cacertfile": str(authority.cacertfile),
        f"{options}.verify": "verify_peer",
    }


def test_a_downstream_is_set_up_followed_looked_into_forced_and_started_again(tmp_path: Path) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    authority, tls_port = CertificateAuthority(tmp_path), free_port()
    with (
        LeveretProcess(config=_up(authority, tls_port), parent_dir=tmp_path) as upstream,
        LeveretProcess(config=_down(authority), parent_dir=tmp_path) as downstream,
    ):
        upstream.ctl("add_schema_replication_user", "replicator", "-", input_text="s3kRe7")
        declare(upstream, "both", **{"x-max-length": 7})
        declare(downstream, "both", messages=3)
        declare(downstream, "stray")
        endpoints = {"endpoints": [f"{LOOPBACK}:{tls_port}"], "username": "replicator", "password": "s3kRe7"}

        downstream.ctl("disable_schema_replication")
        text = json.dumps(endpoints)
        downstream.ctl("set_schema_replication_upstream_endpoints", "-", input_text=text)
        found = {(row["action"], *row["key"]) for row in rows(downstream, "schema_replication_diff")}
        assert {row for row in found if row[1] == "/"} == {("keep", "/", "both"), ("delete", "/", "stray")}
        assert ("create", "replicator") in found
        assert queues(downstream, "name") == [("both",), ("stray",)]

        downstream.ctl("enable_schema_replication")
        wait_until(lambda: status_of(downstream)["syncs"], "a first sync", PATIENCE_S)
        declare(upstream, "later")
        wait_until(lambda: ("later",) in queues(downstream, "name"), "a change", PATIENCE_S)
        assert queues(downstream, "name", "messages") == [("both", 3), ("later", 0)]
        status = status_of(downstream)
        assert (status["state"], status["upstream_cluster"]) == ("syncing", "eu.1")
        assert status["conflicts"] == [
            "queues //both: its properties differ from the upstream's, and it holds messages or is down"
        ]
        shown = downstream.ctl("schema_replication_status").stdout
        assert "Conflicts: 1" in shown
        assert "s3kRe7" not in shown
        assert "Downstream: eu.2 as replicator, " in upstream.ctl("schema_replication_status").stdout

        columns = ("user", "vhost", "protocol", "ssl", "state", "channels")
        [seen] = rows(upstream, "list_connections", *columns)
        assert [seen[column] for column in columns] == [
            "replicator",
            "rabbitmq_schema_definition_sync",
            "AMQP 1-0",
            True,
            "running",
            1,
        ]
        upstream.ctl("close_all_user_connections", "replicator", "moved")
        wait_until(lambda: "reason=moved" in upstream.server.log_text(), "the end of the link", PATIENCE_S)
        declare(upstream, "meanwhile")
        wait_until(lambda: ("meanwhile",) in queues(downstream, "name"), "a new link", PATIENCE_S)

        forced = rows(downstream, "sync_schema_replication", "--force")
        assert (forced["puts"], forced["deletes"], forced["conflicts"]) == (1, 1, [])
        assert queues(downstream, "name", "messages") == [("both", 0), ("later", 0), ("meanwhile", 0)]
        history = rows(downstream, "schema_replication_history")
        assert history[0]["changes"] == ["delete queues //both", "put queues //both"]
        assert ["put queues //later"] in [row["changes"] for row in history]

        downstream.ctl("set_schema_replication_mode", "upstream")
        downstream.restart()
        assert api(downstream, "replication/schema/history") == history
        shown = downstream.ctl("schema_replication_status").stdout
        assert "Operating mode: upstream" in shown
        assert "Operating mode set by: run time" in shown
        assert "schema_sync_mode_set_at_run_time mode=upstream configured=downstream" in (
            downstream.server.log_text()
        )

"""A cluster that follows another site's schema, is promoted, and is followed; operated at any of its nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

PATIENCE_S = 30.0
FOLLOWS = {
    "schema_definition_sync.operating_mode": "downstream",
    # A change that arrives has been noticed, then.
    "schema_definition_sync.downstream.minimum_sync_interval": "12h",
}
PASSWORD = "s3kRe7"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[LeveretProcess]:
    """The other site: a node alone, with a user for the link."""
    with LeveretProcess(config={"cluster_name": "eu.1"}, parent_dir=tmp_path) as node:
        node.ctl("add_schema_replication_user", "replicator", "-", input_text=PASSWORD)
        yield node


def api(port: int, path: str) -> Any:
    reply = httpx.get(f"http://{LOOPBACK}:{port}/api/{path}", auth=("guest", "guest"), timeout=10)
    return reply.raise_for_status().json()


def status_at(node: SiteNode) -> Any:
    return api(node.management_port, "tanzu/osr/schema/status")


def queues_at(port: int) -> set[str]:
    return {row["name"] for row in api(port, "queues/%2F")}


def declare(port: int, *names: str) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, port)) as connection:
        for name in names:
            connection.channel().queue_declare(name, durable=True)


def follow(node: LeveretProcess, *ports: int) -> None:
    """Have a node, or its cluster, follow whoever listens there."""
    endpoints = [f"{LOOPBACK}:{port}" for port in ports]
    upstream = {"endpoints": endpoints, "username": "replicator", "password": PASSWORD}
    node.ctl("set_schema_replication_upstream_endpoints", "-", input_text=json.dumps(upstream))


def comes(queue: str, *ports: int) -> None:
    for port in ports:
        wait_until(lambda port=port: queue in queues_at(port), f"{queue} at {port}", PATIENCE_S)  # type: ignore[misc]


def test_a_cluster_follows_is_promoted_and_is_followed(elsewhere: LeveretProcess, tmp_path: Path) -> None:
    declare(elsewhere.amqp_port, "theirs")
    with ClusterSite(tmp_path, config=FOLLOWS) as site:
        # Led by three nodes, deleted by the one that follows; what a connection has for itself is nobody else's.
        for node in site.members:
            declare(node.amqp_port, f"stray-{node.name}")
        clients = [pika.BlockingConnection(pika.URLParameters(node.amqp_uri)) for node in site.members]
        own = {client.channel().queue_declare("", exclusive=True).method.queue for client in clients}
        follow(site.members[2], elsewhere.amqp_port)
        for node in site.members:
            wait_until(
                lambda node=node: queues_at(node.management_port) == {"theirs"} | own,  # type: ignore[misc]
                f"the schema at {node.name}",
                PATIENCE_S,
            )
        (follower,) = {status_at(node)["node"] for node in site.members}
        first = next(node for node in site.members if node.node == follower)
        second, third = (node for node in site.members if node is not first)
        status = status_at(third)
        assert (status["state"], status["upstream_cluster"]) == ("syncing", "eu.1")
        assert json.loads(third.ctl("--formatter", "json", "schema_replication_diff").stdout) == []
        for client in clients:
            client.close()

        first.kill9()
        declare(elsewhere.amqp_port, "later")
        comes("later", second.management_port, third.management_port)
        assert {status_at(second)["node"], status_at(third)["node"]} in ({second.node}, {third.node})

        third.ctl("set_schema_replication_mode", "upstream")
        declare(elsewhere.amqp_port, "too-late")
        first.launch()
        first.wait_ready()
        second.stop()
        second.launch()
        second.wait_ready()
        for node in site.members:
            status = status_at(node)
            source = status["operating_mode"], status["operating_mode_source"], status["state"]
            assert source == ("upstream", "run time", "running"), node.name
            assert queues_at(node.management_port) == {"theirs", "later"}

        # The way back: the other site follows the cluster, and goes on when the node it follows is lost.
        third.ctl("add_schema_replication_user", "replicator", "-", input_text=PASSWORD)
        elsewhere.ctl("set_schema_replication_mode", "downstream")
        follow(elsewhere, *(node.amqp_port for node in site.members))
        wait_until(lambda: queues_at(elsewhere.management_port) == {"theirs", "later"}, "theirs", PATIENCE_S)
        first.kill9()
        declare(third.amqp_port, "after")
        comes("after", elsewhere.management_port)

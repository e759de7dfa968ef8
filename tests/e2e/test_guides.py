"""The lines of the guides, each run as it is printed at the node that the guide means, and what comes of it.

Two sites live through both guides to replication: set up, followed, promoted, cleared up. The one thing that the guides
cannot print is where the upstream is: what is set with their host names is set again with the real ones.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pika
import pytest

from leveret.cli.program_aliases import operator_arguments
from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK, free_ports, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.process import ServerProcess
from leveret.testing.sites.standby_pair import FOLLOW_TIMEOUT_S, PROMOTE_TIMEOUT_S, get
from tests.unit.cli.test_guides import MIRRORING, REPLICATION

pytestmark = [pytest.mark.story, pytest.mark.spark, pytest.mark.timeout(600)]

UPSTREAM: Final = {
    "cluster_name": "eu.1",
    "schema_definition_sync.operating_mode": "upstream",
    "standby.replication.operating_mode": "upstream",
    "standby.replication.retention.size_limit.messages": "10000000000",
    "standby.replication.retention.time_limit.messages": "12h",
}
DOWNSTREAM: Final = {
    "cluster_name": "eu.2",
    "schema_definition_sync.operating_mode": "downstream",
    "schema_definition_sync.downstream.minimum_sync_interval": "30",
    "schema_definition_sync.downstream.locals.users": "^my-user$",
    "schema_definition_sync.downstream.locals.vhosts": "^vhost-test.*",
    "schema_definition_sync.downstream.locals.policies": "^example$",
    "schema_definition_sync.downstream.locals.global_parameters": "^standby",
    "schema_definition_sync.downstream.locals.parameters": "example$",
    "schema_definition_sync.downstream.locals.queues": "^leave-this-q$",
    "schema_definition_sync.downstream.locals.exchanges": "^important-exchange-[a-z]+",
    "standby.replication.operating_mode": "downstream",
    "standby.replication.retention.size_limit.messages": "5000000000",
}
MESSAGES: Final = 50


@dataclass
class Guided:
    """Two nodes, and what lines of the guides came to there."""

    upstream: LeveretProcess
    downstream: LeveretProcess
    done: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)

    def run(self, node: LeveretProcess, containing: str) -> str:
        """Run the one line of the guides that contains this as it is printed; its output."""
        [line] = [each for each in REPLICATION if each == containing] or [
            each for each in REPLICATION if containing in each
        ]
        program, *words = shlex.split(line)
        _, arguments = operator_arguments(f"/usr/local/sbin/{program}", words)
        self.done[line] = node.ctl(*arguments, timeout_s=PROMOTE_TIMEOUT_S, check=False)
        assert self.done[line].returncode == 0, (line, self.done[line].stderr)
        return self.done[line].stdout

    def point(self, kind: str, port: int, username: str) -> None:
        """What a guide sets with the names of its hosts, with the real ones."""
        value = {"endpoints": [f"{LOOPBACK}:{port}"], "username": username, "password": "s3kRe7"}
        self.downstream.ctl(f"set_{kind}_replication_upstream_endpoints", json.dumps(value))


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guided]:
    folder = tmp_path_factory.mktemp("guides")
    with (
        LeveretProcess(config=UPSTREAM, parent_dir=folder) as upstream,
        LeveretProcess(config=DOWNSTREAM, parent_dir=folder) as downstream,
    ):
        yield Guided(upstream, downstream)


def test_an_upstream_is_set_up(guided: Guided) -> None:
    up = guided.upstream
    for plugin in ("rabbitmq_schema_definition_sync", "rabbitmq_standby_replication"):
        assert "built in" in guided.run(up, f"enable {plugin} --offline")
    guided.run(up, "add_vhost rabbitmq_schema_definition_sync")
    guided.run(up, "add_schema_replication_user")
    guided.run(up, "set_schema_replication_upstream_endpoints")
    assert "upstream" in guided.run(up, "schema_replication_status")
    guided.run(up, 'add_vhost "vhost1" --tags "standby_replication"')
    guided.run(up, 'set_policy --vhost "vhost1" osr')
    up.ctl("add_vhost", "vhost2", "--tags", "standby_replication")
    up.ctl("add_user", "offsite-replicator", "s3kRe7")
    for vhost in ("vhost1", "vhost2"):
        up.ctl("set_permissions", "-p", vhost, "offsite-replicator", ".*", ".*", ".*")
    up.ctl("set_permissions", "-p", "vhost1", "guest", ".*", ".*", ".*")
    with pika.BlockingConnection(parameters(up.amqp_port, "vhost1")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("myqueue", durable=True)
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "myqueue", str(number).encode(), properties)
    first, columns, row = guided.run(up, "inspect_standby_upstream_metrics").splitlines()
    assert first == "Inspecting standby upstream metrics related to recovery..."
    assert columns.split("\t")[:3] == ["queue", "timestamp", "vhost"]
    assert (row.split("\t")[0], row.split("\t")[2]) == ("myqueue", "vhost1")


def test_a_downstream_follows_it(guided: Guided) -> None:
    up, down = guided.upstream, guided.downstream
    for plugin in ("rabbitmq_schema_definition_sync", "rabbitmq_standby_replication"):
        guided.run(down, f"enable {plugin} --offline")
    guided.run(down, "set_schema_replication_upstream_endpoints")
    guided.run(down, "set_standby_replication_upstream_endpoints")
    assert "a.rabbitmq.eu-1.local" in guided.run(down, "schema_replication_status")
    guided.point("schema", up.amqp_port, "schema-replicator")
    guided.point("standby", up.stream_port, "offsite-replicator")
    for command in ("disable", "enable", "restart"):
        guided.run(down, f"{command}_schema_replication")
    guided.run(down, " disconnect_standby_replication_downstream")
    guided.run(down, " connect_standby_replication_downstream")
    wait_until(lambda: transferred(down) >= MESSAGES, "the messages at the downstream", FOLLOW_TIMEOUT_S)
    links = up.ctl("-q", "list_stream_connections", "user", "vhost", "protocol").stdout.splitlines()[1:]
    assert {line.split("\t")[0] for line in links} == {"offsite-replicator"}
    assert {line.split("\t")[1] for line in links} == {"vhost1", "vhost2"}
    first, columns, row, *_ = guided.run(down, "inspect_standby_downstream_metrics").splitlines()
    assert first == "Inspecting standby downstream metrics related to recovery..."
    assert columns.split("\t")[:3] == ["queue", "timestamp", "vhost"]
    assert (row.split("\t")[0], row.split("\t")[2]) == ("myqueue", "vhost1")
    used = guided.run(down, "display_disk_space_used_by_standby_replication_data").splitlines()
    assert used[:2] == ["Listing disk space (in gb) used by multi-DC replication", "node\tsize\tunit\tvhost"]
    available = guided.run(down, "list_vhosts_available_for_standby_replication_recovery")
    assert "vhost1" in available.splitlines()
    counted = guided.run(down, "inspect_local_data_available_for_standby_replication_recovery")
    assert f"\t{MESSAGES}\tmyqueue\tvhost1" in counted


def transferred(node: LeveretProcess) -> int:
    return sum(row["messages"] for row in get(node, "replication/standby/downstream-metrics"))


def test_it_is_promoted_and_serves(guided: Guided) -> None:
    up, down = guided.upstream, guided.downstream
    up.kill9()
    guided.run(down, r"--exclude-virtual-hosts \"vhost1,vhost2\"")
    assert queued(down) == 0
    guided.run(down, "--all-available")
    assert queued(down) == 0, "vhost1 is left out"
    promote = "rabbitmqctl promote_standby_replication_downstream"
    assert f"\t{MESSAGES}\tvhost1" in guided.run(down, promote)
    assert queued(down) == MESSAGES
    assert f"\t{MESSAGES}\tvhost1" in guided.run(down, "display_standby_promotion_summary")
    guided.run(down, "--start-from-scratch")
    assert queued(down) == 2 * MESSAGES
    guided.run(down, " disable_schema_replication")
    guided.run(down, "add_vhost rabbitmq_schema_definition_sync")
    guided.run(down, "add_schema_replication_user")
    guided.run(down, "set_schema_replication_upstream_endpoints")
    guided.run(down, "set_schema_replication_mode upstream")
    guided.run(down, " enable_schema_replication")


def queued(node: LeveretProcess) -> int:
    with pika.BlockingConnection(parameters(node.amqp_port, "vhost1")) as connection:
        return int(connection.channel().queue_declare("myqueue", passive=True).method.message_count)


def test_what_is_kept_for_it_is_deleted(guided: Guided) -> None:
    guided.run(guided.downstream, "delete_orphaned_data_on_standby_replication_downstream_cluster")
    guided.run(guided.downstream, "delete_all_data_on_standby_replication_cluster")
    assert transferred(guided.downstream) == 0
    guided.upstream.start()
    guided.run(guided.upstream, "delete_internal_streams_on_standby_replication_upstream_cluster")


def test_no_line_of_the_guides_to_replication_is_left_out(guided: Guided) -> None:
    assert guided.done.keys() == set(REPLICATION)
    assert not set(REPLICATION) & set(MIRRORING)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory, and `lavinmq` as a link on the path."""
    (tmp_path / "lavinmq").symlink_to(Path(sys.executable).parent / "leveret")
    return tmp_path


def test_lavinmqs_leader_and_follower_are_started_as_printed(home: Path) -> None:
    leader, follower = (ServerProcess(home / f"{name}.log") for name in ("leader", "follower"))
    data = home / "lavin-replication-testing"
    replication, *ports = free_ports(7)
    line = "lavinmq --data-dir ~/lavin-replication-testing/leader --replication-bind --replication-port 5679"
    try:
        started(leader, line, home, ports[:3])
        wait_until(lambda: not leader.alive, "the end of a leader without an address", FOLLOW_TIMEOUT_S)
        assert "--replication-bind: the address is missing" in leader.log_text()
        bound = line.replace("--replication-bind", f"--replication-bind {LOOPBACK}").replace(
            "5679", str(replication)
        )
        started(leader, bound, home, ports[:3])
        wait_until(lambda: "replication Listening on" in leader.log_text(), "the leader", FOLLOW_TIMEOUT_S)
        line = "lavinmq --data-dir ~/lavin-replication-testing/follower --follow tcp://localhost:5679"
        line = line.replace("5679", str(replication))
        started(follower, line, home, ports[3:])
        wait_until(lambda: not follower.alive, "the end of a follower without the secret", FOLLOW_TIMEOUT_S)
        assert ".replication_secret" in follower.log_text()
        (data / "follower").mkdir(exist_ok=True)
        subprocess.run(
            ["cp", "-p", data / "leader" / ".replication_secret", data / "follower"], check=True, timeout=10
        )
        started(follower, line, home, ports[3:])
        for said in ("Files synced", "Streaming changes"):
            wait_until(lambda said=said: said in follower.log_text(), said, FOLLOW_TIMEOUT_S)  # type: ignore[misc]
    finally:
        follower.close()
        leader.close()


def started(process: ServerProcess, line: str, home: Path, ports: list[int]) -> None:
    """Start what a shell makes of a line, on ports that are free."""
    amqp, stream, management = ports
    environment = {name: text for name, text in os.environ.items() if not name.startswith("LEVERET_")} | {
        "HOME": str(home),
        "PATH": f"{home}:{os.environ['PATH']}",
        "LEVERET_LISTENERS_TCP_DEFAULT": f"{LOOPBACK}:{amqp}",
        "LEVERET_STREAM_LISTENERS_TCP_DEFAULT": f"{LOOPBACK}:{stream}",
        "LEVERET_MANAGEMENT_TCP_PORT": str(management),
    }
    process.launch(["/bin/sh", "-c", f"exec {line}"], environment)

"""An upstream and a downstream as real processes, connected by an operator's commands.

    with StandbyPair("orders", folder) as pair:
        pair.start()
        pair.replicate("osr", "^.*")
        ...                              # applications work on pair.upstream
        pair.follow()
        pair.upstream.kill9()
        pair.promote()

`covered` returns the times up to which the standby has all records; an audit compares them with the confirms and acks.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pika

from leveret.testing.applications.applications import now_ms, parameters
from leveret.testing.applications.contents import properties_of
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.process import descendants

FOLLOW_TIMEOUT_S: Final = 300.0
PROMOTE_TIMEOUT_S: Final = 300.0
BEACON: Final = "beacon"
"""The queue of beacons: a standby that has a beacon has all earlier records."""
_SCHEMA_USER: Final = "schema-replicator"
_STANDBY_USER: Final = "offsite-replicator"
_HTTP_TIMEOUT_S: Final = 30.0


class StandbyPair:
    """Two sites of one node each; only their ports differ."""

    def __init__(
        self,
        vhost: str,
        folder: Path,
        downstream_config: Mapping[str, str] | None = None,
        *,
        upstream: LeveretProcess | None = None,
    ) -> None:
        """Prepare both nodes in `folder`, or a downstream for the given upstream; nothing runs yet."""
        self.vhost = vhost
        self.upstream = upstream or LeveretProcess(config={"cluster_name": "eu.1"}, parent_dir=folder)
        self.downstream = LeveretProcess(
            config=downstream_settings("eu.2") | dict(downstream_config or {}), parent_dir=folder
        )
        self._password = secrets.token_urlsafe(12)
        self._upstream_since_ms = 0

    def __enter__(self) -> Self:
        """Start nothing yet: `start` starts."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove the nodes' files."""
        self.upstream.close()
        self.downstream.close()

    # -- the operator -------------------------------------------------------------------------

    def start(self) -> None:
        """Start both nodes; make the vhost, and the users of the two links, at the upstream."""
        self.upstream.launch()
        self.downstream.launch()
        self.downstream.wait_ready()
        self.upstream.wait_ready()
        self._prepare_upstream()

    def _prepare_upstream(self) -> None:
        ctl = self.upstream.ctl
        ctl("add_vhost", self.vhost, "--tags", "standby_replication")
        ctl("set_permissions", "-p", self.vhost, "guest", ".*", ".*", ".*")
        ctl("add_schema_replication_user", _SCHEMA_USER, "-", input_text=self._password)
        ctl("add_user", _STANDBY_USER, "-", input_text=self._password)
        ctl("set_permissions", "-p", self.vhost, _STANDBY_USER, ".*", ".*", ".*")

    def replicate(self, name: str, pattern: str) -> None:
        """Set a policy that replicates the matching queues."""
        definition = '{"remote-dc-replicate": true}'
        policy = ["--vhost", self.vhost, name, pattern, definition, "--apply-to", "queues"]
        self.upstream.ctl("set_policy", *policy)

    def follow(self, timeout_s: float = FOLLOW_TIMEOUT_S) -> None:
        """Point the downstream at the upstream; wait until it is connected."""
        self.point(self.downstream)
        self.wait_connected(timeout_s)

    def point(self, node: LeveretProcess) -> None:
        """Point a node at the upstream, with both links."""
        named = self._named_upstreams()
        schema = self._endpoints(_SCHEMA_USER, [each.amqp_port for each in named])
        standby = self._endpoints(_STANDBY_USER, [each.stream_port for each in named])
        node.ctl("set_schema_replication_upstream_endpoints", "-", input_text=schema)
        node.ctl("set_standby_replication_upstream_endpoints", "-", input_text=standby)

    def promote(self) -> subprocess.CompletedProcess[str]:
        """Promote the downstream; return the command's result, with the summary or the reason of a refusal."""
        command = ["promote_standby_replication_downstream", "--formatter", "json"]
        return self.downstream.ctl(*command, check=False, timeout_s=PROMOTE_TIMEOUT_S)

    def recover_into(self, port: int) -> subprocess.CompletedProcess[str]:
        """Recover into another broker's default vhost, as guest, without a change to the downstream."""
        command = ["promote_standby_replication_downstream", "--formatter", "json"]
        target = f"amqp://guest@{LOOPBACK}:{port}/%2F"
        return self.downstream.ctl(
            *command, "--to", target, input_text="guest\n", check=False, timeout_s=PROMOTE_TIMEOUT_S
        )

    def turn_round(self) -> None:
        """Point the previous upstream, which was started again, at the promoted downstream.

        `upstream` and `downstream` have changed places from then on.
        """
        self.upstream, self.downstream = self.downstream, self.upstream
        self.upstream.ctl("add_schema_replication_user", _SCHEMA_USER, "-", input_text=self._password)
        self.point(self.downstream)

    def rejoin(self) -> dict[str, Any]:
        """Have the previous upstream rejoin as the downstream of the promoted site; return its report."""
        self.turn_round()
        command = ["rejoin_as_downstream", "--formatter", "json"]
        report: dict[str, Any] = json.loads(self.downstream.ctl(*command, timeout_s=PROMOTE_TIMEOUT_S).stdout)
        self.wait_connected()
        return report

    def restart_upstream(self) -> None:
        """Start the killed upstream again."""
        self.upstream.start()
        self._upstream_since_ms = now_ms()

    def _named_upstreams(self) -> list[LeveretProcess]:
        """Return the nodes whose endpoints the downstream gets."""
        return [self.upstream]

    def _endpoints(self, username: str, ports: Iterable[int]) -> str:
        endpoints = [f"{LOOPBACK}:{port}" for port in ports]
        return json.dumps({"endpoints": endpoints, "username": username, "password": self._password})

    # -- status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status of the downstream."""
        found: dict[str, Any] = get(self.downstream, "replication/standby/details")
        return found

    def wait_connected(self, timeout_s: float = FOLLOW_TIMEOUT_S) -> None:
        """Wait until the link of the vhost is up."""
        wait_until(self._is_connected, "the downstream to follow", timeout_s)

    def _is_connected(self) -> bool:
        rows = self.status()["vhosts"]
        return any(row["virtual_host"] == self.vhost and row["state"] == "connected" for row in rows)

    def wait_queues(self, queues: Collection[str]) -> None:
        """Wait until the downstream has exactly these queues."""

        def same() -> bool:
            if self.vhost not in {vhost["name"] for vhost in get(self.downstream, "vhosts")}:
                return False
            return {row["name"] for row in get(self.downstream, f"queues/{self.vhost}")} == set(queues)

        wait_until(same, f"queues {', '.join(sorted(queues))} at the downstream", FOLLOW_TIMEOUT_S)

    def transferred(self) -> dict[str, int]:
        """Return the number of transferred messages, by queue."""
        return {row["queue"]: row["messages"] for row in self._transferred_rows()}

    def covered(self, queues: Collection[str]) -> dict[str, int]:
        """Return, by queue, the time up to which the standby has all its records.

        The outgoing log has the records in the order in which they became durable, so the newest transferred record
        gives the time of all queues. At its start, however, the upstream copies missing records queue by queue. Until
        a later record arrives, the newest record of a queue gives the time of that queue only.
        """
        own = {row["queue"]: row["timestamp"] for row in self._transferred_rows()}
        newest = max(own.values(), default=0)
        if newest > self._upstream_since_ms:
            return dict.fromkeys(queues, newest)
        return {queue: own.get(queue, 0) for queue in queues}

    def publish(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Publish persistent messages to a durable queue of the vhost at the upstream, each of them confirmed.

        Their properties differ, and follow from their numbers among the bodies.
        """
        with pika.BlockingConnection(parameters(self.upstream.amqp_port, self.vhost)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(queue, durable=True)
            for number, body in enumerate(bodies):
                channel.basic_publish("", queue, body, pika.BasicProperties(**properties_of(number)))

    def wait_transferred(self) -> None:
        """Publish a beacon, and wait until it is durable at the standby, and thus all earlier records."""
        since_ms = now_ms()
        with pika.BlockingConnection(parameters(self.upstream.amqp_port, self.vhost)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(BEACON, durable=True)
            channel.basic_publish("", BEACON, b"", pika.BasicProperties(delivery_mode=2))
            channel.basic_get(BEACON, auto_ack=True)
        wait_until(lambda: self._newest_ms() >= since_ms, "the beacon at the standby", FOLLOW_TIMEOUT_S)
        wait_until(
            lambda: self.covered([BEACON])[BEACON] >= since_ms, "the beacon in the manifest", FOLLOW_TIMEOUT_S
        )

    def _newest_ms(self) -> int:
        rows = [row for row in self.status()["vhosts"] if row["virtual_host"] == self.vhost]
        return max((row["last_timestamp"] or 0 for row in rows), default=0)

    def _transferred_rows(self) -> list[dict[str, Any]]:
        rows = get(self.downstream, "replication/standby/downstream-metrics")
        return [row for row in rows if row["vhost"] == self.vhost]

    # -- disasters ----------------------------------------------------------------------------

    def kill(self, drivers: list[int]) -> None:
        """Kill these Spark drivers (SIGKILL), and no other process."""
        for pid in drivers:
            os.kill(pid, signal.SIGKILL)

    def transferring(self) -> list[int]:
        """Return the process ids of the downstream's Spark drivers for transfers."""
        wanted = b"-m\0leveret.pipeline\0transfer"
        return [pid for pid, _ in descendants(self.downstream.pid) if wanted in _command_line(pid)]

    def recovering(self) -> list[int]:
        """Return the process ids of the downstream's Spark drivers for recoveries."""
        try:
            inode = (self.downstream.data_dir / "standby" / "recovery.lock").stat().st_ino
        except OSError:
            return []
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # "1: FLOCK ADVISORY WRITE <pid> <major>:<minor>:<inode> 0 EOF"; a waiting process has "->" before FLOCK.
        return [int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(f":{inode}")]


def downstream_settings(cluster_name: str) -> dict[str, str]:
    """Return the settings of a downstream."""
    return {
        "cluster_name": cluster_name,
        "schema_definition_sync.operating_mode": "downstream",
        "schema_definition_sync.downstream.minimum_sync_interval": "1",
        "schema_definition_sync.downstream.locals.global_parameters": "^standby",
        "standby.replication.operating_mode": "downstream",
    }


def get(node: LeveretProcess, path: str) -> Any:
    """Return the document of a node's management API at a path, whose names must be encoded already."""
    url = f"http://{LOOPBACK}:{node.management_port}/api/{path}"
    return httpx.get(url, auth=("guest", "guest"), timeout=_HTTP_TIMEOUT_S).raise_for_status().json()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""

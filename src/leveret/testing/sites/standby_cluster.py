"""A node or a cluster as the upstream, a cluster as its downstream, and an account of every message.

with StandbyCluster(folder, ["orders", "shop"]) as sites:
    sites.follow()
    sites.publish("orders", "q", 300)       # confirmed; `sites.books.expected` has the unacked ones
    sites.wait_transferred()
    sites.lose_upstream()
    sites.promote(at=sites.cluster.members[1])
    sites.check_recovered()
"""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import pika
import pika.exceptions

from leveret.testing.applications.applications import (
    ReceivedMessage,
    now_ms,
    parameters,
    publish_message,
    received_message,
)
from leveret.testing.applications.mixed_messages import EXCHANGE, declare
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.standby_books import StandbyBooks
from leveret.testing.sites.standby_pair import BEACON, downstream_settings, get

PATIENCE_S: Final = 600.0
PROMOTE_TIMEOUT_S: Final = 300.0
_UNAWAITED_S: Final = 0.2
_NOT_FOUND: Final = 404
_LED_WITHIN_S: Final = 60.0
"""The longest time in which queues of a promoted site may have no known leader: an etcd may have just started."""
_SCHEMA_USER: Final = "schema-replicator"
_STANDBY_USER: Final = "offsite-replicator"


class StandbyCluster:
    """See the module.

    Attributes:
        source: the upstream, if it is a cluster; None for a single node.
        cluster: the downstream.
        has_turned: whether the sites have changed their roles: the first one is the downstream.
        vhosts: the replicated vhosts.
        books: all messages.
        on_look: called before each look of `wait`.
    """

    def __init__(
        self,
        folder: Path,
        vhosts: Sequence[str],
        *,
        nodes: int = 3,
        upstream_nodes: int = 1,
        seed: int = 1,
        config: Mapping[str, str] | None = None,
        upstream_config: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare both sites; nothing runs yet. `config` has more settings of the downstream's nodes."""
        self.vhosts = [*vhosts]
        self.on_look: Callable[[], None] = lambda: None
        config_up = {"cluster_name": "eu.1", **(upstream_config or {})}
        self.source: ClusterSite | None = None
        if upstream_nodes > 1:
            (folder / "eu").mkdir()
            self.source = ClusterSite(folder / "eu", upstream_nodes, config_up)
        self._upstream = (
            LeveretProcess(config=config_up, parent_dir=folder)
            if self.source is None
            else self.source.members[0]
        )
        self.cluster = ClusterSite(folder, nodes, config=downstream_settings("eu.2") | dict(config or {}))
        self.has_turned = False
        self.books = StandbyBooks(seed)
        self._password = secrets.token_urlsafe(12)
        self._random = random.Random(seed)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for cluster in (self.cluster, self.source):
            if value is not None and cluster is not None:
                value.add_note(cluster.evidence())
        self.close()

    @property
    def upstreams(self) -> list[LeveretProcess]:
        """The running nodes of the upstream; the first node if none runs."""
        return self._second if self.has_turned else self._first

    @property
    def downstreams(self) -> list[LeveretProcess]:
        """The running nodes of the downstream; the first node if none runs."""
        return self._first if self.has_turned else self._second

    @property
    def _first(self) -> list[LeveretProcess]:
        members = [] if self.source is None else [each for each in self.source.members if each.alive]
        return [*members] or [self._upstream]

    @property
    def _second(self) -> list[LeveretProcess]:
        return [each for each in self.cluster.members if each.alive] or [self.cluster.members[0]]

    @property
    def upstream(self) -> LeveretProcess:
        """The first running node of the upstream."""
        return self.upstreams[0]

    def lose_upstream(self) -> None:
        """Kill all nodes of the upstream."""
        for each in self.upstreams:
            each.kill9()

    def start(self) -> None:
        """Start both sites; make the vhosts, and the users of the two links, at the upstream."""
        if self.source is None:
            self.upstream.launch()
        else:
            self.source.form()
        self.cluster.form()
        self.upstream.wait_ready()
        ctl = self.upstream.ctl
        ctl("add_schema_replication_user", _SCHEMA_USER, "-", input_text=self._password)
        ctl("add_user", _STANDBY_USER, "-", input_text=self._password)
        for vhost in self.vhosts:
            self.replicate(vhost)

    def replicate(self, vhost: str) -> None:
        """Make a vhost at the upstream; a policy replicates its queues, and mirrors them if a site is a cluster."""
        ctl = self.upstream.ctl
        ctl("add_vhost", vhost, "--tags", "standby_replication")
        for user in ("guest", _STANDBY_USER):
            ctl("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
        definition = json.dumps({"remote-dc-replicate": True, "ha-mode": "all", "ha-sync-mode": "automatic"})
        ctl("set_policy", "--vhost", vhost, "osr", "^.*", definition, "--apply-to", "queues")

    def close(self) -> None:
        """End every process."""
        if self.source is None:
            self._upstream.close()
        else:
            self.source.close()
        self.cluster.close()

    # -- the operator -----------------------------------------------------------------------------

    def follow(self, at: SiteNode | None = None) -> None:
        """Point the downstream at the upstream, by commands at one node; wait until it follows all vhosts."""
        self._point(at or self.cluster.members[0])
        self.wait_following()

    def fail_back(self) -> dict[str, Any]:
        """Start the lost upstream again, and have it rejoin as a downstream; return its report."""
        self.bring_back()
        report: dict[str, Any] = json.loads(self.rejoin(at=self.downstreams[-1]).stdout)
        return report

    def bring_back(self) -> None:
        """Start the lost upstream again, and point it at the promoted site; it is not a downstream yet."""
        lost = self.cluster if self.has_turned else self.source
        if lost is None:
            self._upstream.start()
        else:
            lost.start_all()
        self.has_turned = not self.has_turned
        self.upstream.ctl("add_schema_replication_user", _SCHEMA_USER, "-", input_text=self._password)
        self._point(self.downstreams[0])

    def rejoin(self, *, at: LeveretProcess, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Have the site that came back rejoin as a downstream, by a command at one node."""
        command = ["rejoin_as_downstream", "--formatter", "json"]
        return at.ctl(*command, check=check, timeout_s=PROMOTE_TIMEOUT_S)

    def _point(self, node: LeveretProcess) -> None:
        schema = self._endpoints(_SCHEMA_USER, [each.amqp_port for each in self.upstreams])
        standby = self._endpoints(_STANDBY_USER, [each.stream_port for each in self.upstreams])
        node.ctl("set_schema_replication_upstream_endpoints", "-", input_text=schema)
        node.ctl("set_standby_replication_upstream_endpoints", "-", input_text=standby)

    def _endpoints(self, username: str, ports: Sequence[int]) -> str:
        endpoints = [f"{LOOPBACK}:{port}" for port in ports]
        return json.dumps({"endpoints": endpoints, "username": username, "password": self._password})

    def promote(
        self, *options: str, at: LeveretProcess, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Promote the downstream by a command at one node."""
        command = ["promote_standby_replication_downstream", "--formatter", "json", *options]
        return at.ctl(*command, check=check, timeout_s=PROMOTE_TIMEOUT_S)

    def rows(self, *command: str, at: SiteNode) -> Any:
        """Return the output of a command, in JSON."""
        return json.loads(at.ctl("--formatter", "json", *command, timeout_s=PROMOTE_TIMEOUT_S).stdout)

    def status(self, at: SiteNode | None = None) -> dict[str, Any]:
        """Return the status of the downstream, as one node reports it."""
        node = at or self.downstreams[0]
        found: dict[str, Any] = get(node, "replication/standby/details")
        return found

    def places(self, at: SiteNode | None = None) -> dict[str, dict[str, Any]]:
        """Return the status rows, by vhost."""
        return {row["virtual_host"]: row for row in self.status(at)["vhosts"]}

    # -- the applications -------------------------------------------------------------------------

    def publish(
        self,
        vhost: str,
        queue: str,
        count: int,
        *,
        acked: float = 0.4,
        at: LeveretProcess | None = None,
    ) -> None:
        """Publish messages with confirms, and ack a share of them out of order; queues take turns with the nodes.

        All messages of the queue are read. With a share of 0 that may break off, or find less: a node may be lost.
        """
        place = (vhost, queue)
        unsettled = self.books.expected.setdefault(place, [])
        node = at or self.upstreams[[*self.books.expected].index(place) % len(self.upstreams)]
        with pika.BlockingConnection(parameters(node.amqp_port, vhost)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, [queue])
            for _ in range(count):
                message = self.books.next(queue, exchange=EXCHANGE)
                publish_message(channel, message)
                self.books.confirm(place, message)
            found: list[ReceivedMessage] = []
            gone: set[int] = set()
            while len(found) < len(unsettled) + len(self.books.unsure):
                method, properties, body = channel.basic_get(queue)
                if method is None:
                    break
                found.append(received_message(method, properties, body))
                if self._random.random() < acked:
                    channel.basic_ack(method.delivery_tag)
                    gone.add(found[-1].number)
            # An ack has no reply: the reply to a later method shows that the ack is in the log of the queue's leader.
            channel.queue_declare(queue, durable=True)
        if acked:
            self.books.look(place, found, gone)

    def drained(self, at: LeveretProcess, vhost: str, queue: str) -> list[ReceivedMessage]:
        """Consume all messages of a queue at one node, and return them.

        While the queue's leader is not known, as after a lost lease, a get closes the channel and takes no message.
        """
        found: list[ReceivedMessage] = []
        deadline_s = time.monotonic() + _LED_WITHIN_S
        with pika.BlockingConnection(parameters(at.amqp_port, vhost)) as connection:
            channel = connection.channel()
            while True:
                try:
                    method, properties, body = channel.basic_get(queue, auto_ack=True)
                except pika.exceptions.ChannelClosedByBroker as error:
                    if error.reply_code != _NOT_FOUND or time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.2)
                    channel = connection.channel()
                    continue
                if method is None:
                    return found
                found.append(received_message(method, properties, body))

    def check_recovered(self) -> None:
        """Check that each queue of the promoted site has its expected messages, once, in order and unaltered."""
        for number, place in enumerate(self.books.expected):
            running = self.downstreams
            self.books.check(place, self.drained(running[number % len(running)], *place))

    # -- waiting ----------------------------------------------------------------------------------

    def wait_following(self) -> None:
        """Wait until every vhost has a node that follows it."""

        def followed() -> bool:
            rows = self.places()
            return all(rows.get(vhost, {}).get("state") == "connected" for vhost in self.vhosts)

        self.wait(followed, "every vhost to be followed")

    def wait_spread(self, most: int) -> dict[str, str]:
        """Wait until no node owns more than `most` vhosts, and every owner has all data; return the owners by vhost."""

        def spread() -> bool:
            rows = self.places().values()
            owners = [row["owner"] for row in rows]
            return (
                len(owners) == len(self.vhosts)
                and max(map(owners.count, owners)) <= most
                and all(row["owner"] == row["node"] and row["state"] == "connected" for row in rows)
            )

        self.wait(spread, f"at most {most} vhosts a node")
        return {vhost: row["owner"] for vhost, row in self.places().items()}

    def wait_transferred(self, vhosts: Sequence[str] | None = None) -> None:
        """Wait until the downstream has all records that the upstream has at the time of this call."""
        wanted = self.vhosts if vhosts is None else vhosts
        if self.source is None and not self.has_turned:
            self._wait_beacons(wanted)
            return
        # No promise waits for an ack, so its sync may begin 20 ms later; the upstream reports its position after that.
        began_s = time.monotonic() + _UNAWAITED_S

        def has_all() -> bool:
            rows = [self.places()[vhost] for vhost in wanted]
            since_ms = (time.monotonic() - began_s) * 1000
            return all(
                row["state"] == "connected"
                and not row["lag_records"]
                and row["heard_ago_ms"] is not None
                and row["heard_ago_ms"] < since_ms
                for row in rows
            )

        self.wait(has_all, "all records of all nodes at the standby")

    def _wait_beacons(self, wanted: Sequence[str]) -> None:
        """Publish a beacon in each vhost, and wait until the downstream has it, and thus all earlier records."""
        since_ms = now_ms()
        for vhost in wanted:
            with pika.BlockingConnection(parameters(self.upstream.amqp_port, vhost)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare(BEACON, durable=True)
                channel.basic_publish("", BEACON, b"", pika.BasicProperties(delivery_mode=2))
                channel.basic_get(BEACON, auto_ack=True)

        def transferred() -> bool:
            rows = self.places()
            return all((rows[vhost]["last_timestamp"] or 0) >= since_ms for vhost in wanted)

        self.wait(transferred, "the beacons at the standby")

        def archived() -> bool:
            rows = get(self.downstreams[0], "replication/standby/downstream-metrics")
            newest = {row["vhost"]: row["timestamp"] for row in rows if row["queue"] == BEACON}
            return all(newest[vhost] >= since_ms for vhost in wanted)

        self.wait(archived, "the beacons in the archives")

    def wait(self, holds: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `holds` returns true; an error, as of a node without an answer or a vhost, counts as false."""

        def asked() -> bool:
            self.on_look()
            try:
                return bool(holds())
            except (OSError, KeyError, httpx.HTTPError, StopIteration):
                return False

        wait_until(asked, what, timeout_s)

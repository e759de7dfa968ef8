"""The cost of schema sync: a first sync of 20,000 entities, a sync of ten changes, and one without changes.

One run on two nodes: the runner has started the upstream, and this module makes the downstream. Octets are those of the
AMQP connection between them, in both directions.
"""

from __future__ import annotations

import time
from typing import Any, Final

from bench.client import LoadError
from bench.contenders import LEVERET, Node
from bench.management import call
from bench.queues import definitions
from bench.rows import Reading, Row, Scenario, Settings, Target
from bench.standby import PASSWORD, USER
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess

ENTITIES: Final = 20_000
ENTITIES_QUICK: Final = 1_000
FIRST_S_MAX: Final = 5
UNCHANGED_BYTES_MAX: Final = 1_000
CHANGE_BYTES_MAX: Final = 10_000
CHANGE_MS_MAX: Final = 100
LAG_S_MAX: Final = 3
SYNC_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
DOWNSTREAM: Final = {
    "schema_definition_sync.operating_mode": "downstream",
    # With so long an interval, a change that arrives by itself was announced by the upstream.
    "schema_definition_sync.downstream.minimum_sync_interval": "12h",
}


def ten_changes() -> dict[str, list[dict[str, Any]]]:
    """Return the content of a definitions file with ten new entities."""
    new = definitions(3)
    for number in range(3):
        name = f"new-{number}"
        new["queues"][number]["name"] = new["bindings"][number]["destination"] = name
    return new | {
        "vhosts": [{"name": "new"}],
        "users": [{"name": "new", "password_hash": "", "tags": ""}],
        "permissions": [{"user": "new", "vhost": "new", "configure": "", "write": "", "read": ".*"}],
        "exchanges": [
            {
                "name": "new",
                "vhost": "/",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "arguments": {},
            }
        ],
    }


class Sites:
    """Upstream and downstream, over their management APIs."""

    def __init__(self, upstream: Node, downstream: LeveretProcess) -> None:
        self._upstream, self._downstream = upstream, downstream

    def put(self, document: dict[str, Any]) -> float:
        """Import definitions at the upstream; return the time of the answer."""
        call(self._upstream, "POST", "/api/definitions", document)
        return time.monotonic()

    def follow(self) -> None:
        """Point the downstream at the upstream."""
        call(self._upstream, "POST", "/api/replication/schema/users", {"name": USER, "password": PASSWORD})
        endpoints = {
            "endpoints": [f"{LOOPBACK}:{self._upstream.amqp_port}"],
            "username": USER,
            "password": PASSWORD,
        }
        call(self._downstream, "PUT", "/api/replication/schema/upstream", endpoints)

    def sync(self) -> None:
        """Have the downstream sync; return when it has."""
        call(self._downstream, "POST", "/api/replication/schema/sync", {})

    def status(self) -> dict[str, Any]:
        """Return the downstream's status."""
        found: dict[str, Any] = call(self._downstream, "GET", "/api/tanzu/osr/schema/status").json()
        return found

    def wait_applied(self, count: int, what: str) -> float:
        """Wait until the downstream has applied `count` changes; return the time."""
        wait_until(lambda: self.status()["changes_applied"] >= count, what, SYNC_TIMEOUT_S, interval_s=POLL_S)
        return time.monotonic()

    def queue_count(self) -> int:
        """Return the downstream's number of queues."""
        overview = call(self._downstream, "GET", "/api/overview").json()
        return int(overview["object_totals"]["queues"])


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    count = (ENTITIES_QUICK if settings.quick else ENTITIES) // 2
    with LeveretProcess(config=DOWNSTREAM, parent_dir=settings.folder) as downstream:
        sites = Sites(node, downstream)
        sites.put(definitions(count))
        began = time.monotonic()
        sites.follow()
        wait_until(lambda: sites.status()["syncs"], "a first sync", SYNC_TIMEOUT_S, interval_s=POLL_S)
        first_s = time.monotonic() - began
        first = sites.status()
        if first["changes_applied"] < 2 * count:
            raise LoadError(f"{first['changes_applied']} changes where {2 * count} were due")
        sites.sync()
        sites.sync()
        quiet = sites.status()
        answered = sites.put(ten_changes())
        lag_s = sites.wait_applied(quiet["changes_applied"] + 10, "ten changes") - answered
        after = sites.status()
        if after["syncs"] != quiet["syncs"] + 1 or sites.queue_count() != count + 3:
            raise LoadError(f"{after['syncs'] - quiet['syncs']} syncs and {sites.queue_count()} queues")
    received = {"received_bytes": float(first["last_sync_received_bytes"])}
    return {
        "schema-first": Reading(first_s, details=received),
        "schema-unchanged": Reading(_octets(quiet)),
        "schema-ten-bytes": Reading(_octets(after)),
        "schema-ten": Reading(float(after["last_change_duration"])),
        "schema-lag": Reading(lag_s),
    }


def _octets(status: dict[str, Any]) -> float:
    return float(status["last_sync_sent_bytes"] + status["last_sync_received_bytes"])


SCHEMA: Final = Scenario(
    (
        Row(
            "schema-first",
            f"schema sync, first, {ENTITIES:,} entities",
            "s",
            False,
            Target("value", FIRST_S_MAX),
        ),
        Row(
            "schema-unchanged",
            "schema sync, nothing changed",
            "B",
            False,
            Target("value", UNCHANGED_BYTES_MAX),
        ),
        Row("schema-ten-bytes", "schema sync, ten changes", "B", False, Target("value", CHANGE_BYTES_MAX)),
        Row(
            "schema-ten",
            "schema sync, ten changes, asked and applied",
            "ms",
            False,
            Target("value", CHANGE_MS_MAX),
        ),
        Row(
            "schema-lag",
            "schema sync, ten changes, until they are there",
            "s",
            False,
            Target("value", LAG_S_MAX),
        ),
    ),
    _run,
    brokers=(LEVERET,),
    once=True,
)

"""The metrics that RabbitMQ has not: listeners, and schema and message replication between sites."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

from leveret.core.rules.descriptors import ListenerRefusal
from leveret.management.metrics.text import Family, Metric, Row
from leveret.management.node import ManagedNode
from leveret.runtime.sockets.connection_budget import process_sockets

_LOOP: Final = (
    Metric(
        "event_loop_longest_step_seconds",
        "gauge",
        "Longest step of the event loop in the last minute",
    ),
    Metric("event_loop_long_steps_total", "counter", "Steps of the event loop that took longer than 20 ms"),
    Metric(
        "event_loop_long_step_seconds_total", "counter", "Total time of steps that took longer than 20 ms"
    ),
)
_SCHEMA_STATES: Final = ("running", "connecting", "recover", "connected", "syncing", "disconnected")
_STATE: Final = (Metric("schema_sync_state", "gauge", "1 for the state of the schema link"),)
_DURATION: Final = (Metric("schema_sync_last_duration_seconds", "gauge", "Duration of the last schema sync"),)
_LAST_SYNC: Final = (
    Metric(
        "schema_sync_last_timestamp_seconds",
        "gauge",
        "Unix time of the last finished schema sync",
    ),
)
_SYNCED: Final = (
    Metric("schema_sync_conflicts", "gauge", "Entities that differ from the upstream's and are kept"),
    Metric("schema_sync_refused", "gauge", "Entities of the upstream that this node refuses"),
    Metric("schema_sync_changes_applied_total", "counter", "Changes applied from the upstream"),
)
_LINK_STATES: Final = ("connecting", "recover", "connected", "disconnected")
_LINK: Final = (Metric("standby_state", "gauge", "1 for the state of a vhost's transfer link"),)
_NEWEST: Final = (
    Metric("standby_last_timestamp_seconds", "gauge", "Unix time of the newest record that was transferred"),
)
_LAG: Final = (
    Metric(
        "standby_lag_records",
        "gauge",
        "Records of the upstream, by its last report, that are not transferred yet",
    ),
    Metric(
        "standby_lag_seconds",
        "gauge",
        "Longest possible time since all records of the upstream were transferred; grows while the upstream "
        "is silent",
    ),
)
_HEARD: Final = (
    Metric(
        "standby_upstream_last_heard_seconds",
        "gauge",
        "Time since the last report of the upstream; absent before the first one",
    ),
)
_DOWNSTREAM: Final = (
    Metric("standby_downstream_lag_records", "gauge", "Records that a downstream has not transferred"),
    Metric(
        "standby_downstream_missing_records",
        "gauge",
        "Records that retention dropped before a downstream had them",
    ),
    Metric(
        "standby_downstream_missing_messages",
        "gauge",
        "Most messages of queues that retention had dropped before a downstream began",
    ),
)
_MISSING: Final = (
    Metric("standby_missing_records", "gauge", "Records that the upstream dropped before this node had them"),
    Metric(
        "standby_missing_messages",
        "gauge",
        "Most messages of the upstream's queues that its retention had dropped before this node began",
    ),
)
_UPSTREAM: Final = (Metric("standby_upstream_messages", "gauge", "Messages of a replicated queue"),)
_REMOTE_CONFIRMS: Final = (
    Metric("remote_dc_confirms_waiting", "gauge", "Messages whose confirms wait for a downstream"),
    Metric(
        "remote_dc_confirmed_locally_total",
        "counter",
        "Messages confirmed by this site alone although a policy asks for a downstream",
    ),
    Metric("remote_dc_refused_total", "counter", "Messages nacked because no downstream had them in time"),
)
_LISTENERS: Final = (
    Metric("listener_connections", "gauge", "Connections of a kind of listener, logged in or not"),
    Metric(
        "listener_connections_max",
        "gauge",
        "Most connections that a listener's share of the file descriptors allows",
    ),
)
_REFUSED: Final = (Metric("connections_refused_total", "counter", "Connections that were closed at once"),)


class LeveretMetrics:
    """The families with the prefix `leveret_`, of one scrape."""

    def __init__(self, node: ManagedNode) -> None:
        """Read this node."""
        self._node = node

    def families(self) -> tuple[Family, ...]:
        """All families; they have few rows."""
        return (
            Family("event_loop", _LOOP, self._loop),
            Family("listeners", _LISTENERS, self._listeners),
            Family("listeners_refused", _REFUSED, self._refused),
            Family("schema_sync_state", _STATE, self._state),
            Family("schema_sync_duration", _DURATION, self._duration),
            Family("schema_sync_last", _LAST_SYNC, self._last_sync),
            Family("schema_sync_changes", _SYNCED, self._synced),
            Family("standby_state", _LINK, self._link),
            Family("standby_newest", _NEWEST, self._newest),
            Family("standby_lag", _LAG, self._lag),
            Family("standby_heard", _HEARD, self._heard),
            Family("standby_missing", _MISSING, self._missing),
            Family("standby_upstream", _UPSTREAM, self._upstream),
            Family("standby_downstream", _DOWNSTREAM, self._downstream),
            Family("remote_dc_confirms", _REMOTE_CONFIRMS, self._remote_confirms),
        )

    @cached_property
    def _schema(self) -> dict[str, Any]:
        return self._node.schema_sync.status()

    @cached_property
    def _transfers(self) -> list[dict[str, Any]]:
        """A row for each vhost that this node transfers."""
        rows: list[dict[str, Any]] = self._node.standby.status()["vhosts"]
        return rows

    def _loop(self, vhosts: object) -> Iterable[Row]:
        watch = self._node.loop_watch
        return [Row((), (watch.longest_s, watch.long_steps, watch.long_seconds))]

    def _listeners(self, vhosts: object) -> Iterable[Row]:
        tallies = process_sockets().tallies
        return [Row((("listener", kind),), (tally.count, tally.share)) for kind, tally in tallies.items()]

    def _refused(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("listener", kind), ("reason", reason)), (tally.refused[reason],))
            for kind, tally in process_sockets().tallies.items()
            for reason in ListenerRefusal
        ]

    def _follows_not(self) -> bool:
        """Whether another node of the cluster follows the upstream for all nodes, and reports it."""
        return self._node.schema_sync.follower not in ("", self._node.config.node_name)

    def _state(self, vhosts: object) -> Iterable[Row]:
        if self._follows_not():
            return []
        current = self._schema["state"]
        return [Row((("state", state),), (int(state == current),)) for state in _SCHEMA_STATES]

    def _duration(self, vhosts: object) -> Iterable[Row]:
        duration_ms = self._schema.get("last_sync_duration")
        return [] if duration_ms is None else [Row((), (duration_ms / 1000,))]

    def _last_sync(self, vhosts: object) -> Iterable[Row]:
        stamp = self._schema.get("last_sync_stamp")
        return [] if stamp is None else [Row((), (stamp,))]

    def _synced(self, vhosts: object) -> Iterable[Row]:
        if self._follows_not():
            return []
        status = self._schema
        return [Row((), (status["conflict_count"], status["refused_count"], status["changes_applied"]))]

    def _link(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("vhost", row["virtual_host"]), ("state", state)), (int(state == row["state"]),))
            for row in self._transfers
            for state in _LINK_STATES
        ]

    def _newest(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("vhost", row["virtual_host"]),), (row["last_timestamp"] / 1000,))
            for row in self._transfers
            if row["last_timestamp"] is not None
        ]

    def _lag(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("vhost", row["virtual_host"]),), (row["lag_records"], row["lag_ms"] / 1000))
            for row in self._transfers
        ]

    def _heard(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("vhost", row["virtual_host"]),), (row["heard_ago_ms"] / 1000,))
            for row in self._transfers
            if row["heard_ago_ms"] is not None
        ]

    def _missing(self, vhosts: object) -> Iterable[Row]:
        return [
            Row((("vhost", row["virtual_host"]),), (row["missing_records"], row["missing_messages"]))
            for row in self._transfers
        ]

    def _downstream(self, vhosts: object) -> Iterable[Row]:
        return [
            Row(
                (("vhost", row["virtual_host"]), ("downstream", row["downstream"])),
                (row["lag_records"], row["missing_records"], row["missing_messages"]),
            )
            for row in self._node.upstream.downstreams()
        ]

    def _upstream(self, vhosts: object) -> Iterable[Row]:
        rows = self._node.upstream.messages()
        return (Row((("vhost", vhost), ("queue", queue)), (messages,)) for vhost, queue, messages in rows)

    def _remote_confirms(self, vhosts: object) -> Iterable[Row]:
        """A row for all queues together; none if no policy has confirms wait for downstreams."""
        of_queues = (self._node.upstream.confirms_of(queue) for queue in self._node.broker.queues.values())
        found = [each for each in of_queues if each is not None]
        fields = ("waiting", "confirmed_locally", "refused")
        return [Row((), [sum(each[field] for each in found) for field in fields])] if found else []

"""The metrics of followers: this node's role, each of its followers, its leader, and the scrub.

A leader's rows name each follower; if two have the same name, the label has the id, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from leveret.management.metrics.text import Family, Metric, Number, Row
from leveret.management.node import ManagedNode
from leveret.management.request.leadership import ROLES

_ROLE: Final = (
    Metric("replication_role", "gauge", "1 for the role of this node: leader, follower or fenced"),
)
_EPOCH: Final = (Metric("replication_epoch", "gauge", "Raised by each promotion"),)
_FOLLOWER: Final = {
    "lag_bytes": Metric("follower_lag_bytes", "gauge", "Bytes that a follower has not acknowledged yet"),
    "lag_records": Metric(
        "follower_lag_records", "gauge", "Records that a follower has not acknowledged yet"
    ),
    "lag_s": Metric(
        "follower_lag_seconds", "gauge", "Age of the oldest record that a follower has not acknowledged yet"
    ),
    "in_sync": Metric("follower_in_sync", "gauge", "1 for a follower that confirms wait for"),
    "sent_bytes": Metric("follower_sent_bytes_total", "counter", "Bytes sent to a follower"),
    "acked_bytes": Metric("follower_acked_bytes_total", "counter", "Bytes that a follower acknowledged"),
    "compression_ratio": Metric(
        "follower_compression_ratio", "gauge", "Ratio of the compression on the link to a follower"
    ),
}
_LEADER: Final = {
    "received_bytes": Metric("replication_received_bytes_total", "counter", "Bytes received of the leader"),
    "lag_s": Metric("replication_lag_seconds", "gauge", "Lag of this follower behind its leader, in time"),
    "lag_bytes": Metric("replication_lag_bytes", "gauge", "Lag of this follower behind its leader"),
}
_SCRUB: Final = {
    "chunks": Metric("scrub_chunks_total", "counter", "Stored chunks that were read and checked"),
    "damaged": Metric("scrub_damaged_total", "counter", "Stored chunks that were damaged"),
    "repaired": Metric(
        "scrub_repaired_total", "counter", "Damaged chunks that were repaired from another node"
    ),
}
_PROXY: Final = {
    "connections": Metric(
        "proxied_connections", "gauge", "Connections that this node passes on to its leader"
    ),
    "passed_on": Metric(
        "proxied_connections_total", "counter", "Connections that this node has passed on to its leader"
    ),
    "refused": Metric(
        "proxied_connections_refused_total",
        "counter",
        "Connections that this node closed because it could not pass them on",
    ),
}
_HERE: Final = (
    Metric(
        "connections_from_proxies_total",
        "counter",
        "Connections that other nodes have passed on to this node",
    ),
)
_proxy_values: Final = itemgetter(*_PROXY)
_leader_values: Final = itemgetter(*_LEADER)
_scrub_values: Final = itemgetter(*_SCRUB)


class FollowerMetrics:
    """The families of one scrape."""

    def __init__(self, node: ManagedNode) -> None:
        """Read this node."""
        self._replication = node.replication

    def families(self) -> tuple[Family, ...]:
        """All families; a node without followers has no rows for them."""
        return (
            Family("replication_role", _ROLE, self._role),
            Family("replication_epoch", _EPOCH, self._epoch),
            Family("followers", tuple(_FOLLOWER.values()), self._followers),
            Family("replication", tuple(_LEADER.values()), self._leader),
            Family("proxy", tuple(_PROXY.values()), self._proxy),
            Family("proxied_here", _HERE, self._proxied_here),
            Family("scrub", tuple(_SCRUB.values()), self._scrub),
        )

    @cached_property
    def _status(self) -> dict[str, Any]:
        return self._replication.status()

    def _role(self, vhosts: object) -> Iterable[Row]:
        return [Row((("role", role),), (int(role == self._status["role"]),)) for role in ROLES]

    def _epoch(self, vhosts: object) -> Iterable[Row]:
        return [Row((), (self._status["epoch"],))]

    def _followers(self, vhosts: object) -> Iterable[Row]:
        followers = self._status["followers"]
        names = Counter(each["name"] for each in followers)
        for each in followers:
            name = each["name"]
            label = name if names[name] == 1 else f"{name} ({each['node_id']})"
            yield Row((("follower", label),), [_number(each[field]) for field in _FOLLOWER])

    def _leader(self, vhosts: object) -> Iterable[Row]:
        leader = self._status["leader"]
        return [] if leader is None else [Row((), _leader_values(leader))]

    def _proxy(self, vhosts: object) -> Iterable[Row]:
        proxy = self._status["proxy"]
        return [] if proxy is None else [Row((), _proxy_values(proxy))]

    def _proxied_here(self, vhosts: object) -> Iterable[Row]:
        return [Row((), (self._status["proxied_here"],))]

    def _scrub(self, vhosts: object) -> Iterable[Row]:
        return [Row((), _scrub_values(self._status["scrub"]))]


def _number(value: Number | bool | None) -> Number | None:
    """A number for Prometheus, which has no booleans."""
    return int(value) if isinstance(value, bool) else value

"""Facts of sites for tests, by what is special about them."""

from __future__ import annotations

from typing import Any

from leveret.console.sites.documents import (
    CollectedVhost,
    KnownDownstream,
    NodeReplication,
    Overview,
    PolicyStatus,
    QueueStatus,
    StandbyDetails,
    TransferredVhost,
    VhostStatus,
)
from leveret.console.sites.facts import SiteFacts

NOW_MS = 1_800_000_000_000


def upstream(*queues: QueueStatus, tagged: bool = True, **changes: Any) -> SiteFacts:
    """Site eu with vhost `orders`, whose policy `osr` sends queues to a standby."""
    facts = SiteFacts("eu", "guest", ("administrator",), heard_ms=NOW_MS, queues_ms=NOW_MS)
    facts.overview = Overview(cluster_name="eu.1")
    facts.vhosts = [VhostStatus("orders", ["standby_replication"] if tagged else [])]
    facts.policies = [PolicyStatus("orders", "osr", {"remote-dc-replicate": True})]
    facts.replication = NodeReplication(role="leader", node="a")
    facts.queues = list(queues)
    facts.standby = StandbyDetails(
        operating_mode="upstream",
        collected=[CollectedVhost("orders")],
        downstreams=[KnownDownstream("orders", "us.1", lag_records=7)],
    )
    for name, value in changes.items():
        setattr(facts, name, value)
    return facts


def downstream(**row: Any) -> SiteFacts:
    """Site us, which transfers vhost `orders`; `row` is how far it is."""
    facts = SiteFacts("us", "guest", ("administrator",), heard_ms=NOW_MS, queues_ms=NOW_MS)
    facts.overview = Overview(cluster_name="us.1")
    facts.replication = NodeReplication(role="leader", node="s")
    known: dict[str, Any] = {
        "state": "connected",
        "lag_ms": 0,
        "heard_ago_ms": 100,
        "is_archive_read": True,
    } | row
    facts.standby = StandbyDetails(
        operating_mode="downstream", downstream="us.1#77", vhosts=[TransferredVhost("orders", **known)]
    )
    return facts


def queue(name: str = "new", messages: int = 100, **changes: Any) -> QueueStatus:
    """A durable queue of vhost `orders` at node a, with policy `osr`."""
    given = {"node": "a", "policy": "osr"} | changes
    return QueueStatus(name, "orders", messages=messages, **given)

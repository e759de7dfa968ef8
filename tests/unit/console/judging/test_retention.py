from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from leveret.console.judging.links import standby_links
from leveret.console.judging.retention import retention_used, retention_warnings
from leveret.console.judging.safety import Danger, safety_rows
from leveret.console.sites.documents import CollectedVhost, KnownDownstream, StandbyDetails
from leveret.console.sites.facts import SiteFacts
from tests.unit.console.facts import NOW_MS, downstream, queue, upstream

HOUR_MS = 3_600_000


def keeping(lag: int, **limits: Any) -> SiteFacts:
    """Site eu, which keeps 1,000 records of the last hour in 1 MB, of which its standby lacks the newest `lag`."""
    kept = CollectedVhost("orders", kept=1_000, bytes=1_000_000, oldest_ms=NOW_MS - HOUR_MS, newest_ms=NOW_MS)
    details = StandbyDetails(
        operating_mode="upstream",
        collected=[kept],
        downstreams=[KnownDownstream("orders", "us.1", lag_records=lag)],
        **limits,
    )
    return upstream(queue(), standby=details)


@pytest.mark.parametrize(
    ("lag", "limits", "used"),
    [
        (500, {"retention_bytes_max": 1_000_000}, 0.5),
        (1_500, {"retention_bytes_max": 2_000_000}, 0.5),
        (500, {"retention_bytes_max": 10_000_000, "retention_ms_max": HOUR_MS}, 0.5),
        (0, {"retention_bytes_max": 1_000_000, "retention_ms_max": 1}, 0.0),
        (500, {}, None),
    ],
)
def test_what_the_standby_lacks_is_measured_against_what_may_be_kept(
    lag: int, limits: dict[str, int], used: float | None
) -> None:
    eu = keeping(lag, **limits)
    [link] = standby_links([eu, downstream(lag_records=lag)])
    assert retention_used(eu, link, NOW_MS) == used


def test_a_standby_is_warned_of_before_retention_overtakes_it() -> None:
    behind: dict[str, Any] = {
        "state": "disconnected",
        "lag_ms": HOUR_MS,
        "lag_records": 900,
        "heard_ago_ms": 60_000,
    }
    sites = [keeping(900, retention_bytes_max=1_000_000), downstream(**behind)]
    [row] = safety_rows(sites, NOW_MS)
    assert row.danger is Danger.BEHIND
    assert (
        "Retention overtakes standby us soon: the missing records of vhost orders are 90% of the limit at site eu"
        in row.reason
    )
    assert len(retention_warnings(sites, standby_links(sites), NOW_MS)) == 1
    calm = [keeping(900, retention_bytes_max=10_000_000), downstream(**behind)]
    assert "Retention" not in safety_rows(calm, NOW_MS)[0].reason
    assert retention_warnings(calm, standby_links(calm), NOW_MS) == []


def test_each_node_of_a_cluster_may_keep_as_much_and_the_worst_of_them_counts() -> None:
    eu = keeping(0, retention_bytes_max=1_000_000)
    [log] = eu.standby.collected
    eu.standby.collected = [structs.replace(log, node="n1@h"), structs.replace(log, node="n2@h")]
    eu.standby.downstreams = [
        KnownDownstream("orders", "us.1", node="n1@h", lag_records=100),
        KnownDownstream("orders", "us.1", node="n2@h", lag_records=600),
    ]
    [link] = standby_links([eu, downstream()])
    assert retention_used(eu, link, NOW_MS) == 0.6

"""A lost site comes back as the downstream of the cluster that took its place, and is promoted again: exact books.

The story is played for a cluster that follows a cluster, and for one that follows a node. Which messages are acked
follows from a seed; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites import cluster_site
from leveret.testing.sites.standby_cluster import StandbyCluster

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(1500)]

VHOST: Final = "orders"
QUEUES: Final = ("q1", "q2")
PER_QUEUE: Final = 40
LATE: Final = 15


def publish(sites: StandbyCluster, count: int, acked: float = 0.4) -> None:
    for queue in QUEUES:
        sites.publish(VHOST, queue, count, acked=acked)


def divergent(node: LeveretProcess) -> list[dict[str, Any]]:
    """The quarantined messages of a site, as one of its nodes lists them."""
    found = json.loads(node.ctl("--formatter", "json", "list_divergent_messages").stdout)
    rows: list[dict[str, Any]] = found["messages"]
    return rows


@pytest.mark.parametrize("upstream_nodes", [2, 1])
def test_a_site_comes_back_with_what_only_it_has_set_aside(tmp_path: Path, upstream_nodes: int) -> None:
    if reason := cluster_site.available():
        pytest.skip(reason)
    seed = int(os.environ.get("LEVERET_SEED", "5"))
    print(f"seed {seed}")
    with StandbyCluster(tmp_path, [VHOST], nodes=2, upstream_nodes=upstream_nodes, seed=seed) as sites:
        publish(sites, PER_QUEUE)
        sites.follow()
        publish(sites, PER_QUEUE)
        sites.wait_transferred()
        transferred = {place: [*numbers] for place, numbers in sites.books.expected.items()}
        before = {*sites.books.published}

        # What comes while the link is down is at the upstream only.
        sites.cluster.members[0].ctl("disconnect_standby_replication_downstream")
        publish(sites, LATE, acked=0)
        late = {*sites.books.published} - before
        sites.lose_upstream()
        sites.promote(at=sites.cluster.members[1])
        sites.books.expected = transferred
        report = sites.fail_back()
        set_aside = dict.fromkeys(QUEUES, 0)
        for row in report["queues"]:
            if row["queue"] in set_aside:
                set_aside[row["queue"]] += row["messages"]
        assert set_aside == dict.fromkeys(QUEUES, LATE)
        for node in sites.downstreams:
            kept = [row for row in divergent(node) if row["queue"] in QUEUES]
            assert {*sites.books.check_rows(kept)} == late
        if sites.source is not None:
            assert {place["node"] for place in report["places"]} <= {
                node.node for node in sites.source.members
            }

        # From here on the sites are the other way round, and the next disaster is the same.
        sites.wait_following()
        publish(sites, PER_QUEUE)
        sites.wait_transferred()
        sites.lose_upstream()
        sites.promote(at=sites.downstreams[0])
        sites.check_recovered()

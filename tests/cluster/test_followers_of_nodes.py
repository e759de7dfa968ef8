"""A node beyond the cluster follows one of its nodes: all that this one holds, wherever queues are led meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from leveret.testing.applications.compare import compare
from leveret.testing.network.ports import wait_until
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite
from tests.cluster.beyond import BODY, QUEUES, Beyond, declare, publish, publish_to_mirrored

pytestmark = [
    pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available())),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    with ClusterSite(tmp_path_factory.mktemp("followed"), followed=True) as site:
        yield site


@pytest.fixture
def beyond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beyond]:
    follower = Beyond("beyond", tmp_path_factory.mktemp("beyond"))
    yield follower
    follower.close()


def test_a_follower_has_what_its_node_leads_and_mirrors_and_leadership_moves_both_ways(
    site: ClusterSite, beyond: Beyond
) -> None:
    n1, n2, _ = site.members
    declare(site, n2, n1)
    publish(site, 40, at=n1)
    beyond.follow(n2)
    beyond.wait_even_with(n2)
    leader = beyond.leader()
    assert (leader["name"], leader["lag_records"], leader["lag_bytes"]) == (n2.node, 0, 0)
    [row] = json.loads(n2.ctl("--formatter", "json", "replication_status").stdout)["followers"]
    assert row["in_sync"]
    assert row["lag_bytes"] == 0

    # It rejoins by position.
    beyond.node.kill9()
    publish(site, 5, at=n1)
    beyond.follow(n2, secret=False)
    beyond.wait_even_with(n2)
    assert beyond.leader()["received_bytes"] < 4 * 5 * len(BODY)

    # The leader of a queue that the node mirrors is lost; then the node itself, with what it leads.
    for lost in (n1, n2):
        lost.kill9()
        rest = next(each for each in site.members if each.alive)
        publish_to_mirrored(site, 10, at=rest)
        site.start_all()
        publish(site, 10, at=n1)
    site.wait_members()
    beyond.wait_even_with(n2)
    shown = {row["name"]: row["messages"] for row in beyond.get("queues")}
    there = {row["name"]: row["messages"] for row in site.api("GET", "queues", at=n2)}
    assert shown == there
    for each in (n1, site.members[2]):
        each.stop()
    wait_until(lambda: beyond.leader()["lag_bytes"] == 0, "all of it", 60)
    n2.stop()
    beyond.node.stop()
    found = compare(n2.data_dir, beyond.data_dir)
    assert found.is_identical, found
    assert found.logs > len(QUEUES)

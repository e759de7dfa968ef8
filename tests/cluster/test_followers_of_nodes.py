"""A node beyond the cluster follows one of its nodes: all that this one holds, wherever queues are led meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest

from leveret.testing.applications.compare import compare
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.cluster_site import ClusterSite
from tests.cluster.beyond import BODY, QUEUES, Beyond, declare, messages_of, publish, publish_to_mirrored
from tests.e2e.follower_clients import channel_at

pytestmark = [pytest.mark.story, pytest.mark.timeout(900)]


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


def test_a_delayed_follower_of_a_node_undoes_a_purge_and_a_follower_of_a_follower_has_all(
    site: ClusterSite, beyond: Beyond, tmp_path_factory: pytest.TempPathFactory
) -> None:
    n1, n2, _ = site.members
    declare(site, n2, n1)
    publish(site, 10, at=n1, acks=0)
    beyond.follow(n2)
    delayed = Beyond("delayed", tmp_path_factory.mktemp("delayed"), {"replication.apply_delay": "1h"})
    last = Beyond("last", tmp_path_factory.mktemp("last"))
    with closing(delayed), closing(last):
        last.follow(beyond)
        delayed.follow(n2)
        delayed.wait_even_with(n2)
        publish(site, 5, at=n1, acks=0)
        delayed.wait_even_with(n2)
        before = datetime.fromtimestamp(delayed.leader()["held_back"]["newest_at_ms"] / 1000, UTC)
        with site.channel(n1) as channel:
            for name in QUEUES:
                channel.queue_purge(name)
        publish(site, 1, at=n1, acks=0)
        for follower, followed in ((beyond, n2), (last, beyond), (delayed, n2)):
            follower.wait_even_with(followed)
            assert {row["name"]: row["messages"] for row in follower.get("queues")} == dict.fromkeys(
                QUEUES, 1
            )

        n2.stop()
        promoted = delayed.node.ctl(
            "-q", "promote_follower", "--apply-until", before.isoformat(), check=False
        )
        assert promoted.returncode == 0, promoted.stderr
        delayed.node.wait_ready()
        expected = [str(number) for count in (10, 5) for number in range(count)]
        with channel_at(delayed) as channel:
            assert {name: messages_of(channel, name) for name in QUEUES} == dict.fromkeys(QUEUES, expected)

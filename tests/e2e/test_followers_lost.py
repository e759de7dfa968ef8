"""A log is removed while its node is down, and the leader is lost: a node that has the log leads, and sends it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.servers import etcd
from leveret.testing.servers.etcd import EtcdCluster
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import bodies, declare, numbered, publish

BODIES: Final = numbered(0, 100, 1000)
QUEUES: Final = ("orders", "bills")

pytestmark = pytest.mark.skipif(etcd.available() is not None, reason=str(etcd.available()))


@pytest.fixture
def site(tmp_path: Path, own_etcd: EtcdCluster) -> Iterator[FollowerSite]:
    """Three nodes, of which etcd lets one lead: node one, while it is there."""
    settings = {
        "cluster.etcd.endpoints": own_etcd.setting,
        "cluster.etcd.prefix": "/lost",
        "cluster.etcd.lease_ttl": "2s",
    }
    with FollowerSite(tmp_path, followers=2, config=settings) as found:
        one, two, three = found.members
        one.lead()
        for other in (two, three):
            other.take_secret(one)
            other.lead(wait=False)
        found.wait_in_sync()
        yield found


def fill(site: FollowerSite) -> dict[str, str]:
    """Queues with messages at all nodes; the names of their logs."""
    for queue in QUEUES:
        declare(site.leader, queue)
        publish(site.leader, queue, BODIES)
    site.wait_even()
    rows = site.leader.ask("POST", "replication/verify", {}).json()
    return {row["queue"]: row["log"] for row in rows if row["queue"]}


def stand_again(node: FollowerSiteNode) -> None:
    """Start a node that etcd may elect; return when it answers."""
    node.lead(wait=False)
    node.wait_answers()


def lose_all(site: FollowerSite) -> None:
    """Kill all nodes at one moment, the leader first, so that etcd records all of them as in sync."""
    for node in site.members:
        node.node.server.signal(signal.SIGKILL)
    for node in site.members:
        node.node.kill9()


@pytest.mark.parametrize("removed", ["queue", "definitions"])
def test_a_follower_that_lost_a_log_stands_behind_one_that_has_it(site: FollowerSite, removed: str) -> None:
    logs = fill(site)
    _, two, three = site.members
    lose_all(site)
    shutil.rmtree(two.data_dir / (removed if removed == "definitions" else logs["orders"]))
    stand_again(two)
    wait_until(lambda: "not_elected" in two.node.log_text(), "the first candidacy", PATIENCE_S)
    assert "logs_lost" in two.node.log_text()
    assert "removed" in two.status()["incomplete"]
    assert not two.promote()["promoted"]
    stand_again(three)
    three.node.wait_ready()
    for queue in QUEUES:
        assert bodies(three, queue) == BODIES
    three.wait_in_sync(two)
    assert two.status()["incomplete"] == ""
    three.node.kill9()
    two.node.wait_ready()
    assert {queue: bodies(two, queue) for queue in QUEUES} == dict.fromkeys(QUEUES, BODIES)

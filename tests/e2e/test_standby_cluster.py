"""A cluster of three nodes as the downstream of a node: owners, transfer, promotion from any node, exact books.

The story is played once, and told by several tests. Which messages are acked follows from a seed; LEVERET_SEED sets
another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from leveret.testing.sites import cluster_site
from leveret.testing.sites.standby_cluster import StandbyCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

VHOSTS: Final = ("orders", "shop")
QUEUES: Final = ("q1", "q2")
PER_QUEUE: Final = 60


@dataclass
class Aftermath:
    """How it went: what each node said before the disaster, and what the promotion said."""

    owners: dict[str, str] = field(default_factory=dict)
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    disconnected: list[str] = field(default_factory=list)
    refused: str = ""
    dry_run: dict[str, Any] = field(default_factory=dict)
    promoted: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[Any] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    leaders: set[str] = field(default_factory=set)
    expected: int = 0


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    if reason := cluster_site.available():
        pytest.skip(reason)
    seed = int(os.environ.get("LEVERET_SEED", "7"))
    print(f"seed {seed}")
    with StandbyCluster(tmp_path_factory.mktemp("sites"), VHOSTS, seed=seed) as sites:
        yield played(sites)


def played(sites: StandbyCluster) -> Aftermath:
    told = Aftermath()
    first, second, third = sites.cluster.members
    for vhost in VHOSTS:
        for queue in QUEUES:
            sites.publish(vhost, queue, PER_QUEUE)
    sites.follow(at=second)
    told.owners = sites.wait_spread(most=1)
    for vhost in VHOSTS:
        for queue in QUEUES:
            sites.publish(vhost, queue, PER_QUEUE)
    sites.wait_transferred()
    for node in sites.cluster.members:
        told.before[node.node] = {
            "available": sites.rows("list_vhosts_available_for_standby_replication_recovery", at=node),
            "disk": sites.rows("display_disk_space_used_by_standby_replication_data", at=node),
            "metrics": sites.rows("inspect_standby_downstream_metrics", at=node),
            "status": sites.status(at=node),
        }
    third.ctl("disconnect_standby_replication_downstream")
    told.disconnected = [sites.status(at=node)["state"] for node in sites.cluster.members]
    first.ctl("connect_standby_replication_downstream")
    sites.wait_following()
    told.refused = first.ctl(
        "promote_standby_replication_downstream", "--queues", "nobody", check=False
    ).stderr
    told.expected = sum(map(len, sites.expected.values()))
    sites.upstream.kill9()
    told.dry_run = json.loads(sites.promote("--dry-run", at=second).stdout)
    told.promoted = json.loads(sites.promote(at=third).stdout)
    for node in sites.cluster.members:
        told.summaries.append(sites.rows("display_standby_promotion_summary", at=node))
        told.after.append(sites.status(at=node))
    told.leaders = {leader for vhost in VHOSTS for leader in sites.queue_leaders(vhost).values()}
    sites.check_recovered()
    return told


def test_each_vhost_is_owned_by_one_node_and_any_node_says_so(aftermath: Aftermath) -> None:
    assert sorted(aftermath.owners) == sorted(VHOSTS)
    assert len(set(aftermath.owners.values())) == len(VHOSTS)
    for told in aftermath.before.values():
        rows = {row["virtual_host"]: row for row in told["status"]["vhosts"]}
        assert {vhost: row["node"] for vhost, row in rows.items()} == aftermath.owners
        assert {row["lag_records"] for row in rows.values()} == {0}
        assert len(told["status"]["nodes"]) == 3


def test_any_node_lists_what_all_nodes_have_transferred(aftermath: Aftermath) -> None:
    for told in aftermath.before.values():
        assert sorted(row["virtual_host"] for row in told["available"]) == sorted(VHOSTS)
        of_owners = {
            row["vhost"]: row["node"] for row in told["disk"] if row["node"] == aftermath.owners[row["vhost"]]
        }
        assert of_owners == aftermath.owners
        counted = {(row["vhost"], row["queue"]): row["messages"] for row in told["metrics"]}
        assert all(counted[vhost, queue] == 2 * PER_QUEUE for vhost in VHOSTS for queue in QUEUES)


def test_the_link_is_the_sites_from_any_node(aftermath: Aftermath) -> None:
    assert aftermath.disconnected == ["disconnected"] * 3


def test_a_queue_that_no_node_knows_is_refused_before_anything_begins(aftermath: Aftermath) -> None:
    assert "there is no queue 'nobody' to recover" in aftermath.refused


def test_a_dry_run_counts_what_all_nodes_would_recover(aftermath: Aftermath) -> None:
    assert sum(row["message_count"] for row in aftermath.dry_run["queues"]) == aftermath.expected
    assert {row["virtual_host"] for row in aftermath.dry_run["queues"]} == set(VHOSTS)


def test_a_promotion_from_any_node_recovers_all_vhosts_once_and_in_order(aftermath: Aftermath) -> None:
    """The books themselves are compared in the story, queue by queue, at changing nodes."""
    assert {row["virtual_host"] for row in aftermath.promoted} == set(VHOSTS)
    assert sum(row["message_count"] for row in aftermath.promoted) == aftermath.expected
    assert aftermath.summaries[0] == aftermath.summaries[1] == aftermath.summaries[2]


def test_all_nodes_are_an_upstream_after_the_promotion(aftermath: Aftermath) -> None:
    assert {(told["operating_mode"], told["state"]) for told in aftermath.after} == {("upstream", "running")}

"""A cluster of three nodes as the downstream of another one: owners, transfer, promotion, exact books, a return.

The lost site comes back as the downstream of the one that took its place; the disaster after that is played by
tests/e2e/test_rejoin_sites.py. The story is played once, and told by several tests. Which messages are acked follows
from a seed; LEVERET_SEED sets another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.standby_cluster import StandbyCluster
from tests.e2e.test_rejoin_sites import divergent

pytestmark = [pytest.mark.story, pytest.mark.spark, pytest.mark.timeout(900)]

VHOSTS: Final = ("orders", "shop")
QUEUES: Final = ("q1", "q2")
PER_QUEUE: Final = 60
LATE: Final = 15


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
    expected: int = 0
    late: set[int] = field(default_factory=set)
    returned: dict[str, Any] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    lost_nodes: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    if reason := cluster_site.available():
        pytest.skip(reason)
    seed = int(os.environ.get("LEVERET_SEED", "7"))
    print(f"seed {seed}")
    with StandbyCluster(tmp_path_factory.mktemp("sites"), VHOSTS, upstream_nodes=2, seed=seed) as sites:
        yield played(sites)


def publish(sites: StandbyCluster, count: int, acked: float = 0.4) -> None:
    for vhost in VHOSTS:
        for queue in QUEUES:
            sites.publish(vhost, queue, count, acked=acked)


def counted(sites: StandbyCluster, at: SiteNode) -> dict[tuple[str, str], int]:
    """The messages of each queue that the standby has, as a node says."""
    rows = sites.rows("inspect_standby_downstream_metrics", at=at)
    return {(row["vhost"], row["queue"]): row["messages"] for row in rows}


def played(sites: StandbyCluster) -> Aftermath:
    told = Aftermath()
    _, second, third = sites.cluster.members
    publish(sites, PER_QUEUE)
    sites.follow(at=second)
    told.owners = sites.wait_spread(most=1)
    publish(sites, PER_QUEUE)
    sites.wait_transferred()
    all_of_it = dict.fromkeys(((vhost, queue) for vhost in VHOSTS for queue in QUEUES), 2 * PER_QUEUE)
    sites.wait(lambda: counted(sites, second) == all_of_it, "all messages in the archives")
    for node in sites.cluster.members:
        told.before[node.node] = {
            "available": sites.rows("list_vhosts_available_for_standby_replication_recovery", at=node),
            "disk": sites.rows("display_disk_space_used_by_standby_replication_data", at=node),
            "metrics": counted(sites, node),
            "status": sites.status(at=node),
        }
    told.refused = third.ctl(
        "promote_standby_replication_downstream", "--queues", "nobody", check=False
    ).stderr
    told.expected = sum(map(len, sites.books.expected.values()))
    sites.lose_upstream()
    told.dry_run = json.loads(sites.promote("--dry-run", at=second).stdout)
    told.promoted = json.loads(sites.promote(at=third).stdout)
    for node in sites.cluster.members:
        told.summaries.append(sites.rows("display_standby_promotion_summary", at=node))
        told.after.append(sites.status(at=node))
    sites.check_recovered()
    come_back(sites, told)
    return told


def come_back(sites: StandbyCluster, told: Aftermath) -> None:
    """Applications use the lost site once more; then it is told which site took its place."""
    assert sites.source is not None
    sites.source.start_all()
    told.lost_nodes = {node.node for node in sites.source.members}
    before = {*sites.books.published}
    publish(sites, LATE, acked=0)
    told.late = {*sites.books.published} - before
    told.returned = sites.fail_back()
    sites.wait_following()
    kept = [row for node in sites.downstreams for row in divergent(node) if row["queue"] in QUEUES]
    told.kept = {*sites.books.check_rows(kept)}
    sites.downstreams[0].ctl("disconnect_standby_replication_downstream")
    told.disconnected = [sites.status(at=node)["state"] for node in sites.source.members]


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
        assert told["metrics"] == {(vhost, queue): 2 * PER_QUEUE for vhost in VHOSTS for queue in QUEUES}


def test_the_link_is_the_sites_from_any_node(aftermath: Aftermath) -> None:
    assert aftermath.disconnected == ["disconnected"] * 2


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


def test_a_lost_site_that_comes_back_has_what_only_it_has_set_aside(aftermath: Aftermath) -> None:
    set_aside = dict.fromkeys(QUEUES, 0)
    for row in aftermath.returned["queues"]:
        if row["queue"] in set_aside:
            set_aside[row["queue"]] += row["messages"]
    assert set_aside == dict.fromkeys(QUEUES, LATE * len(VHOSTS))
    assert aftermath.kept == aftermath.late
    assert {place["node"] for place in aftermath.returned["places"]} <= aftermath.lost_nodes

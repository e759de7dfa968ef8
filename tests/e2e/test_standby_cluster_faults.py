"""A downstream cluster whose nodes are killed, paused, added and forgotten, also in a promotion: exact books."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.standby_cluster import StandbyCluster

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(1500)]

VHOSTS: Final = ("orders", "shop", "stock", "trips")
PER_QUEUE: Final = 40


def node_of(sites: StandbyCluster, name: str) -> SiteNode:
    return next(node for node in sites.cluster.members if node.node == name)


def publish_everywhere(sites: StandbyCluster) -> None:
    for vhost in VHOSTS:
        sites.publish(vhost, "q", PER_QUEUE)


def lose(sites: StandbyCluster, vhost: str) -> tuple[SiteNode, set[str]]:
    """Kill the owner of a vhost while messages come; return it with the vhosts that it owned."""
    places = sites.places()
    lost = node_of(sites, places[vhost]["owner"])
    its = {each for each, row in places.items() if row["owner"] == lost.node}
    publisher = threading.Thread(target=publish_everywhere, args=(sites,))
    publisher.start()
    lost.kill9()
    publisher.join()
    return lost, its


def wait_taken_over(sites: StandbyCluster, vhosts: set[str], lost: SiteNode) -> None:
    """Wait until others own these vhosts and have all of them, so that the lost node is needed no more."""
    # A suspended node does not answer.
    asked = next(node for node in sites.cluster.members if node.alive and node is not lost)

    def taken() -> bool:
        rows = sites.places(asked)
        return all(rows[each]["node"] == rows[each]["owner"] != lost.node for each in vhosts)

    sites.wait(taken, f"{sorted(vhosts)} taken over from {lost.node}")


def test_nodes_are_lost_and_come_in_transfer_and_promotion_and_the_books_balance(tmp_path: Path) -> None:
    if reason := cluster_site.available():
        pytest.skip(reason)
    seed = int(os.environ.get("LEVERET_SEED", "11"))
    print(f"seed {seed}")
    with StandbyCluster(tmp_path, VHOSTS, seed=seed) as sites:
        publish_everywhere(sites)
        sites.follow()
        sites.wait_spread(most=2)

        # An owner is killed in transfer: others take its vhosts over, from what the upstream has.
        lost, its = lose(sites, "orders")
        wait_taken_over(sites, its, lost)
        sites.cluster.start(lost)
        sites.wait_spread(most=2)

        # An owner is paused for longer than its lease, and comes back: it owns nothing that others own by now.
        paused = node_of(sites, sites.places()["shop"]["owner"])
        its = {each for each, row in sites.places().items() if row["owner"] == paused.node}
        with sites.cluster.paused(paused):
            publish_everywhere(sites)
            wait_taken_over(sites, its, paused)
        sites.wait_spread(most=2)

        # A node comes, and one is forgotten: owners are even again.
        sites.cluster.start(sites.cluster.add())
        assert sorted(
            map([*sites.wait_spread(most=1).values()].count, {node.node for node in sites.cluster.members})
        ) == [1, 1, 1, 1]
        gone = node_of(sites, sites.places()["stock"]["owner"])
        gone.stop()
        keeper = next(node for node in sites.cluster.members if node.alive)
        assert sites.cluster.forget(gone, at=keeper)
        publish_everywhere(sites)
        sites.wait_spread(most=2)
        sites.wait_transferred()

        # The upstream is lost, and then an owner, while the promotion recovers: the promotion waits for its data.
        sites.upstream.kill9()
        running = [node for node in sites.cluster.members if node.alive]
        victim = node_of(sites, sites.places(running[0])["trips"]["node"])
        asked = next(node for node in running if node is not victim)
        promotion = threading.Thread(target=sites.promote, kwargs={"at": asked, "check": False})
        promotion.start()
        sites.wait(lambda: sites.status(asked)["promotion"], "the promotion to begin")
        victim.kill9()
        refused = sites.promote(at=asked, check=False)
        assert refused.returncode != 0
        sites.cluster.start(victim)
        promotion.join()
        sites.promote(at=running[-1])
        assert {sites.status(node)["operating_mode"] for node in running} == {"upstream"}
        sites.check_recovered()

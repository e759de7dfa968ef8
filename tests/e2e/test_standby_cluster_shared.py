"""A downstream cluster whose nodes share one archive, on a path or in a store: exact books over losses of owners."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.servers.object_store import ObjectStore
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import SiteNode
from leveret.testing.sites.standby_cluster import StandbyCluster
from tests.e2e.test_standby_cluster_faults import VHOSTS, lose, node_of, publish_everywhere

pytestmark = [pytest.mark.spark, pytest.mark.torture, pytest.mark.timeout(1500)]

PLACE: Final = "standby.replication.downstream.data_dir"


def wait_moved(sites: StandbyCluster, vhosts: set[str], lost: SiteNode) -> None:
    """Wait until other nodes own these vhosts, and go on where the archive stands."""
    # A suspended node does not answer.
    asked = next(node for node in sites.cluster.members if node.alive and node is not lost)

    def moved() -> bool:
        rows = sites.places(asked)
        return all(rows[each]["owner"] != lost.node and rows[each]["state"] == "connected" for each in vhosts)

    sites.wait(moved, f"{sorted(vhosts)} taken over from {lost.node}")
    assert all(row["node"] == row["owner"] for row in sites.places(asked).values()), (
        "no node holds data alone"
    )


@pytest.mark.parametrize("kind", ["path", "store"])
def test_owners_are_lost_in_transfer_and_promotion_and_nothing_waits_for_them(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if reason := cluster_site.available():
        pytest.skip(reason)
    if kind == "store":
        store: ObjectStore = request.getfixturevalue("object_store")
        config = {PLACE: store.new_place()}
    else:
        config = {PLACE: str(tmp_path / "shared"), "standby.replication.downstream.shared_data_dir": "true"}
    seed = int(os.environ.get("LEVERET_SEED", "11"))
    print(f"seed {seed}")
    with StandbyCluster(tmp_path, VHOSTS, seed=seed, config=config) as sites:
        publish_everywhere(sites)
        sites.follow()
        sites.wait_spread(most=2)
        sites.wait_transferred()
        before = {vhost: row["transferred"] for vhost, row in sites.places().items()}

        # An owner is killed in transfer: the next one goes on where the archive stands, and nothing is left with it.
        lost, its = lose(sites, "orders")
        wait_moved(sites, its, lost)
        assert all(sites.places()[each]["transferred"] >= before[each] for each in its)
        sites.wait_transferred()
        sites.cluster.start(lost)
        sites.wait_spread(most=2)

        # An owner is paused in transfer and comes back: the archive has nothing of it that the next owner lacks.
        paused = node_of(sites, sites.places()["shop"]["owner"])
        its = {each for each, row in sites.places().items() if row["owner"] == paused.node}
        with sites.cluster.paused(paused):
            publish_everywhere(sites)
            wait_moved(sites, its, paused)
        sites.wait_spread(most=2)
        publish_everywhere(sites)
        sites.wait_transferred()

        # The upstream is lost, and then an owner for good, while the promotion recovers: another node recovers for it.
        sites.upstream.kill9()
        running = [node for node in sites.cluster.members if node.alive]
        victim = node_of(sites, sites.places(running[0])["trips"]["owner"])
        asked = next(node for node in running if node is not victim)
        codes: list[int] = []
        promotion = threading.Thread(
            target=lambda: codes.append(sites.promote(at=asked, check=False).returncode)
        )
        promotion.start()
        sites.wait(lambda: sites.status(asked)["promotion"], "the promotion to begin")
        victim.kill9()
        promotion.join()
        if codes != [0]:
            # The link to the lost node may have broken the command; the promotion goes on by itself.
            sites.promote(at=asked)
        rest = [node for node in running if node is not victim]
        assert {sites.status(node)["operating_mode"] for node in rest} == {"upstream"}
        sites.check_recovered()

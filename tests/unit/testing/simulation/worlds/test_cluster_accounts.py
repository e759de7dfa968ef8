"""The accounts of mirrors in a simulated cluster: a log counts until etcd has its deletion, or another leader.

The tests are coroutines, because a world tells the context in which it is prepared of its etcd.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction
from leveret.testing.applications.run_books import BooksFault
from leveret.testing.simulation.worlds.cluster import PLACEMENTS, ClusterWorld
from leveret.testing.simulation.worlds.placements import placements_below

KEY = f"{PLACEMENTS}%2F/q"
PLACEMENT = b'{"epoch":4,"leader":"n1@localhost","incarnation":"a","term":1,"mirrors":["n2@localhost"]}'
LOG = "queues/0000000000000004"


def accounted(tmp_path: Path, *writes: PutKey | DeleteKey) -> BooksFault | None:
    """Return what the world says to an account of a mirror without the log, after these writes to etcd."""
    tmp_path.mkdir(exist_ok=True)
    world = ClusterWorld(1, tmp_path)
    world.prepare()
    world.add_node("n2", {})
    for write in writes:
        world._recorded(StoreTransaction((), (write,)))
    world.accounted("n1", "n2@localhost", LOG, 18)
    return world.fault


async def test_a_mirror_may_remove_a_log_whose_deletion_is_in_etcd_before_its_leader_hears_of_that(
    tmp_path: Path,
) -> None:
    put, delete = PutKey(KEY, PLACEMENT), DeleteKey(KEY)
    assert "counts on n2" in str(accounted(tmp_path / "placed", put))
    assert accounted(tmp_path / "deleted", put, delete) is None
    assert "counts on n2" in str(accounted(tmp_path / "again", put, delete, put))
    anew = PutKey(KEY, PLACEMENT.replace(b'"epoch":4', b'"epoch":5'))
    assert accounted(tmp_path / "anew", put, anew) is None


async def test_a_mirror_may_truncate_a_log_to_follow_the_next_leader_before_the_former_one_hears_of_that(
    tmp_path: Path,
) -> None:
    elsewhere = PutKey(KEY, PLACEMENT.replace(b'"leader":"n1@localhost"', b'"leader":"n3@localhost"'))
    assert accounted(tmp_path / "elsewhere", PutKey(KEY, PLACEMENT), elsewhere) is None
    assert "counts on n2" in str(accounted(tmp_path / "back", elsewhere, PutKey(KEY, PLACEMENT)))


async def test_the_return_of_a_site_deletes_logs_of_this_site_alone(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    from leveret.testing.simulation.worlds.sites.two_sites import SitesWorld

    world = SitesWorld(1, tmp_path)
    world.prepare()
    for node in ("a2", "b2"):
        world.add_node(node, {})
    key = f"{placements_below('/a')}%2F/q"
    for write in (PutKey(key, PLACEMENT), DeleteKey(key)):
        world._recorded(StoreTransaction((), (write,)))
    world.accounted("a1", "a2@localhost", LOG, 18)
    assert world.fault is None
    world.accounted("b1", "b2@localhost", LOG, 18)
    assert "counts on b2" in str(world.fault)


@pytest.mark.parametrize("key", [f"{PLACEMENTS}%2F/other", KEY])
async def test_the_deletion_of_an_unknown_placement_excuses_nothing(tmp_path: Path, key: str) -> None:
    assert "counts on n2" in str(accounted(tmp_path, DeleteKey(key)))

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.contenders import LEVERET
from bench.mirrors import MAKERS, MIRRORED, MIRRORED_FAILOVER, MIRRORED_SYNC, ClusterContender
from bench.rows import Settings
from leveret.testing.sites import cluster_site

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available())),
    pytest.mark.xdist_group("cluster"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterContender]:
    node = MAKERS[LEVERET](tmp_path_factory.mktemp("bench"))
    assert isinstance(node, ClusterContender)
    try:
        node.start()
        yield node
    finally:
        node.close()


def test_what_is_published_to_a_mirrored_queue_is_counted_and_its_mirrors_keep_up(
    cluster: ClusterContender, tiny: Settings
) -> None:
    readings = MIRRORED.run(cluster, tiny)
    assert {name: reading.value > 0 for name, reading in readings.items()} == {
        "mirrored": True,
        "mirrored-together": True,
        "mirrored-mixed": True,
    }


def test_two_mirrors_synchronise_beside_a_publisher_and_then_the_leader_dies(
    cluster: ClusterContender, tiny: Settings
) -> None:
    [pause] = MIRRORED_SYNC.run(cluster, tiny).values()
    assert pause.value > 0
    assert pause.details["synchronised_s"] > 0
    cluster.cluster.clear_policy("ha")
    [failed] = MIRRORED_FAILOVER.run(cluster, tiny).values()
    assert failed.details["messages"] >= failed.details["confirmed"] > 0

"""A mirror that is lost is replaced; when its node runs again its copy goes, as the others have everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite

pytestmark = [
    pytest.mark.story,
    pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available())),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    config = {"cluster.etcd.lease_ttl": "3s"}
    with ClusterSite(tmp_path_factory.mktemp("replaced"), config=config) as site:
        site.set_policy("ha", "^ha", {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"})
        yield site


def test_the_copy_of_a_mirror_that_was_replaced_goes_when_its_node_runs_again(site: ClusterSite) -> None:
    leader = site.members[0]
    with site.channel(leader) as channel:
        channel.queue_declare("ha", durable=True)
        for _ in range(20):
            channel.basic_publish("", "ha", b"x" * 60_000)

    def synchronised() -> tuple[str, ...]:
        found = site.queue("ha", asked=leader)
        return () if found is None else found.synchronised

    wait_until(lambda: len(synchronised()) == 1, "a synchronised mirror", 60)
    [lost] = [node for node in site.members if node.node in synchronised()]
    [other] = [node for node in site.members if node not in (leader, lost)]
    lost.kill9()
    wait_until(lambda: synchronised() == (other.node,), "another mirror in its place", 60)
    copies = lost.data_dir / "queues"
    assert list(copies.iterdir())
    site.start_all()
    wait_until(lambda: not list(copies.iterdir()), "the copy that nobody counts on to go", 60)
    with site.channel(leader) as channel:
        assert channel.queue_declare("ha", passive=True).method.message_count == 20
    assert synchronised() == (other.node,)

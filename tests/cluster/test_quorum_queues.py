"""A quorum queue in a cluster: mirrored without a policy, a majority for a confirm, led by nobody who lacks any."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

COUNT = 50
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    with ClusterSite(tmp_path_factory.mktemp("quorum"), 4, {"cluster.etcd.lease_ttl": "3s"}) as site:
        yield site


def declare(site: ClusterSite, node: SiteNode, queue: str, **arguments: object) -> None:
    with site.channel(node) as channel:
        channel.queue_declare(queue, durable=True, arguments=QUORUM | arguments)


def shown(site: ClusterSite, queue: str, node: SiteNode) -> dict[str, object]:
    return dict(site.api("GET", f"queues/%2F/{queue}", at=node))


def members(site: ClusterSite, queue: str, node: SiteNode) -> list[str]:
    found = shown(site, queue, node)["online"]
    assert isinstance(found, list)
    return found


def ctl(node: SiteNode, *words: str) -> subprocess.CompletedProcess[str]:
    return node.ctl(*words, check=False)


def test_it_is_on_three_nodes_or_on_as_many_as_are_asked_for(site: ClusterSite) -> None:
    first, *_, last = site.members
    declare(site, first, "three")
    declare(site, first, "two", **{"x-quorum-initial-group-size": 2})
    assert len(set(members(site, "three", last))) == 3
    assert len(set(members(site, "two", last))) == 2
    row = shown(site, "three", last)
    assert (row["type"], row["leader"], row["state"]) == ("quorum", first.node, "running")
    assert "slave_nodes" not in row
    definition = {"target-group-size": 4}
    site.set_policy("wide", "^two$", definition)
    site.wait(lambda: len(members(site, "two", last)) == 4, "a policy's size")
    # What is said of classic queues is not of this one.
    site.set_policy("wide", "^two$", {"ha-mode": "nodes", "ha-params": [last.node]})
    site.wait(lambda: len(members(site, "two", last)) == 2, "its own size")


def test_what_a_majority_has_outlives_its_leader_and_another_node_comes_in(site: ClusterSite) -> None:
    first, *_, last = site.members
    declare(site, first, "lives")
    with site.channel(first) as channel:
        for index in range(COUNT):
            channel.basic_publish("", "lives", str(index).encode())
    first.kill9()
    site.wait(lambda: shown(site, "lives", last)["leader"] != first.node, "another leader")
    site.wait(lambda: len(members(site, "lives", last)) == 3, "a third member")
    with site.channel(last) as channel:
        got = [channel.basic_get("lives") for _ in range(COUNT)]
    assert [body for _, _, body in got] == [str(index).encode() for index in range(COUNT)]
    site.start(first)
    site.wait_members()


def test_a_node_says_whether_a_queue_would_be_without_its_majority(site: ClusterSite) -> None:
    first, second, *_ = site.members
    declare(site, second, "pair", **{"x-quorum-initial-group-size": 2})
    critical = ctl(second, "check_if_node_is_quorum_critical")
    assert critical.returncode == 69
    line = f"queue 'pair' in vhost '/' would lose quorum if node {second.node} is stopped"
    assert line in critical.stderr
    waited = ctl(second, "--timeout", "1", "await_online_quorum_plus_one")
    assert waited.returncode == 69
    assert "time is up, no quorum + 1 of nodes came online for at least some quorum queues" in waited.stderr
    with site.channel(first) as channel:
        channel.queue_delete("pair")
        channel.queue_delete("two")
    assert ctl(second, "await_online_quorum_plus_one").returncode == 0
    passed = ctl(second, "check_if_node_is_quorum_critical")
    assert (passed.returncode, "no quorum queues with minimum quorum" in passed.stdout) == (0, True)


def test_a_node_is_not_forgotten_while_who_has_all_of_its_queues_is_not_known(site: ClusterSite) -> None:
    first = site.members[0]
    declare(site, first, "asked")
    with site.channel(first) as channel:
        channel.confirm_delivery()
        for index in range(COUNT):
            channel.basic_publish("", "asked", str(index).encode())
    group = members(site, "asked", first)
    second, third = (node for node in site.members[1:] if node.node in group)
    # Killed one after the other, the second could lead, or say what it has, before it dies: a lease goes back at once.
    second.pause()
    first.kill9()
    second.kill9()
    site.wait(lambda: not {first.node, second.node} & set(site.members_running(third)), "their leases end")
    refused = ctl(third, "forget_cluster_node", first.node)
    assert refused.returncode == 69
    assert "queue 'asked' in vhost '/'" in refused.stderr
    assert f"once these nodes report: {second.node}; start them, or first forget" in refused.stderr
    assert first.node in {row["name"] for row in site.api("GET", "nodes", at=third)}
    site.start(second)
    site.wait(lambda: shown(site, "asked", third)["leader"] != first.node, "another leader")
    assert ctl(third, "forget_cluster_node", first.node).returncode == 0
    with site.channel(third) as channel:
        got = [channel.basic_get("asked") for _ in range(COUNT)]
    assert [body for _, _, body in got] == [str(index).encode() for index in range(COUNT)]

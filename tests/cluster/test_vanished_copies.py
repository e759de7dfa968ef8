"""Files of one mirror's copy are removed while its node runs: that copy is fetched again, and nothing else ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

COUNT = 200
BODY = b"x" * 8000
CONFIG = {"cluster.etcd.lease_ttl": "3s", "segment_bytes_max": str(256 << 10)}
POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}
ARGUMENTS = {"ha": {}, "quorum": {"x-queue-type": "quorum"}}


@pytest.fixture(params=sorted(ARGUMENTS))
def queue(site: ClusterSite, request: pytest.FixtureRequest) -> Iterator[str]:
    """The one queue that there is, of several segments, at all nodes; gone afterwards."""
    name: str = request.param
    leader, *others = site.members
    with site.channel(leader) as channel:
        channel.queue_declare(name, durable=True, arguments=ARGUMENTS[name])
    publish(site, name, 0, COUNT)
    site.wait_placed(name, leader, mirrors=others, synchronised=others)
    yield name
    with site.channel(leader) as channel:
        channel.queue_delete(name)


def publish(site: ClusterSite, queue: str, first: int, end: int) -> None:
    """Each with its confirm."""
    with site.channel(site.members[0]) as channel:
        for index in range(first, end):
            channel.basic_publish("", queue, b"%d " % index + BODY)


def numbers(site: ClusterSite, node: SiteNode, queue: str) -> list[int]:
    """What is in a queue, in order; it stays there."""
    with site.channel(node) as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
        found = [channel.basic_get(queue)[2] for _ in range(count)]
    return [int(body.split()[0]) for body in found if body is not None]


def directory(node: SiteNode) -> Path:
    """Of the one queue that there is."""
    (found,) = (each for each in (node.data_dir / "queues").iterdir() if any(each.glob("*.segment")))
    return found


def remove(node: SiteNode, what: str) -> None:
    """All that a node has of the queue, or its newest segment."""
    if what == "directory":
        shutil.rmtree(directory(node))
    else:
        max(directory(node).glob("*.segment")).unlink()


def contents(node: SiteNode) -> dict[str, bytes]:
    """What its segments hold, by their offsets; whether one is sealed yet is each node's own matter."""
    return {each.name.split(".")[0]: each.read_bytes() for each in directory(node).glob("*.segment*")}


def wait_whole(site: ClusterSite, queue: str, said: int) -> None:
    """The loss was found after so much of the mirror's log, and all nodes have all of the queue again."""
    leader, mirror, third = site.members
    site.wait(lambda: "damaged_mirror" in mirror.log_text()[said:], "the loss to be found")
    site.wait_placed(queue, leader, mirrors=[mirror, third], synchronised=[mirror, third])
    site.wait(lambda: contents(mirror) == contents(leader), "the copy to be the leader's")


@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_copy_that_vanishes_under_traffic_is_fetched_again(
    site: ClusterSite, queue: str, what: str
) -> None:
    leader, mirror, third = site.members
    pid, said = mirror.pid, len(mirror.log_text())
    remove(mirror, what)
    publish(site, queue, COUNT, 2 * COUNT)
    wait_whole(site, queue, said)
    assert (mirror.alive, mirror.pid) == (True, pid)
    assert put_away(mirror) == (what == "segment")
    if queue == "quorum":
        return
    third.kill9()
    site.wait_placed(queue, leader, mirrors=[mirror], synchronised=[mirror])
    leader.kill9()
    site.wait_placed(queue, mirror, mirrors=[], synchronised=[])
    assert numbers(site, mirror, queue) == list(range(2 * COUNT))
    site.start(leader, third)
    site.wait_members()


def put_away(node: SiteNode) -> bool:
    """Whether what is left of the copy is kept."""
    name = directory(node).name
    return any((node.data_dir / "divergent").glob(f"damaged-*/queues/{name}/*.segment"))

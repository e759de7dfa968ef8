"""A node of a cluster cannot read what its disk has of a queue: it does not lead, and loses nothing of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from leveret.testing.sites.cluster_site import ClusterSite, SiteNode
from leveret.testing.sites.mirror_cluster import QueuePlace

COUNT = 200
BODY = b"x" * 8000
CONFIG = {"cluster.etcd.lease_ttl": "3s", "segment_bytes_max": str(256 << 10)}
POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-promote-on-failure": "when-synced"}


def fill(site: ClusterSite, leader: SiteNode, queue: str) -> None:
    """Messages in several segments, confirmed by both mirrors."""
    with site.channel(leader) as channel:
        channel.queue_declare(queue, durable=True)
        for index in range(COUNT):
            channel.basic_publish("", queue, b"%d " % index + BODY)
    others = [each for each in site.members if each is not leader]
    site.wait_placed(queue, leader, mirrors=others, synchronised=others)


def numbers(site: ClusterSite, node: SiteNode, queue: str) -> list[int]:
    """What is in a queue, in order; it stays there."""
    with site.channel(node) as channel:
        channel.basic_qos(prefetch_count=100)
        count = channel.queue_declare(queue, passive=True).method.message_count
        found = [channel.basic_get(queue)[2] for _ in range(count)]
    return [int(body.split()[0]) for body in found if body is not None]


def placed(site: ClusterSite, asked: SiteNode) -> QueuePlace:
    """Where the queue is, as that node knows it."""
    found = site.queue("ha", asked=asked)
    assert found is not None
    return found


def segments(node: SiteNode) -> list[Path]:
    """Of the one queue that there is, oldest first."""
    (directory,) = (node.data_dir / "queues").iterdir()
    return sorted(directory.glob("*.segment"))


def put_away(node: SiteNode) -> list[Path]:
    """Copies that could not be read, and are kept."""
    return list((node.data_dir / "divergent").glob("damaged-*/queues/*"))


@pytest.fixture(autouse=True)
def whole(site: ClusterSite) -> Iterator[None]:
    """All run, before and after; the queue is gone."""
    yield
    site.start_all()
    with site.channel(site.members[0]) as channel:
        channel.queue_delete("ha")


def kill_together(site: ClusterSite) -> None:
    """Kill all nodes. One after the other, each would lead before its own end: a lease goes back at once."""
    for node in site.members:
        node.pause()
    for node in site.members:
        node.kill9()


def test_a_leader_that_cannot_read_what_it_has_is_followed_by_a_mirror_that_has_all(
    site: ClusterSite,
) -> None:
    leader, *mirrors = site.members
    fill(site, leader, "ha")
    kill_together(site)
    segments(leader)[1].unlink()
    site.start(leader)
    site.wait(lambda: "queue_down" in leader.log_text(), "the damage to be found")
    site.start(*mirrors)
    site.wait(lambda: placed(site, mirrors[0]).leader != leader.node, "another leader")
    # Of this node alone it is certain that it knows of the next leader by now.
    followed = next(each for each in mirrors if each.node == placed(site, mirrors[0]).leader)
    others = [each for each in site.members if each is not followed]
    site.wait_placed("ha", followed, mirrors=others, synchronised=others)
    assert numbers(site, leader, "ha") == list(range(COUNT))
    assert len(put_away(leader)) == 1


@pytest.mark.story
@pytest.mark.parametrize("kind", ["mirrored", "quorum"])
def test_a_queue_of_which_no_node_has_anything_begins_anew_when_an_operator_says_so(
    site: ClusterSite, kind: str
) -> None:
    leader, *others = site.members
    with site.channel(leader) as channel:
        arguments = {"x-queue-type": "quorum"} if kind == "quorum" else None
        channel.queue_declare("ha", durable=True, arguments=arguments)
        channel.queue_bind("ha", "amq.fanout")
        channel.basic_publish("", "ha", b"old", pika.BasicProperties(delivery_mode=2))
    site.wait_placed("ha", leader, mirrors=others, synchronised=others)
    kill_together(site)
    for node in site.members:
        (directory,) = (node.data_dir / "queues").iterdir()
        shutil.rmtree(directory)
    site.start(leader)
    site.start(*others)
    site.wait(lambda: placed(site, others[0]).state == "crashed", "it to be down")
    refused = others[1].ctl("restart_queue", "ha", check=False)
    assert refused.returncode != 0
    assert "no copy of its log was found" in refused.stderr
    given_up = json.loads(others[1].ctl("restart_queue", "ha", "--yes", "--formatter", "json").stdout)
    assert {copy["node"]: copy["state"] for copy in given_up["copies"]} == {
        node.node: "missing" for node in site.members
    }
    leader = next(each for each in site.members if each.node == placed(site, each).leader)
    others = [each for each in site.members if each is not leader]
    site.wait_placed("ha", leader, mirrors=others, synchronised=others)
    with site.channel(others[0]) as channel:
        channel.basic_publish("amq.fanout", "", b"0 new", pika.BasicProperties(delivery_mode=2))
    leader.kill9()
    site.wait(lambda: placed(site, others[0]).leader != leader.node, "another leader")
    site.wait(lambda: placed(site, others[0]).state == "running", "it to serve")
    assert numbers(site, others[1], "ha") == [0]
    site.start(leader)
    for node in site.members:
        assert "amq.fanout" in node.ctl("list_bindings", "source_name").stdout


@pytest.mark.story
def test_copies_that_other_nodes_have_are_counted_and_quarantined_before_a_queue_begins_anew(
    site: ClusterSite,
) -> None:
    leader, mirror, third = site.members
    fill(site, leader, "ha")
    third.kill9()
    leader.kill9()
    site.wait(lambda: placed(site, mirror).leader == mirror.node, "the mirror to lead")
    with site.channel(mirror) as channel:
        # Now the other copies are behind, and nobody else has this one.
        channel.basic_publish("", "ha", b"%d " % COUNT, pika.BasicProperties(delivery_mode=2))
    mirror.kill9()
    segments(mirror)[1].unlink()
    site.start(mirror)
    site.start(third)
    site.wait(lambda: placed(site, third).state == "crashed", "it to be down")
    shown = json.loads(third.ctl("restart_queue", "ha", "--dry-run", "--formatter", "json").stdout)
    copies = {copy["node"]: copy for copy in shown["copies"]}
    assert copies[third.node]["state"] == "readable"
    assert copies[third.node]["messages"] == COUNT
    assert copies[mirror.node]["state"] == "damaged"
    assert copies[leader.node]["state"] == "unknown"
    refused = third.ctl("restart_queue", "ha", check=False)
    assert refused.returncode != 0
    assert f"{third.node} has {COUNT} messages" in refused.stderr
    third.ctl("restart_queue", "ha", "--yes")
    site.start(leader)
    site.wait_placed("ha", mirror, mirrors=[third, leader], synchronised=[third, leader])
    assert numbers(site, leader, "ha") == []
    reports = json.loads(leader.ctl("list_divergent_messages", "--formatter", "json").stdout)["reports"]
    (report,) = (each for each in reports if each["node"] == third.node)
    assert report["messages"] == COUNT


@pytest.mark.story
def test_a_node_whose_name_was_changed_says_whose_data_it_has(site: ClusterSite) -> None:
    node = site.members[2]
    node.stop()
    was, node.config["nodename"] = node.node, "other@localhost"
    try:
        node.launch()
        site.wait(lambda: not node.alive, "it does not start")
        said = node.log_text().splitlines()[-1]
        assert f"this data directory is that of node '{was}'" in said
        assert f"set nodename = {was} again" in said
        assert "empty data directory" not in said
    finally:
        node.config["nodename"] = was
        site.start(node)

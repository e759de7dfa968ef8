"""A cluster that is gone with its etcd is brought up again from followers of its nodes, or from their own data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.testing.applications.applications import channel_of
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.sites.cluster_site import ClusterSite
from tests.cluster.beyond import BODY, QUEUES, Beyond, declare, messages_of, publish, wait_mirrored

pytestmark = pytest.mark.timeout(900)

LEFT = [str(number) for number in range(1, 30)]


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    with ClusterSite(tmp_path_factory.mktemp("gone"), followed=True) as site:
        yield site


@pytest.fixture
def followers(site: ClusterSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Beyond]]:
    folder = tmp_path_factory.mktemp("followers")
    beyond = [Beyond(f"f{node.name}", folder) for node in site.members]
    yield beyond
    for each in beyond:
        each.close()


def lose_everything(site: ClusterSite) -> None:
    """All nodes, and all that etcd knew."""
    for each in site.members:
        each.kill9()
    [member] = site.etcd.members
    member.kill9()
    member.lose_data()
    member.start()
    member.wait_ready()


def rebuild(site: ClusterSite, folder: Path) -> str:
    """What an operator does with the copies, which are where the nodes' data are to be."""
    n1, *_ = site.members
    files = [str(folder / f"{each.name}.copy") for each in site.members]
    for each, file in zip(site.members, files, strict=True):
        each.ctl("describe_copy", each.node, file)
    settings = ("--config", str(n1.config_file))
    planned = n1.ctl("rebuild_cluster", *settings, "--dry-run", *files).stdout
    assert n1.ctl("rebuild_cluster", *settings, *files).stdout == planned
    again = n1.ctl("rebuild_cluster", *settings, *files, check=False)
    assert again.returncode != 0
    assert "already" in again.stderr
    return planned


@pytest.mark.story
def test_a_cluster_is_brought_up_again_from_followers_of_its_nodes(
    site: ClusterSite, followers: list[Beyond], tmp_path: Path
) -> None:
    """A confirm waits for the followers in sync of the nodes that it waits for: so nothing confirmed is lost."""
    n1, n2, _ = site.members
    declare(site, n2, n1)
    for follower, node in zip(followers, site.members, strict=True):
        follower.follow(node)
        follower.wait_even_with(node)
    publish(site, 30, at=n1)
    lose_everything(site)
    for follower, node in zip(followers, site.members, strict=True):
        follower.node.stop()
        node.wipe()
        follower.data_dir.rename(node.data_dir)

    n1.launch()
    wait_until(lambda: not n1.alive, "the end of a copy that is started as a node", 60)
    assert "is a copy of a node of cluster" in n1.log_text()
    planned = rebuild(site, tmp_path)
    assert "no copy" not in planned
    site.start_all()
    wait_mirrored(site, n1)
    for name in QUEUES:
        with site.channel(n1) as channel:
            assert messages_of(channel, name) == LEFT, name
    publish(site, 5, at=n2)
    with site.channel(n1) as channel:
        assert len(messages_of(channel, "alone")) == len(LEFT) + 4


def test_nodes_whose_etcd_lost_its_data_get_new_records_from_their_own_data(
    site: ClusterSite, tmp_path: Path
) -> None:
    n1, n2, n3 = site.members
    declare(site, n2, n1)
    publish(site, 30, at=n3)
    lose_everything(site)
    n1.launch()
    wait_until(lambda: not n1.alive, "the end of a node whose cluster etcd does not know", 60)
    assert "rebuild_cluster" in n1.log_text()
    rebuild(site, tmp_path)
    site.start_all()
    wait_mirrored(site, n1)
    for name in QUEUES:
        with site.channel(n3) as channel:
            assert messages_of(channel, name) == LEFT, name


def test_an_etcd_restored_from_an_older_copy_is_refused_and_new_records_have_all_since(
    site: ClusterSite, tmp_path: Path
) -> None:
    """It lacks a queue, names another one that was deleted, and may have the nodes' present leases."""
    n1, n2, n3 = site.members
    [etcd] = site.etcd.members
    declare(site, n2, n1)
    etcd.stop()
    shutil.copytree(etcd.data_dir, tmp_path / "copy")
    etcd.restart()
    wait_until(lambda: all(site.api("GET", "queues", at=node) for node in site.members), "all nodes", 60)
    wait_mirrored(site, n2)
    with site.channel(n3) as channel:
        channel.queue_declare("ha.later", durable=True)
        channel.queue_delete("ha.two")
        channel.queue_declare("ha.two", durable=True)
        channel.basic_publish("", "ha.later", b"later" + BODY)
    publish(site, 30, at=n3)
    etcd.kill9()
    etcd.lose_data()
    shutil.copytree(tmp_path / "copy", etcd.data_dir)
    etcd.start()
    wait_until(lambda: not any(node.alive for node in site.members), "the end of all nodes", 60)
    assert all("restored from an older copy" in node.log_text() for node in site.members)
    n1.launch()
    wait_until(lambda: not n1.alive, "the end of a node that is started again", 60)
    etcd.kill9()
    etcd.lose_data()
    etcd.restart()
    rebuild(site, tmp_path)
    site.start_all()
    wait_mirrored(site, n1)
    for name in QUEUES:
        with site.channel(n3) as channel:
            assert messages_of(channel, name) == LEFT, name
    with site.channel(n2) as channel:
        assert messages_of(channel, "ha.later") == ["later"]


@pytest.mark.story
def test_two_followers_that_are_promoted_from_one_node_of_a_living_cluster_are_brokers_of_their_own(
    site: ClusterSite, followers: list[Beyond]
) -> None:
    n1, n2, _ = site.members
    one, two, _ = followers
    declare(site, n2, n1)
    publish(site, 30, at=n1)
    for follower in (one, two):
        follower.follow(n2)
        follower.wait_even_with(n2)
    for follower in (one, two):
        refused = follower.promote()
        assert not refused["promoted"]
        assert "the cluster goes on beside it" in refused["reason"]
        assert follower.promote(force=True)["promoted"]
        with channel_at(follower) as channel:
            for name in QUEUES:
                assert messages_of(channel, name) == LEFT, (follower.name, name)
            channel.confirm_delivery()
            channel.basic_publish("", "alone", follower.name.encode())
    publish(site, 30, at=n1, acks=0)
    for name in QUEUES:
        with site.channel(n2) as channel:
            assert messages_of(channel, name) == [*LEFT, *(str(number) for number in range(30))], name
    assert {each["name"] for each in site.api("GET", "nodes", at=n1)} == {node.node for node in site.members}
    # Nor does the cluster's node follow, or forget, when they start again, with their settings as they were.
    one.node.kill9()
    one.follow(n2, secret=False)
    one.node.wait_ready()
    with channel_at(one) as channel:
        assert messages_of(channel, "alone") == [*LEFT, one.name]


def channel_at(follower: Beyond) -> AbstractContextManager[Any]:
    """A channel at a promoted follower."""
    parameters = pika.ConnectionParameters(LOOPBACK, follower.node.amqp_port, heartbeat=0)
    return channel_of(pika.BlockingConnection(parameters), confirms=False)

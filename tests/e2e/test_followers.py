"""A follower has what its leader has: however it joins, whatever happens to the link, and it shows it."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from leveret.testing.applications.compare import compare, logs_of
from leveret.testing.network.link_proxy import Direction
from leveret.testing.network.ports import LOOPBACK, accepts, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.testing.sites.follower_site import PATIENCE_S, SECRET_FILE, FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import channel_at, declare, fill, live, numbered, publish, store_offset

MIB = 1 << 20
SEGMENTS = {"segment_bytes_max": str(MIB)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader and a follower; only the leader runs."""
    with FollowerSite(tmp_path, config=SEGMENTS) as site:
        site.leader.lead()
        yield site


@pytest.fixture
def pair(site: FollowerSite) -> FollowerSite:
    """A leader and a follower in sync."""
    [follower] = site.followers
    follower.follow(site.leader)
    site.wait_in_sync()
    return site


# -- joining --------------------------------------------------------------------------------------


def test_a_follower_that_joins_with_nothing_gets_everything(site: FollowerSite) -> None:
    [follower] = site.followers
    live(site.leader)
    store_offset(site.leader, "events", 11)
    follower.follow(site.leader)
    site.wait_in_sync()
    assert site.assert_identical() > 10_000
    assert len(logs_of(follower.data_dir)) == 8
    log = follower.node.log_text()
    assert "Files synced" in log
    assert "Streaming changes" in log
    assert "Listening on" in site.leader.node.log_text()


def test_what_changes_while_a_follower_streams_is_followed_too(pair: FollowerSite) -> None:
    [follower] = pair.followers
    live(pair.leader)
    store_offset(pair.leader, "events", 11)
    pair.wait_even()
    assert follower.get("definitions") == pair.leader.get("definitions")
    assert pair.assert_identical() > 10_000


def test_a_follower_that_joins_under_load_gets_everything_and_publishers_go_on(site: FollowerSite) -> None:
    [follower] = site.followers
    fill(site.leader, "bulk", 8 * MIB)
    declare(site.leader, "busy")
    sent: list[int] = []
    over = threading.Event()

    def publish_on() -> None:
        with channel_at(site.leader) as channel:
            while not over.is_set():
                channel.basic_publish("", "busy", b"%d" % len(sent), pika.BasicProperties(delivery_mode=2))
                sent.append(len(sent))

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        wait_until(lambda: len(sent) > 100, "publishes", PATIENCE_S)
        follower.follow(site.leader)
        site.wait_in_sync()
        seen = len(sent)
        wait_until(lambda: len(sent) > seen + 100, "publishes", PATIENCE_S)
    finally:
        over.set()
        publisher.join(PATIENCE_S)
    assert site.assert_identical() > 7 * MIB


def test_a_follower_that_was_away_is_sent_what_it_missed_and_no_more(pair: FollowerSite) -> None:
    [follower] = pair.followers
    fill(pair.leader, "bulk", 8 * MIB)
    pair.wait_even()
    follower.node.kill9()
    publish(pair.leader, "bulk", numbered(0, 100, 10_000))
    with channel_at(pair.leader) as channel:
        channel.basic_get("bulk", auto_ack=True)
    follower.follow(pair.leader)
    pair.wait_in_sync()
    row = pair.leader.row(follower)
    assert row is not None
    assert MIB * 0.9 < row["sent_bytes"] < 2 * MIB
    assert pair.assert_identical() > 8 * MIB


def in_sync(site: FollowerSite) -> bool:
    [follower] = site.followers
    row = site.leader.row(follower)
    return row is not None and row["in_sync"]


def test_a_follower_that_is_killed_while_it_joins_goes_on_where_it_was(site: FollowerSite) -> None:
    [follower] = site.followers
    fill(site.leader, "bulk", 12 * MIB)
    follower.link.limit_bytes_s = 10 * MIB
    follower.follow(site.leader)
    wait_until(lambda: follower.link.passed(Direction.BACK) > 6 * MIB, "half of it", PATIENCE_S)
    follower.node.kill9()
    follower.link.heal()
    before = follower.link.passed(Direction.BACK)
    follower.follow(site.leader)
    site.wait_in_sync()
    assert follower.link.passed(Direction.BACK) - before < 10 * MIB
    assert site.assert_identical() > 11 * MIB


@pytest.mark.story
def test_a_join_tells_how_far_it_is_and_may_be_held_to_a_bandwidth(tmp_path: Path) -> None:
    config = {**SEGMENTS, "replication.bandwidth_limit": "4MiB"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        site.leader.lead()
        fill(site.leader, "bulk", 16 * MIB)
        follower.follow(site.leader)
        seen: list[dict[str, Any]] = []

        def progresses() -> bool:
            row = site.leader.row(follower)
            if row and row["progress"] and row["progress"]["bytes_done"]:
                seen.append(row)
            return len(seen) >= 3

        wait_until(progresses, "a join that goes on", PATIENCE_S)
        assert {row["state"] for row in seen} == {"catching_up"}
        assert not any(row["in_sync"] for row in seen)
        assert all(0 < each["progress"]["bytes_done"] <= each["progress"]["bytes_total"] for each in seen)
        assert seen[-1]["progress"]["bytes_total"] > 15 * MIB
        site.wait_in_sync()
        row = site.leader.row(follower)
        assert row is not None
        assert row["joined_ms"] > 1000
        assert row["progress"] is None
        assert site.assert_identical() > 15 * MIB


# -- the secret -----------------------------------------------------------------------------------


def refused(follower: FollowerSiteNode, leader: FollowerSiteNode) -> str:
    """The one sentence with which a follower ends that may not follow."""
    follower.follow(leader, secret=False, wait=False)
    wait_until(lambda: follower.node.server.exit_status is not None, "the end", PATIENCE_S)
    assert follower.node.server.exit_status == 74, follower.node.log_text()
    *_, last = follower.node.log_text().splitlines()
    assert last.startswith("leveret: ")
    assert "Traceback" not in follower.node.log_text()
    return last


def test_a_follower_with_another_secret_ends_with_a_sentence_and_has_nothing(site: FollowerSite) -> None:
    [follower] = site.followers
    declare(site.leader, "private")
    follower.take_secret(site.leader)
    secret = follower.data_dir / SECRET_FILE
    secret.chmod(0o600)
    octets = secret.read_bytes()
    secret.write_bytes(octets[:-2] + bytes([octets[-2] ^ 1]) + octets[-1:])
    secret.chmod(0o400)
    text = refused(follower, site.leader)
    assert "secrets differ" in text
    assert not logs_of(follower.data_dir)
    assert octets.decode().strip() not in site.leader.node.log_text() + follower.node.log_text()


@pytest.mark.story
def test_the_secret_does_not_pass_the_link(site: FollowerSite) -> None:
    [follower] = site.followers
    secret = (site.leader.data_dir / SECRET_FILE).read_bytes().strip()
    follower.follow(site.leader)
    site.wait_in_sync()
    for member in site.members:
        arguments = Path(f"/proc/{member.node.pid}/cmdline").read_bytes()
        assert secret not in arguments
        assert secret.decode() not in member.node.log_text()


def test_the_link_speaks_tls_where_certificates_are_configured(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("node", names="DNS:localhost,IP:127.0.0.1")
    config = {f"replication.{key}": value for key, value in issued.settings().items()}
    with FollowerSite(tmp_path, config={**SEGMENTS, **config}) as site:
        [follower] = site.followers
        follower.scheme = "tls"
        site.leader.lead()
        fill(site.leader, "bulk", 2 * MIB)
        follower.follow(site.leader)
        site.wait_in_sync()
        assert site.assert_identical() > MIB


# -- what a follower is to others -----------------------------------------------------------------


def test_a_follower_serves_no_clients(pair: FollowerSite) -> None:
    [follower] = pair.followers
    assert not accepts(follower.node.amqp_port)
    assert not accepts(follower.node.stream_port)


@pytest.mark.story
def test_a_followers_management_shows_what_the_leader_has_and_changes_nothing(pair: FollowerSite) -> None:
    [follower] = pair.followers
    declare(pair.leader, "orders")
    publish(pair.leader, "orders", numbered(0, 12))
    with channel_at(pair.leader) as channel:
        channel.queue_declare("ends with its node", durable=False)
        for _ in range(5):
            channel.basic_get("orders", auto_ack=True)
    with channel_at(pair.leader) as channel:
        channel.queue_declare("orders", passive=True)
    pair.wait_even()
    with httpx.Client(
        base_url=f"http://{LOOPBACK}:{follower.node.management_port}/api/",
        auth=("guest", "guest"),
        timeout=PATIENCE_S,
    ) as client:
        wait_until(
            lambda: client.get("queues/%2F/orders").json().get("messages") == 7, "the counts", PATIENCE_S
        )
        assert [queue["name"] for queue in client.get("queues").json()] == ["orders"]
        assert client.get("queues/%2F/orders").json()["durable"] is True
        answer = client.put("queues/%2F/mine", json={"durable": True})
        assert answer.status_code == 503
        assert answer.json()["error"] == "not_leader"
        assert f"tcp://{LOOPBACK}:" in answer.json()["reason"]
        assert client.delete("queues/%2F/orders").status_code == 503
        assert client.post("definitions", json={"queues": []}).status_code == 503
        assert client.get("queues/%2F/orders").json()["messages"] == 7
    assert pair.assert_identical() > 0


def test_both_sides_tell_of_each_other(pair: FollowerSite) -> None:
    [follower] = pair.followers
    fill(pair.leader, "bulk", MIB)
    pair.wait_even()
    mine, theirs = pair.leader.status(), follower.status()
    assert (mine["role"], theirs["role"], theirs["state"]) == ("leader", "follower", "streaming")
    assert mine["epoch"] == theirs["epoch"] == theirs["leader"]["epoch"]
    assert (mine["in_sync"], mine["in_sync_count"]) == ([follower.node_name], 1)
    [row] = mine["followers"]
    assert row["name"] == follower.node_name
    assert (row["lag_bytes"], row["lag_records"]) == (0, 0)
    assert row["acked_bytes"] > MIB * 0.9
    assert row["sent_bytes"] > MIB * 0.9
    assert theirs["leader"]["name"] == pair.leader.node_name
    assert theirs["leader"]["in_sync"] is True
    assert theirs["leader"]["received_bytes"] > MIB * 0.9
    assert theirs["leader"]["error"] in (None, "")


# -- the link -------------------------------------------------------------------------------------


def test_a_bit_that_turns_on_the_way_is_noticed_and_nothing_wrong_is_written(
    pair: FollowerSite, chance: random.Random
) -> None:
    [follower] = pair.followers
    declare(pair.leader, "orders")
    for _ in range(10):
        follower.link.flip(chance.randrange(5_000), Direction.BACK, chance.randrange(8))
        publish(pair.leader, "orders", [chance.randbytes(1000) for _ in range(10)])
        wait_until(lambda: follower.link.faults == 0, "the bit", PATIENCE_S)
        pair.wait_in_sync()
    assert pair.assert_identical() > 100_000


# -- more than one --------------------------------------------------------------------------------


@pytest.mark.story
def test_a_follower_serves_followers_of_its_own(tmp_path: Path) -> None:
    with FollowerSite(tmp_path, followers=2, config=SEGMENTS) as site:
        near, far = site.followers
        site.leader.lead()
        fill(site.leader, "bulk", 2 * MIB)
        near.follow(site.leader)
        site.leader.wait_in_sync(near)
        far.follow(near)
        live(site.leader)
        site.leader.wait_even(near)
        near.wait_even(far)
        assert [row["name"] for row in site.leader.status()["followers"]] == [near.node_name]
        site.stop()
        for name, found in site.compare():
            assert found.is_identical, f"{name}: {found}"


@pytest.mark.story
def test_a_follower_needs_no_door_of_its_own(site: FollowerSite, tmp_path: Path) -> None:
    """The shortest command line of the documentation."""
    data_dir = tmp_path / "short"
    data_dir.mkdir(mode=0o700)
    subprocess.run(["cp", site.leader.data_dir / SECRET_FILE, data_dir / SECRET_FILE], check=True)
    (data_dir / SECRET_FILE).chmod(0o400)
    follow = f"tcp://{LOOPBACK}:{site.leader.replication_port}"
    node = LeveretProcess(data_dir, SEGMENTS, arguments=("--follow", follow), parent_dir=tmp_path)
    try:
        declare(site.leader, "orders")
        node.launch()
        wait_until(lambda: site.leader.status()["in_sync_count"] == 1, "the follower", PATIENCE_S)
        assert node.stop() == 0
        site.leader.node.stop()
        assert compare(site.leader.data_dir, data_dir).is_identical
    finally:
        node.close()

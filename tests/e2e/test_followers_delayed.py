"""A delayed follower: what was done to its leader by mistake is left out; nothing that it received is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import bodies, channel_at, declare, numbered, publish


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader, and a follower that can go back an hour; what was there at first is a message."""
    with FollowerSite(tmp_path, config={"segment_bytes_max": "1048576"}) as site:
        [follower] = site.followers
        site.leader.lead()
        declare(site.leader, "orders")
        publish(site.leader, "orders", numbered(0, 1))
        follow(site, follower, "1h")
        wait_until(lambda: messages(follower) == 1, "the first join", PATIENCE_S)
        yield site


def follow(site: FollowerSite, follower: FollowerSiteNode, delay: str) -> None:
    follower.node.config["replication.apply_delay"] = delay
    follower.follow(site.leader)
    wait_until(lambda: follower.status()["state"] == "delayed", "a delayed follower", PATIENCE_S)


def messages(member: FollowerSiteNode) -> int:
    return int(member.get("queues/%2F/orders").get("messages", 0))


def delayed_changes(follower: FollowerSiteNode) -> dict[str, Any]:
    found: dict[str, Any] = follower.status()["leader"]["held_back"]
    return found


def wait_held_back(follower: FollowerSiteNode, count: int) -> None:
    wait_until(
        lambda: delayed_changes(follower)["messages"] == count, f"{count} messages held back", PATIENCE_S
    )


def promote(follower: FollowerSiteNode, *options: str) -> subprocess.CompletedProcess[str]:
    return follower.node.ctl("-q", "promote_follower", *options, check=False)


def test_a_purge_is_undone_up_to_the_moment_before_it(site: FollowerSite) -> None:
    [follower] = site.followers
    publish(site.leader, "orders", numbered(1, 9))
    wait_held_back(follower, 9)
    rows = site.leader.ask("POST", "replication/verify", {"deep": True}).json()
    assert [row["detail"] for row in rows if not row["match"]] == []
    ends = [(row["match"], row["next_offset"], row["detail"]) for row in rows if row["queue"] == "orders"]
    assert ends == [(True, 10, "")], "it delays drops, so it ends where its leader ends"
    before_purge = datetime.fromtimestamp(delayed_changes(follower)["newest_at_ms"] / 1000, UTC).isoformat()
    with channel_at(site.leader) as channel:
        channel.queue_purge("orders")
        channel.queue_declare("by-mistake", durable=True)
    publish(site.leader, "by-mistake", [b"after"])
    with channel_at(site.leader) as channel:
        channel.queue_delete("by-mistake")
    wait_held_back(follower, 10)
    deleted = "queues/%2F/by-mistake"
    wait_until(lambda: follower.ask("GET", deleted).status == 404, "the deletion", PATIENCE_S)
    assert messages(follower) == 0, "it shows what its leader has now"
    leader = follower.status()["leader"]
    assert 0 < leader["lag_s"] < 3600
    assert (leader["lag_records"], leader["in_sync"]) == (leader["held_back"]["records"], False)
    shown = follower.node.ctl("-q", "replication_status").stdout
    assert "State: delayed" in shown
    assert "Held back: 10 messages" in shown

    undecided = promote(follower)
    assert (undecided.returncode == 0, "--apply-until" in undecided.stderr) == (False, True)
    dry = promote(follower, "--dry-run", "--apply-until", before_purge)
    assert "Not applied: 1 messages" in dry.stdout
    assert follower.status()["role"] == "follower"

    done = promote(follower, "--apply-until", before_purge)
    assert done.returncode == 0, done.stderr
    follower.node.wait_ready()
    assert bodies(follower, "orders") == numbered(0, 10)
    wait_until(lambda: site.leader.status()["role"] == "fenced", "the old leader is fenced", PATIENCE_S)
    [report] = follower.get("replication/divergent")
    assert f"Quarantined as: {report['id']}" in done.stdout
    left_out = [(each["vhost"], each["queue"], each["payload"]) for each in follower.divergent_messages()]
    assert left_out == [("/", "by-mistake", "after")]
    assert not (follower.data_dir / "delayed").exists()


@pytest.mark.story
def test_what_can_be_left_out_survives_kills_and_is_kept_when_due_or_on_demand(site: FollowerSite) -> None:
    [follower] = site.followers
    publish(site.leader, "orders", numbered(1, 9))
    wait_held_back(follower, 9)
    follower.node.kill9()
    publish(site.leader, "orders", numbered(10, 10))
    follow(site, follower, "1h")
    wait_held_back(follower, 19)
    row = site.leader.row(follower)
    assert row is not None
    assert (row["state"], row["in_sync"], row["apply_delay_s"]) == ("delayed", False, 3600)
    assert messages(follower) == 20

    follower.node.kill9()
    follow(site, follower, "1s")
    wait_until(lambda: delayed_changes(follower)["records"] == 0, "nothing held back", PATIENCE_S)
    assert follower.status()["leader"]["lag_records"] == 0

    follower.node.stop()
    follow(site, follower, "1h")
    publish(site.leader, "orders", numbered(20, 5))
    wait_held_back(follower, 5)
    site.leader.node.kill9()
    follower.node.stop()
    follower.lead(wait=False)
    wait_until(
        lambda: not follower.node.alive, "a start without a word on what to leave out refused", PATIENCE_S
    )
    assert "--apply-delayed" in follower.node.server.log_tail()
    follower.follow(site.leader)
    done = promote(follower, "--apply-delayed")
    assert done.returncode == 0, done.stderr
    follower.node.wait_ready()
    assert bodies(follower, "orders") == numbered(0, 25)

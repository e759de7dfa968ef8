"""A message that nobody settles pins no disk: at a leader and at followers that stream.

And wherever it is stored again, nothing is lost by a kill, a promotion, a restart; nothing looks divergent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from tests.e2e.follower_clients import PERSISTENT, bodies, channel_at, declare

MIB = 1 << 20
BODY_BYTES = 100_000
QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x_queue_type": "quorum"},
    "priority": {"x_max_priority": 3},
}
STRAGGLERS = [b"straggler %d" % number for number in range(3)]
DISK_BYTES_MAX = len(QUEUES) * 2 * MIB
"""A segment of one mebibyte each, and what is not worth it."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader, which runs, and a follower; stragglers wait in each kind of queue."""
    with FollowerSite(tmp_path, config={"segment_bytes_max": str(MIB)}) as site:
        site.leader.lead()
        for queue, arguments in QUEUES.items():
            declare(site.leader, queue, **arguments)
        yield site


def on_disk(member: FollowerSiteNode) -> int:
    """Octets of the logs of queues."""
    total = 0
    for path in (member.data_dir / "queues").rglob("*segment*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def wait_small(*members: FollowerSiteNode) -> None:
    wait_until(
        lambda: all(on_disk(member) < DISK_BYTES_MAX for member in members), "what is given back", PATIENCE_S
    )


@contextmanager
def stragglers(leader: FollowerSiteNode) -> Iterator[Any]:
    """A channel that took the first messages of all queues and acks them not; through it go others."""
    with channel_at(leader) as channel:
        for queue in QUEUES:
            for body in STRAGGLERS:
                channel.basic_publish("", queue, body, PERSISTENT)
                assert channel.basic_get(queue)[2] == body
        yield channel


def pass_through(channel: Any, size: int) -> None:
    """So many octets through each queue, all settled."""
    for queue in QUEUES:
        for number in range(size // BODY_BYTES):
            channel.basic_publish("", queue, b"%d" % number * (BODY_BYTES // 2), PERSISTENT)
            if number % 10 == 9:
                for _ in range(10):
                    method, _, _ = channel.basic_get(queue)
                    channel.basic_ack(method.delivery_tag)
        while (method := channel.basic_get(queue)[0]) is not None:
            channel.basic_ack(method.delivery_tag)


def pass_through_beside(channel: Any, size: int) -> None:
    """The same while this channel has the stragglers, which come first."""
    for queue in QUEUES:
        for body in STRAGGLERS:
            assert channel.basic_get(queue)[2] == body
    pass_through(channel, size)


def assert_there(leader: FollowerSiteNode) -> None:
    for queue in QUEUES:
        assert bodies(leader, queue) == STRAGGLERS, queue


def test_a_leader_that_is_killed_has_them_again_and_no_more_disk_than_they_need(site: FollowerSite) -> None:
    with stragglers(site.leader) as channel:
        pass_through(channel, 6 * MIB)
        wait_small(site.leader)
        site.leader.node.kill9()
    site.leader.lead()
    assert_there(site.leader)
    assert site.leader.node.ctl("scrub", check=False).returncode == 0


def test_a_follower_gives_back_what_its_leader_does_and_takes_over_with_all(site: FollowerSite) -> None:
    [follower] = site.followers
    follower.follow(site.leader)
    site.wait_in_sync()
    former = site.leader
    with stragglers(former) as channel:
        pass_through(channel, 6 * MIB)
        wait_small(former, follower)
        site.wait_even()
        assert former.node.ctl("replication_verify", "--deep").returncode == 0
        former.node.kill9()
    site.promote(follower)
    assert_there(follower)
    former.follow(follower)
    site.wait_in_sync()
    with channel_at(follower) as channel:
        pass_through_beside(channel, 3 * MIB)
        wait_small(follower, former)
    assert former.divergent_messages() == []
    site.assert_identical()

"""Disks that tear, lose or refuse what is written, and links that alter it, on either side of a replication."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pika.exceptions
import pytest

from leveret.testing.network.link_proxy import Direction
from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from leveret.wire.chunk import HEADER_BYTES
from tests.e2e.follower_clients import PERSISTENT, bodies, channel_at, declare, log_of, numbered, publish

SEGMENT_BYTES: Final = 65_536
CONFIG: Final = {"segment_bytes_max": str(SEGMENT_BYTES)}
SIZE: Final = 4000
BODIES: Final = numbered(0, 100, SIZE)
DATA: Final = HEADER_BYTES + 200
FILE_BYTES_MAX: Final = 200_000
"""No file may grow beyond this while a disk is full; what nodes write of themselves is far less."""
LARGE: Final = random.Random(4).randbytes(FILE_BYTES_MAX - SEGMENT_BYTES // 2)
"""Goes to a file that is empty, and not to one that is nearly a segment."""
TOO_LARGE: Final = LARGE * 2
_NUMBERS: Final = count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FollowerSite]:
    """A leader and a follower; each test leaves them with disks as good as new."""
    with FollowerSite(tmp_path_factory.mktemp("damaged"), config=CONFIG) as site:
        site.start()
        yield site


@pytest.fixture
def site(pair: FollowerSite) -> FollowerSite:
    """The two in sync, whoever leads by now."""
    if not pair.leader.node.alive:
        pair.leader.lead()
    for follower in pair.followers:
        follower.link.heal()
        if not follower.node.alive:
            follower.follow(pair.leader)
    pair.wait_in_sync()
    return pair


@pytest.fixture
def queue(site: FollowerSite) -> str:
    """A queue of several segments that no other test knows."""
    name = f"queue-{next(_NUMBERS)}"
    declare(site.leader, name)
    publish(site.leader, name, BODIES)
    site.wait_even()
    return name


def segments(member: FollowerSiteNode, log: str) -> list[Path]:
    """A log's segments, oldest first."""
    found = sorted((member.data_dir / log).glob("*.segment*"))
    assert len(found) >= 4
    return found


def turn_bit(segment: Path) -> None:
    """A bit of a chunk's data is another one, and whoever wants to know what is in it must read it."""
    octets = bytearray(segment.read_bytes())
    octets[DATA] ^= 4
    segment.write_bytes(octets)
    for summary in segment.parent.glob("*.summary"):
        summary.unlink()


@contextmanager
def full_disk(member: FollowerSiteNode) -> Iterator[None]:
    """While this lasts, no file of a node grows beyond a size."""
    resource.prlimit(member.node.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        if member.node.alive:
            both = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(member.node.pid, resource.RLIMIT_FSIZE, both)


# -- a log that is given up ------------------------------------------------------------------------


@pytest.mark.story
def test_a_restart_of_a_crashed_queue_names_the_follower_that_has_it_and_takes_it_along(
    site: FollowerSite, queue: str
) -> None:
    [follower] = site.followers
    with channel_at(site.leader) as channel:
        channel.queue_bind(queue, "amq.fanout")
    log = log_of(site.leader, queue)
    site.wait_even()
    site.leader.node.kill9()
    shutil.rmtree(site.leader.data_dir / log)
    site.leader.lead()
    site.wait_in_sync()
    shown = json.loads(
        site.leader.node.ctl("restart_queue", queue, "--dry-run", "--formatter", "json").stdout
    )
    own, other = shown["copies"]
    assert own["state"] == "missing"
    assert (other["role"], other["state"], other["first_offset"]) == ("follower", "readable", 0)
    assert other["next_offset"] >= len(BODIES)
    refused = site.leader.node.ctl("restart_queue", queue, check=False)
    assert refused.returncode != 0
    assert "an unknown number of messages" in refused.stderr
    site.leader.node.ctl("restart_queue", queue, "--yes")
    publish(site.leader, queue, [b"new"])
    site.wait_even()
    for member in site.members:
        assert queue in member.node.ctl("list_bindings", "destination_name", "source_name").stdout
        assert f"{queue}\t1" in member.node.ctl("list_queues", "name", "messages").stdout
    assert not (follower.data_dir / log).exists()
    site.assert_identical()


# -- torn writes ----------------------------------------------------------------------------------


def test_what_a_torn_leader_lost_is_set_aside_at_its_follower_and_found_there(
    site: FollowerSite, queue: str
) -> None:
    [follower] = site.followers
    log = log_of(site.leader, queue)
    site.leader.node.kill9()
    last = segments(site.leader, log)[-1]
    os.truncate(last, last.stat().st_size - SIZE - 1)
    site.leader.lead()
    site.wait_in_sync()
    publish(site.leader, queue, [b"after"])
    quarantine = [row["payload"].encode() for row in follower.divergent_messages() if row["queue"] == queue]
    assert quarantine == BODIES[-1:]
    assert bodies(site.leader, queue) == [*BODIES[:-1], b"after"]
    assert site.assert_identical() > 0


# -- flipped bits ---------------------------------------------------------------------------------


@pytest.mark.story
def test_a_follower_that_cannot_read_a_log_gets_it_anew_and_keeps_what_is_left(
    site: FollowerSite, queue: str
) -> None:
    [follower] = site.followers
    log = log_of(site.leader, queue)
    follower.node.stop()
    harmed = segments(follower, log)[1]
    turn_bit(harmed)
    follower.follow(site.leader)
    site.wait_in_sync()
    assert f"damaged_log_quarantined log={log}" in follower.node.log_text()
    assert any((follower.data_dir / "divergent").glob(f"damaged-*/{log}/{harmed.name}"))
    assert site.assert_identical() > SIZE * len(BODIES)


def test_a_chunk_that_the_leader_cannot_read_keeps_nothing_else_from_a_new_follower(
    site: FollowerSite, queue: str
) -> None:
    [follower] = site.followers
    log = log_of(site.leader, queue)
    other = f"{queue}-whole"
    declare(site.leader, other)
    publish(site.leader, other, BODIES)
    follower.node.stop()
    follower.wipe()
    turn_bit(segments(site.leader, log)[1])
    follower.follow(site.leader)
    site.wait_in_sync()
    publish(site.leader, other, [b"after"])
    site.leader.node.kill9()
    site.promote(follower)
    assert bodies(follower, other) == [*BODIES, b"after"]


def test_a_frame_that_is_altered_on_the_way_is_asked_for_again(site: FollowerSite, queue: str) -> None:
    [follower] = site.followers
    accepted = follower.link.accepted
    follower.link.flip(len(LARGE) // 2, Direction.BACK, 3)
    publish(site.leader, queue, [LARGE, b"after"])
    site.wait_in_sync()
    assert follower.link.faults == 0
    assert follower.link.accepted > accepted
    assert bodies(site.leader, queue) == [*BODIES, LARGE, b"after"]
    assert site.assert_identical() > SIZE * len(BODIES)


# -- full disks -----------------------------------------------------------------------------------


def test_a_follower_whose_disk_is_full_says_so_and_comes_back_when_there_is_room(
    site: FollowerSite, queue: str
) -> None:
    [follower] = site.followers

    def complains() -> bool:
        status = follower.status()
        return status["state"] == "failed" and "append at offset" in status["error"]

    with full_disk(follower):
        publish(site.leader, queue, [TOO_LARGE, b"the leader goes on"])
        assert site.leader.status()["in_sync"] == []
        wait_until(complains, "a follower that says what is wrong", PATIENCE_S)
        assert not follower.ask("GET", "health/checks/replication").is_success
        publish(site.leader, queue, [b"and on"])
    site.wait_in_sync()
    assert bodies(site.leader, queue) == [*BODIES, TOO_LARGE, b"the leader goes on", b"and on"]
    assert site.assert_identical() > len(TOO_LARGE)


@pytest.mark.story
def test_a_leader_whose_disk_is_full_refuses_and_all_that_it_confirmed_is_with_its_follower(
    site: FollowerSite, queue: str
) -> None:
    old, [follower] = site.leader, site.followers
    exchange, empty = f"{queue}-fanout", f"{queue}-empty"
    declare(old, empty)
    with channel_at(old) as channel:
        channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
        channel.queue_bind(queue, exchange)
        channel.queue_bind(empty, exchange)
        with full_disk(old):
            for key, body in (("", TOO_LARGE), ("", LARGE)):
                with pytest.raises(pika.exceptions.NackError):
                    channel.basic_publish(exchange, key, body, PERSISTENT)
            channel.basic_publish("", empty, b"there is room for this", PERSISTENT)
            old.node.kill9()
    site.promote(follower)
    assert bodies(follower, queue) == BODIES
    # The second one found room in one queue of two: it was refused, and may be delivered.
    assert bodies(follower, empty) == [LARGE, b"there is room for this"]
    old.follow(follower)
    site.wait_in_sync()
    publish(follower, queue, [TOO_LARGE])
    assert site.assert_identical() > len(TOO_LARGE)

"""What a disk loses, on either side of a replication link, is found and given back while both nodes go on."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika.exceptions
import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite, FollowerSiteNode
from leveret.wire.chunk import HEADER_BYTES
from tests.e2e.follower_clients import bodies, channel_at, declare, log_of, numbered, publish

CONFIG: Final = {"segment_bytes_max": "65536"}
SIZE: Final = 400_000
BODIES: Final = numbered(0, 100, SIZE // 100)
DATA: Final = HEADER_BYTES + 200


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FollowerSite]:
    """A leader and a follower in sync, with two queues of several segments."""
    with FollowerSite(tmp_path, config=CONFIG) as site:
        site.start()
        fill(site, "damaged", "whole")
        yield site


@pytest.fixture(params=["leader", "follower"])
def harmed(request: pytest.FixtureRequest, site: FollowerSite) -> FollowerSiteNode:
    """The node whose disk loses something."""
    return site.leader if request.param == "leader" else site.followers[0]


def fill(site: FollowerSite, *queues: str) -> None:
    for queue in queues:
        declare(site.leader, queue)
        publish(site.leader, queue, BODIES)
    site.wait_even()


def post(member: FollowerSiteNode, what: str, **wanted: Any) -> Any:
    answer = member.ask("POST", f"replication/{what}", wanted)
    assert answer.is_success, answer
    return answer.json()


def verify(member: FollowerSiteNode, *, deep: bool = False) -> list[dict[str, Any]]:
    """The rows of a comparison, whatever it finds."""
    rows: list[dict[str, Any]] = post(member, "verify", deep=deep)
    return rows


def differing(member: FollowerSiteNode, *, deep: bool) -> list[str | None]:
    """The queues whose logs differ; None for another log."""
    return [row["queue"] for row in verify(member, deep=deep) if not row["match"]]


def scrub(member: FollowerSiteNode) -> dict[str, Any]:
    """What a scrub finds that somebody asks for."""
    found: dict[str, Any] = post(member, "scrub")
    return found


def harm(member: FollowerSiteNode, log: str, *, segment: int = 2, position: int = DATA) -> None:
    """Let the disk lose a bit of a segment that is whole and on disk."""
    sealed = sorted((member.data_dir / log).glob("*.sealed.segment"))
    assert len(sealed) >= 4
    with sealed[segment].open("r+b") as file:
        file.seek(position)
        (octet,) = file.read(1)
        file.seek(position)
        file.write(bytes([octet ^ 4]))


def read_until_cancelled(member: FollowerSiteNode, queue: str) -> int:
    """Consume until the node takes the queue away; how many messages came."""
    with channel_at(member) as channel:
        return sum(1 for _ in channel.consume(queue))


def refusal(member: FollowerSiteNode, queue: str) -> str:
    """Why a queue is not served."""
    with channel_at(member) as channel, pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, passive=True)
    return str(caught.value.reply_text)


# -- what an operator sees ------------------------------------------------------------------------


def test_a_flipped_bit_is_found_by_a_deep_comparison_and_mended_by_a_scrub(
    site: FollowerSite, harmed: FollowerSiteNode
) -> None:
    [follower] = site.followers
    log = log_of(site.leader, "damaged")
    for member in site.members:
        rows = verify(member, deep=True)
        assert all(row["match"] for row in rows)
        assert {row["follower"] for row in rows} == {follower.node_name}
        assert {(row["vhost"], row["queue"]) for row in rows} >= {("/", "damaged"), ("/", "whole")}
    harm(harmed, log)
    for member in site.members:
        assert differing(member, deep=False) == []
        assert differing(member, deep=True) == ["damaged"]
    ended = harmed.node.ctl("scrub")
    assert re.search(r"Damaged\W+1\b", ended.stdout)
    assert re.search(r"Repaired\W+1\b", ended.stdout)
    for member in site.members:
        assert differing(member, deep=True) == []
    assert f"chunk_repaired log={log}" in harmed.node.log_text()
    status = harmed.status()["scrub"]
    assert (status["running"], status["damaged"], status["repaired"], status["error"]) == (False, 1, 1, "")
    assert status["last_at_ms"] > 0
    assert bodies(site.leader, "damaged") == BODIES
    assert site.assert_identical() > 2 * SIZE


@pytest.mark.story
def test_the_commands_fail_as_long_as_damage_is_left(site: FollowerSite) -> None:
    [follower] = site.followers
    log = log_of(site.leader, "damaged")
    assert follower.node.ctl("replication_verify", "--deep").returncode == 0
    for member in site.members:
        harm(member, log)

    def fails(*arguments: str) -> subprocess.CompletedProcess[str]:
        ended = follower.node.ctl("--formatter", "json", *arguments, check=False)
        assert ended.returncode != 0
        return ended

    assert "1 of " in fails("replication_verify", "--deep", "--follower", follower.node_name).stderr
    assert "not repaired: 1 of 1" in fails("scrub").stderr
    (left,) = json.loads(fails("scrub").stdout)["unrepaired"]
    assert left.startswith(f"{log} at offset ")


# -- what cannot be mended ------------------------------------------------------------------------


@pytest.mark.story
@pytest.mark.parametrize("position", [20, DATA])
def test_what_is_damaged_on_both_sides_is_named_and_left(site: FollowerSite, position: int) -> None:
    log = log_of(site.leader, "damaged")
    for member in site.members:
        harm(member, log, position=position)
    for member in site.members:
        found = scrub(member)
        assert (found["damaged"], found["repaired"], len(found["unrepaired"])) == (1, 0, 1)
        assert found["unrepaired"][0].startswith(f"{log} at offset ")
        assert "is damaged there as well" in found["unrepaired"][0]
        assert "is damaged there as well" in member.status()["scrub"]["error"]
    assert bodies(site.leader, "whole") == BODIES


# -- queues that are down -------------------------------------------------------------------------


@pytest.mark.story
def test_a_queue_that_a_reader_found_damaged_is_mended_and_served_after_a_restart(site: FollowerSite) -> None:
    leader, [follower] = site.leader, site.followers
    log = log_of(site.leader, "damaged")
    # What a queue was just sent it need not read; and what is sealed is not read again at a start, if it has a summary.
    leader.node.restart()
    site.wait_in_sync()
    harm(leader, log, segment=3)
    assert read_until_cancelled(leader, "damaged") < len(BODIES)
    assert "is down" in refusal(leader, "damaged")
    # Whoever joins meanwhile keeps its good copy, and is sent nothing of the bad one.
    follower.node.stop()
    follower.follow(leader, secret=False)
    site.wait_in_sync()
    found = scrub(leader)
    assert (found["damaged"], found["repaired"]) == (1, 1)
    assert f"log_mended log={log} vhost=/ queue=damaged hint=" in leader.node.log_text()
    leader.node.restart()
    site.wait_in_sync()
    assert differing(leader, deep=True) == []
    assert bodies(leader, "damaged") == BODIES
    site.assert_identical()


@pytest.mark.story
def test_a_log_that_the_leader_cannot_even_open_is_mended_from_its_follower(site: FollowerSite) -> None:
    leader, [follower] = site.leader, site.followers
    log = log_of(site.leader, "damaged")
    leader.node.stop()
    for summary in (leader.data_dir / log).glob("*.summary"):
        summary.unlink()
    harm(leader, log, position=30)
    leader.node.start()
    site.wait_in_sync()
    assert "is down" in refusal(leader, "damaged")
    follower.node.stop()
    follower.follow(leader, secret=False)
    site.wait_in_sync()
    assert differing(leader, deep=False) == differing(follower, deep=False) == ["damaged"]
    found = scrub(leader)
    assert (found["damaged"], found["repaired"]) == (1, 1)
    leader.node.restart()
    site.wait_in_sync()
    assert differing(leader, deep=True) == []
    assert bodies(leader, "damaged") == BODIES
    site.assert_identical()


# -- without being asked --------------------------------------------------------------------------


@pytest.mark.story
def test_scrubs_in_the_background_mend_on_both_sides(tmp_path: Path) -> None:
    with FollowerSite(tmp_path, config={**CONFIG, "replication.scrub_interval": "1s"}) as site:
        site.start()
        fill(site, "damaged")
        log = log_of(site.leader, "damaged")
        for member in site.members:
            harm(member, log)
            reported = re.compile(r"scrubbed chunks=\d+ octets=\d+ damaged=1 repaired=1")
            wait_until(lambda m=member, t=reported: t.search(m.node.log_text()), "a scrub", PATIENCE_S)  # type: ignore[misc]  # a default is how a loop variable is bound
        site.assert_identical()

"""What a disk loses, on either side of a replication link, is found and given back while both nodes go on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.sites.follower_site import FollowerSite, FollowerSiteNode
from leveret.wire.chunk import HEADER_BYTES
from tests.e2e.follower_clients import bodies, declare, log_of, numbered, publish

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

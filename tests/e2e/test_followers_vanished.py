"""Files of a follower are removed while it runs: they are fetched again from its leader, and the node goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.follower_site import PATIENCE_S, FollowerSite
from tests.e2e.follower_clients import bodies, channel_at, declare, log_of, numbered, publish

BODIES: Final = numbered(0, 100, 4000)
MORE: Final = numbered(100, 100, 4000)
_NUMBERS: Final = count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FollowerSite]:
    """A leader and a follower."""
    folder = tmp_path_factory.mktemp("vanished")
    with FollowerSite(folder, config={"segment_bytes_max": "65536"}) as site:
        site.start()
        yield site


@pytest.fixture
def queue(pair: FollowerSite) -> str:
    """A queue of several segments that no other test knows, at both nodes."""
    if not pair.leader.node.alive:
        pair.leader.lead()
        for follower in pair.followers:
            follower.follow(pair.leader)
        pair.wait_in_sync()
    name = f"queue-{next(_NUMBERS)}"
    declare(pair.leader, name)
    publish(pair.leader, name, BODIES)
    pair.wait_even()
    return name


def remove(directory: Path, what: str) -> None:
    """All of a log, or its newest segment."""
    if what == "directory":
        shutil.rmtree(directory)
    else:
        max(directory.glob("*.segment*")).unlink()


def wait_found(site: FollowerSite, said: int) -> None:
    """The follower says that a copy is damaged, behind the first `said` characters of its log."""
    [follower] = site.followers
    wait_until(lambda: "damaged_copy" in follower.node.log_text()[said:], "the loss to be found", PATIENCE_S)


def wait_fetched(site: FollowerSite, pid: int, said: int) -> None:
    """It was said, the process is the same, and all that the leader has is here; both have been stopped then."""
    [follower] = site.followers
    wait_found(site, said)
    site.wait_in_sync()
    site.wait_even()
    assert (follower.node.alive, follower.node.pid) == (True, pid)
    assert site.assert_identical() > 0


@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_log_that_vanishes_under_traffic_is_fetched_again(
    pair: FollowerSite, queue: str, what: str
) -> None:
    [follower] = pair.followers
    log, pid, said = log_of(pair.leader, queue), follower.node.pid, len(follower.node.log_text())
    remove(follower.data_dir / log, what)
    publish(pair.leader, queue, MORE)
    wait_fetched(pair, pid, said)
    is_kept = any((follower.data_dir / "divergent").glob(f"damaged-*/{log}/*.segment*"))
    assert is_kept == (what == "segment")


@pytest.mark.story
@pytest.mark.parametrize("log", ["definitions", "queue", "stream"])
def test_a_log_that_vanishes_while_nothing_happens_is_fetched_again(
    pair: FollowerSite, queue: str, log: str
) -> None:
    [follower] = pair.followers
    if log == "stream":
        with channel_at(pair.leader) as channel:
            channel.queue_declare(f"{queue}-s", durable=True, arguments={"x-queue-type": "stream"})
        publish(pair.leader, f"{queue}-s", BODIES)
        pair.wait_even()
    name = {"queue": log_of(pair.leader, queue), "definitions": "definitions"}.get(log)
    place = follower.data_dir / name if name else next((follower.data_dir / "streams").iterdir())
    pid, said = follower.node.pid, len(follower.node.log_text())
    shutil.rmtree(place)
    wait_fetched(pair, pid, said)


@pytest.mark.story
@pytest.mark.parametrize("which", [0, 1])
def test_a_sealed_segment_that_vanishes_while_nothing_happens_is_found_by_a_scrub(
    pair: FollowerSite, queue: str, which: int
) -> None:
    [follower] = pair.followers
    log, pid, said = log_of(pair.leader, queue), follower.node.pid, len(follower.node.log_text())
    sorted((follower.data_dir / log).glob("*.segment*"))[which].unlink()
    scrubbed = follower.node.ctl("scrub", check=False)
    assert scrubbed.returncode != 0
    assert "fetched again from its leader" in scrubbed.stdout + scrubbed.stderr
    wait_fetched(pair, pid, said)
    assert any((follower.data_dir / "divergent").glob(f"damaged-*/{log}/*.segment*"))


def delay(site: FollowerSite, apply_delay: str) -> None:
    """Have the follower keep for so long what its leader removes."""
    [follower] = site.followers
    follower.node.stop()
    follower.node.config["replication.apply_delay"] = apply_delay
    follower.follow(site.leader)
    wait_until(lambda: follower.status()["state"] == "delayed", "a delayed follower", PATIENCE_S)


@pytest.mark.story
@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_log_of_a_delayed_follower_vanishes_while_changes_of_it_can_be_left_out(
    tmp_path: Path, what: str
) -> None:
    with FollowerSite(tmp_path, config={"segment_bytes_max": "65536"}) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        publish(site.leader, "orders", BODIES)
        site.wait_even()
        log = log_of(site.leader, "orders")
        delay(site, "4s")
        pid, said = follower.node.pid, len(follower.node.log_text())
        remove(follower.data_dir / log, what)
        publish(site.leader, "orders", MORE)
        wait_found(site, said)
        assert follower.status()["state"] != "streaming", "it holds back as before"
        wait_until(lambda: _applied(site, "orders") == len(BODIES + MORE), "all to be applied", PATIENCE_S)
        assert (follower.node.alive, follower.node.pid) == (True, pid)
        _follow_without_delay(site)
        assert site.assert_identical() > 0


@pytest.mark.story
def test_what_a_delayed_follower_keeps_vanishes_and_it_goes_on(tmp_path: Path) -> None:
    with FollowerSite(tmp_path, config={"segment_bytes_max": "65536"}) as site:
        [follower] = site.followers
        site.start()
        declare(site.leader, "orders")
        publish(site.leader, "orders", BODIES)
        site.wait_even()
        delay(site, "3s")
        publish(site.leader, "orders", MORE)
        pid, said = follower.node.pid, len(follower.node.log_text())
        shutil.rmtree(follower.data_dir / "delayed")
        wait_found(site, said)
        publish(site.leader, "orders", [b"after"])
        wait_until(
            lambda: _applied(site, "orders") == len(BODIES + MORE) + 1, "all to be applied", PATIENCE_S
        )
        assert (follower.node.alive, follower.node.pid) == (True, pid)
        _follow_without_delay(site)
        site.leader.node.kill9()
        site.promote(follower)
        assert bodies(follower, "orders") == [*BODIES, *MORE, b"after"]


def _applied(site: FollowerSite, queue: str) -> int:
    return int(site.followers[0].get(f"queues/%2F/{queue}").get("messages", 0))


def _follow_without_delay(site: FollowerSite) -> None:
    [follower] = site.followers
    follower.node.stop()
    del follower.node.config["replication.apply_delay"]
    follower.follow(site.leader)
    site.wait_in_sync()

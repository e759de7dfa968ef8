"""A node whose disk is full: it starts, its queues are drained, and it takes messages again when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import pika
import pytest

from leveret.storage.reserve import FILE
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.sites.follower_site import FollowerSite
from tests.mounts import mount, private_mounts

MIB: Final = 1024 * 1024
PATIENCE_S: Final = 30.0
QUEUES: Final = 5
MESSAGES: Final = 40
BODY: Final = os.urandom(64 * 1024)
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def mounts() -> Iterator[None]:
    """Of this module's own, so that a run that is killed leaves nothing mounted."""
    with private_mounts():
        yield


@pytest.fixture
def disk(mounts: None, tmp_path: Path) -> Iterator[Path]:
    """A small one of the test's own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=48m,mode=0700", "none", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    """Take all room, almost all of it at once: a reserve that is given up meanwhile must not be taken, too."""
    with (disk / "filler").open("ab", buffering=0) as file:
        with suppress(OSError):
            found = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize)
        for size in (MIB, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def connect(node: LeveretProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, node.amqp_port, socket_timeout=20))


def publish_all(node: LeveretProcess) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(QUEUES):
            channel.queue_declare(f"q{number}", durable=True)
            for count in range(MESSAGES):
                channel.basic_publish("", f"q{number}", b"%d" % count + BODY, PERSISTENT, mandatory=True)


def drain_all(node: LeveretProcess) -> list[int]:
    """Take and acknowledge everything; how many each queue had, in their order and without gaps."""
    counts = []
    with connect(node) as connection:
        channel = connection.channel()
        for number in range(QUEUES):
            count = 0
            while True:
                method, _, body = channel.basic_get(f"q{number}")
                if method is None:
                    break
                assert body == b"%d" % count + BODY
                channel.basic_ack(method.delivery_tag)
                count += 1
            counts.append(count)
    return counts


@pytest.fixture
def node(disk: Path, tmp_path: Path) -> Iterator[LeveretProcess]:
    config = {"disk_reserve": "4MiB", "disk_free_limit.absolute": "1MB"}
    node = LeveretProcess(data_dir=disk / "data", config=config, parent_dir=tmp_path)
    try:
        yield node
    finally:
        node.close()


def test_a_node_with_a_full_disk_starts_is_drained_and_takes_messages_again(
    disk: Path, node: LeveretProcess
) -> None:
    node.start()
    publish_all(node)
    reserve = node.data_dir / FILE
    wait_until(reserve.exists, "the reserve", PATIENCE_S)
    node.kill9()
    fill(disk)
    node.start()
    assert "disk_reserve_given_up" in node.log_text()
    assert not reserve.exists()
    wait_until(lambda: "alarm_in_effect" in node.log_text(), "the alarm", PATIENCE_S)
    assert drain_all(node) == [MESSAGES] * QUEUES
    node.restart()
    assert drain_all(node) == [0] * QUEUES
    (disk / "filler").unlink()
    wait_until(reserve.exists, "the reserve", PATIENCE_S)
    publish_all(node)
    assert drain_all(node) == [MESSAGES] * QUEUES
    assert "level=critical" not in node.log_text()


def test_a_disk_that_fills_up_under_a_node_leaves_room_for_acknowledgements(
    disk: Path, node: LeveretProcess
) -> None:
    node.start()
    publish_all(node)
    wait_until((node.data_dir / FILE).exists, "the reserve", PATIENCE_S)
    fill(disk)
    wait_until(lambda: "disk_reserve_given_up" in node.log_text(), "the end of the reserve", PATIENCE_S)
    assert drain_all(node) == [MESSAGES] * QUEUES
    node.kill9()
    node.start()
    assert drain_all(node) == [0] * QUEUES
    assert "level=critical" not in node.log_text()


def test_without_a_reserve_a_start_says_what_to_do_and_loses_nothing(
    disk: Path, node: LeveretProcess
) -> None:
    """Somebody else may have taken the place of the reserve; that a start counts has to be on disk before it serves."""
    node.config["disk_reserve"] = "0"
    node.start()
    publish_all(node)
    node.stop()
    fill(disk)
    node.launch()
    wait_until(lambda: not node.alive, "the end", PATIENCE_S)
    assert "make room on its disk" in node.log_text()
    (disk / "filler").unlink()
    node.start()
    assert drain_all(node) == [MESSAGES] * QUEUES


def ask(node: LeveretProcess, method: str, path: str, **content: Any) -> httpx.Response:
    url = f"http://{LOOPBACK}:{node.management_port}/api/{path}"
    return httpx.request(method, url, auth=("guest", "guest"), timeout=PATIENCE_S, **content)


def test_a_change_that_a_full_disk_refuses_is_no_success_over_http_and_the_others_survive(
    disk: Path, node: LeveretProcess
) -> None:
    """The last page of a file has room on a full disk, so the first changes are logged."""

    def put(number: int) -> httpx.Response:
        return ask(node, "PUT", f"queues/%2F/new{number}", json={"durable": True})

    node.config["disk_reserve"] = "0"
    node.start()
    fill(disk)
    made = 0
    while (reply := put(made)).status_code == HTTPStatus.CREATED:
        made += 1
    assert reply.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "No space left on device" in reply.json()["reason"]
    (disk / "filler").unlink()
    wait_until(lambda: put(made).status_code == HTTPStatus.NO_CONTENT, "room", PATIENCE_S)
    node.kill9()
    node.start()
    listed = {each["name"] for each in ask(node, "GET", "queues").json()}
    assert listed == {f"new{number}" for number in range(made + 1)}


@pytest.mark.story
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_follower_on_a_full_disk_starts_is_promoted_and_is_drained(
    tmp_path: Path, disk: Path, is_restarted: bool
) -> None:
    """It never led, and holds a reserve all the same."""
    config = {"disk_reserve": "4MiB", "disk_free_limit.absolute": "1MB"}
    with FollowerSite(tmp_path, config=config) as site:
        [follower] = site.followers
        follower.node.data_dir = disk / "data"
        site.start()
        publish_all(site.leader.node)
        reserve = follower.node.data_dir / FILE
        wait_until(reserve.exists, "the reserve", PATIENCE_S)
        if is_restarted:
            follower.node.kill9()
        site.leader.node.kill9()
        fill(disk)
        if is_restarted:
            follower.node.launch()
            is_ready = "leveret ready role=follower"
            wait_until(lambda: follower.node.log_text().count(is_ready) == 2, "the start", PATIENCE_S)
        site.promote(follower)
        reason = "start" if is_restarted else "promotion"
        assert f"disk_reserve_given_up size_bytes={4 * MIB} reason={reason}" in follower.node.log_text()
        assert drain_all(follower.node) == [MESSAGES] * QUEUES
        follower.node.kill9()
        (disk / "filler").unlink()
        site.promote_by_restart(follower)
        assert drain_all(follower.node) == [0] * QUEUES


@pytest.mark.story
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_fenced_node_on_a_full_disk_starts_is_promoted_and_is_drained(
    tmp_path: Path, disk: Path, is_restarted: bool
) -> None:
    """It led, was replaced while it was away, and is the only one that is left."""
    config = {"disk_reserve": "4MiB", "disk_free_limit.absolute": "1MB"}
    with FollowerSite(tmp_path, config=config) as site:
        old, [follower] = site.leader, site.followers
        old.node.data_dir = disk / "data"
        site.start()
        publish_all(old.node)
        site.wait_even()
        reserve = old.node.data_dir / FILE
        wait_until(reserve.exists, "the reserve", PATIENCE_S)
        old.node.kill9()
        site.promote(follower)
        reserve.unlink()
        old.lead(wait=False)
        old.wait_answers()
        assert old.status()["role"] == "fenced"
        wait_until(reserve.exists, "the reserve of a node that never led in this process", PATIENCE_S)
        follower.node.kill9()
        if is_restarted:
            old.node.kill9()
        fill(disk)
        if is_restarted:
            old.lead(wait=False)
            old.wait_answers()
            assert old.status()["role"] == "fenced"
        site.promote(old, force=True)
        reason = "start" if is_restarted else "promotion"
        assert f"disk_reserve_given_up size_bytes={4 * MIB} reason={reason}" in old.node.log_text()
        assert drain_all(old.node) == [MESSAGES] * QUEUES
        old.node.kill9()
        (disk / "filler").unlink()
        old.lead()
        assert drain_all(old.node) == [0] * QUEUES

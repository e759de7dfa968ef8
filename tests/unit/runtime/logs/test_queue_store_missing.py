"""runtime.logs.queue_store: a log that had been there and is not is a loss that is told, and no empty queue."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import NotFound, StorageError
from leveret.runtime.logs import commit as commit_module
from leveret.runtime.logs import replay
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.node import node
from leveret.storage.log import Log
from leveret.storage.open_segments import OutOfDescriptors
from leveret.storage.tree import Tree
from tests.unit.runtime.collecting.site import Site


async def started(directory: Path) -> Site:
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(name="q", vhost="v")))
    return site


def log_of(site: Site, name: str = "q") -> Path:
    return site.directory / "queues" / f"{site.queue(name).epoch:016x}"


async def start_without(site: Site, *gone: Path) -> None:
    """Kill the node, remove these, start it again."""
    await site.kill()
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    await site.start()


def assert_down(site: Site, text: str) -> None:
    with pytest.raises(NotFound, match=text):
        site.node.broker.queue("v", "q")


async def test_a_queue_whose_directory_is_gone_is_down_until_it_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = await started(tmp_path)
    await site.publish(3)
    log = log_of(site)
    with caplog.at_level(logging.ERROR):
        await start_without(site, log)
    assert f"queue_down vhost=v queue=q error=log {log} is missing" in caplog.text
    await site.restart()
    assert_down(site, f"log {log} is missing, .* accept the loss with leveretctl restart_queue")
    assert not log.exists()
    site.node.broker.delete_queue(site.queue())
    await site.settle()
    await site.apply(d.Put(d.Queue(name="q", vhost="v")))
    bodies = await site.publish(2)
    await site.restart()
    assert site.contents() == bodies


async def test_a_queue_whose_segments_are_gone_is_down(tmp_path: Path) -> None:
    site = await started(tmp_path)
    await site.publish(1)
    await start_without(site, *log_of(site).glob("*.segment"))
    assert_down(site, "is missing")


async def test_a_queue_whose_newest_segment_is_gone_is_down(tmp_path: Path) -> None:
    site = await started(tmp_path)
    await site.publish_often(4, 5)
    *_, before, newest = sorted(log_of(site).glob("*.segment"))
    await start_without(site, newest)
    assert_down(site, f"{newest.name}.*the segment is missing")
    assert before.exists()


async def test_a_queue_that_never_had_a_message_has_nothing_to_miss(tmp_path: Path) -> None:
    site = await started(tmp_path)
    await site.restart()
    assert site.node.broker.queue("v", "q").message_count == 0
    bodies = await site.publish(2)
    await site.restart()
    assert site.contents() == bodies


async def test_a_log_that_was_made_by_an_earlier_version_is_marked_at_its_next_start(tmp_path: Path) -> None:
    site = await started(tmp_path)
    site.node._queues.home.record_existence_once_synced = lambda epoch: None
    await site.publish(2)
    assert not site.node._definitions.has_log(site.queue().epoch)
    await site.restart()
    assert site.node._definitions.has_log(site.queue().epoch)
    await start_without(site, log_of(site))
    assert_down(site, "is missing")


async def test_a_purged_and_drained_queue_is_not_missing_anything(tmp_path: Path) -> None:
    site = await started(tmp_path)
    await site.publish_often(4, 5)
    await site.ack(20)
    await site.restart()
    assert site.node.broker.queue("v", "q").message_count == 0


async def test_without_definitions_a_node_with_queues_does_not_start_and_removes_nothing(
    tmp_path: Path,
) -> None:
    site = await started(tmp_path / "data")
    bodies = await site.publish(3)
    await site.kill()
    (site.directory / "definitions").rename(tmp_path / "aside")
    with pytest.raises(StorageError, match="definitions is missing or empty"):
        await site.start()
    await site.kill()
    shutil.rmtree(site.directory / "definitions")
    (tmp_path / "aside").rename(site.directory / "definitions")
    await site.start()
    assert site.contents() == bodies


async def test_a_start_whose_finds_cannot_be_synced_ends_and_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptors: list[int]) -> None:
        raise OSError(5, "Input/output error")

    site = await started(tmp_path)
    bodies = await site.publish(3)
    await site.kill()
    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "sync_descriptors", refuse)
        patch.setattr(node, "open_kernel_syncs", lambda: None)
        with pytest.raises(StorageError, match="cannot be synced"):
            await asyncio.wait_for(site.start(), 60)
    await site.restart()
    assert site.contents() == bodies


@pytest.mark.parametrize("shows", [False, True])
async def test_who_serves_a_queue_marks_its_log_and_who_shows_it_does_not(
    tmp_path: Path, shows: bool
) -> None:
    """A follower's definitions have what its leader appends, and nothing else."""
    site = await started(tmp_path)
    await site.publish(1)
    queue = site.queue()
    await site.kill()
    commits = commit_module.GroupCommit(fsync=True, on_failure=lambda error: None)
    store = LogStore(Tree(tmp_path), commits, lambda: 0, 1 << 20)
    marked: list[int] = []
    store.use_existence_records(lambda epoch: False, marked.append, marked.append)
    if shows:
        store.show(None)
    store.recover(queue)
    assert marked == ([] if shows else [queue.epoch])
    store.close()
    commits.close()


@pytest.mark.parametrize("where", ["opened", "read"])
async def test_a_queue_that_no_descriptor_is_left_for_is_not_down(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mirror that begins to lead; its copy was put away, and its messages were given up by restart_queue."""
    site = await started(tmp_path)
    bodies = await site.publish(3)
    store, before = site.node._queues, site.queue()
    store.step_down(before)
    queue = Queue(before.definition, site.node.log_store.read)

    def refuse(*args: object, **more: object) -> None:
        raise OutOfDescriptors("too many open files")

    with monkeypatch.context() as patched:
        if where == "opened":
            patched.setattr(Log, "open", refuse)
        else:
            patched.setattr(replay.Replay, "restore", refuse)
        with pytest.raises(OutOfDescriptors):
            store.recover(queue)
    assert queue.damage is None
    assert queue not in store._logs
    site.node.tree.logs.pop(log_name(queue), None)
    store.recover(queue)
    assert queue.message_count == len(bodies)
    site.node.broker.replace_queue(queue)
    await site.kill()

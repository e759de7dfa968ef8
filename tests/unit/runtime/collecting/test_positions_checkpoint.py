"""Queues of which retention left no record in an outgoing log end at downstreams like any other."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.collecting.positions_checkpoint import PositionsCheckpoint
from leveret.runtime.collecting.vhost_directories import directory_name
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree
from leveret.wire.chunk import ChunkType, split_entries
from leveret.wire.record import decode_settlements
from tests.unit.runtime.collecting.site import (
    SEGMENT_BYTES,
    TAGGED,
    Site,
    collected_chunks,
    origin,
    play,
    replicating,
    served,
)

pytestmark = pytest.mark.usefixtures("collection")

UNTAGGED = d.Vhost(name="v")
KEPT = 5


async def with_forgotten(directory: Path) -> tuple[Site, tuple[bytes, int]]:
    """A site whose q1 holds messages that all are transferred, and not retained; how the log names q1."""
    site = await replicating(directory, "q1", "q2")
    await site.publish(KEPT, "q1")
    await forget(site)
    log = await served(site)
    key = log.key_of(site.queue("q1"))
    assert key not in said(log)
    assert log.positions[key] == KEPT
    return site, key


async def forget(site: Site) -> None:
    """Let other messages come, be transferred, and all that is be dropped."""
    for _ in range(20):
        await site.publish(8, "q2")
        await site.ack(8, "q2")
    log = await served(site)
    site.node.collector.note_downstream("v", "eu.2", log.committed_offset)
    site.node.collector._truncates = True
    await site.node.collector.retain()


def said(log: OutgoingLog) -> dict[tuple[bytes, int], int]:
    """Of each queue and life of which there is any record, up to where it is settled from its begin on."""
    ends: dict[tuple[bytes, int], int] = {}
    for chunk in collected_chunks(log):
        key, _ = origin(chunk.trailer)
        ends.setdefault(key, 0)
        if chunk.header.type == ChunkType.TRACKING:
            for settled in decode_settlements(split_entries(chunk.data)[0]):
                if settled.first == 0:
                    ends[key] = max(ends[key], settled.count)
    return ends


async def lose_outgoing(site: Site, *changes: d.Change) -> None:
    """Do what the outgoing log loses again with the power, before its fdatasync."""
    place, copy = site.directory / "outgoing", site.directory / "copy"
    shutil.copytree(place, copy)
    await site.apply(*changes)
    await site.kill()
    shutil.rmtree(place)
    copy.rename(place)
    await site.start()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_forgotten_queue_that_is_deleted_while_its_vhost_is_not_tagged_is_ended(
    directory: Path, restart: bool
) -> None:
    site, key = await with_forgotten(directory)
    await site.apply(d.Put(UNTAGGED))
    await site.ack(KEPT, "q1")
    await site.apply(d.Delete("queues", ("v", "q1")))
    if restart:
        await site.restart()
    await site.apply(d.Put(TAGGED))
    assert said(site.node.collector.logs["v"])[key] == KEPT


@pytest.mark.parametrize("change", [d.Delete("queues", ("v", "q1")), d.Delete("policies", ("v", "p"))])
async def test_the_end_of_a_forgotten_queue_that_is_lost_with_the_power_is_told_again(
    directory: Path, change: d.Change
) -> None:
    site, key = await with_forgotten(directory)
    await lose_outgoing(site, change)
    assert said(site.node.collector.logs["v"])[key] == KEPT


async def test_an_end_that_is_told_is_not_told_again_once_it_is_forgotten(directory: Path) -> None:
    site, key = await with_forgotten(directory)
    await site.apply(d.Delete("queues", ("v", "q1")))
    await forget(site)
    await site.restart()
    log = await served(site)
    assert key not in log.positions
    assert key not in said(log)


async def test_a_forgotten_queue_goes_on_where_it_was_after_a_restart(directory: Path) -> None:
    site, key = await with_forgotten(directory)
    await site.restart()
    assert key not in said(site.node.collector.logs["v"]), "what is transferred is not copied again"
    new = await site.publish(3, "q1")
    assert site.replicated() == {"q1": new}


async def test_a_log_that_was_open_already_as_at_a_promotion_is_carried_by_its_segments(
    directory: Path,
) -> None:
    site, key = await with_forgotten(directory)
    await site.publish(3, "q1")
    await site.publish_often(20, 8, "q2")
    await site.kill()

    def opened(tree: Tree) -> OutgoingLog:
        queues = site.node.collector._logs_of_queues
        return OutgoingLog(tree, directory / "outgoing" / "v", queues, segment_bytes_max=SEGMENT_BYTES)

    tree = Tree(directory)
    assert not tree.open_all()
    log = opened(tree)
    log.log.sync()
    log.retain(bytes_max=0, written_before_ms=None, transferred=False)
    assert key not in said(log)
    tree.close()
    assert opened(Tree(directory)).positions[key] == KEPT + 3


def test_what_is_to_be_dropped_is_carried_before_and_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(directory: Path) -> None:
        site, key = await with_forgotten(directory)
        log = await served(site)
        with monkeypatch.context() as patch:
            patch.setattr(log.log, "drop_before", refuse)
            await forget(site)
        first = log.first_offset
        # As if killed in between; and what is not dropped is read once more.
        await lose_outgoing(site, d.Delete("queues", ("v", "q1")))
        log = site.node.collector.logs["v"]
        assert log.first_offset == first
        assert said(log)[key] == KEPT
        assert log.positions == {log.key_of(site.queue("q2")): site.queue("q2").next_offset}
        await site.kill()

    def refuse(*_: object) -> int:
        raise StorageError("no")

    play(scenario)


def test_nothing_is_dropped_that_cannot_be_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(directory: Path) -> None:
        site, _ = await with_forgotten(directory)
        log = await served(site)
        first = log.first_offset
        with monkeypatch.context() as patch:
            patch.setattr(StateFile, "replace", refuse)
            await forget(site)
        assert log.first_offset == first
        await site.node.collector.retain()
        assert log.first_offset > first
        await site.kill()

    def refuse(*_: object) -> None:
        raise StorageError("no space left")

    play(scenario)


async def test_what_is_collected_anew_is_not_taken_for_copied_after_a_kill(directory: Path) -> None:
    site, _ = await with_forgotten(directory)
    log = await served(site)
    former = (place := directory / "outgoing" / "v" / "positions.json").read_bytes()
    log.begin_anew()
    await site.kill()
    assert json.loads(place.read_bytes())["positions"] == []
    # Nor is it from an older file, should the disk have that again.
    place.write_bytes(former)
    await site.start()
    assert site.replicated() == {"q1": site.contents("q1")}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("positions.json", '{"first": "nowhere"}'),
        ("lives.json", '{"an epoch": 1}'),
        ("lives.json", '{"6": "once"}'),
    ],
)
async def test_a_damaged_file_beside_it_keeps_the_log_down_and_not_the_broker(
    directory: Path, name: str, content: str
) -> None:
    site, _ = await with_forgotten(directory)
    await site.kill()
    (directory / "outgoing" / "v" / name).write_text(content)
    await site.start()
    assert site.node.collector.logs == {}
    assert len(site.contents("q1")) == KEPT


@pytest.mark.parametrize("start", ["", "before", "unseen", "broken"])
async def test_nothing_is_left_of_the_log_of_a_vhost_that_is_gone_untagged(
    directory: Path, start: str
) -> None:
    site, _ = await with_forgotten(directory)
    place, copy = directory / "outgoing" / directory_name("v"), directory / "copy"
    log_id = site.node.collector.logs["v"].log_id
    await site.apply(d.Put(UNTAGGED), d.Put(d.Vhost(name="other")))
    if start:
        await site.restart()
    assert place.exists(), "for when the tag comes back"
    if start == "broken":
        (place / "identity.json").write_text("[")
        await site.apply(d.Put(TAGGED))
    shutil.copytree(place, copy)
    await site.apply(d.Delete("vhosts", ("v",)))
    assert not place.exists()
    if start == "unseen":
        copy.rename(place)
        await site.restart()
        assert not place.exists()
    await site.apply(d.Put(TAGGED))
    assert site.node.collector.logs["v"].log_id != log_id


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("change", [d.Delete("queues", ("v", "q1")), d.Delete("policies", ("v", "p"))])
async def test_a_queue_that_goes_as_the_log_begins_anew_is_ended(
    directory: Path, change: d.Change, restart: bool
) -> None:
    """Downstreams have it, and it was not collected anew yet."""

    site = await replicating(directory, "q1")
    await site.publish(KEPT, "q1")
    log = await served(site)
    key = log.key_of(site.queue("q1"))
    site.node.upstream.delete_logs()
    if restart:
        await lose_outgoing(site, change)
    else:
        await site.apply(change)
    log = await served(site)
    assert said(log)[key] == KEPT
    await site.restart()
    log = await served(site)
    assert log.last_position_of(key) is None, "it is told once"


async def test_an_end_that_may_be_lost_with_the_power_is_not_forgotten_with_what_is_dropped_before_it(
    directory: Path,
) -> None:
    """positions.json is on disk before the end is."""

    site = await replicating(directory, "q1", "q2")
    await site.publish(KEPT, "q1")
    log = await served(site)
    key = log.key_of(site.queue("q1"))
    site.node.upstream.delete_logs()
    log.end(key, KEPT, 0)
    assert log.last_position_of(key) is None
    again = PositionsCheckpoint(StateFile(directory / "outgoing" / "v" / "positions.json"))
    again.load(log.log)
    assert again.former == {key: KEPT}
    log._checkpoint.save(log.first_offset)
    again.load(log.log)
    assert again.former == {key: KEPT}, "the segment that says so is retained"
    log._checkpoint.save(log.log.next_offset)
    again.load(log.log)
    assert again.former == {}


async def test_a_queue_that_is_collected_anew_ends_where_downstreams_may_have_it(directory: Path) -> None:
    """It lost its end with the power before it was, and gives those offsets to other messages."""

    site = await replicating(directory, "q1", durability="os")
    kept = await site.publish(KEPT, "q1")
    [path] = (directory / "queues").iterdir()
    [segment] = path.glob("*.segment")
    size = segment.stat().st_size
    await site.publish(KEPT, "q1")
    log = await served(site)
    key = log.key_of(site.queue("q1"))
    site.node.upstream.delete_logs()
    await site.kill()
    os.truncate(segment, size)
    await site.start()
    after = await site.publish(1, "q1")
    log = await served(site)
    assert said(log)[key] == 2 * KEPT
    assert site.replicated() == {"q1": [*kept, *after]}

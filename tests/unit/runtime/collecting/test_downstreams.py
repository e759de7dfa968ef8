"""runtime.collecting.collector: who transfers an outgoing log, what is kept for them, and beginning anew."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.collecting import downstreams
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.storage.log_reader import Extent, uncache
from leveret.storage.state_file import StateFile
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site, replicating, served

pytestmark = pytest.mark.usefixtures("collection")


async def collecting(directory: Path, messages: int) -> tuple[Site, OutgoingLog]:
    """A site with that many collected and committed messages of q, in segments of a few."""
    site = await replicating(directory, "q")
    await site.publish_often(messages // 4, 4)
    return site, await served(site)


def advance(site: Site, name: str, offset: int) -> None:
    site.node.stream_server.store_offset("v", name, offset)


async def test_how_far_downstreams_are_survives_a_restart(directory: Path) -> None:
    site, log = await collecting(directory, 40)
    advance(site, "eu.2", 12)
    advance(site, "eu.3", 40)
    advance(site, "eu.4", log.committed_offset + 1)
    await site.node.collector.retain()
    advance(site, "eu.2", 16)
    await site.restart()
    rows = {row["downstream"]: row for row in site.node.upstream.downstreams()}
    # What was told since the last time they were kept is told again by the downstream.
    assert {name: row["transferred"] for name, row in rows.items()} == {"eu.2": 12, "eu.3": 40}
    assert (rows["eu.2"]["lag_records"], rows["eu.2"]["missing_records"]) == (28, 0)
    assert site.node.stream_server.query_offset("v", "eu.2") == 12
    assert site.node.stream_server.query_offset("v", "eu.4") is None, "more than there is"
    assert site.node.upstream.forget_downstream("eu.2")
    assert not site.node.upstream.forget_downstream("eu.2")
    await site.restart()
    assert [row["downstream"] for row in site.node.upstream.downstreams()] == ["eu.3"]


async def test_an_upstream_tells_what_it_collects_and_how_far_the_slowest_is(directory: Path) -> None:
    site, log = await collecting(directory, 40)
    advance(site, "eu.2", 12)
    advance(site, "eu.3", 40)
    [row] = site.node.upstream.collected()
    assert (row["virtual_host"], row["queues"], row["records"], row["kept"]) == ("v", 1, 40, 40)
    assert (row["downstreams"], row["slowest_lag_records"], row["error"]) == (2, 28, "")
    assert 0 < row["oldest_ms"] <= row["newest_ms"]
    log.has_stopped = True
    assert "fdatasync failed" in site.node.upstream.collected()[0]["error"]


async def test_a_policy_that_asks_for_copies_in_a_vhost_without_the_tag_is_told_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(POLICY), d.Put(d.Queue(name="q", vhost="v")))
    await site.apply(d.Put(d.Queue(name="q2", vhost="v")))
    assert site.node.upstream.untagged() == ["v"]
    assert caplog.text.count("standby_not_collected vhost=v reason=policy_without_the_tag") == 1
    await site.apply(d.Put(TAGGED))
    assert site.node.upstream.untagged() == []


async def test_what_all_known_downstreams_have_is_dropped_where_the_operator_chose_that(
    directory: Path,
) -> None:
    site, log = await collecting(directory, 80)
    collector = site.node.collector
    advance(site, "eu.2", 60)
    advance(site, "eu.3", 30)
    await collector.retain()
    assert log.first_offset == 0, "by default only the limits count"
    collector._truncates = True
    await collector.retain()
    assert 0 < log.first_offset <= 30, "the slower one still needs the rest"
    assert collector.known_downstreams.rows()[1]["missing_records"] == 0
    advance(site, "eu.3", 78)
    await collector.retain()
    assert 30 < log.first_offset <= 60
    site.node.upstream.forget_downstream("eu.2")
    await collector.retain()
    assert 60 < log.first_offset <= 78
    site.node.upstream.forget_downstream("eu.3")
    first = log.first_offset
    await collector.retain()
    assert log.first_offset == first, "whoever comes next may still want it"


async def test_memory_is_kept_for_what_a_downstream_is_still_to_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: set[tuple[int, int]] = set()

    def note(extents: list[Extent]) -> None:
        for fd, begin, size in extents:
            file = os.fstat(fd)
            assert begin + size <= file.st_size
            freed.update((file.st_ino, at) for at in range(begin, begin + size))
        uncache(extents)

    monkeypatch.setattr("leveret.runtime.collecting.outgoing_sync.uncache", note)
    site, log = await collecting(directory, 40)
    advance(site, "eu.2", 30)
    advance(site, "eu.3", 20)
    await until(lambda: bool(freed))
    assert len(freed) <= log.log.size_bytes - log.log.bytes_from(20)
    advance(site, "eu.2", 40)
    advance(site, "eu.3", 40)
    await until(lambda: len(freed) == log.log.size_bytes)
    assert log.read(0, 1 << 20), "it can still be read, from the disk"


async def test_a_downstream_that_retention_overtook_is_told_of_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, log = await collecting(directory, 80)
    advance(site, "eu.2", 4)
    site.node.collector._retain_bytes_max = 800
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await site.node.collector.retain()
    missing = log.first_offset - 4
    assert missing > 0
    assert site.node.upstream.downstreams()[0]["missing_records"] == missing
    [line] = [each.getMessage() for each in caplog.records if "overtook" in each.getMessage()]
    assert "vhost=v downstream=eu.2 first_missing=4" in line


async def test_two_copies_of_a_downstream_are_told_of_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, log = await collecting(directory, 40)
    with caplog.at_level(logging.WARNING):
        for offset in (0, 20, 0, 20, 24):  # It began again, and went on.
            advance(site, "eu.2#f00d", offset)
        assert "went_back" not in caplog.text
        for offset in (12, 28, 16):
            advance(site, "eu.2#f00d", offset)
    [line] = [each.getMessage() for each in caplog.records if "went_back" in each.getMessage()]
    assert "downstream=eu.2#f00d from=24 to=12 " in line
    assert log.downstreams.by_reference["eu.2#f00d"].offset == 16, "the log keeps what the slower one lacks"


async def test_nobody_can_make_up_any_number_of_downstreams(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstreams, "DOWNSTREAMS_MAX", 20)
    site, log = await collecting(directory, 4)
    for number in range(25):
        advance(site, f"d{number}", 1)
    assert len(log.downstreams.by_reference) == 20


@pytest.mark.parametrize("crash", [False, True])
async def test_internal_streams_that_are_deleted_begin_anew_with_what_the_queues_hold(
    directory: Path, crash: bool
) -> None:
    site, log = await collecting(directory, 40)
    await site.ack(15)
    old = (directory / "outgoing" / "untagged-since").resolve()
    old.mkdir()
    (old / "00000000000000000000.segment").write_bytes(b"damaged")
    end, log_id = log.log.next_offset, log.log_id
    rows = site.node.upstream.delete_logs()
    assert [row["vhost"] for row in rows] == ["v", "untagged-since"]
    assert all(row["bytes"] for row in rows)
    assert not old.exists()
    if crash:
        await site.restart()
    else:
        await site.settle()
    log = site.node.collector.logs["v"]
    assert log.first_offset == end, "who has it all misses nothing, who has not is told what is missing"
    assert log.log_id == log_id
    assert site.replicated() == {"q": site.contents()}
    assert len(site.contents()) == 25
    await site.publish(3)
    await site.ack(2)
    assert site.replicated() == {"q": site.contents()}
    await until(lambda: log.committed_offset == log.log.next_offset)
    assert log.read(end, 1 << 20), "it is served"


async def test_a_log_that_takes_the_place_of_another_one_is_called_otherwise(directory: Path) -> None:
    site, log = await collecting(directory, 8)
    first = log.log_id
    await site.restart()
    assert site.node.collector.logs["v"].log_id == first
    await site.apply(d.Delete("vhosts", ("v",)))
    assert "v" not in site.node.collector.logs
    await site.apply(d.Put(TAGGED))
    assert site.node.collector.logs["v"].log_id != first


async def test_a_log_says_in_which_epoch_each_record_was_written(directory: Path) -> None:
    site, log = await collecting(directory, 8)
    end = log.log.next_offset
    assert [log.epoch_before(at) for at in (0, 1, end)] == [None, 1, 1]
    # Two starts in which nothing was written leave no trace; then one of another leader's, then a restart of it.
    for site.epoch in (2, 3, 4, 4):
        await site.restart()
    await site.publish(4)
    log = site.node.collector.logs["v"]
    assert log.log.epoch == 4
    assert [log.epoch_before(at) for at in (1, end, end + 1, log.log.next_offset)] == [1, 1, 4, 4]
    site.node.upstream.delete_logs()
    await site.settle()
    log = site.node.collector.logs["v"]
    assert log.epoch_before(log.first_offset) == 4, "also of what is retained no more"
    assert [log.epoch_before(at) for at in (1, end)] == [1, 1]
    await site.kill()
    # As versions before left it.
    identity = StateFile(directory / "outgoing" / "v" / "identity.json")
    identity.save({"log_id": log.log_id})
    site.epoch = 5
    await site.start()
    log = site.node.collector.logs["v"]
    assert (log.log.epoch, log.epoch_before(end)) == (5, None)
    await site.kill()
    identity.save({"log_id": log.log_id, "reigns": "all"})
    await site.start()
    assert "v" not in site.node.collector.logs


async def test_an_epoch_that_the_disk_refused_is_stored_before_the_next_record(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a start would give the records to the epoch before, and downstreams would have another log."""
    site, log = await collecting(directory, 8)
    site.epoch = 2
    await site.restart()
    save = StateFile.save

    def refuse(file: StateFile, state: dict[str, Any]) -> None:
        if file.path.name == "identity.json":
            raise StorageError("no space left")
        save(file, state)

    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "save", refuse)
        await site.publish(4)
    site.node.collector.resume([site.queue()])
    await site.settle()
    await site.restart()
    log = site.node.collector.logs["v"]
    assert [log.epoch_before(at) for at in (8, log.log.next_offset)] == [1, 2]


async def test_nobody_has_more_of_a_log_than_is_in_it(directory: Path) -> None:
    """A copy that was restored, or a follower that was made to lead in the middle of a join."""

    site, log = await collecting(directory, 40)
    await site.kill()
    place, called = directory / "outgoing" / "v", log.log_id
    StateFile(place / "downstreams.json").save({"eu.2": {"offset": 500, "seen_ms": 1}})
    await site.start()
    log = site.node.collector.logs["v"]
    assert (log.log_id, log.downstreams.by_reference["eu.2"].offset) == (called, log.log.next_offset)
    await site.kill()
    for segment in place.glob("*.segment*"):
        segment.unlink()
    await site.start()
    log = site.node.collector.logs["v"]
    assert (log.log_id != called, log.downstreams.by_reference) == (True, {})


async def test_a_damaged_log_can_be_deleted_and_is_collected_anew(directory: Path) -> None:
    site, _ = await collecting(directory, 40)
    await site.kill()
    segment = min((directory / "outgoing" / "v").glob("*.segment"))
    segment.write_bytes(b"x" * segment.stat().st_size)
    for path in (directory / "outgoing" / "v").glob("*.summary"):
        path.unlink()
    await site.start()
    assert "v" not in site.node.collector.logs, "it stays down until an operator removes it"
    site.node.upstream.delete_logs()
    await site.settle()
    assert site.replicated() == {"q": site.contents()}

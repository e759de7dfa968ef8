"""What retention took from an outgoing log and its queues still hold: a downstream that begins is told how much."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.broker.actor import Unrestricted
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.core.replication.clock_steps import ClockSteps
from leveret.model import definitions as d
from leveret.runtime.collecting import collector as collector_module
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.lowest_offsets import LowestOffsets
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.process.work_slices import in_slices
from leveret.storage.segment import segment_of
from leveret.testing.network.waiting import until
from leveret.wire.record import BEGINNING_PREFIX
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site, play, replicating, served

pytestmark = pytest.mark.usefixtures("collection")

QUEUES = ["q1", "q2"]
RETAINED_BYTES = 900
HOUR_MS: Final = 3_600_000
STEP = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(QUEUES), st.integers(1, 12)),
    st.tuples(st.just("ack"), st.sampled_from(QUEUES), st.integers(1, 12)),
    st.tuples(st.sampled_from(["delete", "declare", "purge"]), st.sampled_from(QUEUES), st.just(0)),
    st.tuples(
        st.sampled_from(["policy on", "policy off", "kill", "collect anew", "begin", "retain"]),
        st.just(""),
        st.just(0),
    ),
)


async def retained(site: Site, bytes_max: int = RETAINED_BYTES) -> OutgoingLog:
    """The log, all of it served, of which retention has taken what is beyond a few segments."""
    log = await served(site)
    site.node.collector._retain_bytes_max = bytes_max
    await site.node.collector.retain()
    return log


def row_after(site: Site, name: str, offset: int) -> dict[str, object]:
    """A downstream says how far it is; what the upstream shows of it then."""
    site.node.stream_server.store_offset("v", name, offset)
    return next(row for row in site.node.upstream.downstreams() if row["downstream"] == name)


def begin(site: Site, name: str) -> int | None:
    """A downstream that has nothing yet asks where to begin."""
    return site.node.stream_server.query_offset("v", BEGINNING_PREFIX + name)


async def with_old_messages(directory: Path) -> tuple[Site, OutgoingLog]:
    """A site whose q1 holds ten messages that retention took, for much came through q2 and went."""
    site = await replicating(directory, *QUEUES)
    await site.publish(10, "q1")
    for _ in range(20):
        await site.publish(8, "q2")
        await site.ack(8, "q2")
    log = await retained(site, 4000)
    assert log.missing_messages == lost(site) == 10
    return site, log


async def test_a_count_of_many_queues_lets_others_go_on_and_knows_a_log_that_begins_anew_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand queues held the loop up for 60 ms, every five seconds (2026-11-29)."""
    site, log = await with_old_messages(directory)
    monkeypatch.setattr(collector_module, "in_slices", partial(in_slices, slice_s=0.0))
    counting = asyncio.create_task(site.node.collector.retain())
    await asyncio.sleep(0)
    assert not counting.done(), "others go on"
    site.node.upstream.delete_logs()
    await counting
    assert log.missing_messages == 0


def lost(site: Site) -> int:
    """How many messages a downstream that begins now would not get."""
    held = [one.key[1] for one in site.node.broker.vhost_queues("v") if one.replicated]
    comes = site.replicated()
    for name in held:
        assert set(comes.get(name, [])) <= set(site.contents(name))
    return sum(len(site.contents(name)) - len(comes.get(name, [])) for name in held)


async def change(site: Site, what: str, name: str, count: int) -> None:
    changes: dict[str, d.Change] = {
        "policy on": d.Put(POLICY),
        "policy off": d.Delete("policies", ("v", "p")),
        "declare": d.Put(d.Queue(name=name, vhost="v")),
        "delete": d.Delete("queues", ("v", name)),
    }
    if what in changes:
        await site.apply(changes[what])
    elif what == "kill":
        await site.restart()
    elif what == "begin":
        begin(site, "eu.2")
        await site.settle()
    elif what == "collect anew":
        site.node.upstream.delete_logs()
        await site.settle()
    elif ("v", name) in site.node.broker.queues:
        if what == "publish":
            await site.publish(count, name)
        elif what == "ack":
            await site.ack(count, name)
        else:
            Unrestricted(site.node.broker, "v").purge(site.queue(name))
            await site.settle()


@settings(max_examples=40)
@given(st.lists(STEP, max_size=30))
def test_what_a_downstream_that_begins_would_not_get_is_counted(steps: list[tuple[str, str, int]]) -> None:
    async def scenario(directory: Path) -> None:
        site = await replicating(directory, *QUEUES)
        for step in [*steps, ("retain", "", 0), ("kill", "", 0)]:
            await change(site, *step)
            if step[0] != "kill":
                # A node that starts has counted, before it lets anybody in.
                await retained(site)
            assert site.node.collector.logs["v"].missing_messages == lost(site)
        await site.kill()

    play(scenario)


async def test_a_downstream_that_begins_behind_what_queues_hold_is_told_of(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = await replicating(directory, "q")
    await site.publish(1)
    row_after(site, "eu.1", 0)
    await site.publish_often(10, 8)
    log = await retained(site)
    missing = lost(site)
    assert 0 < missing < 81
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert row_after(site, "eu.2", log.first_offset)["missing_messages"] == missing
    [line] = [each.getMessage() for each in caplog.records if "begins_incomplete" in each.getMessage()]
    assert f"vhost=v downstream=eu.2 missing_messages={missing}" in line
    assert row_after(site, "eu.1", log.committed_offset)["missing_messages"] == 0, "it had all of it in time"
    await site.restart()
    assert site.node.collector.logs["v"].missing_messages == lost(site) == missing, "before anybody asks"


async def test_what_is_missing_becomes_less_as_it_is_consumed_and_is_nothing_once_collected_anew(
    directory: Path,
) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(10, 8)
    log = await retained(site)
    missing = log.missing_messages
    assert row_after(site, "eu.2", log.first_offset)["missing_messages"] == missing
    await site.ack(5)
    log = await retained(site)
    assert row_after(site, "eu.2", log.committed_offset - 1)["missing_messages"] == missing, "it is behind"
    assert row_after(site, "eu.2", log.committed_offset)["missing_messages"] == missing - 5
    await site.publish_often(5, 8)
    log = await retained(site)
    assert log.missing_messages > missing, "for one that begins now"
    assert row_after(site, "eu.2", log.committed_offset)["missing_messages"] == missing - 5
    site.node.upstream.delete_logs()
    await site.settle()
    await until(lambda: log.committed_offset == log.log.next_offset)
    assert row_after(site, "eu.2", log.committed_offset)["missing_messages"] == 0


async def test_a_downstream_that_deleted_all_it_had_begins_anew(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(10, 8)
    log = await retained(site)
    assert row_after(site, "eu.2", log.committed_offset)["missing_messages"] == 0
    assert row_after(site, "eu.2", log.first_offset)["missing_messages"] == log.missing_messages > 0


async def test_of_a_stream_what_it_retains_itself_counts(directory: Path) -> None:
    site = await replicating(directory)
    await site.apply(d.Put(d.Queue(name="qs", vhost="v", arguments={"x-queue-type": "stream"})))
    stream = site.queue("qs")
    assert isinstance(stream, Stream)
    for number in range(40):
        entry = b"\0\0\0\x08%08d" % number
        batch = StreamBatch(b"", range(1, 2), [entry], 1, None)
        batch.done = lambda error: None
        stream.publish(batch)
        await site.touched("qs")
    log = await retained(site)
    [first, *_] = [
        chunk.header.next_offset - chunk.header.records for chunk in log.log.read(log.first_offset, 1)
    ]
    assert first == log.first_offset > 0
    # A stream's offsets are the outgoing log's here: nothing else is in it.
    assert log.missing_messages == log.first_offset


@pytest.mark.parametrize("crash", [False, True])
async def test_for_a_downstream_that_begins_what_retention_took_is_collected_anew(
    directory: Path, crash: bool
) -> None:
    site, log = await with_old_messages(directory)
    end = log.log.next_offset
    row_after(site, "eu.1", end)
    row_after(site, "eu.2", 5)
    assert begin(site, "eu.2") == end, "what it had is deleted"
    if crash:
        await site.restart()
        log = site.node.collector.logs["v"]
    await site.settle()
    assert site.replicated() == {"q1": site.contents("q1")}
    assert len(site.contents("q1")) == 10
    assert row_after(site, "eu.2", log.first_offset)["missing_messages"] == 0
    row = row_after(site, "eu.1", end)
    assert (row["missing_records"], row["missing_messages"]) == (0, 0)
    await until(lambda: log.committed_offset == log.log.next_offset)
    again = log.log.next_offset
    assert begin(site, "eu.3") == end
    assert log.log.next_offset == again, "there is nothing to collect"
    await site.publish(2, "q1")
    assert site.replicated() == {"q1": site.contents("q1")}


@pytest.mark.parametrize("why", ["another one lags", "too large"])
async def test_what_is_collected_anew_is_nobodys_loss_and_stays(directory: Path, why: str) -> None:
    site, log = await with_old_messages(directory)
    collector = site.node.collector
    first, end = log.first_offset, log.log.next_offset
    row_after(site, "eu.1", end - (why == "another one lags"))
    if why == "too large":
        collector._retain_bytes_max = 800
    assert begin(site, "eu.2") == first
    assert log.log.next_offset == end
    assert row_after(site, "eu.2", first)["missing_messages"] == 10
    assert row_after(site, "eu.1", end)["missing_records"] == 0


class Clocks:
    """A wall clock, and one that nobody sets, for the retention of a collector's logs: an hour."""

    def __init__(self, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begin_ms = self._wall_ms = int(time.time() * 1000)
        self._elapsed_ms = 0
        monkeypatch.setattr(collector_module, "elapsed_ms", lambda: self._elapsed_ms)
        collector._clock_ms = lambda: self._wall_ms
        collector._ages = ClockSteps(HOUR_MS, self._wall_ms, self._elapsed_ms)

    def pass_hours(self, hours: float) -> None:
        self.step_hours(hours)
        self._elapsed_ms += int(hours * HOUR_MS)

    def step_hours(self, hours: float) -> None:
        """Set the wall clock."""
        self._wall_ms += int(hours * HOUR_MS)


async def test_retention_by_time_goes_by_when_the_log_was_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the messages, which may be old when they come to be collected: downstreams were to miss them at once."""

    site, log = await with_old_messages(directory)
    collector, files = (
        site.node.collector,
        sorted(path for path in log.log.directory.iterdir() if segment_of(path.name)),
    )
    clocks = Clocks(collector, monkeypatch)
    # All that is in it is older than that, by then, and the files are not.
    clocks.pass_hours(2)
    for path in files:
        os.utime(path, (clocks.begin_ms / 1000 + 5400, clocks.begin_ms / 1000 + 5400))
    first = log.first_offset
    await collector.retain()
    assert log.first_offset == first
    clocks.pass_hours(1)
    await collector.retain()
    assert log.first_offset == log.log.newest_segment > first


async def test_a_clock_that_is_set_forward_drops_no_record_that_a_downstream_may_lack(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, log = await with_old_messages(directory)
    collector, first = site.node.collector, log.first_offset
    clocks = Clocks(collector, monkeypatch)
    clocks.step_hours(400 * 24)
    await collector.retain()
    assert log.first_offset == first
    clocks.pass_hours(0.9)
    await collector.retain()
    assert log.first_offset == first
    clocks.pass_hours(0.2)
    await collector.retain()
    assert log.first_offset == log.log.newest_segment > first


async def test_of_a_vhost_that_is_not_collected_nothing_begins(directory: Path) -> None:
    site = await Site.started(directory)
    assert begin(site, "eu.2") is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=40), st.integers(0, 60))
def test_the_lowest_offset_from_a_segment_on_is_known_though_offsets_begin_anew(
    steps: list[tuple[int, int]], cut: int
) -> None:
    last_position: LowestOffsets[str] = LowestOffsets()
    noted, segment = [], 0
    for rolls, offset in steps:
        segment += rolls
        last_position.note("q", segment, offset)
        noted.append((segment, offset))
    last_position.forget_before(cut)
    assert last_position.begin_of("q") == min((offset for at, offset in noted if at >= cut), default=None)
    assert last_position.keys == ({"q"} if any(at >= cut for at, _ in noted) else set())


async def test_a_log_whose_vhost_lost_its_tag_for_a_time_is_retained_as_if_it_had_not(
    directory: Path,
) -> None:
    async def story(directory: Path, toggles: bool) -> tuple[int | None, int, int]:
        site = await replicating(directory, *QUEUES)
        await site.publish(10, "q1")
        for _ in range(20):
            await site.publish(8, "q2")
            await site.ack(8, "q2")
        log = site.node.collector.logs["v"]
        await until(lambda: log.committed_offset == log.log.next_offset)
        row_after(site, "eu.1", 7)
        if toggles:
            await site.apply(d.Put(d.Vhost(name="v")))
            await site.apply(d.Put(TAGGED))
            assert [row["transferred"] for row in site.node.upstream.downstreams()] == [7]
        log = site.node.collector.logs["v"]
        await retained(site, log.bytes - 1)
        first = log.first_offset
        await retained(site, 1)
        begins = begin(site, "eu.9")
        await site.kill()
        return begins, first, log.missing_messages

    (directory / "one").mkdir()
    (directory / "other").mkdir()
    plain = await story(directory / "one", toggles=False)
    assert plain[2] == 10
    assert await story(directory / "other", toggles=True) == plain

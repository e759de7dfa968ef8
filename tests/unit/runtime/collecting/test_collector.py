"""collecting.collector: whatever happens to its queues, an outgoing log tells a standby exactly what they hold."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.broker.actor import Unrestricted
from leveret.core.queues.messages import alike
from leveret.model import definitions as d
from leveret.model.errors import NotFound, StorageError
from leveret.runtime.collecting import outgoing_sync as outgoing_module
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.collecting.outgoing_sync import FLUSH_INTERVAL_S
from leveret.runtime.collecting.vhost_directories import directory_name
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.queue_store import QueueStore
from leveret.runtime.process.clock import clock_ms
from leveret.storage.log import Log
from leveret.storage.segment import Segment
from leveret.storage.state_file import StateFile
from leveret.storage.tree import Tree
from leveret.testing.network.waiting import until
from leveret.wire.chunk import ChunkType, decode_chunk
from leveret.wire.incarnation import epoch_of, generation_of
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import (
    HEAD,
    POLICY,
    TAGGED,
    Site,
    collected_chunks,
    origin,
    replicating,
)

pytestmark = pytest.mark.usefixtures("collection")

QUEUES = ["q1", "q2", "other"]
OFF = d.Delete("policies", ("v", "p"))


def queue(name: str) -> d.Queue:
    """A classic queue; `q2` is a quorum queue."""
    arguments = {"x-queue-type": "quorum"} if name == "q2" else {}
    return d.Queue(name=name, vhost="v", arguments=arguments)


STEP = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(QUEUES), st.integers(1, 12)),
    st.tuples(st.just("ack"), st.sampled_from(QUEUES), st.integers(1, 12)),
    st.tuples(st.just("requeue"), st.sampled_from(QUEUES), st.integers(1, 5)),
    st.tuples(st.sampled_from(["purge", "delete", "declare"]), st.sampled_from(QUEUES), st.just(0)),
    st.tuples(
        st.sampled_from(["policy on", "policy off", "tag on", "tag off", "kill"]), st.just(""), st.just(0)
    ),
)


async def play(site: Site, what: str, name: str, count: int) -> None:
    changes: dict[str, d.Change] = {
        "policy on": d.Put(POLICY),
        "policy off": OFF,
        "tag on": d.Put(TAGGED),
        "tag off": d.Put(d.Vhost(name="v")),
        "declare": d.Put(queue(name)),
        "delete": d.Delete("queues", ("v", name)),
    }
    if what in changes:
        await site.apply(changes[what])
    elif what == "kill":
        await site.restart()
    elif ("v", name) not in site.node.broker.queues:
        return
    elif what == "publish":
        await site.publish(count, name)
    elif what == "ack":
        await site.ack(count, name)
    elif what == "requeue":
        for run in site.queue(name).take(count)[0] if site.queue(name).ready_count else []:
            site.queue(name).requeue(run.first, len(run.bodies))
    elif what == "purge":
        Unrestricted(site.node.broker, "v").purge(site.queue(name))
        await site.settle()


async def test_what_a_queue_holds_already_is_copied_only_once_it_is_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(queue("q")))
    bodies = await site.publish(5)
    collector, is_durable = site.node.collector, asyncio.Event()

    async def durable() -> None:
        await is_durable.wait()

    monkeypatch.setattr(collector, "_durable", durable)
    site.node.broker.apply(d.Put(POLICY))
    site.node.engine.flush()
    await asyncio.sleep(0.05)
    assert collector._catching_up
    assert site.replicated() == {}
    is_durable.set()
    await site.settle()
    assert site.replicated() == {"q": bodies}


@settings(max_examples=60)
@given(st.lists(STEP, max_size=25))
def test_a_standby_would_recover_what_the_replicated_queues_hold_and_nothing_else(
    steps: list[tuple[str, str, int]],
) -> None:
    async def scenario(directory: Path) -> None:
        site = await Site.started(directory)
        await site.apply(d.Put(TAGGED), d.Put(POLICY), *(d.Put(queue(name)) for name in QUEUES))
        for step in [*steps, ("tag on", "", 0)]:
            await play(site, *step)
            if "v" in site.node.collector.logs:
                held = {
                    one.key[1]: site.contents(one.key[1])
                    for one in site.node.broker.vhost_queues("v")
                    if one.replicated and one.message_count
                }
                assert site.replicated() == held
        await site.kill()

    with scratch() as directory:
        asyncio.run(scenario(directory))


async def test_an_outgoing_chunk_is_its_queues_chunk_under_a_name_of_its_own(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish(3)
    await site.ack(2)
    chunks = collected_chunks(site.node.collector.logs["v"])
    originals = list(site.node._queues.log(site.queue()).read(0, 1 << 20))
    assert [chunk.header.type for chunk in chunks] == [ChunkType.USER, ChunkType.TRACKING]
    for chunk, original in zip(chunks, originals, strict=True):
        assert bytes(chunk.data) == bytes(original.data)
        same = ("type", "entries", "records", "timestamp_ms", "crc", "data_bytes")
        assert [getattr(chunk.header, name) for name in same] == [
            getattr(original.header, name) for name in same
        ]
        assert origin(chunk.trailer) == ((b"q", site.queue().epoch), original.header.chunk_id)


async def test_a_queue_with_a_past_is_copied_whole_when_its_policy_comes(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(queue("q")))
    await site.publish_often(8, 6)
    await site.ack(20)
    assert site.node._queues.log(site.queue()).first_offset > 0
    await site.apply(d.Put(POLICY))
    assert site.replicated() == {"q": site.contents()}
    assert len(site.contents()) == 28


async def test_who_ceased_to_be_an_upstream_collects_nothing_however_its_definitions_change(
    directory: Path,
) -> None:
    """A rejoin deletes the replicated queues: no downstream may hear of that."""
    site = await replicating(directory, "q")
    await site.publish(3)
    assert site.node.collector.logs
    site.node.collector.resign()
    await site.apply(OFF)
    await site.apply(d.Put(POLICY), d.Put(queue("q2")))
    await site.publish(3)
    await site.apply(d.Delete("queues", ("v", "q")))
    assert not site.node.collector.logs


async def test_a_queue_that_is_published_to_without_a_pause_is_caught_up_with(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(queue("q")))
    await site.publish(500)
    site.node.broker.apply(d.Put(POLICY))
    site.node.upstream.follow_tags()
    collector, held = site.node.collector, site.queue()
    for number in range(3000):
        held.gathered.add(alike(HEAD, [b"%08d" % number]))
        site.node.broker.dirty[held] = None
        site.node.engine.flush()
        await asyncio.sleep(0)
        if held in collector.following:
            break
    assert held in collector.following
    await site.publish(3)
    assert site.replicated() == {"q": site.contents()}


# -- after a restart --------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["the last chunk", "everything"])
async def test_what_the_outgoing_log_lost_is_completed_from_the_queues_at_start(
    directory: Path, lost: str
) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(5, 6)
    await site.ack(8)
    await site.kill()
    own = directory / "outgoing" / "v"
    if lost == "everything":
        shutil.rmtree(own)
    else:
        last = sorted(own.glob("*.segment*"))[-1]
        last.write_bytes(last.read_bytes()[:-1])
    await site.start()
    assert len(site.contents()) == 22
    assert site.replicated() == {"q": site.contents()}
    before = site.node.collector.logs["v"].log.next_offset
    await site.restart()
    assert site.node.collector.logs["v"].log.next_offset == before


async def test_a_queue_that_one_ack_drained_is_not_copied_again_at_each_start(directory: Path) -> None:
    """The record of that ack settles everything before itself, as the end of a queue does."""
    site = await replicating(directory, "q")
    await site.publish(4)
    await site.ack(4)
    before = site.node.collector.logs["v"].log.next_offset
    for end in (site.stop, site.kill):
        await end()
        await site.start()
        assert site.node.collector.logs["v"].log.next_offset == before
    await site.publish(2)
    assert site.replicated() == {"q": site.contents()}


async def test_offsets_that_one_ack_settled_and_power_took_are_not_given_again_as_settled(
    directory: Path,
) -> None:
    site = await replicating(directory, "q", durability="os")
    await site.publish(1)
    (log,) = (directory / "queues").iterdir()
    (segment,) = log.glob("*.segment")
    end = segment.stat().st_size
    await site.publish(3)
    await site.ack(4)
    await site.kill()
    with segment.open("r+b") as file:
        file.truncate(end)
    await site.start()
    await site.publish(5)
    assert len(site.contents()) == 6
    assert site.replicated() == {"q": site.contents()}


async def test_the_end_of_a_queue_by_an_earlier_version_is_logged_once_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await replicating(directory, "q")
    await site.publish(4)
    log, settle = site.node.collector.logs["v"], OutgoingLog.settle_below

    def unmarked(self: OutgoingLog, *about: Any, attributes: object, **at: Any) -> None:
        settle(self, *about, **at)

    with monkeypatch.context() as earlier:
        earlier.setattr(OutgoingLog, "settle_below", unmarked)
        await site.apply(d.Delete("queues", ("v", "q")))
    before = log.log.next_offset
    for _ in range(3):
        await site.restart()
        assert site.replicated() == {}
    assert site.node.collector.logs["v"].log.next_offset == before + 1


async def test_a_queue_deleted_while_nobody_could_say_so_is_ended_at_start(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish(4)
    await site.kill()
    shutil.copytree(directory / "outgoing", directory / "copy")
    await site.start()
    await site.apply(d.Delete("queues", ("v", "q")))
    await site.kill()
    shutil.rmtree(directory / "outgoing")
    (directory / "copy").rename(directory / "outgoing")
    await site.start()
    assert site.replicated() == {}


async def test_a_queue_log_that_lost_its_end_with_the_power_begins_a_new_life(directory: Path) -> None:
    site = await replicating(directory, "q", durability="os")
    kept = await site.publish(3)
    await site.kill()
    (log,) = (directory / "queues").iterdir()
    (segment,) = log.glob("*.segment")
    end = segment.stat().st_size
    await site.start()
    await site.publish(5)
    await site.kill()
    with segment.open("r+b") as file:
        file.truncate(end)
    await site.start()
    after = await site.publish(2)
    assert site.contents() == [*kept, *after]
    assert site.replicated() == {"q": [*kept, *after]}
    [(_, incarnation)] = site.node.collector.logs["v"].positions
    assert generation_of(incarnation) != epoch_of(incarnation), "its offsets are those of other messages"


async def test_a_damaged_outgoing_log_costs_the_standby_and_not_the_broker(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(8, 6)
    await site.kill()
    first = min((directory / "outgoing" / "v").glob("*.segment"))
    octets = bytearray(first.read_bytes())
    octets[60] ^= 1
    first.write_bytes(octets)
    await site.start()
    assert "v" not in site.node.collector.logs
    await site.publish(2)
    await site.ack(40)
    assert len(site.contents()) == 10
    assert list(site.node.upstream.metrics()) == []
    assert first.read_bytes() == octets


# -- a disk that refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
async def test_after_a_failed_sync_what_was_not_served_is_cut_off_and_copied_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, sealed: bool
) -> None:
    def refuse(descriptors: list[int]) -> None:
        for fd in descriptors:
            os.close(fd)
        raise OSError(5, "Input/output error")

    site = await replicating(directory, "q")
    await site.publish(6)
    outgoing = site.node.collector.logs["v"]
    await until(lambda: outgoing.committed_offset == 6)
    served = list(outgoing.log.read_raw(0, 1 << 20))
    monkeypatch.setattr(outgoing_module, "sync_and_close", refuse)
    await site.publish_often(4, 6)
    own = directory / "outgoing" / "v"
    await until((own / "failed_sync.json").exists)
    assert outgoing.committed_offset == 6
    assert outgoing.has_stopped, "who has six is told that there is more"
    await site.apply(d.Put(d.Vhost(name="late", tags=TAGGED.tags)))
    assert site.node.collector.logs["late"].has_stopped
    monkeypatch.undo()
    await site.kill()
    for path in own.glob("*.segment*"):
        octets = path.read_bytes()
        keep = sum(len(chunk) for _, chunk in served) if int(path.name[:20]) == 0 else 0
        path.write_bytes(octets[:keep] + bytes(octet ^ 1 for octet in octets[keep:]))
        if sealed:
            path.rename(own / f"{path.name[:20]}.sealed.segment")
    await site.start()
    assert "outgoing_log_cut" in caplog.text
    again = site.node.collector.logs["v"]
    assert not again.has_stopped
    assert list(again.log.read_raw(0, 1 << 20))[: len(served)] == served
    assert site.replicated() == {"q": site.contents()}
    assert len(site.contents()) == 30
    await site.restart()
    assert caplog.text.count("outgoing_log_cut") == 1
    assert site.replicated() == {"q": site.contents()}


class FullDisk:
    """Lets no outgoing log, or no other log of that name, grow while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "outgoing") -> None:
        self.is_full = False
        append = Log.append

        def refuse(log: Log, *args: object, **more: object) -> object:
            if self.is_full and name in (log.directory.name, log.directory.parent.name):
                raise StorageError("no space left")
            return append(log, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Log, "append", refuse)


async def test_a_full_disk_stops_collection_and_no_broker_and_it_is_taken_up_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)

    site = await replicating(directory, "q")
    await site.apply(d.Put(queue("q2")), d.Put(queue("q3")))
    await site.publish(2)
    await site.publish(2, "q2")
    await site.publish(2, "q3")
    log = site.node.collector.logs["v"]
    assert log.uncollected == 0
    disk.is_full = True
    await site.publish(10)
    assert log.uncollected == 10, "a downstream that has all of the log is told of these"
    await site.ack(11)
    assert log.uncollected > 10
    before = log.uncollected
    await site.apply(d.Delete("queues", ("v", "q2")))
    assert log.uncollected == before + 1, "the end of q2 is unknown there, too"
    await site.apply(d.Put(d.Policy(vhost="v", name="p", pattern="^q$", definition=POLICY.definition)))
    assert not site.node.failed.is_set()
    disk.is_full = False
    site.node.collector.resume(list(site.node.broker.queues.values()))
    await site.settle()
    assert log.uncollected == 0
    assert site.replicated() == {"q": site.contents()}
    assert len(site.contents()) == 1


async def test_a_vhost_that_is_deleted_while_the_disk_is_full_ends_no_node(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, "definitions")

    site = await replicating(directory, "q")
    site.queue().gathered.add(alike(HEAD, [b"%08d" % 1]))
    site.node.broker.dirty[site.queue()] = None
    site.node.engine.flush()
    disk.is_full = True
    site.node.broker.apply(d.Delete("vhosts", ("v",)))
    # What was appended becomes durable when there is nothing any more to copy it to.
    await site.node.messages_durable()
    await site.node.collector.retain()
    assert not site.node.failed.is_set()


@pytest.mark.parametrize("is_caught_up", [True, False])
async def test_a_bug_in_the_copy_of_one_queue_stops_that_queue_and_no_node(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_caught_up: bool
) -> None:
    site = await replicating(directory, "q")
    log, queue = site.node.collector.logs["v"], site.queue()
    with monkeypatch.context() as patch:
        patch.setattr(log, "copy", lambda *given, **more: 1 / 0)
        if not is_caught_up:
            site.node.collector.pause(queue)
            site.node.collector.resume([queue])
        await site.publish(2)
    assert log.uncollected == 2
    assert not site.node.failed.is_set()
    site.node.collector.resume([queue])
    await site.settle()
    assert site.replicated() == {"q": site.contents()}


async def test_a_vhost_that_loses_its_tag_in_a_moment_without_descriptors_ends_no_node(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await replicating(directory, "q")
    await site.publish(4)
    log = site.node.collector.logs["v"]
    own, second_fd = list(log.log._segments), Segment.second_fd

    def refused(segment: Segment) -> int:
        if segment in own:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return second_fd(segment)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "second_fd", refused)
        await site.apply(d.Put(d.Vhost(name="v")))
    assert log.is_closed
    await site.apply(d.Put(TAGGED))
    assert site.replicated() == {"q": site.contents()}
    assert not site.node.failed.is_set()


async def test_a_log_whose_sync_failed_is_not_opened_again_before_a_restart(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await replicating(directory, "q")
    await site.publish(6)
    log = site.node.collector.logs["v"]
    await until(lambda: log.committed_offset == 6)

    def refuse(descriptors: list[int]) -> None:
        for fd in descriptors:
            os.close(fd)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(outgoing_module, "sync_and_close", refuse)
        await site.publish(6)
        await until((directory / "outgoing" / "v" / "failed_sync.json").exists)
    for vhost in (d.Vhost(name="v"), TAGGED):
        await site.apply(d.Put(vhost))
    assert "v" not in site.node.collector.logs, "what the disk refused would count as durable"
    await site.restart()
    assert site.replicated() == {"q": site.contents()}


async def test_no_record_is_logged_under_an_incarnation_that_a_start_would_not_know(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = StateFile.save

    def refuse(file: StateFile, state: dict[str, Any]) -> None:
        if file.path.name == "lives.json":
            raise StorageError("no space left")
        save(file, state)

    site = await replicating(directory, "q")
    await site.publish(4)
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "save", refuse)
        await site.apply(OFF, d.Put(POLICY))
        await site.publish(2)
    await site.restart()
    assert site.replicated() == {"q": site.contents()}
    await site.apply(OFF)
    await site.apply(d.Put(POLICY))
    assert site.replicated() == {"q": site.contents()}
    assert len(site.contents()) == 6


# -- what is served ---------------------------------------------------------------------------


def test_only_what_is_durable_is_served_and_readers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(directory: Path) -> None:
        site = await replicating(directory, "q")
        log = site.node.collector.logs["v"]
        assert (log.read(0, 1 << 20), log.committed_offset, log.last_chunk_id) == ([], 0, -1)
        seen: list[int] = []
        stop = log.on_commit(lambda: seen.append(log.committed_offset))
        site.node._tasks[0].cancel()
        await site.publish(2)
        assert log.log.next_offset == 2
        assert log.read(0, 1 << 20) == []
        runner = asyncio.get_running_loop().create_task(site.node.collector.run())
        await until(lambda: log.committed_offset == 2)
        assert seen == [2]
        stop()
        await site.publish(3)
        await until(lambda: log.committed_offset == 5)
        assert seen == [2]
        chunks = [decode_chunk(octets).header for octets in log.read(0, 1 << 20)]
        assert [(header.chunk_id, header.records) for header in chunks] == [(0, 2), (2, 3)]
        assert log.last_chunk_id == 2
        assert [decode_chunk(octets).header.chunk_id for octets in log.read(3, 1)] == [2]
        assert log.read(5, 1) == []
        runner.cancel()
        await site.kill()

    monkeypatch.setattr(outgoing_module, "FLUSH_INTERVAL_S", 0.001)
    with scratch() as directory:
        asyncio.run(scenario(directory))


def test_a_moment_without_descriptors_delays_what_is_served_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(directory: Path) -> None:
        site = await replicating(directory, "q")
        await site.apply(d.Put(d.Vhost(name="w", tags=("standby_replication",))))
        log = site.node.collector.logs["v"]
        own = [segment for segment in log.log._segments]
        second_fd = Segment.second_fd

        def refused(segment: Segment) -> int:
            if segment in own:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return second_fd(segment)

        with monkeypatch.context() as patch:
            patch.setattr(Segment, "second_fd", refused)
            await site.publish(2)
            await until(lambda: "collected_not_synced" in caplog.text)
            await asyncio.sleep(0.05)
            assert log.committed_offset == 0
        await until(lambda: log.committed_offset == 2)
        assert caplog.text.count("collected_not_synced") == 1
        assert not site.node.failed.is_set()
        await site.kill()

    monkeypatch.setattr(outgoing_module, "FLUSH_INTERVAL_S", 0.001)
    with scratch() as directory:
        asyncio.run(scenario(directory))


async def test_a_node_whose_collector_ends_does_not_go_on_as_if_it_collected(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = await replicating(directory, "q")
    monkeypatch.setattr(site.node.collector._sync, "_begin_commits", lambda: 1 / 0)
    await asyncio.wait_for(site.node.failed.wait(), 60)
    assert "task_failed action=stop" in caplog.text


async def test_a_closed_log_says_so_to_its_readers(directory: Path) -> None:
    site = await replicating(directory, "q")
    log = site.node.collector.logs["v"]
    seen: list[bool] = []
    log.on_commit(lambda: seen.append(log.is_closed))
    await site.apply(d.Delete("vhosts", ("v",)))
    assert seen == [True]
    with pytest.raises(NotFound, match="outgoing log is closed"):
        log.read(0, 1)
    assert not (directory / "outgoing" / "v").exists()


def no_queues(directory: Path) -> QueueStore:
    """Of a node without any."""
    commit = GroupCommit(fsync=False, on_failure=lambda error: None)
    return QueueStore(Tree(directory), commit, clock_ms, 1000)


def test_the_committed_end_survives_a_restart() -> None:
    with scratch() as directory:
        log = OutgoingLog(Tree(directory), directory / "v", no_queues(directory), segment_bytes_max=100)
        for number in range(5):
            log.settle_below((b"q", 1), 3, 1000 + number, at=number)
        log.log.close()
        log = OutgoingLog(Tree(directory), directory / "v", no_queues(directory), segment_bytes_max=100)
        assert (log.first_offset, log.committed_offset, log.last_chunk_id) == (0, 5, 4)
        assert log.last_timestamp_ms == 1004
        assert len(log.read(0, 1 << 20)) == 5
        assert log.bytes == sum(len(octets) for octets in log.read(0, 1 << 20))
        assert log.offset_at(0) == 0
        assert log.offset_at(9999) == 5
        log.log.close()


async def test_retention_drops_the_oldest_and_a_queue_is_not_copied_twice_for_it(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(10, 4)
    collector, log = site.node.collector, site.node.collector.logs["v"]
    await until(lambda: log.committed_offset == log.log.next_offset)
    collector._retain_bytes_max = 1000
    await collector.retain()
    assert 0 < log.first_offset < 40
    assert log.bytes <= 1000
    await site.restart()
    assert site.node.collector.logs["v"].log.next_offset == 40


def test_vhost_names_become_directory_names_that_differ() -> None:
    names = ["/", "a/b", "a%2Fb", ".", "..", "ä", "x" * 300, "x" * 301, ""]
    names += [directory_name("x" * 300), "sha256-", "%73ha256-"]
    made = [directory_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert not {"", ".", ".."} & set(made)
    assert all("/" not in name and len(name) <= 255 for name in made)


class Behind:
    """Followers in sync that have what was cut before as long as `has_all` says so."""

    def __init__(self) -> None:
        self.has_all = True
        self._cuts = self._acked = 0

    def cut(self) -> int:
        self._cuts += 1
        return self._cuts

    def committed(self) -> int:
        if self.has_all:
            self._acked = self._cuts
        return self._acked

    def confirmable(self) -> int:
        return self.committed()


async def test_what_followers_in_sync_have_not_is_not_served(directory: Path) -> None:
    site = await replicating(directory, "q")
    replication_barrier = site.node.commits.replication_barrier = Behind()
    await site.publish(3)
    log = site.node.collector.logs["v"]
    await until(lambda: log.committed_offset == log.log.next_offset)
    served = log.committed_offset
    replication_barrier.has_all = False
    log.settle_below(log.key_of(site.queue()), 2, 1, at=1)
    await asyncio.sleep(5 * FLUSH_INTERVAL_S)
    assert (log.committed_offset, log.log.next_offset) == (served, served + 1)
    replication_barrier.has_all = True
    site.node.commits.keep()
    await until(lambda: log.committed_offset == served + 1)

"""Staged segments: whatever a queue holds and whoever uses it, each recovered message is there once, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.model import definitions as d
from leveret.model.errors import LeveretError, NotFound, PreconditionFailed, StorageError
from leveret.pipeline.recovery.segments import StagedFile
from leveret.runtime.clients.segment_ingest import CLOCK_DIFFERENCE_MS_MAX, SegmentIngest
from leveret.storage.inspection.scrub import Scrub
from leveret.storage.removed import RemovedFiles
from leveret.storage.tree import ChangeReceiver
from leveret.wire.chunk import HEADER_BYTES
from leveret.wire.record import content_header, message_head
from leveret.wire.staged_segment import LogEnd, StagedSegment
from leveret.wire.stream.publish import MessageRun
from tests.seeds import seeds
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import Site, replicating
from tests.unit.storage.places import flip

REFERENCE: Final = "recovery.plan"
PERSISTENT: Final = b"\x10\x00\x02"
EXPIRES: Final = b"\x11\x00\x02\x011"
URGENT: Final = b"\x18\x00\x02\x05"
CHUNK: Final = 3


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as place:
        yield place


def body(number: int) -> bytes:
    return b"r%07d" % number


def stored(number: int, properties: bytes = PERSISTENT) -> bytes:
    return message_head(b"e", b"k", content_header(properties, 8)) + body(number)


async def site_with(directory: Path, **arguments: Any) -> Site:
    site = await Site.started(directory)
    names = {key.replace("_", "-"): value for key, value in arguments.items()}
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(name="q", vhost="v", arguments=names)))
    return site


def ingest_of(site: Site, name: str = "q") -> SegmentIngest:
    site.node.authority.internal["job"] = "secret"
    return site.node.stream_server.staged_queue("job", "v", name)


def write(
    site: Site,
    numbers: range,
    end: LogEnd,
    *,
    directory: str = "a1",
    properties: tuple[bytes, ...] = (PERSISTENT,),
) -> tuple[StagedSegment, LogEnd]:
    """Write the messages with these numbers as a segment behind `end`; returns the end after it, too."""
    place = site.directory / "staged" / directory
    place.mkdir(parents=True, exist_ok=True)
    file = StagedFile(place, end, REFERENCE.encode(), numbers.start)
    for first in range(numbers.start, numbers.stop, CHUNK):
        here = range(first, min(first + CHUNK, numbers.stop))
        run = MessageRun.of(first, [stored(n, properties[n % len(properties)]) for n in here])
        expires = any(properties[n % len(properties)] == EXPIRES for n in here)
        file.add(run._replace(body_bytes=8 * len(here), expires=expires))
    behind = file.close()
    return StagedSegment(directory, end.next_offset, file.first, file.last, file.body_bytes), behind


def stage(site: Site, numbers: range, **how: Any) -> StagedSegment:
    """Write the messages with these numbers as a segment behind the log's end."""
    end = LogEnd.of(ingest_of(site).end().statistics())
    return write(site, numbers, end, **how)[0]


async def take_in(site: Site, announced: StagedSegment, name: str = "q") -> None:
    """Have it taken in; raises the node's refusal."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ingest_of(site, name).take_in(
        REFERENCE, announced, lambda: ended.set_result(None), lambda error: ended.set_exception(error)
    )
    await asyncio.wait_for(ended, 30)


def path_of(site: Site, announced: StagedSegment) -> Path:
    return site.directory / "staged" / announced.directory / f"{announced.base:020d}.segment"


def inodes(site: Site) -> set[int]:
    place = site.node.log_store.queues.home.place(site.queue().epoch)
    return {path.stat().st_ino for path in place.iterdir()}


async def with_messages(site: Site) -> None:
    await site.publish(7)


async def drained(site: Site) -> None:
    await site.publish(40)
    await site.ack(40)


async def half_acked(site: Site) -> None:
    await site.publish(40)
    await site.ack(13)


async def restarted(site: Site) -> None:
    await half_acked(site)
    await site.restart()


async def unused(site: Site) -> None:
    pass


@pytest.mark.parametrize("before", [unused, with_messages, drained, half_acked, restarted])
async def test_a_segment_behind_what_the_queue_holds_is_renamed_and_read_like_any_other(
    directory: Path, before: Any
) -> None:
    site = await site_with(directory)
    await before(site)
    held = site.contents()
    for numbers in (range(1, 12), range(12, 13), range(13, 40)):
        announced = stage(site, numbers)
        inode = path_of(site, announced).stat().st_ino
        await take_in(site, announced)
        assert inode in inodes(site), "it was copied"
    expected = held + [body(n) for n in range(1, 40)]
    assert site.contents() == expected
    assert site.queue().message_count == len(expected)
    held_after = await site.publish(5)
    await site.restart()
    assert site.contents() == expected + held_after
    assert ingest_of(site).last_sequence(REFERENCE) == 39
    await site.ack(len(expected) + 4)
    await site.restart()
    assert site.contents() == held_after[4:]


@pytest.mark.parametrize("fits", [True, False])
async def test_a_recovery_is_told_of_a_segment_once_the_log_is_on_disk_as_far_as_its_end(
    directory: Path, fits: bool
) -> None:
    site = await site_with(directory)
    announced = stage(site, range(1, 40))
    if not fits:
        await site.publish(1)
    ended = asyncio.get_running_loop().create_future()

    def done() -> None:
        log = site.node.log_store.log(site.queue())
        ended.set_result((log.synced_offset, log.next_offset))

    ingest_of(site).take_in(REFERENCE, announced, done, ended.set_exception)
    synced, end = await asyncio.wait_for(ended, 30)
    assert synced == end >= 39


async def test_a_segment_that_no_longer_fits_is_appended_message_for_message(directory: Path) -> None:
    site = await site_with(directory)
    early, late = await site.publish(4), stage(site, range(1, 20))
    between = await site.publish(2)
    inode = path_of(site, late).stat().st_ino
    await take_in(site, late)
    assert inode not in inodes(site)
    assert not path_of(site, late).exists()
    assert site.contents() == [*early, *between, *(body(n) for n in range(1, 20))]
    await site.restart()
    assert site.contents() == [*early, *between, *(body(n) for n in range(1, 20))]


async def test_a_segment_whose_rest_another_attempt_brings_meanwhile_doubles_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await site_with(directory)
    abandoned = stage(site, range(1, 61))
    early = await site.publish(2)
    loop, queues = asyncio.get_running_loop(), site.node.log_store.queues
    ended, brought = loop.create_future(), loop.create_future()
    again = site.node.stream_server.recovery_queue("job", "v", "q")

    def bring_the_rest() -> None:
        last = again.last_sequence(REFERENCE)
        rest = [MessageRun.of(last + 1, [stored(n) for n in range(last + 1, 61)])]
        again.append(REFERENCE, rest, lambda: brought.set_result(last))

    original, chunks = queues.append_stored, 0

    def appended(*args: Any) -> None:
        nonlocal chunks
        original(*args)
        chunks += 1
        if chunks == 1:
            loop.call_soon(bring_the_rest)

    monkeypatch.setattr(queues, "append_stored", appended)
    ingest_of(site).take_in(
        REFERENCE, abandoned, lambda: ended.set_exception(AssertionError("it was taken in")), ended.set_result
    )
    assert await asyncio.wait_for(brought, 30) == CHUNK
    assert isinstance(await asyncio.wait_for(ended, 30), PreconditionFailed)
    assert site.contents() == [*early, *(body(n) for n in range(1, 61))]
    assert again.last_sequence(REFERENCE) == 60


async def test_the_octets_of_a_segment_that_is_appended_are_those_of_its_bodies(directory: Path) -> None:
    site = await site_with(directory)
    announced = msgspec.structs.replace(stage(site, range(1, 60)), body_bytes=8 * 59 + 1)
    await site.publish(1)
    before = site.queue().ready_bytes
    await take_in(site, announced)
    assert site.queue().ready_bytes - before == 8 * 59 + 1


async def test_an_error_of_one_segment_holds_up_no_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await site_with(directory)
    ingest, numbers = ingest_of(site), (range(1, 8), range(8, 20))
    ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
    original, tries = site.node.log_store.queues.take_in, 0

    def failing(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("a bug")
        return original(*args)

    monkeypatch.setattr(site.node.log_store.queues, "take_in", failing)
    announced, behind = write(site, numbers[0], LogEnd.of(ingest.end().statistics()))
    later, _ = write(site, numbers[1], behind)
    for each, outcome in zip((announced, later), ended, strict=True):
        ingest.take_in(REFERENCE, each, partial(outcome.set_result, None), outcome.set_exception)
    for outcome in ended:
        with pytest.raises(LeveretError):
            await asyncio.wait_for(outcome, 30)
    for some in numbers:
        await take_in(site, stage(site, some, directory=f"b{some.start}"))
    assert site.contents() == [body(n) for n in range(1, 20)]


async def test_a_second_segment_of_a_new_queue_waits_for_the_group_commit_of_the_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its log syncs directories in the event loop, a step of 253 ms beside a recovery's writes."""
    site = await site_with(directory)
    ingest, numbers = ingest_of(site), (range(1, 8), range(8, 20))
    commit, queues = ingest._commit, site.node.log_store.queues
    begin, when_synced, original = commit.begin, commit.when_synced, queues.take_in
    is_held, fresh = True, list[bool]()

    def asked(then: Any) -> None:
        nonlocal is_held
        is_held = False
        when_synced(then)

    def taken(queue: Any, *args: Any) -> None:
        nonlocal is_held
        fresh.append(queues.log(queue)._names.is_fresh and queues.log(queue).next_offset > 0)
        original(queue, *args)
        is_held = len(fresh) == 1

    monkeypatch.setattr(commit, "begin", lambda: None if is_held else begin())
    monkeypatch.setattr(commit, "when_synced", asked)
    monkeypatch.setattr(queues, "take_in", taken)
    announced, behind = write(site, numbers[0], LogEnd.of(ingest.end().statistics()))
    later, _ = write(site, numbers[1], behind)
    ended = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for each, outcome in zip((announced, later), ended, strict=True):
        ingest.take_in(REFERENCE, each, partial(outcome.set_result, None), outcome.set_exception)
    await asyncio.wait_for(asyncio.gather(*ended), 30)
    assert fresh == [False, False]
    assert site.contents() == [body(n) for n in range(1, 20)]


async def test_a_file_that_cannot_be_removed_keeps_no_segment_out(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await site_with(directory)
    late = stage(site, range(1, 20))
    early = await site.publish(2)
    remove = RemovedFiles.remove

    def refused(removed: RemovedFiles, path: Path) -> None:
        if "staged" in path.parts and path.suffix == ".segment":
            raise OSError(1, "Operation not permitted")
        remove(removed, path)

    monkeypatch.setattr(RemovedFiles, "remove", refused)
    await take_in(site, late)
    assert site.contents() == [*early, *(body(n) for n in range(1, 20))]


async def test_a_segment_written_in_advance_fits_once_the_one_before_it_is_in_the_log(
    directory: Path,
) -> None:
    site = await site_with(directory)
    held = await site.publish(4)
    first, end = write(site, range(1, 20), ingest_of(site).end())
    second, _ = write(site, range(20, 30), end)
    expected = {path_of(site, each).stat().st_ino for each in (first, second)}
    await take_in(site, first)
    await take_in(site, second)
    assert expected <= inodes(site)
    await site.restart()
    assert site.contents() == held + [body(n) for n in range(1, 30)]


async def test_messages_of_a_clock_that_is_wrong_get_the_time_of_this_node(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await site_with(directory)
    announced = stage(site, range(1, 20))
    now_ms = site.node.engine.clock_ms()
    monkeypatch.setattr(site.node.engine, "clock_ms", lambda: now_ms + 2 * CLOCK_DIFFERENCE_MS_MAX)
    inode = path_of(site, announced).stat().st_ino
    await take_in(site, announced)
    assert inode not in inodes(site)
    assert site.contents() == [body(n) for n in range(1, 20)]


async def test_a_follower_or_a_mirror_is_sent_each_chunk(directory: Path) -> None:
    sent: list[str] = []

    class Follower(ChangeReceiver):
        def appended(self, name: str, segment: int, header: Any, octets: Any) -> None:
            sent.extend([name] * header.records)

    site = await site_with(directory)
    await site.publish(4)
    announced = stage(site, range(1, 20))
    site.node.tree.receivers.append(Follower())
    await take_in(site, announced)
    assert sent == [f"queues/{site.queue().epoch:016x}"] * 19
    assert site.contents()[4:] == [body(n) for n in range(1, 20)]


async def test_a_replicated_queue_is_collected_as_if_its_messages_had_been_published(directory: Path) -> None:
    site = await replicating(directory, "q")
    before = await site.publish(4)
    await take_in(site, stage(site, range(1, 20)))
    after = await site.publish(3)
    await take_in(site, stage(site, range(20, 50)))
    expected = [*before, *(body(n) for n in range(1, 20)), *after, *(body(n) for n in range(20, 50))]
    await site.settle()
    assert site.replicated() == {"q": expected}
    await site.ack(10)
    await site.restart()
    assert site.replicated() == {"q": expected[10:]}


SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "quorum": {"x-queue-type": "quorum"},
    "max-length": {"x-max-length": 20},
    "max-length-bytes": {"x-max-length-bytes": 100},
    "reject-publish": {"x-max-length": 20, "x-overflow": "reject-publish"},
    "dead-letters": {"x-max-length": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "ttl": {"x-message-ttl": 60_000},
    "expired": {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "priorities": {"x-max-priority": 9},
    "single-active": {"x-single-active-consumer": True},
}


@pytest.mark.parametrize("arguments", SETTINGS.values(), ids=SETTINGS.keys())
async def test_limits_times_to_live_priorities_and_dead_letters_act_as_on_published_messages(
    directory: Path, arguments: dict[str, Any]
) -> None:
    found = []
    for way in ("segments", "messages"):
        site = await Site.started(directory / way)
        queues = [d.Queue(name="q", vhost="v", arguments=arguments), d.Queue(name="dead", vhost="v")]
        await site.apply(d.Put(d.Vhost(name="v")), *map(d.Put, queues))
        await site.publish(5)
        properties = (PERSISTENT, URGENT, PERSISTENT, EXPIRES)
        for numbers in (range(1, 12), range(12, 40)):
            if way == "segments":
                await take_in(site, stage(site, numbers, properties=properties))
            else:
                messages = [stored(n, properties[n % 4]) for n in numbers]
                site.node.authority.internal["job"] = "secret"
                ingest = site.node.stream_server.recovery_queue("job", "v", "q")
                ingest.append(REFERENCE, [MessageRun.of(numbers.start, messages)], lambda: None, print)
            await site.touched("q")
        facts: dict[str, Any] = {}
        for again in (False, True):
            if again:
                await site.restart()
            queue = site.queue()
            site.node.broker.dirty[queue] = None
            await site.settle()
            ready = sum(end - first for first, end in queue.backlog.ready_ranges())
            contents = site.contents("q")
            facts[f"restarted={again}"] = (
                # A flush has the messages of one priority together, a segment has them in the order of arrival.
                sorted(contents) if "x-max-priority" in arguments else contents,
                site.contents("dead"),
                queue.message_count,
                ready,
                queue.may_expire,
                queue.message_bytes if not again else None,
            )
        facts["taken"] = in_order_of_delivery(site.queue())
        found.append(facts)
        await site.kill()
    assert found[0] == found[1]


def in_order_of_delivery(queue: Queue) -> list[bytes]:
    bodies: list[bytes] = []
    while queue.ready_count:
        runs, _ = queue.take(7)
        bodies += [each for run in runs for each in run.bodies]
    return bodies


class SlowConsumer:
    """A consumer that takes so many messages at once, and acks none of them by itself."""

    no_ack = exclusive = False
    priority = 0

    def __init__(self, prefetch: int) -> None:
        self.bodies: list[bytes] = []
        self.unacked: list[tuple[int, int]] = []
        self._prefetch = prefetch

    def capacity(self) -> int:
        return self._prefetch - sum(count for _, count in self.unacked)

    def queue_deleted(self) -> None: ...

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        for run in runs:
            self.bodies += run.bodies
            self.unacked.append((run.first, len(run.bodies)))


async def test_of_the_consumers_of_a_queue_only_the_single_active_one_gets_a_segments_messages(
    directory: Path,
) -> None:
    site = await site_with(directory, x_single_active_consumer=True)
    active, waiting = SlowConsumer(9), SlowConsumer(1000)
    site.queue().add_consumer(active)
    site.queue().add_consumer(waiting)
    held = await site.publish(4)
    expected = held + [body(n) for n in range(1, 40)]
    for numbers in (range(1, 12), range(12, 40)):
        await take_in(site, stage(site, numbers))
        await site.touched()
        assert (active.bodies, waiting.bodies) == (expected[:9], [])
    site.queue().remove_consumer(active)
    for first, count in active.unacked:
        site.queue().requeue(first, count)
    await site.touched()
    assert waiting.bodies == expected


async def test_a_scrub_reads_the_segments_of_a_recovery_like_any_other_and_finds_damage_in_them(
    directory: Path,
) -> None:
    site = await site_with(directory)
    await site.publish(4)
    for numbers in (range(1, 12), range(12, 25)):
        await take_in(site, stage(site, numbers))
    appended = stage(site, range(25, 31))
    await site.publish(1)
    await take_in(site, appended)
    await site.publish(1)
    queue, name = site.queue(), f"queues/{site.queue().epoch:016x}"
    place = site.node.log_store.queues.home.place(queue.epoch)
    scrub = Scrub(place, queue.next_offset, name=name)
    assert [*scrub] == []
    assert scrub.chunks == 1 + 4 + 5 + 1 + 2 + 1
    flip(place, 4, HEADER_BYTES + 5)
    [damage] = Scrub(place, queue.next_offset, name=name)
    assert (damage.offset, damage.next_offset) == (4, 4 + CHUNK)


async def test_a_segment_that_is_not_what_was_announced_leaves_the_queue_as_it_was(directory: Path) -> None:
    site = await site_with(directory)
    held = await site.publish(4)

    async def refused(announced: StagedSegment, kind: type[LeveretError], text: str) -> None:
        with pytest.raises(kind, match=text):
            await take_in(site, announced)
        await site.settle()
        assert site.contents() == held
        assert ingest_of(site).last_sequence(REFERENCE) == 0

    good = stage(site, range(1, 20))
    octets = path_of(site, good).read_bytes()
    await refused(StagedSegment("b2", good.base, 1, 19, 0), StorageError, "No such file")
    await refused(StagedSegment("a1", good.base, 1, 18, 0), StorageError, "not those that were announced")
    await refused(
        StagedSegment("a1", good.base, 3, 19, 0), PreconditionFailed, "up to number 0: a segment of those"
    )
    for at in (0, 20, 60, len(octets) - 4):
        path_of(site, good).write_bytes(octets[:at] + bytes((octets[at] ^ 1,)) + octets[at + 1 :])
        await refused(good, StorageError, "damaged or cut short at byte")
    for size in (0, 30, len(octets) - 1):
        path_of(site, good).write_bytes(octets[:size])
        await refused(good, StorageError, "segment")
    other = path_of(site, good).with_name("other")
    other.write_bytes(octets)
    path_of(site, good).unlink()
    path_of(site, good).symlink_to(other)
    await refused(good, StorageError, "is no file")
    path_of(site, good).unlink()
    other.rename(path_of(site, good))
    await take_in(site, good)
    assert site.contents() == held + [body(n) for n in range(1, 20)]
    again = stage(site, range(1, 20), directory="c3")
    with pytest.raises(PreconditionFailed, match="up to number 19: a segment of those from 1 to 19 is not"):
        await take_in(site, again)
    assert site.contents() == held + [body(n) for n in range(1, 20)]


async def test_a_segment_of_a_queue_that_is_gone_or_was_made_anew_or_is_a_stream(directory: Path) -> None:
    site = await site_with(directory)
    await site.publish(4)
    announced = stage(site, range(1, 20))
    await site.apply(d.Delete("queues", ("v", "q")))
    with pytest.raises(NotFound, match="no queue 'q' in vhost 'v' at this node"):
        await take_in(site, announced)
    await site.apply(d.Put(d.Queue(name="q", vhost="v")))
    assert site.queue().message_count == 0
    await take_in(site, announced)
    assert site.contents() == [body(n) for n in range(1, 20)], "another log, the same messages"
    await site.apply(
        d.Delete("queues", ("v", "q")),
        d.Put(d.Queue(name="q", vhost="v", arguments={"x-queue-type": "stream"})),
    )
    with pytest.raises(PreconditionFailed, match="'q' is a stream"):
        ingest_of(site).end()


async def test_a_segment_of_a_queue_that_another_node_leads_is_refused_and_stays(directory: Path) -> None:
    site = await site_with(directory)
    announced = stage(site, range(1, 20))
    queue = site.queue()
    site.node.broker.queues["v", "q"] = RemoteQueue(queue.definition, "n2")
    with pytest.raises(NotFound, match="no queue 'q' in vhost 'v' at this node"):
        await take_in(site, announced)
    assert path_of(site, announced).exists()
    site.node.broker.queues["v", "q"] = queue
    await take_in(site, announced)
    assert site.contents() == [body(n) for n in range(1, 20)]


@pytest.mark.parametrize("seed", seeds(12, each_time=3))
async def test_killed_anywhere_between_others_messages_acks_and_segments_the_books_are_exact(
    directory: Path, seed: int
) -> None:
    chance = random.Random(seed)
    site = await site_with(directory)
    last, published = 0, []
    acked = 0
    while last < 150:
        step = chance.choice(["publish", "ack", "segment", "segment", "late", "kill", "kill-inside"])
        numbers = range(last + 1, last + 1 + chance.randrange(1, 25))
        if step == "publish":
            published += await site.publish(chance.randrange(1, 5))
        elif step == "ack":
            before = site.queue().message_count
            await site.ack(chance.randrange(1, 9))
            acked += before - site.queue().message_count
        elif step in ("segment", "late"):
            announced = stage(site, numbers, directory=f"d{chance.getrandbits(60):x}")
            if step == "late":
                published += await site.publish(1)
            await take_in(site, announced)
        elif step == "kill":
            await site.restart()
        else:
            announced = stage(site, numbers, directory=f"d{chance.getrandbits(60):x}")
            ingest_of(site).take_in(REFERENCE, announced, lambda: None, lambda error: None)
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0.001 * chance.random())
            await site.restart()
        last = ingest_of(site).last_sequence(REFERENCE)
        held = site.contents()
        mine = [each for each in held if each.startswith(b"r")]
        others = [each for each in held if not each.startswith(b"r")]
        assert mine == [body(n) for n in range(last + 1 - len(mine), last + 1)]
        assert others == published[len(published) - len(others) :]
        assert len(held) + acked == last + len(published)


def redelivered(site: Site) -> list[bool]:
    """The flag of each ready message, in order; all are taken."""
    queue, flags = site.queue(), list[bool]()
    while queue.ready_count:
        runs, is_redelivered = queue.take(3)
        flags += [is_redelivered] * sum(map(len, runs))
    return flags


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 5}, {"x_queue_type": "quorum"}])
async def test_recovered_messages_count_as_redelivered_whichever_way_they_come(
    directory: Path, arguments: dict[str, Any]
) -> None:
    """The lost site's consumers may have had them: one that looks for the flag had them twice (2026-11-30)."""
    site = await site_with(directory, **arguments)
    await take_in(site, stage(site, range(1, 13)))
    one_by_one = site.node.stream_server.recovery_queue("job", "v", "q")
    brought = asyncio.get_running_loop().create_future()
    run = MessageRun.of(13, [stored(n) for n in range(13, 20)])
    one_by_one.append(REFERENCE, [run], partial(brought.set_result, None))
    await asyncio.wait_for(brought, 30)
    await site.publish(5)
    assert redelivered(site) == [True] * 19 + [False] * 5

"""Streams at a standby and back: their offsets, where their readers were, and which ids their publishers had used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leveret.core.queues.stream import Stream, StreamBatch, records_of
from leveret.core.replication.standby_site import PromotionAttempt, RecoveryRequest, SiteDecisions
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.stored_positions import stored_positions_at
from leveret.pipeline.archive.sweep import sweep
from leveret.pipeline.archive.tables import read_table
from leveret.pipeline.jobs.job import Selection
from leveret.pipeline.recovery.publish import IngestPublisher, PlanPublisher
from leveret.runtime.clients.recovery_ingest import MARKED_OFFSET_MAX, RecoveryIngest
from leveret.testing.sites.standby_archive import freeze_plan
from leveret.testing.sites.standby_archive import transfer as archive
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.chunk import Attribute, ChunkType, encode_attribute, encode_trailer
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.stream.publish import MessageRun
from leveret.wire.stream_entry import PROPERTIES, entries_of, mark_entry, pack_entries
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site

LIMITED = {"x-queue-type": "stream", "x-max-length-bytes": 2500, "x-stream-max-segment-size-bytes": 400}
KEPT = {"x-queue-type": "stream"}
Scenario = Callable[[Path], Coroutine[Any, Any, None]]


def queue(arguments: dict[str, Any]) -> d.Put:
    return d.Put(d.Queue(name="qs", vhost="v", arguments=arguments))


def stream_of(site: Site) -> Stream:
    found = site.queue("qs")
    assert isinstance(found, Stream)
    return found


def entry(number: int) -> bytes:
    """A message, or each fifth time a batch of three in one entry."""
    body = b"%040d" % number
    if number % 5 == 4:
        return b"\x80\0\x03\0\0\0\x28\0\0\0\x28" + body
    return b"\0\0\0\x28" + body


async def publish(site: Site, numbers: range, *, reference: bytes = b"", entries_each: int = 1) -> None:
    """In chunks of so many entries; publishing ids are the numbers."""
    for first in range(numbers.start, numbers.stop, entries_each):
        ids = range(first, min(first + entries_each, numbers.stop))
        entries = [entry(number) for number in ids]
        stream_of(site).publish(StreamBatch(reference, ids, entries, sum(map(records_of, entries)), None))
        await site.touched("qs")


async def store(site: Site, reader: bytes, offset: int) -> None:
    stream_of(site).store_offset(reader, offset)
    await site.touched("qs")


def by_offset(site: Site) -> dict[int, bytes]:
    """Entries at their offsets."""
    log = site.node.log_store.log(stream_of(site))
    found: dict[int, bytes] = {}
    for chunk in log.read(log.first_offset, 1 << 30):
        offset = chunk.header.chunk_id
        for each in entries_of(bytes(chunk.data)) if chunk.header.type == ChunkType.USER else ():
            found[offset] = each
            offset += records_of(each)
    return found


def transfer(site: Site, data_dir: Path, *, chunks_per_file: int = 7) -> Manifest:
    """As the transfer stores it, a few chunks a file."""
    log = site.node.collector.logs["v"].log
    manifest = Manifest(data_dir)
    chunks = [octets for _, octets in log.read_raw(manifest.next_by_log.get("v", 0), 1 << 30)]
    for first in range(0, len(chunks), chunks_per_file):
        file = store_range(data_dir, "v", chunks[first : first + chunks_per_file])
        assert file is not None
        manifest.append([file])
    return manifest


class Ingesting:
    """publish.IngestClient and publish.IngestPublisher: hands runs to the node in this process; it may die."""

    def __init__(self, site: Site, runs: int) -> None:
        self._site = site
        self._left = runs

    def declare_publisher(self, reference: str, stream: str) -> IngestPublisher:
        node = self._site.node
        key = ("v", stream.removeprefix(RECOVERY_STREAM_PREFIX))
        self._reference = reference
        server = node.stream_server
        self._ingest = RecoveryIngest(node.broker, key, node.engine, node.commits, server._standby.deleted_at)
        self.last_sequence = self._ingest.last_sequence(reference)
        return self

    def publish(self, run: MessageRun) -> None:
        if not self._left:
            raise InterruptedError
        self._left -= 1
        self._ingest.append(self._reference, [run], lambda: None)

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing was opened."""


def recover(site: Site, plan: PlanDirectory | None, *, runs: int = 1 << 30) -> None:
    assert plan is not None
    PlanPublisher(plan, lambda: Ingesting(site, runs), lambda count: None, numbers_streams=True).publish(
        ["qs"]
    )


def replace_all(manifest: Manifest, work: Path) -> None:
    """Put one file in the place of all, which are deleted as far as no plan needs them: sidecars and books are not."""
    files = manifest.files()
    manifest.append([compact(manifest.data_dir, files)], removed=[file.path for file in files])
    sweep(manifest, work)
    assert any(file.stored_positions for file in files)
    assert not any(
        (manifest.data_dir / file.stored_positions).exists() for file in files if file.stored_positions
    )


async def used(site: Site, arguments: dict[str, Any]) -> None:
    """A stream of which retention took the begin, if it may, with two publishers and some readers."""
    await site.start()
    await site.apply(d.Put(TAGGED), d.Put(POLICY), queue(arguments))
    await publish(site, range(40), reference=b"gone")
    await store(site, b"early", 3)
    await publish(site, range(40, 80), reference=b"p", entries_each=4)
    await store(site, b"late", 60)
    await store(site, b"late", 97)
    await publish(site, range(80, 90), reference=b"p")
    await store(site, b"beyond", 10_000)
    stream_of(site).store_offset(b"riding", 101)
    await publish(site, range(90, 100), reference=b"q")
    site.node.log_store.streams.retain()
    await site.node.collector.retain()
    await site.settle()


@pytest.mark.parametrize("offset", [MARKED_OFFSET_MAX + 1, 2**64 - 1])
async def test_a_mark_beyond_what_a_stream_gets_to_is_refused_and_nothing_is_stored(
    directory: Path, offset: int
) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), queue(KEPT))
    await publish(site, range(3))
    attributes = encode_trailer(encode_attribute(Attribute.QUEUE_OFFSET, b"", offset))
    with pytest.raises(PreconditionFailed, match=f"offset {offset}, beyond"):
        ingest_of(site).append("r", [MessageRun.of(1, [mark_entry(entry(0), attributes)])], lambda: None)
    assert len(by_offset(site)) == 3
    await site.stop()


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_queue_in_a_streams_place_gets_none_of_the_streams_entries(
    directory: Path, kind: str, marked: bool
) -> None:
    """Its consumers would get the octets of the stream's entries as bodies."""
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), queue({"x-queue-type": kind}))
    marks = MessageRun.of(1, [mark_entry(entry(0), b"")])
    run = marks if marked else MessageRun(1, 1, pack_entries(entry(0))[0])
    with pytest.raises(PreconditionFailed, match=r"'qs' in vhost 'v' is no stream.*delete it"):
        ingest_of(site).append("r", [run], lambda: None)
    assert site.queue("qs").message_count == 0
    await site.apply(d.Delete("queues", ("v", "qs")))
    ingest_of(site).append("r", [run], lambda: None)
    await site.settle()
    assert list(by_offset(site).values()) == [entry(0)]
    await site.stop()


@pytest.mark.parametrize("marked", [True, False])
async def test_a_rehearsal_has_a_streams_entries_in_a_queue(directory: Path, marked: bool) -> None:
    """It consumes and compares them, octet for octet."""
    site, scratch_vhost = Site(directory), f"{d.REHEARSAL_VHOSTS}a.0"
    await site.start()
    await site.apply(d.Put(d.Vhost(name=scratch_vhost)), d.Put(d.Queue(name="qs", vhost=scratch_vhost)))
    marks = MessageRun.of(1, [mark_entry(entry(0), b"")])
    run = marks if marked else MessageRun(1, 1, pack_entries(entry(0))[0])
    ingest_of(site, scratch_vhost).append("r", [run], lambda: None)
    await site.settle()
    assert site.node.broker.queues[scratch_vhost, "qs"].message_count == 1
    await site.stop()


async def test_a_readers_offset_at_the_end_of_all_offsets_goes_no_further(directory: Path) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), queue(KEPT))
    await publish(site, range(3))
    attributes = encode_trailer(
        encode_attribute(Attribute.QUEUE_OFFSET, b"", 0),
        encode_attribute(Attribute.OFFSET, b"reader", 2**64 - 1),
    )
    ingest_of(site).append("r", [MessageRun.of(1, [mark_entry(entry(0), attributes)])], lambda: None)
    await site.settle()
    assert stream_of(site).damage is None
    assert stream_of(site).offset_of(b"reader") == 2**64 - 1
    assert len(by_offset(site)) == 4
    await site.stop()


def ingest_of(site: Site, vhost: str = "v") -> RecoveryIngest:
    node = site.node
    return RecoveryIngest(node.broker, (vhost, "qs"), node.engine, node.commits)


def run(scenario: Scenario) -> None:
    with scratch() as directory:
        asyncio.run(scenario(directory))


@pytest.mark.parametrize("arguments", [KEPT, LIMITED], ids=["whole", "begin-taken"])
@pytest.mark.long
@pytest.mark.parametrize("looked_at", [False, True])
async def test_a_stream_that_is_new_here_has_the_offsets_that_it_had_and_its_books(
    directory: Path, arguments: dict[str, Any], looked_at: bool
) -> None:
    up, down = Site(directory / "up"), Site(directory / "down")
    await used(up, arguments)
    manifest = transfer(up, directory / "standby")
    plan = freeze_plan(manifest, "v")
    await down.start()
    await down.apply(d.Put(TAGGED), queue(KEPT))
    if looked_at:
        down.node.log_store.log(stream_of(down))
    with pytest.raises(InterruptedError):
        recover(down, plan, runs=5)
    replace_all(manifest, directory)
    await down.settle()
    await down.restart()
    recover(down, plan)
    recover(down, plan)
    await down.settle()
    await down.restart()
    there, here = stream_of(up), stream_of(down)
    assert by_offset(down) == by_offset(up)
    assert (there.log.first_offset > 50) == (arguments is LIMITED)
    assert min(by_offset(down)) == here.log.first_offset or arguments is KEPT
    assert here.log.first_offset == (min(by_offset(up)) if arguments is LIMITED else 0)
    stored = {name: here.offset_of(name) for name in (b"early", b"late", b"riding")}
    assert stored == {name: there.offset_of(name) for name in stored}
    assert {b"p", b"q", b"gone"} <= there.sequences.logged.keys() <= here.sequences.logged.keys()
    assert all(here.last_sequence(name) == last for name, last in there.sequences.logged.items())
    end = here.next_offset
    await publish(down, range(85, 90), reference=b"p")
    assert here.message_count + here.log.first_offset == end, "what is published twice is stored once"
    await publish(down, range(90, 91), reference=b"p")
    assert by_offset(down)[end] == entry(90)


async def test_where_the_stream_holds_others_messages_readers_go_on_at_the_same_message(
    directory: Path,
) -> None:
    up, down = Site(directory / "up"), Site(directory / "down")
    await used(up, KEPT)
    manifest = transfer(up, directory / "standby")
    await down.start()
    await down.apply(d.Put(TAGGED), queue(KEPT))
    await publish(down, range(500, 700), reference=b"p")
    await store(down, b"late", 1)
    await store(down, b"early", 9_999)
    before = stream_of(down).next_offset
    recover(down, freeze_plan(manifest, "v"))
    await down.settle()
    there, here = by_offset(up), by_offset(down)
    assert [each for at, each in here.items() if at >= before] == list(there.values())
    assert min(there) == 0
    late, riding = (stream_of(down).offset_of(name) for name in (b"late", b"riding"))
    assert late is not None
    assert riding is not None
    # 97 and 101 are in batches, or not: what follows them is the same.
    assert [each for at, each in here.items() if at > late] == [each for at, each in there.items() if at > 97]
    assert [each for at, each in here.items() if at > riding] == [
        each for at, each in there.items() if at > 101
    ]
    assert stream_of(down).offset_of(b"early") == 9_999, "nobody falls back behind what was stored here"
    assert stream_of(down).last_sequence(b"p") == 699
    assert stream_of(down).last_sequence(b"q") == 99


async def test_books_are_those_of_what_arrived_of_a_moment_and_the_same_after_a_compaction(
    directory: Path,
) -> None:
    up = Site(directory / "up")
    await used(up, LIMITED)
    manifest = transfer(up, directory / "standby")
    [book] = stored_positions_at(manifest, "v").values()
    place = dict(book.offsets)[b"beyond"]
    assert place < 200
    assert (book.clamped, dict(book.offsets)[b"late"]) == (1, 97)
    assert dict(book.sequences) == {b"gone": 39, b"p": 89, b"q": 99}
    assert stored_positions_at(manifest, "v", as_of_ms=1) == {}
    files = manifest.files()
    half = files[: len(files) // 2]
    # As if the clock had been ahead in all chunks but the first.
    since_ms = half[0].min_ms
    compacted = compact(manifest.data_dir, half, since_ms)
    manifest.append([compacted], removed=[each.path for each in half])
    [held] = stored_positions_at(Manifest(manifest.data_dir), "v", as_of_ms=since_ms).values()
    said = read_table(manifest.data_dir / compacted.stored_positions)
    assert len(held.offsets) + len(held.sequences) >= said.num_rows > 0
    [again] = stored_positions_at(Manifest(manifest.data_dir), "v").values()
    assert (sorted(again.offsets), sorted(again.sequences)) == (sorted(book.offsets), sorted(book.sequences))
    assert again.clamped == 1
    assert compacted.stored_positions in compacted.names
    moment = Selection(as_of_ms=half[-1].max_ms)
    plan = freeze_plan(manifest, "v", moment)
    assert plan is not None
    assert len(plan.load().stored_positions) == 1


@pytest.mark.parametrize("anew", [None, KEPT], ids=["not-there", "declared-anew"])
async def test_of_a_queue_that_is_deleted_half_way_only_the_rest_comes(
    directory: Path, anew: dict[str, Any] | None
) -> None:
    up, down = Site(directory / "up"), Site(directory / "down")
    await used(up, KEPT)
    plan = freeze_plan(transfer(up, directory / "standby"), "v")
    await down.start()
    down.node.standby.decided.keep(SiteDecisions(promoting=PromotionAttempt(begun_ms=1)))
    await down.apply(d.Put(TAGGED), queue(KEPT))
    with pytest.raises(InterruptedError):
        recover(down, plan, runs=5)
    await down.settle()
    before = list(by_offset(down).values())
    assert before
    await down.apply(d.Delete("queues", ("v", "qs")))
    await down.restart()
    if anew is not None:
        await down.apply(queue(anew))
        with pytest.raises(InterruptedError):
            recover(down, plan, runs=1)
        await down.settle()
        before += list(by_offset(down).values())
        await down.apply(d.Delete("queues", ("v", "qs")))
        await down.apply(queue(anew))
    recover(down, plan)
    await down.settle()
    await down.restart()
    recover(down, plan)
    await down.settle()
    assert before + list(by_offset(down).values()) == list(by_offset(up).values())
    assert down.node.standby.status()["state"] == "promotion interrupted"


@pytest.mark.parametrize("arguments", [KEPT, LIMITED], ids=["one-segment", "all-are-told-with-each-segment"])
async def test_of_too_many_publishers_those_that_published_last_are_known(
    directory: Path, arguments: dict[str, Any]
) -> None:
    up, down = Site(directory / "up"), Site(directory / "down")
    await up.start()
    await up.apply(d.Put(TAGGED), d.Put(POLICY), queue(arguments))
    await publish(up, range(1), reference=b"steady")
    for number in range(1, 301):
        stream_of(up).publish(
            StreamBatch(b"once-%03d" % number, range(number, number + 1), [entry(number)], 1, None)
        )
        if number % 10 == 0:
            await up.touched("qs")
        if number == 150:
            await publish(up, range(1, 2), reference=b"steady")
    manifest = transfer(up, directory / "standby", chunks_per_file=30)
    files = manifest.files()
    manifest.append([compact(manifest.data_dir, files)], removed=[each.path for each in files])
    await publish(up, range(310, 311), reference=b"steady")
    manifest = transfer(up, directory / "standby")
    [book] = stored_positions_at(manifest, "v").values()
    last = [b"once-%03d" % number for number in range(300 - 252, 301)]
    assert book.sequences == [*((name, int(name[5:])) for name in last), (b"steady", 310)]
    await down.start()
    await down.apply(d.Put(TAGGED), queue(KEPT))
    recover(down, freeze_plan(manifest, "v"))
    await down.settle()
    await down.restart()
    stream, end = stream_of(down), stream_of(down).next_offset
    assert [stream.last_sequence(name) for name, _ in book.sequences] == [last for _, last in book.sequences]
    await publish(down, range(310, 311), reference=b"steady")
    assert stream.next_offset == end, "what is published twice is stored once"
    await up.restart()
    assert list(stream_of(up).sequences.logged)[-254:] == [name for name, _ in book.sequences]


async def test_a_stream_that_is_made_anew_or_collected_again_has_only_what_was_stored_since(
    directory: Path,
) -> None:
    up = await Site.started(directory / "up")
    await up.apply(d.Put(TAGGED), d.Put(POLICY), queue(KEPT))
    await publish(up, range(5), reference=b"old")
    await up.apply(d.Delete("queues", ("v", "qs")))
    await up.apply(queue(KEPT))
    await publish(up, range(2), reference=b"new")
    [book] = stored_positions_at(transfer(up, directory / "standby"), "v").values()
    assert book.sequences == [(b"new", 1)]
    await up.apply(d.Delete("policies", ("v", "p")))
    await store(up, b"reader", 1)
    await up.apply(d.Put(POLICY))
    [book] = stored_positions_at(transfer(up, directory / "standby"), "v").values()
    assert (book.sequences, book.offsets) == ([(b"new", 1)], [(b"reader", 1)])


@pytest.mark.parametrize("body", [b"hello", entry(7)], ids=["no-entry", "entry"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_message_that_an_application_calls_an_entry_is_recovered_as_it_is(
    directory: Path, body: bytes, is_there: bool
) -> None:
    up, down = StandbyUpstream(["v"]), Site(directory / "down")
    up.publish("v", "qs", [stored_message(body, b"orders", b"eu", PROPERTIES), stored_message(b"m1", b"e")])
    plan = freeze_plan(archive(up, directory / "standby"), "v")
    await down.start()
    await down.apply(d.Put(d.Vhost(name="v")), *[queue({})] * is_there)
    recover(down, plan)
    await down.settle()
    assert not isinstance(down.queue("qs"), Stream)
    assert down.contents("qs") == [body, b"m1"]
    routes = [
        (head.exchange, head.routing_key)
        for run in down.node.log_store.queues.read(down.queue("qs"), 0)
        for head, _ in run.taken().by_head()
    ]
    assert routes == [(b"orders", b"eu"), (b"e", b"")]


async def test_a_stream_that_is_made_anew_after_it_was_collected_again_has_its_own_books_and_comes_last(
    directory: Path,
) -> None:
    """Lives are not numbered in their order: how often the policy was taken away stands above the epoch."""

    up, down = Site(directory / "up"), Site(directory / "down")
    await up.start()
    await up.apply(d.Put(TAGGED), d.Put(POLICY), queue(KEPT))
    await publish(up, range(5), reference=b"old")
    await up.apply(d.Delete("policies", ("v", "p")))
    await up.apply(d.Put(POLICY))
    await publish(up, range(5, 10), reference=b"old")
    await up.apply(d.Delete("queues", ("v", "qs")))
    await up.apply(queue(KEPT))
    await publish(up, range(20), reference=b"new")
    await store(up, b"reader", 14)
    await publish(up, range(20, 25), reference=b"new")
    manifest = transfer(up, directory / "standby")
    [book] = stored_positions_at(manifest, "v").values()
    assert (book.sequences, book.offsets) == ([(b"new", 24)], [(b"reader", 14)])
    plan = freeze_plan(manifest, "v", Selection(start_from_scratch=True))
    files = manifest.files()
    manifest.append([compact(manifest.data_dir, files)], removed=[each.path for each in files])
    assert stored_positions_at(manifest, "v") == {("qs", book.epoch): book}
    await down.start()
    await down.apply(d.Put(TAGGED), queue(KEPT))
    recover(down, plan)
    await down.settle()
    numbers = [*range(5), *range(10), *range(25)]
    assert list(by_offset(down).values()) == [entry(number) for number in numbers]
    assert stream_of(down).last_sequence(b"new") == 24
    reader = stream_of(down).offset_of(b"reader")
    assert reader is not None
    assert by_offset(down)[reader] == by_offset(up)[14]


async def test_what_was_deleted_of_a_plan_that_a_later_promotion_left_out_is_remembered(
    directory: Path,
) -> None:
    up, down = Site(directory / "up"), Site(directory / "down")
    await used(up, KEPT)
    plan = freeze_plan(transfer(up, directory / "standby"), "v")
    await down.start()
    decided = down.node.standby.decided
    decided.keep(SiteDecisions(promoting=PromotionAttempt(begun_ms=1)))
    await down.apply(d.Put(TAGGED), queue(KEPT))
    with pytest.raises(InterruptedError):
        recover(down, plan, runs=5)
    await down.settle()
    before = list(by_offset(down).values())
    left_out = RecoveryRequest(exclude=["v"])
    decided.keep(SiteDecisions(promoting=PromotionAttempt(begun_ms=2, wanted=left_out)).finished(3))
    await down.apply(d.Delete("queues", ("v", "qs")))
    await down.restart()
    decided = down.node.standby.decided
    decided.keep(decided.own.promotes(PromotionAttempt(begun_ms=3)))
    recover(down, plan)
    await down.settle()
    assert before + list(by_offset(down).values()) == list(by_offset(up).values())
    decided.keep(decided.own.finished(4))
    assert decided.deleted == {}, "all is carried out: nothing may go on any more"


async def test_a_recovery_is_no_publisher_to_hand_on_and_a_reader_may_have_any_name(directory: Path) -> None:
    up = await Site.started(directory / "up")
    await up.apply(d.Put(TAGGED), d.Put(POLICY), queue(KEPT))
    await publish(up, range(10), reference=b"recovery.1")
    await publish(up, range(10, 20), reference=b"p")
    await store(up, b"recovery.reader", 3)
    [book] = stored_positions_at(transfer(up, directory / "standby"), "v").values()
    assert dict(book.sequences) == {b"p": 19}
    assert dict(book.offsets) == {b"recovery.reader": 3}

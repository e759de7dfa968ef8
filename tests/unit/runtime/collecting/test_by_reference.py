"""collecting.by_reference: what an outgoing log only names is there for as long as it names it, and goes then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import Decoder
from leveret.runtime.collecting import by_reference as outgoing_named
from leveret.runtime.collecting import outgoing_log
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.wire.chunk import HEADER_BYTES, ChunkType, decode_chunk, decode_header
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site, replicating, served

DELETE = d.Delete("queues", ("v", "q"))


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_named, "BY_REFERENCE_BYTES_MIN", 1)


def chunks_of(log: OutgoingLog, bytes_max: int = 1000) -> Iterator[memoryview | bytes]:
    at = log.first_offset
    while chunks := log.read(at, bytes_max):
        yield from chunks
        at = decode_header(chunks[-1]).next_offset


async def retain(site: Site, bytes_max: int) -> None:
    site.node.collector._retain_bytes_max = bytes_max
    await site.node.collector.retain()


def flip(path: Path, at: int) -> None:
    """Alter one bit."""
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


def segments(directory: Path) -> list[Path]:
    """Of all queues, the oldest first."""
    return sorted(directory.glob("queues/*/*.segment*"))


async def test_messages_are_written_once_and_served_as_if_they_had_been_copied(directory: Path) -> None:
    site = await replicating(directory, "q")
    for count in (3, 40, 1, 17):
        await site.publish(count)
    await site.ack(5)
    log = await served(site)
    headers = [header for header, _ in log.log.read_raw(0, 1 << 20)]
    assert all(not header.data_bytes for header in headers if header.type == ChunkType.USER)
    chunks = list(chunks_of(log))
    assert [decode_chunk(octets).header.records for octets in chunks] == [3, 40, 1, 17, 1]
    decoded = Decoder("v").decode(chunks).records
    bodies = [body for body, kind in zip(decoded["body"], decoded["kind"], strict=True) if kind.as_py() == 0]
    assert [body.as_py() for body in bodies] == [b"%08d" % number for number in range(61)]
    assert log.bytes - log.log.size_bytes == log.by_reference.bytes
    assert log.bytes > sum(map(len, chunks)) - 20 * len(chunks), "retention counts what it keeps"


async def test_a_log_without_fsync_is_copied(directory: Path) -> None:
    site = await replicating(directory, "q", durability="os")
    await site.publish(3)
    log = await served(site)
    assert [header.data_bytes > 0 for header, _ in log.log.read_raw(0, 1 << 20)] == [True]


async def test_a_chunk_that_is_shorter_than_it_is_worth_is_copied(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_named, "BY_REFERENCE_BYTES_MIN", 200)

    site = await replicating(directory, "q")
    await site.publish(2)
    await site.publish(20)
    log = await served(site)
    assert [header.data_bytes > 0 for header, _ in log.log.read_raw(0, 1 << 20)] == [True, False]
    assert [decode_chunk(octets).header.records for octets in chunks_of(log)] == [2, 20]


@pytest.mark.parametrize("restart", [False, True])
async def test_settled_messages_stay_until_retention_lets_go_of_them(directory: Path, restart: bool) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(20, 10)
    await site.ack(200)
    assert len(segments(directory)) > 10, "they are settled, and still to be transferred"
    if restart:
        await site.restart()
        assert site.contents() == []
    log = await served(site)
    assert sum(decode_header(octets).records for octets in chunks_of(log)) == log.log.next_offset
    await retain(site, 1500)
    assert 1 < len(segments(directory)) < 10
    assert log.bytes <= 1500
    assert len(list(chunks_of(log))) > 1


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("end", ["retention", "delete internal streams", "delete vhost", "untag"])
async def test_what_a_deleted_queue_held_can_be_transferred_and_goes_with_the_outgoing_log(
    directory: Path, end: str, restart: bool
) -> None:
    site = await replicating(directory, "q")
    bodies = await site.publish(30)
    await site.apply(DELETE, d.Put(d.Queue(name="q", vhost="v")))
    await site.publish(5)
    if restart:
        await site.restart()
    assert len(list((directory / "queues").iterdir())) == 2
    log = await served(site)
    chunks = [decode_chunk(octets) for octets in chunks_of(log)]
    assert [chunk.header.records for chunk in chunks] == [30, 1, 5]
    assert bytes(chunks[0].data).count(bodies[0]) == 1
    if end == "retention":
        await site.publish_often(10, 10)
        await served(site)
        await retain(site, 1000)
    elif end == "delete internal streams":
        site.node.upstream.delete_logs()
    else:
        await site.apply(d.Delete("vhosts", ("v",)) if end == "delete vhost" else d.Put(d.Vhost(name="v")))
    await site.settle()
    left = 0 if end == "delete vhost" else 1
    assert len(list((directory / "queues").iterdir())) == left
    await site.restart()
    assert len(list((directory / "queues").iterdir())) == left


async def test_lives_of_a_queue_need_its_log_from_the_first_of_them_on(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(10, 10)
    await site.ack(95)
    await site.apply(d.Delete("policies", ("v", "p")))
    await site.ack(2)
    first = segments(directory)[0]
    await site.apply(d.Put(POLICY))
    await site.publish(10)
    await site.ack(1)
    assert segments(directory)[0] == first
    log = await served(site)
    users = [octets for octets in chunks_of(log) if decode_header(octets).type == ChunkType.USER]
    records = sum(decode_header(octets).records for octets in users)
    assert 113 <= records < 210, "the second life has what the queue held then, and not what it had settled"
    assert site.replicated() == {"q": site.contents()}


@pytest.mark.parametrize("why", ["transferred", "too large"])
async def test_a_queue_that_is_collected_no_more_does_not_keep_for_ever_what_it_settles(
    directory: Path, why: str
) -> None:
    """Its outgoing log stands still, and with it retention."""

    site = await replicating(directory, "q")
    await site.publish_often(5, 10)
    await site.apply(d.Delete("policies", ("v", "p")))
    log = await served(site)
    site.node.stream_server.store_offset("v", "eu.1", 30)
    first = segments(directory)[0]
    await site.ack(50)
    assert segments(directory)[0] == first, "one downstream may yet be asked how it stood before"
    if why == "transferred":
        site.node.stream_server.store_offset("v", "eu.1", log.committed_offset)
    else:
        site.node.collector._retain_bytes_max = 2000
    for _ in range(30):
        await site.publish(10)
        await site.ack(10)
    assert sum(path.stat().st_size for path in segments(directory)) < 3000
    decoder = Decoder("v")
    decoder.decode(chunks_of(log))
    assert decoder.next == log.committed_offset


def bytes_of(directory: Path, kind: str = "queues") -> int:
    return sum(path.stat().st_size for path in directory.glob(f"{kind}/*/*.segment*"))


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("why", ["transferred", "beyond the retention"])
async def test_a_queue_that_is_deleted_takes_no_room_for_what_nobody_is_to_get(
    directory: Path, why: str, restart: bool
) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(60, 10)
    log = await served(site)
    if why == "transferred":
        site.node.stream_server.store_offset("v", "eu.1", log.committed_offset)
    else:
        await retain(site, 3000)
    await site.apply(DELETE)
    if restart:
        await site.restart()
        await served(site)
    site.node._queues.release_ended()
    assert bytes_of(directory) <= (0 if why == "transferred" else 3000)


@pytest.mark.parametrize("how", ["delete internal streams", "a downstream begins"])
async def test_what_is_collected_anew_is_what_queues_hold_and_not_what_they_settled(
    directory: Path, how: str
) -> None:
    site = await replicating(directory, "q")
    await site.apply(d.Put(d.Queue(name="q2", vhost="v")))
    held = await site.publish(4, "q2")
    await site.publish_often(60, 10)
    await site.ack(600)
    log = await served(site)
    await retain(site, 5000)
    assert log.missing_messages == len(held)
    if how == "delete internal streams":
        site.node.upstream.delete_logs()
    else:
        site.node.collector.begin_downstream("v", "eu.1")
    await site.settle()
    log = site.node.collector.logs["v"]
    assert log.bytes < 1500
    assert site.replicated() == {"q2": held}


async def test_policies_that_come_and_go_collect_nothing_that_is_settled_again(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(30, 10)
    await site.ack(300)
    log = await served(site)
    before = log.by_reference.bytes
    for _ in range(3):
        await site.apply(d.Delete("policies", ("v", "p")))
        await site.apply(d.Put(POLICY))
    assert log.by_reference.bytes < before * 1.2
    held = await site.publish(3)
    assert site.replicated() == {"q": held}


async def test_what_queues_get_after_their_collection_is_not_kept_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_log, "_UNNAMED_BYTES_MAX", 1000)

    site = await replicating(directory, "q")
    names = [f"q{number}" for number in range(8)]
    await site.apply(*(d.Put(d.Queue(name=name, vhost="v")) for name in names))
    for name in names:
        await site.publish(10, name)
    await site.apply(d.Delete("policies", ("v", "p")))
    for _ in range(30):
        for name in names:
            await site.publish(10, name)
            await site.ack(20, name)
    assert bytes_of(directory) < 8 * 2500


async def test_transient_queues_keep_nothing_for_others(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.apply(d.Put(d.Queue(name="x", vhost="v", durable=False)))
    await site.publish(10)
    for _ in range(50):
        await site.publish(10, "x")
        await site.ack(10, "x")
    assert bytes_of(directory, "transient") < 1500


async def test_the_log_that_outlives_its_queue_is_never_another_queues(directory: Path) -> None:
    """Exclusive queues leave no trace in the definitions, and yet their epochs are not given again."""

    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(POLICY))
    for number in range(40):
        site.node.broker.declare_queue(d.Queue(name=f"own{number}", vhost="v"), object())
    await site.apply(d.Put(d.Queue(name="q", vhost="v")))
    gone = site.queue().epoch
    await site.publish(20)
    await site.apply(DELETE)
    await served(site)
    for _ in range(2):
        await site.restart()
        await site.apply(d.Put(d.Queue(name="other", vhost="v")))
        assert site.queue("other").epoch > gone
        await site.apply(d.Delete("queues", ("v", "other")))


@pytest.mark.parametrize("lost", ["removed", "damaged", "no number"])
async def test_without_the_file_of_epochs_none_is_given_that_is_known(directory: Path, lost: str) -> None:
    site = await Site.started(directory)
    await site.apply(d.Put(TAGGED), d.Put(POLICY))
    for number in range(40):
        site.node.broker.declare_queue(d.Queue(name=f"own{number}", vhost="v"), object())
    await site.apply(d.Put(d.Queue(name="q", vhost="v")))
    gone = site.queue().epoch
    await site.publish(20)
    await site.apply(DELETE)
    await served(site)
    await site.kill()
    file = directory / "epochs.json"
    if lost == "removed":
        file.unlink()
    else:
        file.write_text("?" if lost == "damaged" else '{"reserved": "many"}')
        with pytest.raises(StorageError, match="where N is higher than any"):
            await site.start()
        file.write_text('{"reserved": 5}')
    site = await Site.started(directory)
    await site.apply(d.Put(d.Queue(name="other", vhost="v")))
    assert site.queue("other").epoch > gone


async def test_logs_of_deleted_queues_hold_no_descriptors(directory: Path) -> None:
    site = await replicating(directory, "q")
    for _ in range(30):
        await site.publish(10)
        await site.apply(DELETE, d.Put(d.Queue(name="q", vhost="v")))
    log = await served(site)
    assert len(list(chunks_of(log))) == 60
    site.node._queues.release_ended()
    assert not any(log.has_descriptors for name, log in site.node.tree.logs.items() if "queues/" in name)
    assert len(list(chunks_of(log))) == 60
    assert sum(log.has_descriptors for name, log in site.node.tree.logs.items() if "queues/" in name) == 1


async def test_nothing_is_dropped_before_its_settlement_is_logged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_named, "BY_REFERENCE_BYTES_MIN", 1 << 30)

    site = await replicating(directory, "q")
    await site.publish_often(10, 10)

    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(site.node._queues.log(site.queue()), "append", refuse)
    await site.ack(100)
    site.node._queues.release()
    await site.restart()
    assert len(site.contents()) == 100
    assert site.replicated() == {"q": site.contents()}


async def test_a_log_that_cannot_be_dropped_holds_up_no_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await replicating(directory, "q")
    await site.apply(d.Put(d.Queue(name="q2", vhost="v")))
    await site.publish(30)
    await site.publish(30, "q2")
    await site.apply(DELETE)
    log = await served(site)

    def refuse(offset: int) -> int:
        raise StorageError("it cannot be deleted")

    monkeypatch.setattr(site.node._queues.log(site.queue("q2")), "drop_before", refuse)
    site.node.stream_server.store_offset("v", "eu.1", log.committed_offset)
    site.node._queues.release()
    assert len(list((directory / "queues").iterdir())) == 1


# -- what is not there nevertheless -----------------------------------------------------------


@pytest.mark.parametrize("again", [0, 6, 9])
async def test_messages_that_a_queue_lost_with_the_power_are_settled_for_who_reads_their_name(
    directory: Path, again: int
) -> None:
    """A follower gets chunks in order, but its disk may keep the name and lose the data; then it is promoted."""

    site = await replicating(directory, "q")
    kept = await site.publish(4)
    segment = segments(directory)[0]
    end = segment.stat().st_size
    await site.publish(6)
    await site.kill()
    with segment.open("r+b") as file:
        file.truncate(end)
    await site.start()
    after = await site.publish(again) if again else []
    assert site.contents() == [*kept, *after]
    assert site.replicated() == {"q": [*kept, *after]}
    log = await served(site)
    decoder = Decoder("v")
    decoder.decode(chunks_of(log))
    assert decoder.next == log.committed_offset, "offsets go on"


async def test_a_log_that_was_closed_for_a_time_names_what_is_gone_since_and_was_settled(
    directory: Path,
) -> None:
    site = await replicating(directory, "q")
    await site.publish_often(10, 10)
    await site.apply(d.Put(d.Vhost(name="v")))
    await site.ack(90)
    await site.apply(d.Put(TAGGED))
    assert site.replicated() == {"q": site.contents()}
    log = await served(site)
    decoder = Decoder("v")
    decoder.decode(chunks_of(log))
    assert decoder.next == log.committed_offset


async def test_a_damaged_queue_holds_up_who_reads_until_it_is_restored_or_deleted(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = await replicating(directory, "q")
    await site.apply(d.Put(d.Queue(name="q2", vhost="v")))
    await site.publish_often(4, 20)
    await site.publish(2, "q2")
    await site.kill()
    first = segments(directory)[0]
    whole = first.read_bytes()
    flip(first, HEADER_BYTES - 1)
    await site.start()
    log = await served(site)
    for _ in range(2):
        with pytest.raises(StorageError, match=first.name):
            log.read(0, 1000)
    assert caplog.text.count("collected_chunk_unreadable") == 1
    await site.kill()
    first.write_bytes(whole)
    await site.start()
    log = await served(site)
    assert sum(decode_header(octets).records for octets in chunks_of(log)) == 82
    await site.kill()
    flip(first, HEADER_BYTES - 1)
    await site.start()
    await site.apply(DELETE)
    assert site.replicated() == {"q2": site.contents("q2")}
    assert "referenced_messages_missing queue='q' offset=0 messages=20" in caplog.text


async def test_a_name_that_is_damaged_is_not_served(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish(3)
    log = await served(site)
    (segment,) = (directory / "outgoing" / "v").glob("*.segment*")
    flip(segment, HEADER_BYTES + 5)
    with pytest.raises(StorageError, match="check of its trailer"):
        log.read(0, 1000)


async def test_a_log_that_is_missing_holds_up_who_reads_until_it_is_restored(directory: Path) -> None:
    site = await replicating(directory, "q")
    await site.publish(30)
    await site.kill()
    (own,) = (directory / "queues").iterdir()
    own.rename(directory / "elsewhere")
    await site.start()
    log = await served(site)
    with pytest.raises(StorageError, match="is missing"):
        log.read(0, 1000)
    await site.kill()
    (directory / "elsewhere").rename(own)
    await site.start()
    log = await served(site)
    assert [decode_header(octets).type for octets in chunks_of(log)] == [ChunkType.USER]
    assert site.replicated() == {"q": site.contents()}


@pytest.mark.parametrize("at", [HEADER_BYTES - 5, HEADER_BYTES + 30])
async def test_damage_after_the_start_is_named_and_given_up_with_its_queue(directory: Path, at: int) -> None:
    site = await replicating(directory, "q")
    await site.apply(d.Put(d.Queue(name="q2", vhost="v")))
    await site.publish(10, "q2")
    await site.publish_often(3, 20)
    log = await served(site)
    own = f"{site.queue().epoch:016x}"
    first = min(path for path in segments(directory) if path.parent.name == own)
    flip(first, at)
    assert len(log.read(0, 1 << 20)) == 1, "what is whole before it is served"
    with pytest.raises(StorageError, match=first.name):
        log.read(10, 1 << 20)
    await site.apply(DELETE)
    await served(site)
    kinds = [decode_chunk(octets).header.type for octets in chunks_of(log)]
    assert kinds == [ChunkType.USER, ChunkType.TRACKING, *[ChunkType.USER] * 2, ChunkType.TRACKING]
    assert site.replicated() == {"q2": site.contents("q2")}

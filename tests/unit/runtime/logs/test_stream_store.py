"""runtime.logs.stream_store: a stream is in its log, and comes back from it as it was."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rstream import AMQPMessage

from leveret.core.queues.messages import alike
from leveret.core.queues.queue_settings import QueueSettings
from leveret.core.queues.sequences import SEQUENCES_MAX
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import LedElsewhere, LeveretError, NotFound, StorageError
from leveret.runtime.logs import stream_store as store_module
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.committed_log import CommittedLog
from leveret.runtime.logs.stream_store import StreamStore
from leveret.storage.tree import ChangeReceiver, Tree
from leveret.wire.chunk import Attribute, ChunkType, Header, decode_chunk, decode_trailer, split_entries
from tests.unit.memory import scratch
from tests.unit.runtime.collecting.site import HEAD, head_of


class Store:
    """A stream store, one stream in it, and a clock; `restart` is kill -9 and a new process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_ms = 1000
        self.settings = QueueSettings()
        self.open()

    def open(self) -> None:
        def fail(error: BaseException) -> None:
            raise AssertionError(error)

        self.commit = GroupCommit(fsync=True, on_failure=fail)
        self.tree = Tree(self.directory)
        self.store = StreamStore(self.tree, self.commit, lambda: self.now_ms, 1 << 20)
        self.stream = Stream(QueueDefinition(name="s", vhost="v", epoch=7), lambda *_: [])
        self.stream.configure(self.settings)
        self.store.recover(self.stream)

    def restart(self) -> None:
        self.store.close()
        self.commit.close()
        self.open()

    def close(self) -> None:
        self.store.close()
        self.commit.close()

    @property
    def log(self) -> CommittedLog:
        return self.store.committed(self.stream)

    def publish(
        self, *bodies: bytes, reference: str = "", first_id: int = 1, filters: set[bytes] | None = None
    ) -> None:
        ids = range(first_id, first_id + len(bodies))
        entries = [len(body).to_bytes(4, "big") + body for body in bodies]
        # As from several frames of one read.
        first, rest = ids[:1], ids[1:]
        batch = StreamBatch(reference.encode(), first, entries[:1], len(first), filters)
        batch.extend(rest, entries[1:], len(rest), filters or set())
        self.stream.publish(batch)

    def flush(self) -> None:
        self.store.append_messages(self.stream)
        self.store.append_settlements(self.stream)

    def commit_now(self) -> None:
        asyncio.run(self.commit.all_durable())

    def publish_now(self, *bodies: bytes, reference: str = "", first_id: int = 1) -> None:
        self.publish(*bodies, reference=reference, first_id=first_id)
        self.flush()
        self.commit_now()

    def chunks(self) -> list[Header]:
        return [chunk.header for chunk in self.log.log.read(0, 1 << 30)]

    def attributes(self) -> list[list[tuple[int, bytes, int]]]:
        return [
            [each for each in decode_trailer(chunk.trailer) if each[0] != Attribute.LOG]
            for chunk in self.log.log.read(0, 1 << 30)
        ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path)
    yield one
    one.close()


def test_what_several_publish_before_a_flush_is_one_chunk(store: Store) -> None:
    store.publish(b"a", b"b")
    store.publish(b"c", reference="w")
    store.publish_now(b"d")
    (header,) = store.chunks()
    assert (header.type, header.entries, header.records, header.timestamp_ms) == (ChunkType.USER, 4, 4, 1000)
    (raw,) = store.log.read(0, 1 << 20)
    assert decode_chunk(raw).data == b"".join(b"\0\0\0\1" + body for body in (b"a", b"b", b"c", b"d"))


def test_copies_learn_where_a_stream_without_a_message_begins(store: Store) -> None:
    heard: list[tuple[str, int]] = []

    class Copies(ChangeReceiver):
        def begun(self, name: str, offset: int) -> None:
            heard.append((name, offset))

        def appended(self, name: str, segment: int, header: Header, octets: list[bytes | memoryview]) -> None:
            heard.append((name, header.chunk_id))

    store.tree.receivers.append(Copies())
    name = store.tree.name_of(store.log.log.directory)
    store.stream.align(775)
    store.publish_now(b"a")
    store.stream.align(777)
    store.publish_now(b"b")
    assert heard == [(name, 775), (name, 775), (name, 776), (name, 777)]
    assert store.log.first_offset == 775


def test_nothing_is_served_or_confirmed_before_it_is_durable(store: Store) -> None:
    confirmed: list[LeveretError | None] = []
    heard: list[int] = []
    store.log.on_commit(lambda: heard.append(store.log.committed_offset))
    held = [store.stream.may_hold_messages]
    store.publish(b"a", b"b")
    store.stream.incoming[0].done = confirmed.append
    held.append(store.stream.may_hold_messages)
    store.flush()
    assert (store.log.committed_offset, store.log.read(0, 1 << 20), store.log.last_chunk_id) == (0, [], -1)
    assert (confirmed, store.stream.message_count) == ([], 0)
    assert held == [False, True]
    assert store.stream.may_hold_messages
    store.commit_now()
    assert (store.log.committed_offset, len(store.log.read(0, 1 << 20)), store.log.last_chunk_id) == (2, 1, 0)
    assert (confirmed, heard, store.stream.message_count) == ([None], [2], 2)


def test_a_disk_that_refuses_is_told_to_the_publishers_and_nothing_is_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[LeveretError | None] = []

    def refuse(*_: object) -> Header:
        raise StorageError("disk full")

    store.publish_now(b"a", reference="w", first_id=1)
    store.publish(b"b", reference="w", first_id=2)
    store.stream.incoming[0].done = outcomes.append
    with monkeypatch.context() as patch:
        patch.setattr(store.log.log, "append", refuse)
        with pytest.raises(StorageError, match="disk full"):
            store.store.append_messages(store.stream)
    assert [str(error) for error in outcomes] == ["disk full"]
    assert store.stream.last_sequence(b"w") == 1, "it may be published again"


def test_sequences_and_offsets_come_back_after_a_crash(store: Store) -> None:
    store.publish_now(b"a", reference="w", first_id=5)
    store.stream.store_offset(b"r", 17)
    store.publish(b"b", reference="w", first_id=6)
    store.flush()
    store.stream.store_offset(b"alone", 3)
    store.flush()
    assert [header.type for header in store.chunks()] == [ChunkType.USER, ChunkType.USER, ChunkType.TRACKING]
    store.restart()
    assert store.stream.sequences.logged == {b"w": 6}
    assert store.stream.offsets == {b"r": 17, b"alone": 3}
    assert (store.log.committed_offset, store.log.last_chunk_id) == (3, 1), "a stored offset is no message"


def test_an_offset_that_is_stored_again_unchanged_costs_nothing(store: Store) -> None:
    for _ in range(3):
        store.stream.store_offset(b"r", 17)
        store.flush()
    assert len(store.chunks()) == 1


def test_every_segment_begins_with_all_sequences_and_the_offsets_that_are_of_use(store: Store) -> None:
    store.settings = QueueSettings(segment_bytes_max=100, max_length_bytes=300)
    store.stream.configure(store.settings)
    store.stream.store_offset(b"old", 0)
    store.stream.store_offset(b"new", 1000)
    store.publish_now(b"a", reference="w", first_id=9)
    for _ in range(10):
        store.publish_now(b"x" * 100)
    assert store.log.first_offset > 1
    *_, last = store.attributes()
    assert (Attribute.SEQUENCE, b"w", 9) in last
    assert (Attribute.OFFSET, b"new", 1000) in last
    assert b"old" not in [name for _, name, _ in last]
    store.restart()
    assert (store.stream.sequences.logged, store.stream.offsets) == ({b"w": 9}, {b"new": 1000})


def test_old_segments_go_and_the_newest_never_does(store: Store) -> None:
    store.settings = QueueSettings(segment_bytes_max=100, max_age_ms=5000)
    store.stream.configure(store.settings)
    for _ in range(4):
        store.publish_now(b"x" * 100)
        store.now_ms += 1000
    store.now_ms = 7500
    store.store.retain()
    assert store.log.first_offset == 2
    store.now_ms = 10**9
    store.store.retain()
    assert (store.log.first_offset, store.log.committed_offset) == (3, 4)


def test_a_chunk_is_no_larger_than_a_reader_takes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_BYTES_MAX", 100)
    store.publish(*[b"x" * 36] * 5, b"y" * 500, b"z")
    store.flush()
    assert [header.records for header in store.chunks()] == [2, 2, 1, 1, 1]


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c", b""]), st.integers(0, 3), st.integers(1, 12)),
            max_size=8,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 10),
)
def test_after_any_chunk_the_sequences_are_those_of_the_messages_that_are_there(
    flushes: list[list[tuple[bytes, int, int]]], entries_max: int
) -> None:
    """`a` and `b` publish by the protocol of streams, and some again; `c` is a node that relays for its clients."""
    with scratch() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "ENTRIES_MAX", entries_max)
        store = Store(directory)
        last = {b"a": 0, b"b": 0, b"c": 0}
        for flush in flushes:
            for reference, again, count in flush:
                first = max(1, last.get(reference, 0) + 1 - (again if reference != b"c" else 0))
                published = [b"%s%5d" % (reference or b"?", number) for number in range(first, first + count)]
                last[reference] = max(last.get(reference, 0), first + count - 1)
                if reference in (b"a", b"b"):
                    store.publish(*published, reference=reference.decode(), first_id=first)
                    continue
                store.stream.gathered.add(alike(head_of(6), published))
                if reference:
                    store.stream.advance_sequence(reference, last[reference], count)
            store.flush()
        there: dict[bytes, int] = {}
        recorded: dict[bytes, int] = {}
        bodies: list[bytes] = []
        for chunk in store.log.log.read(0, 1 << 30):
            for entry in split_entries(bytes(chunk.data)):
                bodies.append(bytes(entry)[-6:])
                if bodies[-1][:1] in last:
                    there[bodies[-1][:1]] = int(bodies[-1][1:])
            attributes = decode_trailer(chunk.trailer)
            recorded |= {name: value for kind, name, value in attributes if kind == Attribute.SEQUENCE}
            assert recorded == there
        for reference in (b"a", b"b", b"c"):
            numbers = [int(body[1:]) for body in bodies if body[:1] == reference]
            assert numbers == list(range(1, last[reference] + 1))
        store.restart()
        assert store.stream.sequences.logged == there
        store.close()


def test_filter_values_are_in_the_trailer_and_too_many_mean_any(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FILTERS_MAX", 2)
    store.publish(b"a", filters={b"eu", b""})
    store.flush()
    store.publish(b"a", filters={b"1", b"2", b"3"})
    store.flush()
    store.publish(b"a")
    store.flush()
    first, second, third = store.attributes()
    assert sorted(first) == [(Attribute.FILTER, b"", 0), (Attribute.FILTER, b"eu", 0)]
    assert (second, third) == ([(Attribute.FILTER, b"", 1)], [])


def test_the_publisher_that_was_silent_longest_is_forgotten_first(store: Store) -> None:
    for number in range(SEQUENCES_MAX + 1):
        store.publish(b"a", reference=f"w{number}", first_id=1)
        store.flush()
        store.publish(b"a", reference="w0", first_id=number + 2)
        store.flush()
    assert len(store.stream.sequences.logged) == SEQUENCES_MAX
    assert b"w0" in store.stream.sequences.logged
    assert b"w1" not in store.stream.sequences.logged


def test_a_clock_that_goes_back_does_not_make_times_fall(store: Store) -> None:
    for now_ms in (5000, 3000, 6000):
        store.now_ms = now_ms
        store.publish_now(b"a")
    assert [header.timestamp_ms for header in store.chunks()] == [5000, 5000, 6000]
    assert [store.log.offset_at(stamp) for stamp in (0, 5001, 7000)] == [0, 2, 3]


def test_a_deleted_stream_is_gone_for_its_readers_and_from_the_disk(store: Store) -> None:
    log, heard = store.log, []
    log.on_commit(lambda: heard.append(log.is_closed))
    store.publish_now(b"a")
    store.store.delete(store.stream)
    assert (heard, list((store.directory / "streams").iterdir())) == ([False, True], [])
    with pytest.raises(NotFound):
        log.read(0, 1)


def test_damage_takes_one_stream_down_and_leaves_its_files(store: Store) -> None:
    store.settings = QueueSettings(segment_bytes_max=1)
    store.stream.configure(store.settings)
    for _ in range(2):
        store.publish_now(b"hello")
    first = min((store.directory / "streams").rglob("*.segment"))
    octets = bytearray(first.read_bytes())
    octets[52] ^= 1
    first.write_bytes(octets)
    store.restart()
    assert "CRC of its data does not match" in str(store.stream.damage)
    with pytest.raises(StorageError, match="is down"):
        store.store.committed(store.stream)
    assert first.read_bytes() == octets


def test_orphans_are_removed_and_known_streams_are_not(store: Store) -> None:
    store.publish_now(b"a")
    store.store.home.remove_orphans({7})
    assert len(list((store.directory / "streams").iterdir())) == 1
    store.store.home.remove_orphans(set())
    assert list((store.directory / "streams").iterdir()) == []


def test_messages_of_both_protocols_are_read_in_their_order(store: Store) -> None:
    store.publish(bytes(AMQPMessage(body=b"first")), b"raw octets")
    store.stream.gathered.add(alike(HEAD, [b"x" * HEAD.body_bytes]))
    store.flush()
    store.commit_now()
    runs = store.store.read(store.stream, 0)
    found = [(run.first + at, body) for run in runs for at, body in enumerate(run.bodies)]
    assert found == [
        (0, b"first"),
        (1, b"raw octets"),
        (2, b"x" * HEAD.body_bytes),
    ]
    heads = [run.messages.head_at(at) for run in runs for at in range(run.start, run.stop)]
    assert [head.routing_key for head in heads] == [b"s", b"s", HEAD.routing_key]
    assert [run.first for run in store.store.read(store.stream, 1)] == [1]


def test_a_read_for_a_consumer_has_an_end_within_a_chunk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "READ_AT_ONCE", 2)
    for part in (b"abc", b"de", b"f"):
        store.publish_now(*[bytes((octet,)) for octet in part])
    found: list[list[bytes]] = []
    at = 0
    while runs := store.store.read(store.stream, at):
        found.append([body for run in runs for body in run.bodies])
        at = runs[-1].end
    assert found == [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"]]


def test_a_read_of_batches_that_are_large_when_unpacked_has_an_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "UNPACKED_BYTES_MAX", 1500)
    for number in range(2):
        unpacked = (1000).to_bytes(4) + bytes(1000)
        packed = gzip.compress(unpacked * 3)
        entry = struct.pack(">BHII", 0x90, 3, 3 * len(unpacked), len(packed)) + packed
        store.stream.publish(StreamBatch(b"", [number], [entry], 3, None))
        store.flush()
        store.commit_now()
    counts = []
    at = 0
    while runs := store.store.read(store.stream, at):
        counts.append(sum(map(len, runs)))
        at = runs[-1].end
    assert counts == [2, 2, 2]


def test_a_consumer_passes_batches_of_an_unknown_compression_some_with_each_dispatch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "READ_BYTES", 1)
    for number in range(3):
        entry = struct.pack(">BHII", 0xC0, 2, 9, 3) + b"lz4"
        store.stream.publish(StreamBatch(b"", [number], [entry], 2, None))
        store.flush()
        store.commit_now()
    store.publish_now(b"a")
    ends = []
    for at in (0, 2, 4):
        assert store.store.read(store.stream, at) == []
        ends.append(store.stream.read_before)
    assert ends == [2, 4, 6]
    assert [run.bodies for run in store.store.read(store.stream, 6)] == [[b"a"]]


def test_a_recovered_stream_with_mirrors_is_served_as_far_as_it_is_committed(store: Store) -> None:
    for body in (b"a", b"b", b"c"):
        store.publish_now(body)
    store.restart()
    recovered = Stream(store.stream.definition, lambda *_: [])
    store.store.forget(store.stream)
    store.store.has_mirrors = True
    waiting: list[Callable[[], None]] = []
    store.store.when_confirmable = lambda stream, then: waiting.append(then)
    store.stream = recovered
    store.store.recover(recovered)
    assert (store.log.committed_offset, store.log.last_chunk_id) == (0, -1)

    async def lead() -> None:
        store.store.commit_recovered(recovered, 1)

    asyncio.run(lead())
    assert (store.log.committed_offset, store.log.last_chunk_id, store.log.end_offset) == (1, 0, 3)
    [mirrored] = waiting
    mirrored()
    assert (store.log.committed_offset, store.log.last_chunk_id) == (3, 2)


def test_publishers_without_a_confirm_hear_of_another_leader_when_the_stream_is_handed_over(
    store: Store,
) -> None:
    store.store.when_confirmable = lambda stream, then: None
    found: list[LeveretError | None] = []

    async def hand_over() -> None:
        store.publish(b"a")
        store.stream.incoming[0].done = found.append
        store.flush()
        # Published while it is handed over: nothing is appended any more.
        store.publish(b"b")
        store.stream.incoming[0].done = found.append
        log = store.log
        store.store.step_down(store.stream)
        assert log.is_closed
        assert found == []
        await asyncio.sleep(0)

    asyncio.run(hand_over())
    assert [type(each) for each in found] == [LedElsewhere, LedElsewhere]

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.queues import stream as stream_module
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.head import make_head
from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import UNBOUNDED
from leveret.core.queues.stream import Stream, StreamBatch, first_wanted, offset_of_argument, records_of
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import PreconditionFailed, Unsupported
from leveret.model.stream import OffsetSpec, OffsetType, interval_ms
from leveret.wire.record import content_header

HEAD = make_head(b"", b"s", content_header(b"\0\0", 1))


class Bounds:
    """A log of chunks of two messages each, written every second."""

    def __init__(self, first_offset: int = 0, committed_offset: int = 0) -> None:
        self.first_offset = first_offset
        self.committed_offset = committed_offset

    @property
    def last_chunk_id(self) -> int:
        return self.committed_offset - 2 if self.committed_offset else -1

    @property
    def end_offset(self) -> int:
        return self.committed_offset

    last_timestamp_ms = 0
    bytes = 100

    def offset_at(self, timestamp_ms: int) -> int:
        return min(-(-timestamp_ms // 1000) * 2, self.committed_offset)


class Taker:
    """A consumer with a prefetch count."""

    exclusive = False
    priority = 0

    def __init__(self, prefetch: int, *, offset: Any = None, no_ack: bool = False) -> None:
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.arguments = {} if offset is None else {"x-stream-offset": offset}
        self.got: list[int] = []
        self.unacked = 0
        self.begin: int | None = None

    def begins_at(self, offset: int) -> None:
        assert self.begin is None
        self.begin = offset

    def capacity(self) -> int:
        return self.prefetch - self.unacked

    def queue_deleted(self) -> None:
        raise AssertionError

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        assert not redelivered
        for run in runs:
            self.got += range(run.first, run.end)
            self.unacked += len(run.bodies)

    def ack(self, stream: Stream) -> None:
        stream.settle(0, self.unacked)
        self.unacked = 0


def make(committed_offset: int = 0, first_offset: int = 0) -> Stream:
    def read(queue: Queue, offset: int) -> list[Run]:
        end = min(offset + 3, bounds.committed_offset)
        return [Run(offset, alike(HEAD, [b"x"] * (end - offset)))] if end > offset else []

    stream = Stream(QueueDefinition(name="s", vhost="v", epoch=1), read)
    stream.log = bounds = Bounds(first_offset, committed_offset)
    return stream


def batch(*ids: int, reference: bytes = b"w") -> StreamBatch:
    return StreamBatch(reference, ids, [b"\0\0\0\1%d" % (each % 10) for each in ids], len(ids), None)


# --- Offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "offset"),
    [
        (OffsetSpec(OffsetType.FIRST), 4),
        (OffsetSpec(OffsetType.LAST), 18),
        (OffsetSpec(OffsetType.NEXT), 20),
        (OffsetSpec(OffsetType.OFFSET, 1), 4),
        (OffsetSpec(OffsetType.OFFSET, 7), 7),
        (OffsetSpec(OffsetType.OFFSET, 99), 20),
        (OffsetSpec(OffsetType.TIMESTAMP, 3500), 8),
    ],
)
def test_a_reader_begins_where_its_specification_says(spec: OffsetSpec, offset: int) -> None:
    assert first_wanted(Bounds(4, 20), spec) == offset


def test_the_last_of_an_empty_stream_is_what_comes_next() -> None:
    assert first_wanted(make().log, OffsetSpec(OffsetType.LAST)) == 0


@pytest.mark.parametrize(
    ("argument", "spec"),
    [
        (None, OffsetSpec(OffsetType.NEXT)),
        ("first", OffsetSpec(OffsetType.FIRST)),
        ("last", OffsetSpec(OffsetType.LAST)),
        ("next", OffsetSpec(OffsetType.NEXT)),
        (7, OffsetSpec(OffsetType.OFFSET, 7)),
        ("2h", OffsetSpec(OffsetType.TIMESTAMP, 10_000_000 - 7_200_000)),
        (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), OffsetSpec(OffsetType.TIMESTAMP, 5000)),
    ],
)
def test_the_argument_of_a_consumer_is_read(argument: Any, spec: OffsetSpec) -> None:
    assert offset_of_argument(argument, 10_000_000) == spec


@pytest.mark.parametrize("argument", ["nonsense", "5x", "9" * 5000 + "D", "", -1, True, 1.5, [1]])
def test_an_argument_that_is_no_offset_is_refused(argument: Any) -> None:
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        offset_of_argument(argument, 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1Y", 31_536_000_000), ("2M", 5_184_000_000), ("7D", 604_800_000), ("3h", 10_800_000), ("4m", 240_000)],
)
def test_intervals_are_years_to_seconds(text: str, ms: int) -> None:
    assert interval_ms(text) == ms
    assert interval_ms("9s") == 9000
    assert interval_ms(text + "x") is None


# --- Publishing -----------------------------------------------------------------------------------


def taken(stream: Stream) -> list[bytes]:
    return [entry[4:] for each in stream.incoming for entry in each.entries]


def test_ids_that_do_not_rise_are_left_out_before_and_after_they_are_logged() -> None:
    stream = make()
    stream.publish(batch(1, 2))
    stream.publish(batch(2, 3))
    assert taken(stream) == [b"1", b"2", b"3"]
    stream.incoming.clear()
    stream.sequences.note_logged(stream.sequences.unlogged)
    stream.sequences.unlogged = {}
    stream.publish(batch(3, 3, 5, 4))
    assert taken(stream) == [b"5"]
    assert [each.records for each in stream.incoming] == [1]
    assert list(stream.incoming[0].ids) == [3, 3, 5, 4], "all of them are confirmed"


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=8))
def test_what_is_taken_rises(batches: list[list[int]]) -> None:
    stream = make()
    for ids in batches:
        stream.publish(batch(*ids))
    got = [int(each) for each in taken(stream)]
    wanted: list[int] = []
    for publishing_id in [each for ids in batches for each in ids]:
        if not wanted or publishing_id > wanted[-1]:
            wanted.append(publishing_id)
    assert got == wanted
    assert sum(each.records for each in stream.incoming) == len(wanted)


def test_without_a_reference_everything_is_taken() -> None:
    stream = make()
    stream.publish(batch(1, 1, 0, reference=b""))
    assert taken(stream) == [b"1", b"1", b"0"]


def test_a_batch_in_an_entry_counts_as_its_messages() -> None:
    assert records_of(b"\x90\0\x07" + bytes(20)) == 7
    assert records_of(b"\0\0\0\1a") == 1


# --- Consuming by AMQP 0-9-1 ----------------------------------------------------------------------


def test_each_consumer_has_a_position_of_its_own_and_room_as_it_acknowledges() -> None:
    stream = make(committed_offset=10)
    first, late = Taker(4, offset="first"), Taker(100, offset=8)
    stream.add_consumer(first)
    stream.add_consumer(late)
    stream.dispatch(1)
    assert (first.got, late.got, stream.unacked_count) == ([0, 1, 2, 3], [8, 9], 6)
    first.ack(stream)
    stream.dispatch(2)
    assert first.got == list(range(8))
    assert stream.message_count == 10, "nothing is taken away"


def test_a_consumer_learns_where_it_begins_before_there_is_anything_for_it() -> None:
    stream = make(committed_offset=4)
    takers = [Taker(1, offset=offset) for offset in (None, "next", "last", "first", 3)]
    for taker in takers:
        stream.add_consumer(taker)
    stream.dispatch(1)
    stream.dispatch(2)
    assert [taker.begin for taker in takers] == [4, 4, 2, 0, 3]


def test_what_cannot_be_read_is_passed_a_part_with_each_dispatch() -> None:
    def read(queue: Queue, offset: int) -> list[Run]:
        stream.read_before = min(offset + 2, 6)
        return [Run(6, alike(HEAD, [b"a"]))] if offset == 6 else []

    stream = Stream(QueueDefinition(name="s", vhost="v"), read)
    stream.log = Bounds(committed_offset=7)
    taker = Taker(9, offset="first")
    stream.add_consumer(taker)
    waits = []
    for now_ms in range(4):
        stream.dispatch(now_ms)
        waits.append((stream.wait_ms, list(taker.got)))
    assert waits == [(0, []), (0, []), (0, []), (None, [6])]


def test_many_consumers_that_are_far_behind_are_served_in_several_dispatches_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred that took a thousand messages each were one step."""
    monkeypatch.setattr(stream_module, "DEALT_AT_ONCE", 20)
    stream = make(30)
    takers = [Taker(10, offset="first") for _ in range(5)]
    for taker in takers:
        stream.add_consumer(taker)
    for expected in ([10, 10, 0, 0, 0], [10, 10, 10, 10, 0], [10] * 5):
        stream.dispatch()
        assert [len(taker.got) for taker in takers] == expected
        assert stream.wait_ms == (0 if 0 in expected else None)
    takers[0].ack(stream)
    takers[4].ack(stream)
    stream.remove_consumer(takers[1])
    stream.dispatch()
    assert [len(taker.got) for taker in takers] == [20, 10, 10, 10, 20]


def test_what_is_not_durable_is_not_handed_out() -> None:
    stream = make(committed_offset=2)
    taker = Taker(100)
    stream.add_consumer(taker)
    stream.backlog.next_offset = 50
    stream.dispatch(1)
    assert taker.got == []
    assert isinstance(stream.log, Bounds)
    stream.log.committed_offset = 5
    stream.dispatch(2)
    assert taker.got == [2, 3, 4]


def test_a_consumer_must_acknowledge_and_say_how_many_it_takes() -> None:
    stream = make()
    with pytest.raises(Unsupported, match="automatic acknowledgement"):
        stream.add_consumer(Taker(1, no_ack=True))
    with pytest.raises(PreconditionFailed, match="prefetch count is not set"):
        stream.add_consumer(Taker(0))
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        stream.add_consumer(Taker(1, offset="nonsense"))
    assert not stream.consumers


def test_what_a_channel_gives_back_does_not_come_again() -> None:
    stream = make(committed_offset=2)
    taker = Taker(10, offset="first")
    stream.add_consumer(taker)
    stream.dispatch(1)
    stream.remove_consumer(taker)
    stream.requeue(0, 2)
    stream.dispatch(2)
    assert (taker.got, stream.unacked_count, len(stream.consumers)) == ([0, 1], 0, 0)


def test_a_stream_is_not_got_from_purged_or_rejected_to() -> None:
    stream = make(committed_offset=2)
    for refuse in (lambda: stream.take_one(0), lambda: stream.drop_ready(0), stream.check_refusable):
        with pytest.raises(Unsupported, match="not supported by stream queues queue 's' in vhost 'v'"):
            refuse()


def test_however_much_is_unread_publishers_need_not_wait() -> None:
    stream = make(committed_offset=10**9)
    stream.add_consumer(Taker(1))
    assert not stream.is_behind
    assert stream.room(1 << 30) == UNBOUNDED
    assert stream.must_keep(False), "whatever its delivery mode"


def test_stored_offsets_that_retention_has_passed_are_not_kept() -> None:
    stream = make(committed_offset=100, first_offset=10)
    stream.offsets = {b"old": 9, b"new": 10}
    assert stream.live_offsets() == {b"new": 10}
    assert stream.offset_of(b"old") == 9


def test_a_stream_keeps_the_offsets_of_so_many_readers_and_forgets_who_stored_one_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader chooses its name anew at each start, perhaps; all names are in memory, and in each segment."""
    monkeypatch.setattr(stream_module, "OFFSETS_MAX", 3)
    stream = make(committed_offset=100)
    for number in range(3):
        stream.note_offsets({b"%d" % number: number})
    stream.note_offsets({b"0": 50})
    stream.note_offsets({b"new": 7})
    assert stream.offsets == {b"2": 2, b"0": 50, b"new": 7}

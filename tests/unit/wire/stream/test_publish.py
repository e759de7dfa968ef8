from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.chunk import ChunkError
from leveret.wire.stream.fields import MalformedCommand
from leveret.wire.stream.publish import MessageRun, decode_published, encode_publish, run_head, run_of

messages = st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.binary(max_size=40)), max_size=20)


def entry(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def sub_batch(records: int, octets: bytes) -> bytes:
    return struct.pack(">BHII", 0x90, records, 1000, len(octets)) + octets


def frame(version: int, count: int, octets: bytes) -> bytes:
    return struct.pack(">HHBi", 2, version, 7, count) + octets


@given(messages)
def test_messages_become_entries_of_a_chunk_in_their_order(given_messages: list[tuple[int, bytes]]) -> None:
    published = decode_published(encode_publish(7, given_messages)[4:])
    assert published.publisher == 7
    assert list(published.ids) == [publishing_id for publishing_id, _ in given_messages]
    assert published.entries == [entry(body) for _, body in given_messages]
    assert (published.records, published.filters) == (len(given_messages), None)


@given(st.integers(2, 300), st.integers(0, 300))
def test_messages_of_one_size_are_the_same_as_any(count: int, size: int) -> None:
    bodies = [(number, bytes([number & 0xFF]) * size) for number in range(count)]
    published = decode_published(encode_publish(1, bodies)[4:])
    assert published.entries == [entry(body) for _, body in bodies]
    assert list(published.ids) == list(range(count))


def test_a_frame_whose_length_only_looks_like_messages_of_one_size_is_taken_apart() -> None:
    # 4 + 6 octets of bodies: the same length in all as twice 5.
    published = decode_published(encode_publish(1, [(1, b"a" * 5), (2, b"b" * 4), (3, b"c" * 6)])[4:])
    assert published.entries == [entry(b"aaaaa"), entry(b"bbbb"), entry(b"cccccc")]


def test_batches_of_messages_go_through_as_they_are_and_count_as_their_messages() -> None:
    octets = struct.pack(">Q", 5) + sub_batch(9, b"zipped") + struct.pack(">Q", 6) + entry(b"x")
    published = decode_published(frame(1, 2, octets))
    assert published.entries == [sub_batch(9, b"zipped"), entry(b"x")]
    assert (list(published.ids), published.records) == ([5, 6], 10)


def test_version_2_has_filter_values_and_messages_without_one() -> None:
    octets = (
        struct.pack(">Qh", 1, 2) + b"eu" + entry(b"a")
        + struct.pack(">Qh", 2, -1) + entry(b"b")
        + struct.pack(">Qh", 3, 2) + b"us" + entry(b"c")
    )  # fmt: skip
    published = decode_published(frame(2, 3, octets))
    assert published.entries == [entry(b"a"), entry(b"b"), entry(b"c")]
    assert published.filters == {b"eu", b"", b"us"}


@given(messages.filter(bool), st.data())
def test_a_frame_that_is_cut_short_or_too_long_is_malformed(
    given_messages: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = encode_publish(7, given_messages)[4:]
    cut = data.draw(st.integers(9, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(MalformedCommand):
            decode_published(wrong)


@given(st.sampled_from([1, 2]), st.integers(-2, 5), st.binary(max_size=60))
def test_garbage_is_entries_or_malformed(version: int, count: int, octets: bytes) -> None:
    try:
        published = decode_published(frame(version, count, octets))
    except MalformedCommand:
        return
    assert len(published.ids) == len(published.entries)
    assert published.records >= len(published.entries)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.integers(1, 1 << 60))
def test_a_run_of_messages_comes_out_of_its_frame_as_it_was(bodies: list[bytes], first: int) -> None:
    run = MessageRun.of(first, bodies)
    octets = run_head(3, run) + bytes(run.data)
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    published = decode_published(octets[4:])
    assert (published.publisher, published.records) == (3, len(bodies))
    assert list(map(run_of, published.ids, published.entries)) == [run]
    assert list(run.messages()) == list(enumerate(bodies, first))
    assert run.last == first + len(bodies) - 1


def test_a_run_that_does_not_hold_what_it_says_is_named() -> None:
    with pytest.raises(ChunkError, match="2 messages stand where there are to be 3"):
        MessageRun.of(1, [b"a", b"b"])._replace(records=3).messages()

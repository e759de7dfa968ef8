from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.pipeline.archive.decode import MESSAGE, NO_MESSAGE, SETTLEMENT, Decoder
from leveret.testing.sites.standby_upstream import outgoing_chunk, stored_message
from leveret.wire.chunk import ChunkError, ChunkType, encode_header
from leveret.wire.record import Settlement, decode_message, encode_settlements

shortstr = st.binary(max_size=20)
messages = st.builds(
    stored_message, st.binary(max_size=60), shortstr, shortstr, st.binary(min_size=2, max_size=30)
)
settled = st.lists(
    st.builds(Settlement, st.integers(0, 4), st.integers(0, 1 << 40), st.integers(1, 1000)), max_size=4
)
queues = st.tuples(st.sampled_from(["q", "p", "ü"]), st.integers(1, 3))
chunks = st.tuples(
    queues,
    st.one_of(
        st.lists(messages, min_size=1, max_size=8).map(lambda bodies: (ChunkType.USER, bodies)),
        settled.map(lambda ranges: (ChunkType.TRACKING, [encode_settlements(ranges)])),
    ),
)


def in_one_block(raw: list[bytes]) -> list[memoryview]:
    """The same chunks in one block of memory, with something else around each."""
    block = np.full(sum(map(len, raw)) + 7 * len(raw) + 7, 0xA5, np.uint8)
    views, at = [], 7
    for each in raw:
        block[at : at + len(each)] = np.frombuffer(each, np.uint8)
        views.append(block.data[at : at + len(each)].toreadonly())
        at += len(each) + 7
    return views


@given(st.lists(chunks, min_size=1, max_size=8), st.sampled_from([list, in_one_block]))
def test_each_record_is_a_row_as_it_was_stored(logged: list[Any], laid: Callable[[Any], list[Any]]) -> None:
    raw, expected, offset = [], [], 40
    for index, ((queue, epoch), (kind, bodies)) in enumerate(logged):
        first = 1000 * index
        raw.append(outgoing_chunk(offset, queue, epoch, first, bodies, kind, 5 + index))
        offset += len(bodies)
        for at, body in enumerate(bodies, first):
            if kind == ChunkType.USER:
                message = decode_message(body)
                fields = (MESSAGE, *message[:2], message.properties, message.body)
            else:
                fields = (SETTLEMENT, b"", b"", b"", body)
            expected.append((queue, epoch, at, 5 + index, *fields))
    decoder = Decoder("v/1")
    half = len(raw) // 2
    batches = [decoder.decode(part).records for part in (laid(raw[:half]), laid(raw[half:]))]
    columns = [
        "queue",
        "queue_epoch",
        "queue_offset",
        "timestamp_ms",
        "kind",
        "exchange",
        "routing_key",
        "properties",
        "body",
    ]
    rows = [tuple(row[name] for name in columns) for batch in batches for row in batch.to_pylist()]
    assert rows == expected
    assert {row["vhost"] for batch in batches for row in batch.to_pylist()} == {"v/1"}
    assert (decoder.first, decoder.next, decoder.records) == (40, offset, len(expected))


@given(st.lists(st.tuples(st.integers(1, 2), settled), min_size=1, max_size=6))
def test_settlements_name_the_same_offsets_and_their_own(logged: list[Any]) -> None:
    raw, expected = [], set()
    for index, (epoch, ranges) in enumerate(logged):
        bodies = [encode_settlements(ranges)]
        raw.append(outgoing_chunk(index, "q", epoch, 7000 + index, bodies, ChunkType.TRACKING, 1))
        expected.add((epoch, NO_MESSAGE, 7000 + index))
        for reason, first, count in ranges:
            expected.update((epoch, reason, first + i) for i in range(count))
    table = Decoder("/").decode(raw).settlements
    found = [
        (row["queue_epoch"], row["reason"], row["first"] + i)
        for row in table.to_pylist()
        for i in range(row["count"])
    ]
    assert set(found) == expected


def test_settled_neighbours_become_one_range() -> None:
    raw = [
        outgoing_chunk(i, "q", 1, 100 + i, [encode_settlements([Settlement(0, i, 1)])], ChunkType.TRACKING, 1)
        for i in range(50)
    ]
    decoder = Decoder("/")
    ranges = {
        (row["reason"], row["first"], row["count"]) for row in decoder.decode(raw).settlements.to_pylist()
    }
    assert ranges == {(0, 0, 50), (NO_MESSAGE, 100, 50)}
    assert decoder.parts["q", 1].settled == 50


def test_parts_count_what_each_queue_has() -> None:
    decoder = Decoder("/")
    decoder.decode(
        [
            outgoing_chunk(0, "q", 1, 10, [stored_message(b"a"), stored_message(b"b")], ChunkType.USER, 70),
            outgoing_chunk(2, "p", 4, 0, [stored_message(b"c")], ChunkType.USER, 71),
            outgoing_chunk(
                3, "q", 1, 12, [encode_settlements([Settlement(0, 10, 2)])], ChunkType.TRACKING, 72
            ),
            outgoing_chunk(4, "q", 1, 20, [stored_message(b"d")], ChunkType.USER, 69),
        ]
    )
    part = decoder.parts["q", 1]
    assert (part.messages, part.settled, part.ranges) == (3, 2, [(10, 3), (20, 1)])
    assert (part.min_ms, part.max_ms) == (69, 72)
    assert decoder.parts["p", 4].ranges == [(0, 1)]


def _chunk(bodies: list[bytes], chunk_id: int = 0) -> bytes:
    return outgoing_chunk(chunk_id, "q", 1, 0, bodies, ChunkType.USER, 1)


def _without_trailer() -> bytes:
    raw = _chunk([stored_message(b"a")])
    body = raw[48 : 48 + int.from_bytes(raw[36:40], "big")]
    crc = int.from_bytes(raw[32:36], "big")
    return encode_header(0, 1, 1, 1, 1, 0, crc, len(body)) + body


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (lambda: [_chunk([b"\x05abc"])], "ends inside|does not fit"),
        (lambda: [_chunk([stored_message(b"")[:-1]])], "does not fit"),
        (lambda: [_chunk([b""])], "ends inside|does not fit"),
        (lambda: [_without_trailer()], "its queue"),
        (lambda: [_chunk([stored_message(b"a")]), _chunk([stored_message(b"b")], 7)], "chunk 7 follows 1"),
        (lambda: [_chunk([stored_message(b"a")])[:-1]], "octets are there"),
    ],
)
@pytest.mark.parametrize("laid", [list, in_one_block])
def test_what_is_no_outgoing_chunk_is_refused(
    raw: Callable[[], list[bytes]], what: str, laid: Callable[[Any], list[Any]]
) -> None:
    with pytest.raises(ChunkError, match=what):
        Decoder("/").decode(laid(raw()))


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4), st.sampled_from([list, in_one_block]))
def test_damage_is_found_or_is_harmless(at: int, octets: bytes, laid: Callable[[Any], list[Any]]) -> None:
    raw = _chunk([stored_message(b"body", b"ex", b"rk")] * 3)
    at %= len(raw)
    damaged = raw[:at] + octets + raw[at + len(octets) :]
    if damaged == raw:
        return
    with pytest.raises(ChunkError):
        Decoder("/").decode(laid([damaged]))

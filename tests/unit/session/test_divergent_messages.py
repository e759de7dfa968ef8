"""session.divergent_messages: every message of a tail is a row, and what cannot be read is one too."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.core.queues.head import make_head
from leveret.core.queues.messages import alike
from leveret.model.errors import Corrupt
from leveret.session.divergent_messages import Row, Tail, message_rows
from leveret.session.stream.messages import entries_of
from leveret.wire.chunk import Chunk, ChunkType, Header, encode_entry
from leveret.wire.record import Settlement, content_header, encode_settlements, message_head

Found = list[Chunk | Corrupt]
QUEUE = Tail("r-e1", "queues", "/", "work", 10)
STREAM = Tail("r-e1", "streams", "/", "log", 10)


def chunk(offset: int, data: bytes, kind: ChunkType = ChunkType.USER, records: int = 1) -> Chunk:
    return Chunk(
        Header(kind, records, records, 1000 + offset, 1, offset, crc32(data), len(data), 0), data, b""
    )


def messages(offset: int, *bodies: bytes, key: bytes = b"work") -> Chunk:
    entries = [
        encode_entry(message_head(b"", key, content_header(b"\0\0", len(body))) + body) for body in bodies
    ]
    return chunk(offset, b"".join(entries), records=len(bodies))


def settlements(offset: int, *ranges: tuple[int, int]) -> Chunk:
    octets = encode_settlements(Settlement(0, first, count) for first, count in ranges)
    return chunk(offset, encode_entry(octets), ChunkType.TRACKING)


def broken(offset: int) -> Corrupt:
    return Corrupt("log", "segment", offset, 0, "CRC of its data does not match")


def rows(tail: Tail, found: Found, *, also_met: dict[ChunkType, Found] | None = None) -> list[Row]:
    """The rows of these chunks; an error is met by whoever reads chunks of any type, unless it is in `also_met`."""

    def read(kind: ChunkType) -> Iterator[Chunk | Corrupt]:
        yield from (each for each in found if isinstance(each, Corrupt) or each.header.type == kind)
        yield from (also_met or {}).get(kind, [])

    return list(message_rows(tail, read))


def test_a_row_has_all_of_a_message() -> None:
    properties = commands.Basic.Properties(
        content_type="text/plain", headers={"n": 1, "octets": bytearray(b"\xff")}, delivery_mode=2,
        message_type="kind", timestamp=datetime(2026, 11, 21, tzinfo=UTC),
    )  # fmt: skip
    entry = message_head(b"ex", b"a.b", ContentHeader(0, 2, properties).marshal()) + b"hi"
    (row,) = rows(QUEUE, [chunk(10, encode_entry(entry))])
    assert row == {
        "report": "r-e1", "vhost": "/", "queue": "work", "offset": 10, "timestamp_ms": 1010,
        "exchange": "ex", "routing_key": "a.b", "payload": "hi", "payload_encoding": "string", "settled": False,
        "properties": {
            "type": "kind", "timestamp": 1795219200, "delivery_mode": 2, "content_type": "text/plain",
            "headers": {"n": 1, "octets": "\N{REPLACEMENT CHARACTER}"},
        },
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(row)) == row


def test_a_body_that_is_no_text_is_in_base64() -> None:
    found = rows(QUEUE, [messages(10, b"\xff\x00", b"")])
    assert [(row["payload"], row["payload_encoding"]) for row in found] == [
        ("/wA=", "base64"),
        ("", "string"),
    ]
    assert [row["properties"] for row in found] == [[], []]


CHUNKS = st.lists(
    st.integers(1, 4) | st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=4), max_size=10
)


@given(CHUNKS)
def test_a_message_is_settled_when_the_tail_says_so(parts: list[int | list[tuple[int, int]]]) -> None:
    found: Found = []
    offset = QUEUE.from_offset
    expected: list[int] = []
    settled: set[int] = set()
    for part in parts:
        if isinstance(part, int):
            found.append(messages(offset, *[b"x"] * part))
            expected += range(offset, offset + part)
            offset += part
        else:
            found.append(settlements(offset, *part))
            settled.update(at for first, count in part for at in range(first, first + count))
            offset += 1
    assert [(row["offset"], row["settled"]) for row in rows(QUEUE, found)] == [
        (offset, offset in settled) for offset in expected
    ]


def test_damage_has_a_row_in_its_place() -> None:
    found = rows(QUEUE, [messages(10, b"a"), broken(11), messages(13, b"b"), settlements(14, (10, 1))])
    assert [(row["offset"], row["payload"], row["settled"], "damage" in row) for row in found] == [
        (10, "a", True, False),
        (11, "", False, True),
        (13, "b", False, False),
    ]
    assert "CRC of its data does not match" in found[1]["damage"]
    assert found[1].keys() - found[0].keys() == {"damage"}


@pytest.mark.parametrize(
    "tracking", [[broken(11)], [chunk(11, encode_entry(b"no settlement"[:5]), ChunkType.TRACKING)]]
)
def test_settlements_that_cannot_be_read_have_a_row(tracking: Found) -> None:
    (one, other) = rows(QUEUE, [messages(10, b"a")], also_met={ChunkType.TRACKING: tracking})
    assert one["payload"] == "a"
    assert (other["offset"], other["damage"][:31]) == (11, "settlements, so a settled messa")


def test_an_entry_that_is_no_message_has_a_row_and_those_before_it_have_theirs() -> None:
    good = messages(10, b"a").data
    found = rows(QUEUE, [chunk(10, bytes(good) + encode_entry(b"\xff"), records=2), messages(12, b"c")])
    assert [(row["offset"], row["payload"]) for row in found] == [(10, "a"), (11, ""), (12, "c")]
    assert "stored message ends inside" in found[1]["damage"]
    (cut,) = rows(QUEUE, [chunk(10, bytes(good)[:-1])])
    assert "does not fit" in cut["damage"]


def test_names_that_are_no_text_are_shown() -> None:
    (row,) = rows(QUEUE, [messages(10, b"a", key=b"\xff")])
    assert row["routing_key"] == "\N{REPLACEMENT CHARACTER}"


# -- streams ----------------------------------------------------------------------------------


def published(*bodies: bytes) -> bytes:
    return b"".join(
        entries_of(
            [alike(make_head(b"ex", b"key", content_header(b"\x10\0\x02", len(b))), [b]) for b in bodies]
        )
    )


def batch(compression: int, records: int, octets: bytes, unpacked_bytes: int) -> bytes:
    return struct.pack(">BHII", 0x80 | compression << 4, records, unpacked_bytes, len(octets)) + octets


def test_messages_of_a_stream_are_shown_as_a_consumer_gets_them() -> None:
    (one, other) = rows(STREAM, [chunk(10, published(b"a", b"\xff"), records=2)])
    assert (one["exchange"], one["routing_key"], one["payload"]) == ("ex", "key", "a")
    assert one["properties"] == {"delivery_mode": 2, "headers": {"x-stream-offset": 10}}
    assert (other["offset"], other["payload_encoding"], other["timestamp_ms"]) == (11, "base64", 1010)
    assert not one["settled"]


def test_a_stream_settles_nothing() -> None:
    found = rows(STREAM, [chunk(10, published(b"a")), settlements(11, (10, 1))])
    assert [row["settled"] for row in found] == [False]


def test_messages_in_batches_are_shown_one_by_one() -> None:
    packed = published(b"a", b"b")
    data = (
        batch(0, 2, packed, len(packed)) + batch(1, 2, gzip.compress(packed), len(packed)) + published(b"c")
    )
    found = rows(STREAM, [chunk(10, data, records=5)])
    assert [(row["offset"], row["payload"]) for row in found] == list(enumerate("ababc", 10))


def test_a_batch_that_cannot_be_unpacked_is_told() -> None:
    found = rows(STREAM, [chunk(10, batch(4, 3, b"zstd?", 100) + published(b"c"), records=4)])
    assert [(row["offset"], row["payload"]) for row in found] == [(13, "c"), (10, "")]
    assert found[1]["damage"].startswith("3 messages of this chunk")


def test_what_is_no_message_of_a_stream_is_told() -> None:
    found = rows(STREAM, [broken(10), chunk(11, b"\0\0"), chunk(12, published(b"a"))])
    assert [(row["offset"], "damage" in row) for row in found] == [(10, True), (11, True), (12, False)]


@pytest.mark.parametrize("kind", ["definitions", "outgoing"])
def test_other_logs_have_no_messages(kind: str) -> None:
    assert rows(QUEUE._replace(kind=kind), [messages(10, b"a")]) == []


def test_messages_are_read_one_chunk_at_a_time() -> None:
    taken = 0

    def read(kind: ChunkType) -> Iterator[Chunk | Corrupt]:
        nonlocal taken
        for offset in range(10, 20) if kind is ChunkType.USER else ():
            taken += 1
            yield messages(offset, b"a")

    found = message_rows(QUEUE, read)
    assert taken == 0
    assert next(found)["offset"] == 10
    assert taken == 1

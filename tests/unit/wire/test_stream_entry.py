from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.chunk import ChunkError, split_entries
from leveret.wire.record import body_start, content_header, decode_message, message_head
from leveret.wire.stream_entry import (
    CONTENT_TYPE,
    PROPERTIES,
    entries_of,
    mark_entry,
    pack_entries,
    unmark_entry,
    unpack_entry,
)

SIMPLE = st.binary(max_size=300).map(lambda body: len(body).to_bytes(4, "big") + body)
BATCH = st.builds(
    lambda kind, records, size, body: (
        bytes((0x80 | kind << 4,))
        + records.to_bytes(2, "big")
        + size.to_bytes(4, "big")
        + len(body).to_bytes(4, "big")
        + body
    ),
    st.integers(0, 7),
    st.integers(1, 500),
    st.integers(0, 1000),
    st.binary(max_size=200),
)


@given(st.lists(SIMPLE | BATCH, max_size=20))
def test_entries_come_back_octet_for_octet(entries: list[bytes]) -> None:
    packed, count = pack_entries(b"".join(entries))
    stored = split_entries(packed) if entries else []
    assert count == len(stored) == len(entries)
    assert [unpack_entry(bytes(each)) for each in stored] == entries
    for each in stored:
        message = decode_message(bytes(each))
        assert (message.exchange, message.routing_key, message.properties) == (b"", b"", PROPERTIES)
        assert CONTENT_TYPE in message.properties
        assert int.from_bytes(message.header[4:12], "big") == len(each) - body_start(each)


@given(st.binary(max_size=100))
def test_other_messages_are_told_from_them(body: bytes) -> None:
    plain = message_head(b"e", b"k", content_header(b"\0\0", len(body))) + body
    for each in (plain, body):
        assert unpack_entry(each) is None
        assert unmark_entry(each) is None


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"\0\0\0\2h", b"\0\0\0\2hi!", b"\x80", b"\x80\0\1\0\0\0\1\0\0\0\2a"]
)
def test_a_message_that_only_says_that_it_is_an_entry_is_none(body: bytes) -> None:
    named_so = message_head(b"", b"", content_header(PROPERTIES, len(body))) + body
    assert unpack_entry(named_so) is None
    entry = b"\0\0\0\2hi"
    routed = message_head(b"e", b"k", content_header(PROPERTIES, len(entry))) + entry
    assert unpack_entry(routed) is None
    marked = mark_entry(entry, b"")
    header = marked[marked.index(b"\0\x3c") :]
    assert unmark_entry(message_head(b"e", b"k", b"") + header) is None


@given(SIMPLE | BATCH, st.binary(max_size=300))
def test_a_marked_entry_comes_back_with_its_mark_and_is_told_from_a_packed_one(
    entry: bytes, attributes: bytes
) -> None:
    marked, packed = mark_entry(entry, attributes), pack_entries(entry)[0][4:]
    assert unmark_entry(marked) == (entry, attributes)
    assert unpack_entry(marked) is None
    assert unmark_entry(packed) is None


def test_a_mark_that_is_cut_short_is_damage() -> None:
    with pytest.raises(ChunkError, match="cut short"):
        unmark_entry(mark_entry(b"", b"attributes")[:-1])


@pytest.mark.parametrize("data", [b"\0\0\0\5abc", b"\0\0", b"\x80\0\1\0\0\0\1\0\0\0\2a"])
def test_an_entry_that_is_cut_short_is_damage(data: bytes) -> None:
    with pytest.raises(ChunkError, match="byte 0 of a stream's chunk is cut short"):
        list(entries_of(data))

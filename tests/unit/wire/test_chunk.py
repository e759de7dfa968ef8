"""wire.chunk: the one format of chunks, octet by octet."""

from __future__ import annotations

from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.chunk import (
    HEADER_BYTES,
    Attribute,
    ChunkError,
    ChunkType,
    decode_chunk,
    decode_header,
    decode_trailer,
    encode_attribute,
    encode_entry,
    encode_header,
    encode_trailer,
    fingerprint_of,
    split_entries,
)

U64 = st.integers(0, 2**64 - 1)
ATTRIBUTES = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 16, 17, 200]), st.binary(max_size=255), U64), max_size=4
)


def build(data: bytes, trailer: bytes = b"", *, chunk_id: int = 7, records: int = 2) -> bytes:
    kind = ChunkType.USER
    return (
        encode_header(
            kind, records, records, 1_700_000_000_000, 3, chunk_id, crc32(data), len(data), len(trailer)
        )
        + data
        + trailer
    )


def test_a_header_is_48_octets_in_the_layout_of_rabbitmq_streams() -> None:
    octets = encode_header(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert len(octets) == HEADER_BYTES
    assert octets[:44] == bytes.fromhex(
        "50 01 0002 00000003 0000000000000004 0000000000000005 0000000000000006 00000007 00000008 00000009"
    )
    assert octets[44] == 0
    assert octets[45:] == (crc32(octets[:45]) & 0xFFFFFF).to_bytes(3, "big")


@given(
    kind=st.integers(0, 255),
    counts=st.tuples(st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1)),
    stamp=st.integers(-(2**63), 2**63 - 1),
    ids=st.tuples(U64, U64),
    sizes=st.tuples(*[st.integers(0, 2**32 - 1)] * 3),
    before=st.binary(max_size=5),
)
def test_a_header_reads_back_as_it_was_written_from_any_position(
    kind: int,
    counts: tuple[int, int],
    stamp: int,
    ids: tuple[int, int],
    sizes: tuple[int, int, int],
    before: bytes,
) -> None:
    header = decode_header(before + encode_header(kind, *counts, stamp, *ids, *sizes), len(before))
    assert tuple(header) == (kind, *counts, stamp, *ids, *sizes)
    assert header.next_offset == header.chunk_id + header.records
    assert header.chunk_bytes == HEADER_BYTES + header.data_bytes + header.trailer_bytes


@given(data=st.binary(max_size=200), attributes=ATTRIBUTES, before=st.binary(max_size=5), view=st.booleans())
def test_a_chunk_reads_back_as_it_was_written(
    data: bytes, attributes: list[tuple[int, bytes, int]], before: bytes, view: bool
) -> None:
    trailer = encode_trailer(*(encode_attribute(*attribute) for attribute in attributes))
    octets = before + build(data, trailer) + b"more"
    chunk = decode_chunk(memoryview(octets) if view else octets, len(before))
    assert (bytes(chunk.data), bytes(chunk.trailer)) == (data, trailer)
    assert list(decode_trailer(chunk.trailer)) == attributes


@pytest.mark.parametrize("field", ["epoch", "chunk_id", "timestamp_ms", "records"])
def test_a_mark_tells_who_wrote_what_when_and_nothing_of_where_it_stands(field: str) -> None:
    header = decode_header(encode_header(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert fingerprint_of(header) == fingerprint_of(
        header._replace(crc=0, data_bytes=0, trailer_bytes=0, type=2, entries=1)
    )
    assert fingerprint_of(header) != fingerprint_of(header._replace(**{field: 99}))
    assert 0 < fingerprint_of(header) < 2**63


def test_every_flipped_bit_of_a_chunk_is_found() -> None:
    trailer = encode_trailer(encode_attribute(Attribute.SEQUENCE, b"ref", 5))
    octets = build(encode_entry(b"one") + encode_entry(b""), trailer)
    for bit in range(8 * len(octets)):
        damaged = bytearray(octets)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChunkError):
            decode_chunk(bytes(damaged))


def test_every_shorter_prefix_of_a_chunk_is_refused() -> None:
    octets = build(b"some data", encode_trailer(encode_attribute(16, b"q", 1)))
    for size in range(len(octets)):
        with pytest.raises(ChunkError):
            decode_chunk(octets[:size])


def test_a_chunk_may_be_read_without_its_checks() -> None:
    octets = bytearray(build(b"some data"))
    octets[HEADER_BYTES] ^= 1
    assert bytes(decode_chunk(bytes(octets), check=False).data) != b"some data"


@given(st.binary(max_size=200))
def test_garbage_is_no_chunk_and_nothing_worse_happens(garbage: bytes) -> None:
    with pytest.raises(ChunkError):
        decode_chunk(garbage)
    with suppress(ChunkError):
        assert all(len(name) < 256 for _, name, _ in decode_trailer(garbage))
    with suppress(ChunkError):
        assert b"".join(map(encode_entry, split_entries(garbage))) == garbage


def test_no_attributes_make_no_trailer() -> None:
    assert encode_trailer() == b""
    assert list(decode_trailer(b"")) == []


@given(attributes=ATTRIBUTES.filter(bool), cut=st.integers(1, 10**6))
def test_a_trailer_that_ends_inside_an_attribute_is_refused(
    attributes: list[tuple[int, bytes, int]], cut: int
) -> None:
    last = encode_attribute(*attributes[-1])
    octets = b"".join(encode_attribute(*attribute) for attribute in attributes)
    with pytest.raises(ChunkError, match="inside an attribute"):
        list(decode_trailer(octets[: -(cut % (len(last) - 1) + 1)]))


@given(st.lists(st.binary(max_size=50), max_size=8), st.booleans())
def test_entries_read_back_as_they_were_written(bodies: list[bytes], view: bool) -> None:
    data = b"".join(map(encode_entry, bodies))
    assert split_entries(memoryview(data) if view else data) == bodies


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0", b"\0\0\0\2a", b"\x80\0\0\1a", b"\0\0\0\1ab"],
    ids=["length", "body", "sub-batch", "rest"],
)
def test_entries_that_do_not_fill_their_data_are_refused(data: bytes) -> None:
    with pytest.raises(ChunkError, match="entry at byte"):
        split_entries(data)

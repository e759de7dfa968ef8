"""wire.link: what is packed is unpacked, and no flipped bit passes for a change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from leveret.model.errors import PeerError
from leveret.wire import link
from leveret.wire.chunk import Chunk, ChunkType, decode_chunk, encode_entry, encode_header
from leveret.wire.link import (
    Acked,
    ChangeKind,
    Frame,
    LinkError,
    LogChange,
    LogNames,
    Number,
    Question,
    Type,
    decode,
    decode_frame,
    file_change,
    log_change,
    name_change,
    pack,
    whole_change,
)

NAMES = {7: "queues/0000000000000001", 8: "definitions"}
MESSAGE_HEAD_BYTES = 5


def chunk(offset: int, bodies: list[bytes]) -> bytes:
    data = b"".join(map(encode_entry, bodies))
    count = len(bodies)
    return encode_header(ChunkType.USER, count, count, 1, 1, offset, crc32(data), len(data)) + data


CHANGES = st.one_of(
    st.tuples(
        st.sampled_from([ChangeKind.APPEND, ChangeKind.HEAD]),
        st.sampled_from(sorted(NAMES)),
        st.integers(0, 2**64 - 1),
        st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    ),
    st.tuples(
        st.sampled_from([ChangeKind.DROP, ChangeKind.BEGIN, ChangeKind.TRUNCATE, ChangeKind.CURSOR]),
        st.sampled_from(sorted(NAMES)),
        st.integers(0, 2**64 - 1),
    ),
    st.tuples(st.sampled_from([ChangeKind.DELETE, ChangeKind.QUARANTINE]), st.sampled_from(sorted(NAMES))),
    st.tuples(st.just(ChangeKind.FILE), st.text("abc/.", min_size=1, max_size=9), st.binary(max_size=60)),
    st.tuples(st.just(ChangeKind.REMOVE), st.text("abc/.", min_size=1, max_size=9)),
)


def framed(changes: list[tuple[object, ...]]) -> tuple[Frame, list[LogChange]]:
    """A frame of these changes, and what it is to be decoded to."""
    frame, expected = Frame(), []
    for number, name in NAMES.items():
        frame.add(name_change(number, name))
    for change in changes:
        match change:
            case (ChangeKind() as kind, int(number), int(segment), list(bodies)):
                octets = chunk(5, bodies)
                frame.add(log_change(kind, number, segment), [octets[:48], octets[48:]], len(bodies))
                expected.append(LogChange(kind, NAMES[number], segment, decode_chunk(octets), octets))
            case (ChangeKind() as kind, int(number), int(offset)):
                frame.add(log_change(kind, number, offset))
                expected.append(LogChange(kind, NAMES[number], offset))
            case (ChangeKind.FILE, str(name), bytes(octets)):
                frame.add(file_change(name, octets))
                expected.append(LogChange(ChangeKind.FILE, name, octets=octets))
            case (ChangeKind.REMOVE, str(name)):
                frame.add(file_change(name, None))
                expected.append(LogChange(ChangeKind.REMOVE, name))
            case (ChangeKind() as kind, int(number)):
                frame.add(whole_change(kind, number))
                frame.add(name_change(number, NAMES[number]))
                expected.append(LogChange(kind, NAMES[number]))
    return frame, expected


def payload_of(frame: Frame, *, compress: bool) -> bytes:
    octets = b"".join(frame.message(99, 12, 1234, compress=compress))
    assert int.from_bytes(octets[:4], "big") == len(octets) - 4
    assert octets[4] == Type.FRAME
    return octets[MESSAGE_HEAD_BYTES:]


def first_change(octets: bytes | bytearray) -> LogChange | None:
    _, found = decode_frame(memoryview(octets), {})
    return next(found(), None)


def plain(change: LogChange) -> LogChange:
    """Without views into a buffer, to be compared."""
    found = change.chunk
    whole = None if found is None else Chunk(found.header, bytes(found.data), bytes(found.trailer))
    return change._replace(chunk=whole, octets=bytes(change.octets))


@given(st.lists(CHANGES, max_size=8), st.booleans())
def test_a_frame_is_decoded_to_what_was_put_in(changes: list[tuple[object, ...]], compress: bool) -> None:
    frame, expected = framed(changes)
    names: dict[int, str] = {}
    head, found = decode_frame(memoryview(payload_of(frame, compress=compress)), names)
    assert (head.position, head.records, head.cut_at_ms) == (99, 12, 1234)
    assert [plain(change) for change in found()] == [plain(change) for change in expected]
    assert names == NAMES
    assert frame.records == sum(change.chunk.header.records for change in expected if change.chunk)


def test_a_frame_that_no_peer_takes_is_an_error_before_it_is_made() -> None:
    """A message of 128 MB in 34 queues is one flush, of little memory: all pieces are the same octets."""
    frame, piece = Frame(), b"m" * (1 << 20)
    frame.add(log_change(ChangeKind.APPEND, 7, 0), [piece] * 4097, 1)
    for compress in (False, True):
        with pytest.raises(LinkError, match="one flush has 4296015885 octets"):
            frame.message(1, 1, 0, compress=compress)


def test_a_peer_names_no_more_logs_and_no_longer_names_than_a_node_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "LOGS_MAX", 50)
    names: dict[int, str] = {}

    def take(numbers: range, name: str) -> None:
        frame = Frame()
        for number in numbers:
            frame.add(name_change(number, name))
        _, changes = decode_frame(memoryview(payload_of(frame, compress=False)), names)
        assert list(changes()) == []

    take(range(100), "queues/1")
    take(range(100), "queues/2")
    with pytest.raises(LinkError, match="more than 50 logs"):
        take(range(100, 101), "queues/1")
    with pytest.raises(LinkError, match="has 1025 octets"):
        take(range(1), "x" * 1025)


@pytest.mark.parametrize("kind", [ChangeKind.DELETE, ChangeKind.QUARANTINE])
def test_what_a_log_that_is_gone_was_called_by_is_forgotten(kind: ChangeKind) -> None:
    """Else a follower would remember every queue there ever was."""
    frame = Frame()
    frame.add(name_change(9, "queues/1"))
    frame.add(whole_change(kind, 9))
    names = dict(NAMES)
    _, found = decode_frame(memoryview(payload_of(frame, compress=False)), names)
    assert [change.name for change in found()] == ["queues/1"]
    assert names == NAMES


@given(st.lists(CHANGES, min_size=1, max_size=4), st.booleans(), st.data())
def test_no_flipped_bit_passes(
    changes: list[tuple[object, ...]], compress: bool, data: st.DataObject
) -> None:
    """Not one change of a damaged frame is given out: all are checked before the first."""
    frame, _ = framed(changes)
    octets = bytearray(payload_of(frame, compress=compress))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PeerError):
        first_change(octets)


@given(st.binary(max_size=200))
def test_octets_that_are_no_frame_are_refused(octets: bytes) -> None:
    try:
        _, found = decode_frame(memoryview(octets), {})
        assert all(isinstance(change, LogChange) for change in found())
    except PeerError:
        pass


def test_a_frame_that_would_fill_the_memory_is_refused_before_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compressed frame says how long its content is, and a thousandth of that is enough to make it."""
    monkeypatch.setattr(link, "MESSAGE_BYTES_MAX", 1 << 20)
    frame = Frame()
    frame.add(file_change("f.json", bytes(1 << 21)))
    octets = b"".join(map(bytes, frame.message(1, 0, 0, compress=True)))
    assert len(octets) < 1 << 12
    with pytest.raises(LinkError, match="more than 1048576 octets"):
        decode_frame(memoryview(octets)[MESSAGE_HEAD_BYTES:], {})


@pytest.mark.parametrize("value", [b"\x91" * 100_000 + b"\xc0", b"\xa2\xff\xfe"], ids=["deep", "no text"])
def test_values_that_are_none_are_refused_however_deep(value: bytes) -> None:
    payload = b"\x93\x01\xa1q\x81\xa1k" + value
    check = crc32(payload, Type.QUESTION).to_bytes(4, "big")
    with pytest.raises(LinkError, match="Question is malformed"):
        decode(Type.QUESTION, memoryview(payload + check), Question)


def test_a_frame_cut_short_anywhere_is_refused() -> None:
    frame, _ = framed(
        [(ChangeKind.FILE, "a", b"b" * 20), (ChangeKind.DROP, 7, 5), (ChangeKind.APPEND, 8, 0, [b"x"])]
    )
    octets = payload_of(frame, compress=False)
    for length in range(len(octets)):
        with pytest.raises(PeerError):
            first_change(octets[:length])


def test_an_unknown_log_number_is_refused() -> None:
    frame = Frame()
    frame.add(whole_change(ChangeKind.DELETE, 3))
    _, found = decode_frame(memoryview(payload_of(frame, compress=False)), {})
    with pytest.raises(LinkError, match="change at octet 0"):
        list(found())


@pytest.mark.parametrize("kind", [Type.STREAMING, Type.TAKE_OVER, Type.HANDED_OVER])
@pytest.mark.parametrize("number", [0, 1, 2**63 - 1])
def test_numbers_come_back(kind: Type, number: int) -> None:
    packed = memoryview(pack(kind, Number(number))[MESSAGE_HEAD_BYTES:])
    assert decode(kind, packed, Number) == Number(number)
    with pytest.raises(LinkError, match="malformed"):
        decode(kind, memoryview(pack(kind, Number(-1))[MESSAGE_HEAD_BYTES:]), Number)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**20), st.data())
def test_no_flipped_bit_of_a_message_passes(position: int, octets: int, data: st.DataObject) -> None:
    packed = bytearray(pack(Type.ACK, Acked(position, octets))[MESSAGE_HEAD_BYTES:])
    assert decode(Type.ACK, memoryview(packed), Acked) == Acked(position, octets)
    with pytest.raises(LinkError):
        decode(Type.FAILED, memoryview(packed), Acked)
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LinkError):
        decode(Type.ACK, memoryview(packed), Acked)
    with pytest.raises(LinkError, match="check"):
        decode(Type.ACK, memoryview(b""), Acked)
    with pytest.raises(LinkError, match="malformed"):
        decode(Type.ACK, memoryview(pack(Type.ACK, LogNames(["q"]))[MESSAGE_HEAD_BYTES:]), Acked)

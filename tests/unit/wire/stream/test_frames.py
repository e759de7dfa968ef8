from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import PeerError
from leveret.wire.stream.frames import SIZE, FrameDecoder, FrameTooLarge, StreamFrameError

frames = st.lists(st.binary(min_size=4, max_size=60), max_size=12)


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(SIZE.pack(len(body)) + body for body in bodies)


def pieces(octets: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(octets) + 1) for cut in cuts}), len(octets)]
    return [octets[start:end] for start, end in pairwise(edges)]


def fed(decoder: FrameDecoder, parts: list[bytes]) -> tuple[list[bytes], type[Exception] | None]:
    got: list[bytes] = []
    for part in parts:
        try:
            for frame in decoder.feed(part):
                got.append(frame)  # what came before an error counts too
        except PeerError as error:
            return got, type(error)
    return got, None


@given(frames, st.lists(st.integers(0, 2000), max_size=20))
def test_any_split_of_the_octets_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    assert fed(FrameDecoder(100), pieces(framed(bodies), cuts)) == (bodies, None)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_garbage_gives_the_same_frames_and_the_same_error_however_it_is_split(
    octets: bytes, cuts: list[int]
) -> None:
    assert fed(FrameDecoder(40), pieces(octets, cuts)) == fed(FrameDecoder(40), [octets])


def test_a_frame_of_the_agreed_size_passes_and_one_octet_more_does_not() -> None:
    assert list(FrameDecoder(10).feed(framed([b"x" * 10]))) == [b"x" * 10]
    with pytest.raises(FrameTooLarge, match="11 octets, 10 were agreed"):
        list(FrameDecoder(10).feed(framed([b"x" * 11])))


def test_a_size_that_lies_is_refused_before_its_octets_are_waited_for() -> None:
    with pytest.raises(FrameTooLarge):
        list(FrameDecoder(1 << 20).feed(b"\xff\xff\xff\xff"))


def test_a_frame_without_room_for_key_and_version_is_refused() -> None:
    with pytest.raises(StreamFrameError, match="no room"):
        list(FrameDecoder(10).feed(SIZE.pack(3) + b"abc"))


def test_a_limit_raised_between_two_frames_holds_for_the_second_of_the_same_segment() -> None:
    decoder = FrameDecoder(8)
    got = []
    for frame in decoder.feed(framed([b"x" * 8, b"y" * 20])):
        decoder.frame_max_bytes = 20
        got.append(len(frame))
    assert got == [8, 20]


def test_a_large_frame_in_small_pieces_is_not_parsed_before_it_is_whole() -> None:
    decoder = FrameDecoder(1 << 20)
    whole = framed([b"x" * 500_000])
    assert [len(f) for part in pieces(whole, list(range(0, 500_000, 1000))) for f in decoder.feed(part)] == [
        500_000
    ]

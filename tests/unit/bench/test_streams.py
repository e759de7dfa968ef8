from __future__ import annotations

import pytest
from isal.isal_zlib import crc32

from bench.client import LoadError
from bench.streams import RING_FRAMES, STREAM, StreamJob, confirmed, delivered, encode_ring
from leveret.wire.chunk import encode_entry, encode_header
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code, StreamCommand
from leveret.wire.stream.fields import FailedPublish
from leveret.wire.stream.frames import FrameDecoder

JOB = StreamJob("publish", 0, body_bytes=50, batch=7)
SIZE_BYTES = 4


def frame_of(command: StreamCommand) -> memoryview:
    return memoryview(command.encode()[SIZE_BYTES:])


def chunk(offset: int, *bodies: bytes) -> bytes:
    data = b"".join(map(encode_entry, bodies))
    return encode_header(0, len(bodies), len(bodies), 0, 1, offset, crc32(data), len(data)) + data


def test_the_frames_of_a_ring_have_one_size_and_different_bodies() -> None:
    frames = list(FrameDecoder(1 << 20).feed(encode_ring(JOB)))
    assert len(frames) == RING_FRAMES
    assert len(set(map(len, frames))) == 1
    bodies = set()
    for frame in frames:
        command = wire.decode(frame)
        assert isinstance(command, wire.Publish)
        assert len(command.entries) == JOB.batch
        bodies |= {content for _, content in command.entries}
    assert len(bodies) == RING_FRAMES * JOB.batch
    assert set(map(len, bodies)) == {JOB.body_bytes}


@pytest.mark.parametrize("ids", [[], [5], list(range(300))])
def test_a_confirm_counts_its_ids(ids: list[int]) -> None:
    assert confirmed(frame_of(wire.PublishConfirm(0, ids))) == len(ids)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (wire.PublishError(0, [FailedPublish(1, Code.STREAM_NOT_AVAILABLE)]), "PublishError"),
        (wire.MetadataUpdate(Code.STREAM_NOT_AVAILABLE, STREAM), "MetadataUpdate"),
        (wire.Heartbeat(), "Heartbeat"),
    ],
)
def test_something_else_than_a_confirm_or_a_chunk_ends_the_run(command: StreamCommand, name: str) -> None:
    with pytest.raises(LoadError, match=f"instead of confirms the broker sent {name}"):
        confirmed(frame_of(command))
    with pytest.raises(LoadError, match=f"instead of a chunk the broker sent {name}"):
        delivered(frame_of(command), 0)


def test_a_chunk_at_the_offset_where_the_last_one_ended_counts_its_messages() -> None:
    assert delivered(frame_of(wire.Deliver(0, chunk(40, b"one", b"two"))), 40) == 2


@pytest.mark.parametrize("offset", [39, 41, 0])
def test_a_chunk_at_another_offset_ends_the_run(offset: int) -> None:
    with pytest.raises(LoadError, match=f"expected a chunk with offset {offset} here"):
        delivered(frame_of(wire.Deliver(0, chunk(40, b"one"))), offset)


def test_a_chunk_that_is_cut_short_ends_the_run() -> None:
    with pytest.raises(LoadError, match="of 7 octets in 6"):
        delivered(frame_of(wire.Deliver(0, chunk(40, b"one")[:-1])), 40)


def test_a_damaged_message_ends_the_run() -> None:
    octets = chunk(40, b"one", b"two").replace(b"two", b"twe")
    with pytest.raises(LoadError, match="offset 40 do not have its checksum"):
        delivered(frame_of(wire.Deliver(0, octets)), 40)

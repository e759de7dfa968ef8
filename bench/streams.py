"""Streams over the stream protocol: a publisher, a reader from the first offset, and their rows.

    python -m bench.streams '{"role": "publish", "port": 5552, ...}'

A publisher batches as RabbitMQ's Java client does by default: frames of 100 messages, at most 10,000 messages without
a confirm. Its frames are encoded beforehand and repeated, because without a publisher reference the publishing ids
have no effect. A reader has credit for ten chunks. Neither does any work for a single message. The reader checks the
first offset and the checksum of each chunk.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from isal.isal_zlib import crc32

from bench.client import LOOPBACK, TIMEOUT_S, LoadError
from bench.contenders import LEVERET, RABBITMQ, Node
from bench.load import ROOM_PARTS
from bench.process import Result, Sampler, main, total_told, wait_for_go
from bench.rows import Reading, Row, Scenario, Settings, reading
from bench.workers import Worker, alone, drained
from leveret.model.stream import OffsetSpec, OffsetType
from leveret.pipeline.upstream.stream_connection import StreamConnection, is_deliver
from leveret.wire.chunk import HEADER, HEADER_BYTES, MAGIC, ChunkType
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import CommandKey
from leveret.wire.stream.publish import encode_publish

MODULE: Final = "bench.streams"
STREAM: Final = "bench-stream"
RING_FRAMES: Final = 40
CREDIT_CHUNKS: Final = 10
_CONFIRM: Final = struct.Struct(">HHBi")
_CHUNK_AT: Final = 5


@dataclass
class StreamJob:
    """The job of one of the two processes.

    Attributes:
        role: `publish`, or `read`, which gets the total number of messages from the parent.
        batch: the number of messages in a Publish frame.
        window: the highest number of unconfirmed messages.
        seconds: the time of publishing.
    """

    role: str
    port: int
    stream: str = STREAM
    body_bytes: int = 1000
    batch: int = 100
    window: int = 10_000
    seconds: float = 0.0


def connect(port: int) -> StreamConnection:
    """Open a connection to a broker on loopback, as guest."""
    return StreamConnection(
        LOOPBACK, port, vhost="/", username="guest", password="guest", timeout_s=TIMEOUT_S
    )


def encode_ring(job: StreamJob) -> bytes:
    """Encode `RING_FRAMES` Publish frames of one size with different bodies."""
    source = random.Random(1)
    return b"".join(
        encode_publish(
            0, [(number, source.randbytes(job.body_bytes)) for number in range(at, at + job.batch)]
        )
        for at in range(0, RING_FRAMES * job.batch, job.batch)
    )


def confirmed(frame: memoryview) -> int:
    """Return the number of confirmed messages in a PublishConfirm.

    Raises:
        LoadError: the frame is another one, such as a PublishError or a Close.
    """
    if len(frame) >= _CONFIRM.size:
        key, _, _, count = _CONFIRM.unpack_from(frame)
        if key == CommandKey.PUBLISH_CONFIRM and len(frame) == _CONFIRM.size + 8 * count:
            return int(count)
    raise LoadError(f"instead of confirms the broker sent {wire.decode(bytes(frame))}")


def delivered(frame: memoryview, offset: int) -> int:
    """Return the number of messages in a Deliver, whose chunk must begin at `offset`.

    Raises:
        LoadError: the chunk begins elsewhere or is damaged, or the frame is another one.
    """
    if not is_deliver(frame):
        raise LoadError(f"instead of a chunk the broker sent {wire.decode(bytes(frame))}")
    magic, kind, _, records, _, _, chunk_id, checksum, data_bytes, *_ = HEADER.unpack_from(frame, _CHUNK_AT)
    data = frame[_CHUNK_AT + HEADER_BYTES :]
    if (magic, kind, chunk_id, data_bytes) != (MAGIC, ChunkType.USER, offset, len(data)):
        raise LoadError(
            f"expected a chunk with offset {offset} here, found one of type {kind} with {chunk_id}, of "
            f"{data_bytes} octets in {len(data)}"
        )
    if crc32(data) != checksum:
        raise LoadError(f"the data of the chunk with offset {chunk_id} do not have its checksum")
    return int(records)


def _publish(job: StreamJob) -> Result:
    ring = encode_ring(job)
    ring_frames, window_frames = RING_FRAMES, job.window // job.batch
    stride = len(ring) // ring_frames
    # The ring is repeated, so that a window is one slice from any place of the ring.
    view = memoryview(ring * (2 + window_frames // ring_frames))
    connection = connect(job.port)
    connection.request(
        wire.DeclarePublisher(connection.next_id(), 0, "", job.stream), wire.DeclarePublisherResponse
    )
    room_min = max(1, window_frames // ROOM_PARTS)
    wait_for_go()
    sampler = Sampler()
    deadline = time.monotonic() + job.seconds
    sent_frames = count = 0
    left = sys.maxsize
    while left or count < sent_frames * job.batch:
        room = min(window_frames - sent_frames + count // job.batch, left)
        if room >= room_min:
            at = sent_frames % ring_frames * stride
            connection.send(view[at : at + room * stride])
            sent_frames += room
        count += confirmed(connection.next_frame())
        sampler.note(count)
        if time.monotonic() > deadline:
            left = 0
    connection.close()
    return sampler.result(count)


def _read(job: StreamJob) -> Result:
    connection = connect(job.port)
    wait_for_go()
    total = total_told()
    sampler = Sampler()
    first = OffsetSpec(OffsetType.FIRST)
    asked = wire.Subscribe(connection.next_id(), 0, job.stream, first, CREDIT_CHUNKS, {})
    connection.request(asked, wire.SubscribeResponse)
    count = due = 0
    while count < total:
        count += delivered(connection.next_frame(), count)
        due += 1
        if due >= CREDIT_CHUNKS // 2:
            connection.send(wire.Credit(0, due).encode())
            due = 0
        sampler.note(count)
    result = sampler.result(count)
    connection.close()
    return result


def work(fields: dict[str, Any]) -> Result:
    """Do a publisher's or a reader's job."""
    job = StreamJob(**fields)
    return _publish(job) if job.role == "publish" else _read(job)


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    return published_and_read(
        node, settings, read_at=node.stream_port, names=("stream-publish", "stream-read")
    )


def published_and_read(
    node: Node, settings: Settings, *, read_at: int, names: tuple[str, str]
) -> dict[str, Reading]:
    """Publish to a new stream at the node, then read it at a port; return both readings under these names."""
    job = StreamJob("publish", node.stream_port, seconds=settings.warmup_s + settings.seconds)
    connection = connect(job.port)
    connection.request(wire.Create(connection.next_id(), job.stream, {}), wire.CreateResponse)
    try:
        with Worker(job, MODULE) as publisher:
            published = alone(node, publisher, settings.warmup_s, settings.seconds)
        with Worker(dataclasses.replace(job, role="read", port=read_at), MODULE) as reader:
            read = drained(node, reader, published.published)
    finally:
        connection.request(wire.DeleteStream(connection.next_id(), job.stream), wire.DeleteResponse)
        connection.close()
    return dict(zip(names, (reading(published), reading(read)), strict=True))


STREAMS: Final = Scenario(
    (
        Row("stream-publish", "publish to a stream, 1000 B, confirms, window 10,000", "msg/s", True),
        Row("stream-read", "read that stream from its first message", "msg/s", True),
    ),
    _run,
    brokers=(LEVERET, RABBITMQ),
)


if __name__ == "__main__":
    main(work)

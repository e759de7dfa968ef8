"""Writes the messages of a queue as segments of its log, which the node takes in as they are (wire.staged_segment).

A segment is written behind the end that the log has, or will have once the segment before it is taken in: one is
checked and taken in by the node while the next is written. If somebody else appended to the log meanwhile, the node
appends the messages instead, and from then on the writer waits for each segment before it begins the next.

The files are no copy that counts. The plan has the messages, and the number of the last one in the log is in the log.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from leveret.model.errors import LeveretError, Refusal, StorageError
from leveret.pipeline.upstream.stream_client import RecoveryPublisher, StreamClient
from leveret.wire.chunk import ChunkType, Header, encode_header, seal_of
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import STAGED_STREAM_PREFIX, LogEnd, StagedSegment, next_trailer
from leveret.wire.stream.publish import MessageRun

FIRST_BYTES: Final = 1024 * 1024
"""The size of a queue's first segment, so that consumers have something soon; each next one is larger by GROWTH."""
GROWTH: Final = 4
WRITE_BYTES: Final = 8 * 1024 * 1024
"""The octets after which the disk begins to write, so that it does so while the next ones are made."""
MESSAGES_MIN: Final = 2000
"""Fewer messages are published: a file, and its name, cost more than that."""


class WrittenSegment(msgspec.Struct, frozen=True):
    """A complete file of a queue's messages: what an announcement of it says, and its octets."""

    queue: str
    directory: str
    base: int
    first: int
    last: int
    body_bytes: int
    size: int


class StagingClient:
    """publish.IngestClient: writes segments for queues that take them, and publishes to the others.

    Args:
        client: a connection to the node.
        staging: the node's directory of staged segments.
        totals: the number of messages of each queue's plan.
    """

    def __init__(self, client: StreamClient, staging: Path, totals: dict[str, int], timeout_s: float) -> None:
        self._client = client
        self._staging = staging
        self._totals = totals
        self._timeout_s = timeout_s

    def declare_publisher(self, reference: str, stream: str) -> RecoveryPublisher | SegmentPublisher:
        """A publisher of the messages of one queue.

        Raises:
            LeveretError: the node refuses it.
        """
        queue = stream.removeprefix(RECOVERY_STREAM_PREFIX)
        publisher = self._client.declare_publisher(reference, stream)
        left = self._totals.get(queue, 0) - publisher.last_sequence
        if left < MESSAGES_MIN or log_end(self._client, queue, self._staging) is None:
            return publisher
        publisher.close()
        announcing = self._client.declare_publisher(reference, STAGED_STREAM_PREFIX + queue)
        return SegmentPublisher(
            announcing,
            lambda: self._client.stats(STAGED_STREAM_PREFIX + queue),
            self._staging,
            reference,
            self._timeout_s,
        )

    def close(self) -> None:
        """See IngestClient."""
        self._client.close()


class SegmentPublisher:
    """publish.IngestPublisher: the messages of one queue, as segments.

    Attributes:
        last_sequence: the number of the last message in the log when this began.
    """

    def __init__(
        self,
        announcing: RecoveryPublisher,
        statistics: Callable[[], dict[str, int]],
        staging: Path,
        reference: str,
        timeout_s: float,
    ) -> None:
        self.last_sequence = announcing.last_sequence
        self._announcing = announcing
        self._statistics = statistics
        self._staging = staging
        self._reference = reference.encode()
        self._timeout_s = timeout_s
        self._bytes_max = FIRST_BYTES
        self._end: LogEnd | None = None
        self._file: StagedFile | None = None
        self._announced = 0
        self._is_alone = True

    def publish(self, run: MessageRun) -> None:
        """Write messages as a chunk.

        Raises:
            LeveretError: the disk refuses it, or the node refused the segment before.
        """
        if self._file is None:
            self._file = self._begin(run.first)
        self._file.add(run)
        assert self._end is not None
        if self._file.size >= min(self._bytes_max, self._end.segment_bytes_max):
            self._announce()
            self._bytes_max *= GROWTH

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Bound what is under way, which is one segment at most; `finish` waits for all."""

    def finish(self) -> None:
        """Have the node take in the rest, and wait until all of it is durable.

        Raises:
            LeveretError: the node refused a segment.
        """
        if self._file is not None:
            self._announce()
        self._await_announced()

    def close(self) -> None:
        """Close an unfinished segment, which counts for nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, first: int) -> StagedFile:
        """Begin a segment behind the log's end: as it is, or as it will be after the announced segment."""
        if self._end is None or not self._is_alone:
            self._await_announced()
            self._end = LogEnd.of(self._statistics())
            self._is_alone = True
        return begun_file(self._staging, self._end, self._reference, first)

    def _announce(self) -> None:
        """Announce the segment, once the one before it is in the log."""
        file, self._file = self._file, None
        assert file is not None
        assert self._end is not None
        before, self._end = self._end, file.close()
        if self._announced:
            self._await_announced()
            self._is_alone = LogEnd.of(self._statistics()).next_offset == before.next_offset
        announced = StagedSegment(
            file.path.parent.name, before.next_offset, file.first, file.last, file.body_bytes
        )
        self._announcing.publish(MessageRun.of(file.last, [announced.encode()]))
        self._announced = file.last

    def _await_announced(self) -> None:
        if self._announced:
            self._announcing.wait_confirmed(self._announced, self._timeout_s)
            self._announced = 0


class StagedFile:
    """One segment while it is written.

    Attributes:
        first, last: the numbers of its messages.
        size: its octets.
        body_bytes: the octets of its messages' bodies.
    """

    def __init__(self, directory: Path, end: LogEnd, reference: bytes, first: int) -> None:
        """Begin behind `end`. Raises OSError."""
        self.path = directory / f"{end.next_offset:020d}.segment"
        self.first = first
        self.last = first - 1
        self.size = self.body_bytes = self._begun_bytes = 0
        self._end = end
        self._reference = reference
        self._next_offset = end.next_offset
        self._last: Header | None = None
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, run: MessageRun) -> None:
        """Append a chunk.

        Raises:
            StorageError: the disk refuses it.
        """
        sequences = {self._reference: run.last}
        if self._last is None:
            trailer = self._end.first_trailer(sequences, expires=run.expires)
        else:
            trailer = next_trailer(sequences, expires=run.expires)
        header = Header(
            ChunkType.USER,
            run.records,
            run.records,
            time.time_ns() // 1_000_000,
            self._end.epoch,
            self._next_offset,
            crc32(run.data),
            len(run.data),
            len(trailer),
        )
        try:
            if os.writev(self._fd, [encode_header(*header), run.data, trailer]) != header.chunk_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.close()
            raise _refused(self.path, error) from error
        self._last, self._next_offset, self.last = header, header.next_offset, run.last
        self.size += header.chunk_bytes
        self.body_bytes += run.body_bytes
        if self.size - self._begun_bytes >= WRITE_BYTES:
            self._begin_writing()

    def _begin_writing(self) -> None:
        """Have the disk begin with what it has not begun with yet: the node waits for all of it.

        The advice says that the pages are not needed; those that are not on disk yet stay in memory for the node's
        check, and their writing begins.
        """
        with suppress(OSError):
            os.posix_fadvise(self._fd, self._begun_bytes, 0, os.POSIX_FADV_DONTNEED)
        self._begun_bytes = self.size

    def written(self, queue: str) -> WrittenSegment:
        """The complete file."""
        base = int(self.path.stem)
        return WrittenSegment(
            queue, self.path.parent.name, base, self.first, self.last, self.body_bytes, self.size
        )

    def close(self) -> LogEnd:
        """Close the file; return the log's end behind it."""
        if self._fd >= 0:
            self._begin_writing()
            os.close(self._fd)
            self._fd = -1
        if self._last is None:
            return self._end
        return self._end.behind(self._next_offset, seal_of(self._last), {self._reference: self.last})


def begun_file(staging: Path, end: LogEnd, reference: bytes, first: int) -> StagedFile:
    """Begin a segment behind `end`, in a directory of its own.

    Raises:
        StorageError: the disk refuses it.
    """
    directory = staging / secrets.token_hex(8)
    try:
        directory.mkdir(mode=0o700)
        return StagedFile(directory, end, reference, first)
    except OSError as error:
        raise _refused(directory, error) from error


def log_end(client: StreamClient, queue: str, staging: Path) -> LogEnd | None:
    """The end of a queue's log; None if it takes no segments, or this process does not see the node's directory.

    A queue takes segments if it exists there, and is no stream and has no priorities.
    """
    try:
        end = LogEnd.of(client.stats(STAGED_STREAM_PREFIX + queue))
    except Refusal:
        return None
    return end if end.takes_segments and sees_staging(staging, end) else None


def sees_staging(staging: Path, end: LogEnd) -> bool:
    """Whether this process sees the directory of staged segments of the node that told `end`."""
    try:
        return 0 != end.staging == staging.stat().st_ino
    except OSError:
        return False


def _refused(path: Path, error: OSError) -> LeveretError:
    return StorageError(f"{path}: cannot be written: {error}")

"""A log that is served: readers get its chunks as they stand in the file, up to the committed end.

The committed end rises when the fdatasync that covers a chunk has ended. So a crash takes back no message that a
reader has seen.
"""

from __future__ import annotations

from builtins import bytes as octets_type
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from leveret.model.errors import LeveretError, NotFound
from leveret.storage.log import Log
from leveret.storage.log_reader import READ_BYTES
from leveret.wire.chunk import ChunkType, Header

_HEADERS_AT_ONCE: Final = 16


class CommittedLog:
    """runtime.clients.stream_host.ServedLog, of a log on disk.

    Attributes:
        log: the log; its owner calls `commit` with the offset up to which it is durable.
        committed_offset: the offset after the last durable one.
        last_chunk_id: first offset of the last durable chunk that readers may begin at, -1 for none.
        last_appended_id: the same for appended chunks, durable or not; set by the owner.
        is_closed: whether serving has ended.
        ended: the error for readers after that.
    """

    def __init__(self, log: Log, last_chunk_id: int, *, gone: str) -> None:
        """Begin with everything in the open `log` durable; `gone` is the error text for readers after its end."""
        self.log = log
        self.committed_offset = log.next_offset
        self.last_chunk_id = self.last_appended_id = last_chunk_id
        self.is_closed = False
        self.ended: LeveretError = NotFound(gone)
        self._listeners: list[Callable[[], None]] = []

    @property
    def first_offset(self) -> int:
        """The oldest retained offset."""
        return self.log.first_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record, durable or not."""
        return self.log.next_offset

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the newest chunk."""
        return self.log.last_timestamp_ms

    @property
    def bytes(self) -> int:
        """The retained octets."""
        return self.log.size_bytes

    def read(self, offset: int, bytes_max: int) -> Sequence[octets_type | memoryview]:
        """Read whole raw chunks from the one that holds `offset` on, below the committed end.

        Raises:
            NotFound: the log is deleted. LedElsewhere: it is served no longer. StorageError: it cannot be read.
        """
        return [octets for _, octets in self._committed(offset, bytes_max)]

    def _committed(
        self, offset: int, bytes_max: int, ahead: int = READ_BYTES
    ) -> Iterator[tuple[Header, octets_type]]:
        if self.is_closed:
            raise self.ended
        if offset < self.committed_offset:
            for header, octets in self.log.read_raw(offset, bytes_max, ahead=ahead):
                if header.next_offset > self.committed_offset:
                    return
                yield header, octets

    def offset_at(self, timestamp_ms: int) -> int:
        """First offset of the first durable chunk that is not older, the committed end if all are."""
        return min(self.log.offset_at(timestamp_ms), self.committed_offset)

    def hold_back(self, committed_offset: int) -> None:
        """Serve only what is before this offset, until `commit`: what is behind it may be at this node alone.

        Raises:
            StorageError: the log cannot be read.
        """
        self.committed_offset = max(self.log.first_offset, min(committed_offset, self.log.next_offset))
        self.last_chunk_id = self.chunk_before(self.committed_offset)

    def last_chunk_of_all(self) -> int:
        """The first offset of the last chunk with messages, committed or not; -1 for none. Raises StorageError."""
        return self.chunk_before(self.log.next_offset)

    def chunk_before(self, offset: int) -> int:
        """The first offset of the last chunk with messages that ends at `offset` or before, -1 for none.

        Raises:
            StorageError: the log cannot be read.
        """
        while self.log.first_offset < offset:
            found = list(self.log.headers_before(offset, _HEADERS_AT_ONCE))
            for header, _ in found:
                if header.type == ChunkType.USER and header.next_offset <= offset:
                    return header.chunk_id
            if not found:
                break
            offset = found[-1][0].chunk_id
        return -1

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the committed end rises, and when the log is closed; returns a function that ends this."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def commit(self, next_offset: int, last_chunk_id: int) -> None:
        """Serve everything before `next_offset`, which is durable."""
        if next_offset > self.committed_offset:
            self.committed_offset, self.last_chunk_id = next_offset, last_chunk_id
            self._report()

    def stop_serving(self, error: LeveretError | None = None) -> None:
        """Serve nothing more, and notify the readers; by default because the log is deleted."""
        self.is_closed = True
        self.ended = error or self.ended
        self._report()

    def _report(self) -> None:
        for callback in list(self._listeners):
            callback()

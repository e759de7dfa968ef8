"""The directory of staged segments: files that a recovery writes, until a log takes them in (`Log.take_in`).

They are never the only copy of anything: a recovery writes each of them again if it is not in a log. So the directory
is removed at each start, and after each recovery.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.removed import RemovedFiles
from leveret.storage.segment import Segment
from leveret.storage.summary import SummaryBuilder, summary_path
from leveret.wire.chunk import HEADER_BYTES, Chunk, ChunkType, Header

logger = logging.getLogger(__name__)

DIRECTORY: Final = "staged"


class StagedDirectory:
    """The directory of one node's staged segments."""

    def __init__(self, root: Path, removed: RemovedFiles) -> None:
        """Use the directory `staged` in a data directory."""
        self.path = root / DIRECTORY
        self._removed = removed

    @contextmanager
    def open(self) -> Iterator[str]:
        """Make it for one recovery, and remove it afterwards; yields its path, empty if the disk refuses it."""
        path = str(self.path)
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            logger.warning("staged_segments_refused directory=%s error=%s", path, error)
            path = ""
        try:
            yield path
        finally:
            self.remove()

    def remove(self) -> None:
        """Remove it with all segments that no log took in."""
        with suppress(OSError):
            self._removed.remove(self.path)

    @property
    def inode(self) -> int:
        """Its number in its file system; 0 if it is not there."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def read(self, directory: str, base: int) -> tuple[Segment, list[Chunk]]:
        """Check a segment whole, write its summary, and make it durable; for a thread.

        Returns:
            The segment, closed, and its chunks without their data.

        Raises:
            StorageError: it is missing, damaged or cut short, or is no file of messages.
        """
        segment = Segment(self.path / directory, base)
        chunks: list[Chunk] = []
        notable = SummaryBuilder()

        def found(chunk: Chunk) -> None:
            chunks.append(_without_data(chunk))
            notable.add(chunk)

        try:
            if not stat.S_ISREG(os.lstat(segment.path).st_mode):
                raise StorageError(f"{segment.path}: is no file")
            segment.scan(found, last=False)
            notable.save(segment)
            # The name that the log gives it must never name less than all of it.
            os.fdatasync(segment.fd())
        except Corrupt as error:
            raise _damaged(segment, error.byte) from error
        except OSError as error:
            raise StorageError(f"{segment.path}: {error}") from error
        finally:
            segment.close()
        if not chunks or any(
            each.header.type != ChunkType.USER or not each.header.records for each in chunks
        ):
            raise StorageError(f"{segment.path}: is no segment of messages")
        return segment, chunks

    def chunks(
        self,
        segment: Segment,
        chunks: list[Chunk],
        needs_data: Callable[[Header], bool] = lambda header: True,
    ) -> Iterator[Chunk]:
        """Yield the chunks of a checked segment, with their data where it is needed.

        Raises:
            StorageError: it cannot be read, or was cut short since then.
        """
        position = 0
        try:
            with open(segment.path, "rb") as file:
                for chunk in chunks:
                    header = chunk.header
                    wanted = header.data_bytes if needs_data(header) else 0
                    data = os.pread(file.fileno(), wanted, position + HEADER_BYTES)
                    if len(data) != wanted:
                        raise _damaged(segment, position)
                    yield chunk._replace(data=data)
                    position += header.chunk_bytes
        except OSError as error:
            raise StorageError(f"{segment.path}: {error}") from error

    def discard(self, segment: Segment) -> None:
        """Remove the file of a segment whose messages are in a log; one that stays goes with the directory."""
        for path in (summary_path(segment.path), segment.path):
            with suppress(OSError):
                self._removed.remove(path)


def _damaged(segment: Segment, position: int) -> StorageError:
    return StorageError(
        f"{segment.path}: this staged segment of a recovery is damaged or cut short at byte {position}; its messages "
        "are in the archive: run the recovery again"
    )


def _without_data(chunk: Chunk) -> Chunk:
    return Chunk(chunk.header, b"", bytes(chunk.trailer))

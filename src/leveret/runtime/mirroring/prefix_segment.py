"""A segment that a mirror copies in front of its log: beside the log first, moved in when it is whole.

    .mirroring/<name of the log>/<first offset>/<first offset>.segment

Until then the segment is a log of its own, so it is written, verified, synced and recovered as any other. Moving it in
is one rename (`Log.prepend`), done only once all of it is on disk: whenever the node dies, the log is contiguous, with
the segment or without it, and the copied part of the segment remains for the copy to continue.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.storage.log import Log
from leveret.wire.chunk import Chunk
from leveret.wire.link import LogExtent, Octets

DIRECTORY: Final = ".mirroring"


class PrefixPiece:
    """See the module.

    Attributes:
        segment: the offset that the segment begins with.
        log: what there is of it.
    """

    def __init__(self, directory: Path, segment: int) -> None:
        """Open what is there, or begin.

        Raises:
            StorageError: the disk refuses it, or it is damaged.
        """
        self.segment = segment
        self.log = Log(directory / f"{segment:020d}", epoch=0)
        self.log.open(first_offset=segment, sync=False)

    @property
    def next_offset(self) -> int:
        """Behind the last chunk that was copied."""
        return self.log.next_offset

    def extent(self, name: str) -> LogExtent | None:
        """What there is, for the leader; None for nothing. Raises StorageError."""
        for _, octets in self.log.headers_before(self.next_offset, 1):
            return LogExtent(name, self.segment, self.next_offset, octets)
        return None

    def append(self, chunk: Chunk, octets: Octets) -> None:
        """The next chunk. Raises StorageError."""
        self.log.append_raw(chunk.header, octets, self.segment)

    def remove(self) -> None:
        """It is superfluous, or was moved in. Raises StorageError."""
        self.log.close()
        remove_directory(self.log.directory)


def pieces_directory(data_dir: Path, name: str) -> Path:
    """The directory of a log's pieces."""
    return data_dir / DIRECTORY / name


def newest_piece(directory: Path, before: int) -> PrefixPiece | None:
    """What was copied of a segment that begins before an offset, and is not whole; all others are removed.

    Raises:
        StorageError: the disk refuses it.
    """
    found: PrefixPiece | None = None
    try:
        starts = sorted(path for path in directory.iterdir()) if directory.exists() else []
        for path in reversed(starts):
            if found is None and path.name.isdecimal() and int(path.name) < before:
                piece = _opened(directory, int(path.name))
                if piece is not None and piece.segment < piece.next_offset < before:
                    found = piece
                    continue
            remove_directory(path)
    except OSError as error:
        raise StorageError(f"{directory}: what was copied cannot be listed: {error}") from error
    return found


def _opened(directory: Path, segment: int) -> PrefixPiece | None:
    """None for one that is damaged: it is copied anew."""
    try:
        return PrefixPiece(directory, segment)
    except StorageError:
        return None


def remove_directory(directory: Path) -> None:
    """Remove pieces. Raises StorageError."""
    try:
        if directory.exists():
            shutil.rmtree(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be removed: {error}") from error

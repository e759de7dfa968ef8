"""A segment of a copy's prefix: copied beside the log first, and moved into the log when it is whole.

    .mirroring/<name of the log>/<first offset>/<first offset>.segment

Until then the segment is a separate log, so it is written, verified, synced and recovered like any other. Moving it in
is one rename (`Log.prepend`), done only once all of it is on disk: whenever the node dies, the log is contiguous, with
the segment or without it, and the copied part of the segment remains for the copy to continue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from leveret.model.errors import StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.storage.log import Log
from leveret.storage.removed import RemovedFiles
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk
from leveret.wire.link import LogExtent, Octets

DIRECTORY: Final = ".mirroring"


class PrefixPiece:
    """See the module.

    Attributes:
        segment: the first offset of the segment.
        log: the copied part, as a log.
    """

    def __init__(self, directory: Path, segment: int) -> None:
        """Open the copied part, or begin one.

        Raises:
            StorageError: the disk refuses it, or the copied part is damaged.
        """
        self.segment = segment
        self.log = Log(directory / f"{segment:020d}", epoch=0)
        self.log.open(first_offset=segment, sync=False)

    @property
    def next_offset(self) -> int:
        """The offset behind the last copied chunk."""
        return self.log.next_offset

    def extent(self, name: str) -> LogExtent | None:
        """Return the extent of the copied part, for the leader; None without chunks. Raises StorageError."""
        for _, octets in self.log.headers_before(self.next_offset, 1):
            return LogExtent(name, self.segment, self.next_offset, octets)
        return None

    def append(self, chunk: Chunk, octets: Octets) -> None:
        """Append the next chunk. Raises StorageError."""
        self.log.append_raw(chunk.header, octets, self.segment)

    def remove(self, removed: RemovedFiles) -> None:
        """Remove the piece, because it is superfluous or was moved in. Raises StorageError."""
        self.log.close()
        remove_directory(self.log.directory, removed)


def pieces_directory(data_dir: Path, name: str) -> Path:
    """Return the directory of a log's pieces."""
    return data_dir / DIRECTORY / name


def newest_piece(directory: Path, before: int, removed: RemovedFiles) -> PrefixPiece | None:
    """Return the newest unfinished piece that begins before an offset, None without one; remove all others.

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
            remove_directory(path, removed)
    except OSError as error:
        raise StorageError(f"{directory}: the copied segments cannot be listed: {error}") from error
    return found


def _opened(directory: Path, segment: int) -> PrefixPiece | None:
    """Open a piece; return None if it is damaged: the segment is copied anew."""
    try:
        return PrefixPiece(directory, segment)
    except StorageError:
        return None


def remove_directory(directory: Path, removed: RemovedFiles) -> None:
    """Remove a directory of pieces. Raises StorageError."""
    try:
        removed.remove(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be removed: {error}") from error


class CopiedPrefix:
    """The prefix that is being copied for one log, the newest segment first; see the module."""

    def __init__(
        self,
        name: str,
        tree: Tree,
        commits: GroupCommit,
        failed: Callable[[StorageError], None],
        moved_in: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin for a log of the tree; `moved_in` is called after each move of a segment, `failed` with its error."""
        self._name = name
        self._tree = tree
        self._commits = commits
        self._failed = failed
        self._moved_in = moved_in
        self._directory: Path = pieces_directory(tree.root, name)
        self._piece: PrefixPiece | None = None
        self._whole: list[PrefixPiece] = []
        self._looked = False

    def holds(self, log: Log) -> bool:
        """Return whether the log is a piece of this prefix."""
        pieces = (*self._whole, *([self._piece] if self._piece is not None else []))
        return any(piece.log is log for piece in pieces)

    @property
    def first_offset(self) -> int:
        """The first offset of the copy, with the whole pieces: they are moved in before the next ack."""
        log = self._tree.logs.get(self._name)
        return self._whole[-1].segment if self._whole else log.first_offset if log is not None else 0

    def piece(self) -> PrefixPiece | None:
        """Return the unfinished piece; None without one. Raises StorageError."""
        if not self._looked:
            self._looked = True
            if not self._whole:
                self._piece = newest_piece(self._directory, self.first_offset, self._tree.removed)
                if self._piece is not None:
                    self._commits.appended(self._piece.log)
        return self._piece

    def is_next(self, segment: int, chunk: Chunk) -> bool:
        """Return whether a chunk continues the prefix; if not, it is repeated, or its segment's begin did not come.

        Raises:
            StorageError: the piece cannot be read.
        """
        if chunk.header.next_offset > self.first_offset:
            return False
        piece = self.piece()
        continues = (
            piece is not None and piece.segment == segment and piece.next_offset == chunk.header.chunk_id
        )
        return continues or chunk.header.chunk_id == segment

    def append(self, segment: int, chunk: Chunk, octets: Octets) -> None:
        """Append the next chunk of a segment of the prefix.

        Raises:
            StorageError: the chunk does not continue the prefix, or the disk refuses it.
        """
        piece = self.piece()
        if chunk.header.chunk_id == segment:
            if piece is not None:
                self._remove(piece)
            piece = self._piece = PrefixPiece(self._directory, segment)
        if piece is None or piece.segment != segment or chunk.header.next_offset > self.first_offset:
            raise StorageError(
                f"log {self._name}: chunk {chunk.header.chunk_id} of segment {segment} does not belong in front of "
                f"offset {self.first_offset}"
            )
        piece.append(chunk, octets)
        self._commits.appended(piece.log)
        if piece.next_offset == self.first_offset:
            self._whole.append(piece)
            self._piece = None
            # The piece is moved in before the ack of this frame, which the next `when_durable` sends.
            self._commits.when_durable(partial(self._take_in, piece))

    def _take_in(self, piece: PrefixPiece) -> None:
        """Move a whole piece, which is durable now, into the log, unless it was forgotten meanwhile."""
        if piece not in self._whole:
            return
        self._whole.remove(piece)
        log = self._tree.logs.get(self._name)
        try:
            until = piece.next_offset
            if log is not None and until == log.first_offset:
                log.prepend(piece.log)
                # The segment is sealed: the next round of the group commit writes its summary.
                self._commits.appended(log)
                self._tree.prepended(log, until)
                self._moved_in()
            self._remove(piece)
        except StorageError as error:
            self.forget()
            self._failed(error)

    def _remove(self, piece: PrefixPiece) -> None:
        self._commits.forget(piece.log)
        if piece is self._piece:
            self._piece = None
        piece.remove(self._tree.removed)

    def drop(self, first_offset: int) -> None:
        """Note that the log begins at this offset now, and remove superfluous pieces. Raises StorageError.

        A whole one, too: the same segment may come again before it would have been moved in.
        """
        piece = self.piece()
        for whole in [each for each in self._whole if each.next_offset <= first_offset]:
            self._whole.remove(whole)
            self._remove(whole)
        if piece is not None and piece.segment < first_offset:
            self._remove(piece)

    def forget(self) -> None:
        """Close all pieces; they stay on disk."""
        for piece in (*self._whole, *([self._piece] if self._piece is not None else [])):
            self._commits.forget(piece.log)
            piece.log.close()
        self._whole.clear()
        self._piece, self._looked = None, False

    def remove(self) -> None:
        """Remove all pieces from disk. Raises StorageError."""
        self.forget()
        self._looked = True
        remove_directory(self._directory, self._tree.removed)

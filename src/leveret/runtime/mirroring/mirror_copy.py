"""One log that this node mirrors, and the operations on its copy.

Chunks are appended as they come. The copy of a segment that is to stand in front is a piece beside the log, and is
moved in once it is on disk, the newest first; see prefix_segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.mirroring.prefix_segment import (
    PrefixPiece,
    newest_piece,
    pieces_directory,
    remove_directory,
)
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.chunk import Chunk
from leveret.wire.link import Octets


class MirrorCopy:
    """See the module.

    Attributes:
        name: of the log.
        leader: the node that it comes from.
        serial: of what was told of it last.
        is_accepting: whether what comes is the answer to that.
        is_busy: what is divergent of it is being quarantined: nothing is told of it, and nothing taken.
        busy: done when it is not busy any more; None if it never was.
        epoch: the one in which its leader leads it, 0 before that is known.
        lost_before, lost_epoch: see wire.link.Mirroring.
        damage: it is damaged or gone, while it was open: nothing is told of it or taken until it begins anew.
        failures: how often it could not be written since it last was.
        error: why it could not; empty for nothing.
    """

    def __init__(
        self,
        name: str,
        leader: str,
        tree: Tree,
        commits: GroupCommit,
        failed: Callable[[MirrorCopy, StorageError], None],
    ) -> None:
        """Of a log that is open in the tree, if there is one; `failed` is told of what fails later."""
        self.name = name
        self.leader = leader
        self.serial = 0
        self.is_accepting = False
        self.busy: asyncio.Task[None] | None = None
        self.epoch = 0
        self.lost_before = self.lost_epoch = 0
        self.damage: Corrupt | None = None
        self.failures = 0
        self.error = ""
        self._tree = tree
        self._commits = commits
        self._failed = failed
        self._dropped_to = 0
        self._directory: Path = pieces_directory(tree.root, name)
        self._piece: PrefixPiece | None = None
        self._whole: list[PrefixPiece] = []
        self._looked = False

    @property
    def is_busy(self) -> bool:
        """See the class."""
        return self.busy is not None and not self.busy.done()

    @property
    def log(self) -> Log | None:
        """The copy, if anything of it is here."""
        return self._tree.logs.get(self.name)

    def holds(self, log: Log) -> bool:
        """Whether it is this copy, or what is being copied to stand in front of it."""
        pieces = (*self._whole, *([self._piece] if self._piece is not None else []))
        return log is self.log or any(piece.log is log for piece in pieces)

    @property
    def first_offset(self) -> int:
        """Where the copy begins, with all that is taken in before anything that is received next is acked."""
        log = self.log
        return self._whole[-1].segment if self._whole else log.first_offset if log is not None else 0

    def piece(self) -> PrefixPiece | None:
        """What there is of a segment that is not whole. Raises StorageError."""
        if not self._looked:
            self._looked = True
            if not self._whole:
                self._piece = newest_piece(self._directory, self.first_offset)
                if self._piece is not None:
                    self._commits.appended(self._piece.log)
        return self._piece

    def append_head(self, segment: int, chunk: Chunk, octets: Octets) -> None:
        """The next chunk of the segment in front.

        Raises:
            StorageError: it does not fit what is here, or the disk refuses it.
        """
        piece = self.piece()
        if chunk.header.chunk_id == segment:
            if piece is not None:
                self._remove(piece)
            piece = self._piece = PrefixPiece(self._directory, segment)
        if piece is None or piece.segment != segment or chunk.header.next_offset > self.first_offset:
            raise StorageError(
                f"log {self.name}: chunk {chunk.header.chunk_id} of segment {segment} does not belong in front of "
                f"offset {self.first_offset}"
            )
        piece.append(chunk, octets)
        self._commits.appended(piece.log)
        if piece.next_offset == self.first_offset:
            self._whole.append(piece)
            self._piece = None
            # Before the ack of the frame that brought it, which is promised next.
            self._commits.when_durable(self._take_in)

    def _take_in(self) -> None:
        """The oldest of what is whole is durable."""
        if not self._whole:
            return
        piece, log = self._whole.pop(0), self.log
        try:
            if log is not None and self._dropped_to < piece.next_offset == log.first_offset:
                log.prepend(piece.log)
                # That it is sealed gives it a summary, with the next round.
                self._commits.appended(log)
            self._remove(piece)
        except StorageError as error:
            self.forget_pieces()
            self._failed(self, error)

    def _remove(self, piece: PrefixPiece) -> None:
        self._commits.forget(piece.log)
        if piece is self._piece:
            self._piece = None
        piece.remove()

    def drop_pieces(self, first_offset: int) -> None:
        """The log begins later: what ends before is superfluous. Raises StorageError."""
        self._dropped_to = max(self._dropped_to, first_offset)
        piece = self.piece()
        if piece is not None and piece.segment < first_offset:
            self._remove(piece)

    def forget_pieces(self) -> None:
        """Use no piece any more; they stay on disk."""
        for piece in (*self._whole, *([self._piece] if self._piece is not None else [])):
            self._commits.forget(piece.log)
            piece.log.close()
        self._whole.clear()
        self._piece, self._looked = None, False

    def remove_pieces(self) -> None:
        """Nothing that was copied to stand in front is of use. Raises StorageError."""
        self.forget_pieces()
        self._looked, self._dropped_to = True, 0
        remove_directory(self._directory)

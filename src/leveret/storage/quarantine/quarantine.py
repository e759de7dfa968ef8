"""Quarantines records that this node has and its leader lacks, before its logs are cut to the leader's.

    divergent/<report>/report.json                            the quarantined logs, and the reason
    divergent/<report>/<path of the log>/log.json             the same for one log
    divergent/<report>/<path of the log>/<offset>.segment     its chunks, as they stood in the log

Only an operator removes these files. A log may be cut, or removed, as soon as `add` has returned for it. No chunk is
lost, whenever the node dies, because:

1. The directories are made, each durable in the one above it. 2. The segment in which the tail begins is copied under
another name, synced, renamed: a copy with its final name is whole. The segments behind it are synced and get a second
name (a hard link), because the log unlinks them. The first one gets none, because the log truncates that very file.
If the log keeps its records from some offset on, the segments that reach beyond that offset are copied, too: the log
appends to them, and truncates them. If the node died before the cut, the log goes on with a linked segment; then it
makes a copy of that segment first (segment.Segment.unshare). 3. The directory is synced, and with it the names. 4.
`log.json` is written, durably: the files beside it count from now on. Only then does `add` return.

Before step 4 the log is untouched and has its chunks. After it the chunks are here, and in the log until it is cut. A
node that died in between joins again and adds the same log again: the unfinished report of the same epochs is
continued, and identical files stay as they are. No file is ever replaced: if another one has its name, the new one
goes to another report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, pairwise
from itertools import count as count_from
from pathlib import Path
from typing import NamedTuple

import msgspec

from leveret.model.errors import StorageError
from leveret.storage.directory import sync_directory
from leveret.storage.inspection.walk import WalkedChunk, walk
from leveret.storage.quarantine.count import count
from leveret.storage.quarantine.report import DIRECTORY, DivergentLog, DivergentReport, directory_of, reports
from leveret.storage.segment import SegmentState
from leveret.storage.segment_file import STEP_BYTES, SegmentFile, starts


class _Piece(NamedTuple):
    """The octets of a segment from `position` on, at which the chunk of `first_offset` begins."""

    segment: int
    position: int
    first_offset: int

    @property
    def name(self) -> str:
        return f"{self.first_offset:020d}{SegmentState.NEWEST}"


class Quarantine:
    """The quarantine of one join. Blocks for the disk, so it is for a thread, one call at a time.

    The added logs must not change meanwhile, as those of a joining follower do not; otherwise `add` needs an end.

    Attributes:
        report: the report so far; None while nothing was quarantined.
    """

    def __init__(
        self,
        data_dir: Path,
        join: DivergentReport,
        name_of: Callable[[str], tuple[str, str] | None],
        *,
        is_lost: bool = False,
    ) -> None:
        """Of a join, as `DivergentReport.begun` describes it; `name_of` gives a log's vhost and queue.

        `is_lost`: no other node may have the confirmed messages of the logs.
        """
        self.report: DivergentReport | None = None
        self._data_dir = data_dir
        self._new = join
        self._name_of = name_of
        self._is_lost = is_lost

    def add(self, path: str, at_offset: int = 0, until_offset: int | None = None) -> DivergentLog | None:
        """Quarantine the chunks from `at_offset` on of the log at `path`, which is below the directory of all logs.

        Ends before the chunk at `until_offset`: records that are appended meanwhile may be copied, and do not count.
        The log may go on with the segments that reach beyond it.

        Returns:
            The quarantined records; None if there are none.

        Raises:
            StorageError: the disk refused it. The log must be left as it is.
        """
        directory = self._data_dir / path
        try:
            pieces = self._tail(directory, at_offset)
            if not pieces:
                return None
            return self._add(path, directory, pieces, until_offset)
        except OSError as error:
            raise StorageError(
                f"log {directory}: divergent records cannot be quarantined: {error}"
            ) from error

    def finish(self) -> DivergentReport | None:
        """End the report, after all logs were added; return it, None if nothing was quarantined.

        Raises:
            StorageError: the disk refused it; the report stays unfinished.
        """
        report = self.report or self._unfinished()
        if report is not None:
            self._end(report)
        return report if report is not None and report.logs else None

    def _end(self, report: DivergentReport) -> None:
        report.is_finished = True
        report.save(self._data_dir)

    def _tail(self, directory: Path, at_offset: int) -> list[_Piece]:
        with closing(walk(directory, at_offset)) as found:
            first = next(found, None)
            if first is None:
                return []
            if isinstance(first, WalkedChunk):
                begin = _Piece(first.file.first_offset, first.position, first.header.chunk_id)
            else:
                begin = _Piece(first.segment, first.position, first.offset)
        behind = [_Piece(start, 0, start) for start in starts(directory) if start > begin.segment]
        # A log whose segment is missing there has no record before the next segment.
        return behind if begin.position < 0 else [begin, *behind]

    def _add(self, path: str, directory: Path, pieces: list[_Piece], until: int | None) -> DivergentLog:
        report = self.report or self._unfinished() or self._begin()
        known = next((log for log in report.logs if log.path == path), None)
        missing = self._missing(directory, directory_of(self._data_dir, report.id) / path, pieces)
        if known is not None and missing == [] and known.next_offset >= (until or 0):
            self.report = report
            return known
        if known is not None or missing is None:
            self._end(report)
            report, missing = self._begin(), pieces
        self.report = report
        target = directory_of(self._data_dir, report.id) / path
        self._keep(directory, target, missing, _shared(pieces, until))
        vhost, queue = self._name_of(path) or (None, None)
        first = pieces[0].first_offset
        log = DivergentLog(path, path.partition("/")[0], vhost, queue, first, first, is_lost=self._is_lost)
        count(directory, log, until, target)
        report.add(self._data_dir, log)
        return log

    # -- reports ------------------------------------------------------------------------------

    def _unfinished(self) -> DivergentReport | None:
        """The newest report that a join between the same epochs began and did not finish."""
        new = self._new
        alike = [
            report
            for report in reports(self._data_dir)
            if not report.is_finished
            and (report.node_id, report.from_epoch, report.to_epoch)
            == (new.node_id, new.from_epoch, new.to_epoch)
        ]
        return alike[-1] if alike else None

    def _begin(self) -> DivergentReport:
        """A new report, in a directory of its own."""
        taken = set(os.listdir(self._data_dir / DIRECTORY)) if (self._data_dir / DIRECTORY).exists() else ()
        names = chain([self._new.id], (f"{self._new.id}-{number}" for number in count_from(2)))
        report = msgspec.structs.replace(
            self._new, id=next(name for name in names if name not in taken), logs=[]
        )
        self._make(directory_of(self._data_dir, report.id))
        report.save(self._data_dir)
        return report

    # -- files --------------------------------------------------------------------------------

    def _missing(self, directory: Path, target: Path, pieces: list[_Piece]) -> list[_Piece] | None:
        """The pieces that are not in `target` yet; None if another file there has the name of one."""
        missing = []
        for piece in pieces:
            held = target / piece.name
            if not held.exists():
                missing.append(piece)
            elif not self._is_copy(directory, piece, held):
                return None
        return missing

    def _is_copy(self, directory: Path, piece: _Piece, held: Path) -> bool:
        with closing(self._open(directory, piece)) as file, held.open("rb") as copy:
            if os.path.samestat(os.fstat(copy.fileno()), os.fstat(file.fd)):
                return True
            return all(
                octets == copy.read(len(octets)) for octets in _tail_of(file, piece)
            ) and not copy.read(1)

    def _keep(self, directory: Path, target: Path, missing: list[_Piece], shared: set[_Piece]) -> None:
        self._make(target)
        for piece in missing:
            with closing(self._open(directory, piece)) as file:
                if piece not in shared or not _link(file, target / piece.name):
                    _copy(file, piece, target / piece.name)
        sync_directory(target)

    def _open(self, directory: Path, piece: _Piece) -> SegmentFile:
        return SegmentFile(directory, piece.segment)

    def _make(self, directory: Path) -> None:
        made = self._data_dir
        for part in directory.relative_to(self._data_dir).parts:
            (made / part).mkdir(mode=0o700, exist_ok=True)
            # An existing one, too: the process that made it may have died before this sync.
            sync_directory(made)
            made /= part


def _shared(pieces: list[_Piece], until: int | None) -> set[_Piece]:
    """The pieces whose segments the log unlinks unchanged, so that the quarantine may link them."""
    if until is None:
        return set(pieces[1:])
    return {piece for piece, after in pairwise(pieces[1:]) if after.first_offset <= until}


def _tail_of(file: SegmentFile, piece: _Piece) -> Iterator[bytes]:
    """Yield the octets, with zeros for unreadable ones: unreadable sectors must not keep a node from joining."""
    for position in range(piece.position, file.size, STEP_BYTES):
        yield file.readable(position, min(STEP_BYTES, file.size - position))


def _copy(file: SegmentFile, piece: _Piece, target: Path) -> None:
    beside = target.with_name(f"{target.name}.copy")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as copy:
        for octets in _tail_of(file, piece):
            copy.write(octets)
        copy.flush()
        os.fsync(copy.fileno())
    beside.rename(target)


def _link(file: SegmentFile, target: Path) -> bool:
    """Give the segment a second name, and return whether the file system can."""
    os.fdatasync(file.fd)
    for state in SegmentState:
        try:
            os.link(file.directory / f"{file.first_offset:020d}{state}", target)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        return True
    return False

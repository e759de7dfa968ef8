"""Opens a log's directory: determines the segments that count, and the end of the last one.

Segments follow each other without a gap, and each names its predecessor (wire.chunk, `LOG`). Everything else is
damage, except the tail that a crash leaves: provisional segments behind a torn one never counted, and are removed
with the torn tail. See storage.log for the promises of the states.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from leveret.model.errors import Corrupt
from leveret.storage.directory import sync_directory
from leveret.storage.segment import OnChunk, Segment, SegmentState
from leveret.storage.summary import Summary, SummaryBuilder, is_summary, summary_path
from leveret.wire.chunk import Chunk, Header, log_of_trailer, seal_of


class LogRecovery:
    """One opening of an existing log.

    Attributes:
        segments: those that count, as they are found; some hold descriptors, also after a failure.
        torn_bytes: the octets that were cut off.
    """

    def __init__(
        self,
        directory: Path,
        segments: list[Segment],
        on_chunk: OnChunk,
        with_messages: bool,
        *,
        durable: bool,
        name: str = "",
        begin: int | None = None,
    ) -> None:
        """Find nothing yet; `segments` is empty, and for the rest see `Log` and its `open`.

        `begin` is the written begin of the log (storage.begin).
        """
        self.segments = segments
        self.torn_bytes = 0
        self._directory = directory
        self._on_chunk = on_chunk
        self._with_messages = with_messages
        self._durable = durable
        self._name = name
        self._begin = begin

    def find(self, every: list[tuple[int, SegmentState]], cut_at: int | None) -> list[Segment]:
        """Recover the segments in files of these first offsets and states, in order, at least one.

        Returns:
            The last segments, which a killed process may not have synced.

        Raises:
            Corrupt: damage that no torn write explains; the files are left as they are.
            OSError: the disk refused it.
        """
        try:
            return self._find(every, cut_at)
        except BaseException:
            # Other objects try again, perhaps often: this one keeps no descriptor, and is no open log.
            for segment in self.segments:
                segment.close()
            self.segments.clear()
            raise

    def _find(self, every: list[tuple[int, SegmentState]], cut_at: int | None) -> list[Segment]:
        found = every if cut_at is None else [each for each in every if each[0] < cut_at] or every[:1]
        segments = self.segments
        self._check_begin(found[0][0])
        for index, (start, state) in enumerate(found):
            end = segments[-1].next_offset if segments else start
            if start != end and _all_provisional(found[index:]):
                break
            segment = Segment(self._directory, start, state)
            if start != end:
                raise self._corrupt(
                    segment.path.name,
                    end,
                    f"segment starts at offset {start}, the one before it ends at {end}",
                )
            segments.append(segment)
            if cut_at is not None and index == len(found) - 1:
                self._cut(segment, cut_at)
            elif state is SegmentState.SEALED:
                self._take_sealed(segment)
                segment.close()
            else:
                last = _all_provisional(found[index + 1 :])
                self.torn_bytes += segment.scan(self._found, last=last)
                if not last:
                    segment.close()
        if segments[-1].state is SegmentState.SEALED:
            end = segments[-1].next_offset
            raise self._corrupt(
                f"{end:020d}{SegmentState.NEWEST}",
                end,
                "the segment is missing: the one before it was sealed when this one was there",
            )
        return self._settle_tail(every[len(segments) :])

    def _check_begin(self, first: int) -> None:
        if self._name and self._begin is not None and first > self._begin:
            missing = f"offsets {self._begin} to {first - 1} are missing: segments in front of this one were removed"
            raise self._corrupt(f"{self._begin:020d}{SegmentState.SEALED}", self._begin, missing)

    def _found(self, chunk: Chunk) -> None:
        """Take the next chunk; the first chunk of a segment has to name this log and the chunk before it."""
        segment = self.segments[-1]
        if chunk.header.chunk_id == segment.first_offset and self._name:
            before = self.segments[-2].last if len(self.segments) > 1 else None
            what = stray(chunk.trailer, self._name, before)
            if what:
                raise self._corrupt(segment.path.name, segment.first_offset, what)
        self._on_chunk(chunk)

    def _corrupt(self, name: str, offset: int, what: str) -> Corrupt:
        return Corrupt(str(self._directory), name, offset, 0, what)

    def _cut(self, segment: Segment, at: int) -> None:
        # The segment may grow to the same size again, and must not get the summary of the cut records.
        summary_path(segment.path).unlink(missing_ok=True)
        if segment.state is SegmentState.SEALED:
            segment.enter(SegmentState.NEWEST)
        self.torn_bytes += segment.scan(self._found, last=True, until=at)

    def _take_sealed(self, segment: Segment) -> None:
        if self._with_messages:
            segment.scan(self._found, last=False)
            return
        summary = Summary.load(segment)
        if summary is not None:
            summary.give(segment, self._found)
            return
        notable = SummaryBuilder()

        def noted(chunk: Chunk) -> None:
            notable.add(chunk)
            self._found(chunk)

        segment.scan(noted, last=False)
        notable.save(segment)

    def _settle_tail(self, gone: list[tuple[int, SegmentState]]) -> list[Segment]:
        """Cut the torn tail and remove provisional segments; segments that may be unsynced become due."""
        for start, state in gone:
            segment = Segment(self._directory, start, state)
            self.torn_bytes += segment.path.stat().st_size
            segment.path.unlink()
        if gone and self._durable:
            sync_directory(self._directory)
        finals = [segment for segment in self.segments if segment.state is not SegmentState.PROVISIONAL]
        tail = self.segments[max(0, len(finals) - 1) :]
        for segment in tail:
            segment.unshare()
            if os.fstat(segment.fd()).st_size != segment.size:
                os.ftruncate(segment.fd(), segment.size)
        return tail

    def remove_summaries(self, paths: Iterable[Path]) -> None:
        """Remove summaries of segments that were deleted while their summary was being written."""
        held = {summary_path(segment.path) for segment in self.segments}
        for path in paths:
            if is_summary(path) and path not in held:
                path.unlink(missing_ok=True)


def stray(trailer: bytes | memoryview, name: str, before: Header | None) -> str:
    """The reason why a segment whose first chunk has this trailer does not belong there; empty if there is none.

    The place is in the log `name`, behind a chunk with the header `before`, None if that is unknown.
    """
    said = log_of_trailer(trailer)
    if said is None:
        return ""
    if said[0] != name:
        return f"this segment belongs to log {said[0]}, and is in the directory of log {name}"
    if before is not None and said[1] != seal_of(before):
        return f"this segment does not follow chunk {before.chunk_id}, which is before it"
    return ""


def _all_provisional(found: list[tuple[int, SegmentState]]) -> bool:
    return all(state is SegmentState.PROVISIONAL for _, state in found)

"""Segments that shares of files wrote come into the log in the order of their numbers, behind its present end."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.recovery.file_shares import QueueBegin
from leveret.pipeline.recovery.segment_intake import SegmentIntake
from leveret.pipeline.recovery.segments import WrittenSegment, begun_file
from leveret.storage.segment import Segment
from leveret.wire.chunk import Chunk, seal_of
from leveret.wire.staged_segment import LogEnd, StagedSegment
from leveret.wire.stream.publish import MessageRun

REFERENCE = "recovery.p"


class FakeNode:
    """A node and its client: takes in segments that fit, and notes the others.

    Attributes:
        moves_by: the records that somebody else appends behind each segment.
        refuses: the number of the first message of a segment that it refuses.
    """

    last_sequence = 0

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self.end = LogEnd(7, 3, 100, 42, {}, ((1, 50),), 1 << 20, True, staging.stat().st_ino)
        self.moves_by = 0
        self.refuses = 0
        self.taken: list[tuple[int, int, bool]] = []
        self.is_closed = False
        self._announced: list[StagedSegment] = []

    def stats(self, stream: str) -> dict[str, int]:
        return self.end.statistics()

    def declare_publisher(self, reference: str, stream: str) -> FakeNode:
        return self

    def close(self) -> None:
        self.is_closed = True

    def publish(self, run: MessageRun) -> None:
        [(_, body)] = run.messages()
        self._announced.append(StagedSegment.decode(body))

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        announced = self._announced.pop()
        assert announced.last == up_to
        if announced.first == self.refuses:
            raise StorageError("no space left")
        segment = Segment(self.staging / announced.directory, announced.base)
        chunks: list[Chunk] = []
        segment.scan(chunks.append, last=False)
        segment.close()
        number = announced.first - 1 + chunks[0].header.records
        fits = (
            announced.base == self.end.next_offset
            and {chunk.header.epoch for chunk in chunks} == {self.end.epoch}
            and chunks[0].trailer == self.end.first_trailer({REFERENCE.encode(): number}, expires=False)
        )
        for before, behind in pairwise(chunks):
            assert behind.header.chunk_id == before.header.next_offset
        self.taken.append((announced.first, announced.last, fits))
        records = announced.last + 1 - announced.first + self.moves_by
        seal = seal_of(chunks[-1].header) + self.moves_by
        self.end = self.end.behind(self.end.next_offset + records, seal, {REFERENCE.encode(): announced.last})


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def written(node: FakeNode) -> list[WrittenSegment]:
    """Ten segments of one queue, of ten messages each in chunks of three."""
    found = []
    for first in range(1, 101, 10):
        end = node.end.behind(node.end.next_offset + first - 1, 0, {REFERENCE.encode(): first - 1})
        file = begun_file(node.staging, end, REFERENCE.encode(), first)
        for number in range(first, first + 10, 3):
            messages = [b"%d" % each for each in range(number, min(number + 3, first + 10))]
            file.add(MessageRun.of(number, messages))
        file.close()
        found.append(file.written("q"))
    return found


def intake_of(node: FakeNode, taken: list[int]) -> SegmentIntake:
    begins = {"q": QueueBegin(0, node.end)}
    return SegmentIntake(node, node.staging, REFERENCE, begins, taken.append, 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("moves_by", [0, 1, 10])
@pytest.mark.parametrize("seed", [1, 2])
def test_in_whatever_order_they_come_they_are_seated_behind_the_end_of_the_log_in_their_own(
    node: FakeNode, moves_by: int, seed: int
) -> None:
    node.moves_by = moves_by
    segments = written(node)
    offered = [*segments, *segments[::2]]
    random.Random(seed).shuffle(offered)
    taken: list[int] = []
    intake = intake_of(node, taken)
    for segment in offered:
        intake.offer(segment)
    intake.finish()
    assert node.taken == [(first, first + 9, True) for first in range(1, 101, 10)]
    assert intake.last_by_queue == {"q": 100}
    assert taken == [10] * 10
    assert node.is_closed


def test_a_log_whose_segments_begin_with_more_than_before_gets_the_segment_as_it_was_written(
    node: FakeNode,
) -> None:
    segments = written(node)
    node.end = node.end._replace(epoch_ends=((1, 50), (2, 90)))
    intake = intake_of(node, [])
    intake.offer(segments[0])
    intake.finish()
    assert node.taken == [(1, 10, False)]


@pytest.mark.parametrize("fault", ["missing", "refused", "removed", "cut"])
def test_behind_a_segment_that_is_missing_refused_removed_or_cut_none_is_announced(
    node: FakeNode, fault: str
) -> None:
    segments = written(node)
    path = node.staging / segments[4].directory / f"{segments[4].base:020d}.segment"
    if fault == "missing":
        del segments[4]
    elif fault == "refused":
        node.refuses = 41
    elif fault == "removed":
        path.unlink()
    else:
        with open(path, "r+b") as file:
            file.truncate(20)
    taken: list[int] = []
    intake = intake_of(node, taken)
    for segment in segments:
        intake.offer(segment)
    intake.finish()
    assert [last for _, last, _ in node.taken] == [10, 20, 30, 40]
    assert intake.last_by_queue == {"q": 40}
    assert sum(taken) == 40

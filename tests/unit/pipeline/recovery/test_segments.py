"""The segments that a recovery writes: when it does, where they begin, and what a disk or a busy queue does to them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.model.errors import NotFound, StorageError
from leveret.pipeline.recovery import publish as publish_module
from leveret.pipeline.recovery import segments as module
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.recovery.segments import MESSAGES_MIN, SegmentPublisher, StagingClient
from leveret.storage.segment import Segment
from leveret.wire.chunk import Chunk, seal_of
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import LogEnd, StagedSegment
from leveret.wire.stream.publish import MessageRun

REFERENCE = "recovery.p"
NOBODY: dict[bytes, int] = {}


class FakeNode:
    """Takes segments in as a node does, once their confirm is waited for.

    Attributes:
        moves_by: records that somebody else appends after each segment.
    """

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self.end = LogEnd(7, 3, 100, 42, dict(NOBODY), ((1, 50),), 20_000, True, staging.stat().st_ino)
        self.moves_by = 0
        self.taken: list[tuple[int, int]] = []
        self.fitted: list[bool] = []
        self.last_sequence = 0
        self._waiting: list[StagedSegment] = []

    def statistics(self) -> dict[str, int]:
        return self.end.statistics()

    def lose_what_was_announced(self) -> None:
        """The connection is gone."""
        self._waiting.clear()

    def publish(self, run: MessageRun) -> None:
        [(_, body)] = run.messages()
        self._waiting.append(StagedSegment.decode(body))
        assert len(self._waiting) == 1, "one at a time"

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        [announced] = self._waiting
        self._waiting.clear()
        assert announced.last == up_to
        segment = Segment(self.staging / announced.directory, announced.base)
        chunks: list[Chunk] = []
        segment.scan(chunks.append, last=False)
        segment.close()
        first = chunks[0]
        last = announced.first - 1 + first.header.records
        expected = self.end.first_trailer({REFERENCE.encode(): last}, expires=False)
        self.fitted.append(announced.base == self.end.next_offset and first.trailer == expected)
        records = announced.last + 1 - announced.first
        assert sum(each.header.records for each in chunks) == records
        self.taken.append((announced.first, announced.last))
        sequences = {REFERENCE.encode(): announced.last}
        seal = seal_of(chunks[-1].header)
        if not self.fitted[-1]:
            seal += 1
        self.end = self.end.behind(
            self.end.next_offset + records + self.moves_by, seal + self.moves_by, sequences
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setattr(module, "FIRST_BYTES", 2000)
    return FakeNode(tmp_path)


def publisher_of(node: FakeNode) -> SegmentPublisher:
    return SegmentPublisher(node, node.statistics, node.staging, REFERENCE, 5.0)  # type: ignore[arg-type]


def publish(publisher: SegmentPublisher, numbers: range) -> None:
    for number in numbers:
        publisher.publish(MessageRun.of(number, [b"%0400d" % number]))
        publisher.wait_confirmed(number, 1.0)


def test_each_segment_begins_where_the_one_before_it_will_have_ended_and_they_grow(node: FakeNode) -> None:
    publisher = publisher_of(node)
    publish(publisher, range(1, 201))
    publisher.finish()
    assert node.fitted == [True] * len(node.fitted)
    assert [first for first, _ in node.taken] == [1, *(last + 1 for _, last in node.taken[:-1])]
    assert node.taken[-1][1] == 200
    sizes = [last + 1 - first for first, last in node.taken]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] == sizes[3]
    publisher.finish()
    assert node.taken[-1][1] == 200, "nothing is left"


def test_behind_somebody_elses_records_the_next_segment_waits_for_the_end_of_the_log(node: FakeNode) -> None:
    publisher = publisher_of(node)
    node.moves_by = 3
    publish(publisher, range(1, 201))
    publisher.finish()
    assert node.taken[-1][1] == 200
    assert node.fitted[0]
    assert not node.fitted[1], "it was written in advance"
    assert node.fitted.count(True) >= len(node.fitted) // 2


def test_a_disk_that_is_full_ends_it_and_another_attempt_writes_files_of_its_own(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publisher_of(node)
    publish(publisher, range(1, 20))
    written = os.writev
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", lambda fd, octets: written(fd, octets[:1]))
        with pytest.raises(StorageError, match=r"cannot be written: .*No space left on device"):
            publish(publisher, range(20, 21))
    publisher.close()
    node.lose_what_was_announced()
    last = node.taken[-1][1] if node.taken else 0
    again = publisher_of(node)
    publish(again, range(last + 1, 41))
    again.finish()
    assert node.taken[-1][1] == 40
    assert [first for first, _ in node.taken] == [1, *(end + 1 for _, end in node.taken[:-1])]


@pytest.fixture
def publishers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[FakeNode, SegmentPublisher]]:
    """Those of a PlanPublisher, by queue; each gets a few messages, which are no whole segment."""
    found = {}
    for queue in ("a", "b"):
        (tmp_path / queue).mkdir()
        node = FakeNode(tmp_path / queue)
        found[RECOVERY_STREAM_PREFIX + queue] = node, publisher_of(node)

    class Reader:
        plan = SimpleNamespace(reference="recovery.p")

        def __init__(self, *given: object, **more: object) -> None:
            """Read nothing."""

        def orders(self, queues: list[str]) -> dict[str, object]:
            return {}

        def pass_on(self, orders: object, given: list[SegmentPublisher]) -> None:
            for each in given:
                publish(each, range(1, 4))

    monkeypatch.setattr(publish_module, "PlanReader", Reader)
    return found


def plan_publisher(publishers: dict[str, tuple[FakeNode, SegmentPublisher]]) -> PlanPublisher:
    client = SimpleNamespace(
        declare_publisher=lambda reference, stream: publishers[stream][1], close=lambda: None
    )
    return PlanPublisher(cast(Any, None), lambda: cast(Any, client), lambda count: None)


def test_all_messages_of_all_queues_are_there_when_a_task_ends(
    publishers: dict[str, tuple[FakeNode, SegmentPublisher]],
) -> None:
    plan_publisher(publishers).publish(["a", "b"])
    assert [node.taken for node, _ in publishers.values()] == [[(1, 3)], [(1, 3)]]


def test_a_task_that_fails_leaves_no_descriptor_of_a_segment(
    publishers: dict[str, tuple[FakeNode, SegmentPublisher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of Spark's runs many tasks."""
    [(_, first), (_, last)] = publishers.values()

    def fail() -> None:
        raise StorageError("a segment is refused")

    monkeypatch.setattr(first, "finish", fail)
    with pytest.raises(StorageError, match="is refused"):
        plan_publisher(publishers).publish(["a", "b"])
    assert (first._file, last._file) == (None, None)


class FakeClient:
    """The connection of a StagingClient: notes the streams of its publishers."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.declared: list[str] = []
        self.has_log = True

    def declare_publisher(self, reference: str, stream: str) -> FakeClient:
        self.declared.append(stream.partition("/")[0])
        return self

    @property
    def last_sequence(self) -> int:
        return self.node.last_sequence

    def stats(self, stream: str) -> dict[str, int]:
        if not self.has_log:
            raise NotFound("there is no such queue")
        return self.node.statistics()

    def close(self) -> None:
        self.declared.append("closed")


@pytest.mark.parametrize(
    ("total", "last", "has_log", "seen", "takes", "expected"),
    [
        (5000, 0, True, True, True, ["leveret.recovery", "closed", "leveret.staged"]),
        (MESSAGES_MIN, 0, True, True, True, ["leveret.recovery", "closed", "leveret.staged"]),
        (MESSAGES_MIN, 1, True, True, True, ["leveret.recovery"]),
        (5000, 0, False, True, True, ["leveret.recovery"]),
        (5000, 0, True, False, True, ["leveret.recovery"]),
        (5000, 0, True, True, False, ["leveret.recovery"]),
    ],
)
def test_a_publisher_is_declared_for_the_way_that_is_chosen(
    node: FakeNode,
    tmp_path: Path,
    total: int,
    last: int,
    has_log: bool,
    seen: bool,
    takes: bool,
    expected: list[str],
) -> None:
    node.last_sequence = last
    node.end = node.end._replace(takes_segments=takes, staging=node.end.staging + (0 if seen else 1))
    fake = FakeClient(node)
    fake.has_log = has_log
    client = StagingClient(fake, tmp_path, {"q": total}, 5.0)  # type: ignore[arg-type]
    client.declare_publisher(REFERENCE, "leveret.recovery/q")
    assert fake.declared == expected

"""Writes the segments of many queues from a share of a plan's files, so that each file is read once.

The files of a plan are cut into shares, and a task owns a share: it writes the messages of all large queues in it,
those of a queue into segments of their own. The plan says where a message stands in its queue, so tasks need not wait
for each other. The driver announces the segments of a queue in the order of their numbers (`segment_intake`).

A share only writes files that count for nothing by themselves. What of it does not come into the logs, for whatever
reason, is brought by the tasks that own queues, which begin behind the last message that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from leveret.pipeline.archive.recovery_plan import (
    PlanDirectory,
    QueueOrder,
    RecoveryPlan,
    RunPart,
    read_order,
    spans_in_order,
)
from leveret.pipeline.recovery.publish import PUBLISHERS_PER_CLIENT, PlanReader
from leveret.pipeline.recovery.segments import (
    FIRST_BYTES,
    GROWTH,
    StagedFile,
    WrittenSegment,
    begun_file,
    log_end,
    sees_staging,
)
from leveret.pipeline.upstream.stream_client import StreamClient
from leveret.wire.record import RECOVERY_STREAM_PREFIX
from leveret.wire.staged_segment import LogEnd
from leveret.wire.stream.publish import MessageRun

MESSAGES_MIN: Final = 20_000
"""Fewer messages of a queue are brought by the task that owns the queue: shares would cut them into many files."""
QUEUES_MAX: Final = PUBLISHERS_PER_CLIENT
"""The most queues of a plan that shares are for: a task has a file open for each."""
SHARES_PER_CORE: Final = 4
SHARES_PER_CORE_MAX: Final = 8
"""When all messages are written, the node still has to take in those of a share a core: more shares leave it less."""
SHARE_MESSAGES_MIN: Final = 20_000
"""The messages of each queue in a share below which there are not more than `SHARES_PER_CORE`."""
Float64s: TypeAlias = npt.NDArray[np.float64]


class QueueBegin(NamedTuple):
    """Where a queue's recovery begins: the number of its last message that is there, and the end of its log."""

    last: int
    end: LogEnd


class FileShare(NamedTuple):
    """The files of a plan that one task owns: from index `first` up to `end`."""

    directory: PlanDirectory
    vhost: str
    plan_id: str
    first: int
    end: int
    begins: dict[str, QueueBegin]


def queue_begins(client: StreamClient, plan: RecoveryPlan, staging: Path) -> dict[str, QueueBegin]:
    """The large queues that take segments, and where they begin; none if this process does not see the directory.

    Not one whose parts must be sorted: its numbers in a share need not be adjacent.

    Raises:
        LeveretError: the node is gone.
    """
    found: dict[str, QueueBegin] = {}
    parts = plan.parts_by_queue()
    large = [
        queue
        for queue, messages in plan.queues.items()
        if messages >= MESSAGES_MIN and spans_in_order(parts[queue])
    ]
    for queue in sorted(large, key=lambda name: -plan.queues[name])[:QUEUES_MAX]:
        end = log_end(client, queue, staging)
        if end is None:
            continue
        publisher = client.declare_publisher(plan.reference, RECOVERY_STREAM_PREFIX + queue)
        publisher.close()
        if plan.queues[queue] - publisher.last_sequence >= MESSAGES_MIN:
            found[queue] = QueueBegin(publisher.last_sequence, end)
    return found


def shares_of(plan: RecoveryPlan, queues: int, cores: int) -> Iterator[tuple[int, int]]:
    """Cut a plan's files into adjacent shares of about as many messages, for so many queues.

    The first one is a single file, so that queues have something soon.
    """
    files = len(plan.files)
    if files:
        yield 0, 1
    if files > 1:
        ends = np.cumsum(_messages_by_file(plan)[1:])
        fitting = int(ends[-1]) // (queues * SHARE_MESSAGES_MIN)
        count = min(files - 1, cores * max(SHARES_PER_CORE, min(SHARES_PER_CORE_MAX, fitting // cores)))
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count) + 2
        yield from pairwise([1, *(cut for cut in np.unique(cuts).tolist() if cut < files), files])


def _messages_by_file(plan: RecoveryPlan) -> Float64s:
    """About the number of messages in each file; those of a part count as if they were evenly in its files."""
    messages = np.zeros(len(plan.files))
    for part in plan.parts:
        if part.span is not None:
            first, last = part.span.first_file, part.span.last_file
            messages[first : last + 1] += part.rows / (last + 1 - first)
    return messages


def write_share(
    share: FileShare, staging: Path, written: Callable[[WrittenSegment], None]
) -> list[WrittenSegment]:
    """Write the segments of a share; `written` is called with each as soon as it is complete.

    Raises:
        StorageError: a file cannot be read, or the disk refuses a segment.
    """
    reader = PlanReader(share.directory, shares_files=False)
    found: list[WrittenSegment] = []

    def note(segment: WrittenSegment) -> None:
        found.append(segment)
        written(segment)

    reference, parts = reader.plan.reference.encode(), reader.plan.parts_by_queue()
    orders: dict[str, QueueOrder] = {}
    writers: list[_QueueWriter] = []
    for queue, begin in share.begins.items():
        if not sees_staging(staging, begin.end):
            continue
        order = _order_in(share, parts.get(queue, []))
        span = None if order is None else _numbers_in(order, begin.last, share.first, share.end)
        if order is not None and span is not None:
            orders[queue] = order.up_to(span[1])
            writers.append(_QueueWriter(queue, staging, reference, begin, span[0], note))
    try:
        reader.pass_on(orders, writers)
        for writer in writers:
            writer.finish()
    finally:
        for writer in writers:
            writer.close()
    return found


def _order_in(share: FileShare, parts: list[RunPart]) -> QueueOrder | None:
    """The order of the messages of those parts that have some in the share's files; None if there are none."""
    spans = spans_in_order(parts) or ()
    mine = [
        index
        for index, span in enumerate(spans)
        if span.first_file < share.end and span.last_file >= share.first
    ]
    if not mine:
        return None
    before = sum(part.rows for part in parts[: mine[0]])
    return read_order(share.directory.runs, parts[mine[0] : mine[-1] + 1], before)


def _numbers_in(order: QueueOrder, after: int, first: int, end: int) -> tuple[int, int] | None:
    """The last number before, and the last one in, the files from `first` up to `end`; None if there are none.

    Numbers up to `after` do not count.
    """
    begin, stop = np.searchsorted(order.places, (first << 32, end << 32)).tolist()
    begin, stop = max(after, order.before + begin), order.before + stop
    return (begin, stop) if begin < stop else None


class _QueueWriter:
    """publish.IngestPublisher: writes the messages of one queue, and tells of each segment.

    Attributes:
        last_sequence: the number before its first message.
    """

    def __init__(
        self,
        queue: str,
        staging: Path,
        reference: bytes,
        begin: QueueBegin,
        last_sequence: int,
        written: Callable[[WrittenSegment], None],
    ) -> None:
        self.last_sequence = last_sequence
        self._queue = queue
        self._staging = staging
        self._reference = reference
        self._begin = begin
        self._written = written
        self._bytes_max = FIRST_BYTES if last_sequence == begin.last else begin.end.segment_bytes_max
        self._file: StagedFile | None = None

    def publish(self, run: MessageRun) -> None:
        """Write messages as a chunk. Raises StorageError."""
        if self._file is None:
            offset = self._begin.end.next_offset + run.first - 1 - self._begin.last
            # The chunk before is not known yet: the segment gets its seal when it is announced.
            end = self._begin.end.behind(offset, 0, {self._reference: run.first - 1})
            self._file = begun_file(self._staging, end, self._reference, run.first)
        self._file.add(run)
        if self._file.size >= min(self._bytes_max, self._begin.end.segment_bytes_max):
            self._bytes_max *= GROWTH
            self.finish()

    def wait_confirmed(self, up_to: int, timeout_s: float) -> None:
        """Nothing is under way: a segment is complete when it is written."""

    def finish(self) -> None:
        """Complete the present segment."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._written(file.written(self._queue))

    def close(self) -> None:
        """Close an incomplete segment, which counts for nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

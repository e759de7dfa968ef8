"""The tasks of a recovery, as Spark gets them: a few descriptors, each with its share of the work."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.recovery_plan import PlanDirectory, QueueOutcome, RunPart
from leveret.pipeline.files.files import Place
from leveret.pipeline.recovery.segments import WrittenSegment
from leveret.pipeline.recovery.unsettled import NumberedFile


class ScanTask(NamedTuple):
    """Files of one vhost to search for unsettled messages."""

    vhost: str
    run: Place
    files: list[NumberedFile]


class CountTask(NamedTuple):
    """A queue whose messages several tasks may have found, to be counted by one task."""

    vhost: str
    queue: str
    runs: Place
    parts: list[RunPart]


class PublishTask(NamedTuple):
    """Queues of one plan that one task publishes."""

    directory: PlanDirectory
    vhost: str
    plan_id: str
    queues: list[str]


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task: the outcomes of its queues, or the segments of its share of files."""

    plan_id: str
    queues: list[QueueOutcome]
    segments: list[WrittenSegment]


def grouped(files: list[tuple[int, StoredFile]], groups: int) -> Iterator[list[tuple[int, StoredFile]]]:
    """Cut into at most `groups` runs of adjacent files with about as many records each."""
    target = -(-sum(file.records for _, file in files) // groups)
    group: list[tuple[int, StoredFile]] = []
    records = 0
    for numbered in files:
        group.append(numbered)
        records += numbered[1].records
        if records >= target:
            yield group
            group, records = [], 0
    if group:
        yield group


def balanced(queues: Mapping[str, int], tasks: int) -> list[list[str]]:
    """Distribute queues, by their messages, to `tasks` tasks: the largest first, each to the least loaded task."""
    heap: list[tuple[int, int, list[str]]] = [(0, index, []) for index in range(min(tasks, len(queues)))]
    for queue in sorted(queues, key=lambda name: (-queues[name], name)):
        load, index, mine = heapq.heappop(heap)
        mine.append(queue)
        heapq.heappush(heap, (load + queues[queue], index, mine))
    return [mine for _, _, mine in heap]

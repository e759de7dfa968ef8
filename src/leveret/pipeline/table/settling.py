"""Which files' settlements a task needs: by the statistics of the manifest, without reading any.

The manifest has the lowest and the highest settled offset of each queue in a file. Messages are mostly settled soon, so
few files settle messages of a task's files, whatever the length of the history. Files of earlier versions have no such
statistics, and those of a compaction none for queues without messages; these may settle anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import numpy as np

from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.repetitions import parts_of
from leveret.pipeline.archive.settled_offsets import Int64s, QueueIncarnation

Ranges = list[tuple[int, int]]
_ALL: Final = (0, np.iinfo(np.int64).max)


class _Settled(NamedTuple):
    """Of one incarnation, the numbers of files with settlements, and the lowest and highest settled offset of each."""

    files: Int64s
    lowest: Int64s
    highest: Int64s


class SettlingFiles:
    """The files of a vhost that have settlements, in the order of the log."""

    def __init__(self, files: list[StoredFile]) -> None:
        """Index their statistics."""
        # Names of queues may be many, and a task needs none of them.
        self._files = [msgspec.structs.replace(file, queues=[]) for file in files]
        self._compacted = [number for number, file in enumerate(files) if file.history_from_ms]
        found: defaultdict[QueueIncarnation, list[tuple[int, int, int]]] = defaultdict(list)
        for number, file in enumerate(files):
            for incarnation, part in parts_of([file]):
                if part.settled and not file.history_from_ms:
                    found[incarnation].append((number, *(part.settled_span or _ALL)))
        self._settled = {
            incarnation: _Settled(*np.array(rows, np.int64).T) for incarnation, rows in found.items()
        }

    def needed(self, held: Iterable[Mapping[QueueIncarnation, Ranges]]) -> list[StoredFile]:
        """The files that may settle some of these records."""
        spans: dict[QueueIncarnation, tuple[int, int]] = {}
        for ranges_by_incarnation in held:
            for incarnation, ranges in ranges_by_incarnation.items():
                lowest = min(first for first, _ in ranges)
                highest = max(first + count for first, count in ranges) - 1
                before = spans.get(incarnation, (lowest, highest))
                spans[incarnation] = (min(lowest, before[0]), max(highest, before[1]))
        numbers = set(self._compacted)
        for incarnation, (lowest, highest) in spans.items():
            settled = self._settled.get(incarnation)
            if settled is not None:
                does = (settled.lowest <= highest) & (settled.highest >= lowest)
                numbers.update(settled.files[does].tolist())
        return [self._files[number] for number in sorted(numbers)]

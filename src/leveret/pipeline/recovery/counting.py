"""Counts unsettled messages by the statistics in the manifest, without the files of messages.

The manifest has the ranges of the records of each queue in each file, and a settlement record's own offset counts as
settled (`decode.NO_MESSAGE`). So the offsets in the ranges that no mask has are exactly the unsettled messages, each
once, however many files name it. Only two facts need messages:

- Of a file that has records from before and from after a moment, the manifest does not know which are which.
- The times of a queue's oldest and newest unsettled message. Bounds of them are known for each file, so a file is read
  only if it may have an older message than those that were read, or a newer one: mostly the first and the last file of
  a queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.recovery_plan import QueueOutcome
from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Bools,
    Int64s,
    Masks,
    QueueIncarnation,
    SettledRanges,
)
from leveret.pipeline.archive.tables import RESTORE
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.recovery.part_columns import Indices, PartColumns, columns_of
from leveret.pipeline.recovery.unsettled import keys_of, unsettled_rows

_NO_TIME: Final = np.iinfo(np.int64).max


class FoundRange(NamedTuple):
    """Unsettled messages of one incarnation in one file that was read; `offsets` are their octets, 8 a message."""

    queue: str
    epoch: int
    file: int
    min_ms: int
    max_ms: int
    offsets: bytes


ReadFiles = Callable[[list[int]], Iterable[FoundRange]]
"""Reads the files of these numbers, and returns their unsettled messages."""


class _QueueTimes:
    """The times of queues' unsettled messages, as far as they were read, and the bounds in files that were not."""

    def __init__(self, parts: PartColumns) -> None:
        """Know the bounds of parts, none of which was read."""
        self.min_ms: defaultdict[str, int] = defaultdict(lambda: _NO_TIME)
        self.max_ms: defaultdict[str, int] = defaultdict(lambda: -1)
        numbers: dict[str, int] = {}
        queues = [numbers.setdefault(each.queue, len(numbers)) for each in parts.incarnations]
        queue_of = np.array(queues, np.int64)[parts.incarnation_of]
        order = np.lexsort((parts.files, queue_of))
        self._files, self._oldest_ms, self._newest_ms = (
            column[order] for column in (parts.files, parts.min_ms, parts.max_ms)
        )
        self._begins = np.flatnonzero(np.diff(queue_of[order], prepend=-1))
        self._groups = np.repeat(np.arange(len(self._begins)), np.diff(self._begins, append=len(order)))
        names = list(numbers)
        self._queues = [names[number] for number in queue_of[order][self._begins].tolist()]

    def note(self, found: FoundRange) -> None:
        """Note messages that were read."""
        self.min_ms[found.queue] = min(self.min_ms[found.queue], found.min_ms)
        self.max_ms[found.queue] = max(self.max_ms[found.queue], found.max_ms)

    def due(self, is_read: Bools) -> set[int]:
        """The files to read next, at most two for each queue; none if all times are known.

        They are the first one with the oldest bound, and the last one with the newest.
        """
        if not self._queues:
            return set()
        was_read = is_read[self._files]
        oldest_ms = np.where(was_read, _NO_TIME, self._oldest_ms)
        newest_ms = np.where(was_read, -1, self._newest_ms)
        bound_ms = np.minimum.reduceat(oldest_ms, self._begins)
        bound_ms[bound_ms >= [self.min_ms[queue] for queue in self._queues]] = -1
        found = self._firsts(np.flatnonzero(oldest_ms == bound_ms[self._groups]))
        bound_ms = np.maximum.reduceat(newest_ms, self._begins)
        bound_ms[bound_ms <= [self.max_ms[queue] for queue in self._queues]] = _NO_TIME
        return found | self._firsts(np.flatnonzero(newest_ms == bound_ms[self._groups])[::-1])

    def _firsts(self, places: Indices) -> set[int]:
        """The files of the first of these places of each queue."""
        _, firsts = np.unique(self._groups[places], return_index=True)
        return set(self._files[places[firsts]].tolist())


def with_unsettled(
    files: Sequence[StoredFile], masks: Masks, selection: Selection = EVERYTHING
) -> list[StoredFile]:
    """The files of a vhost with unsettled messages, in their order; seldom one without any."""
    return files_of(files, unsettled_parts(files, masks, selection))


def files_of(files: Sequence[StoredFile], parts: PartColumns) -> list[StoredFile]:
    """The files with these parts, in their order."""
    return [files[at] for at in np.unique(parts.files).tolist()]


def count_unsettled(
    files: Sequence[StoredFile],
    parts: PartColumns,
    masks: Masks,
    selection: Selection,
    read_files: ReadFiles,
) -> list[QueueOutcome]:
    """The number of unsettled messages of each queue of a vhost, and the times of the oldest and the newest one.

    Args:
        files: the files of the vhost.
        parts: the parts of them with unsettled records (`unsettled_parts`).
        masks: the messages that a recovery leaves out, settlement records among them (`not_to_recover`).
        selection: the wanted messages; neither from scratch nor `all_available`, which need the messages themselves.
        read_files: reads files of these numbers in `files`.

    Raises:
        StorageError: a file cannot be read.
    """
    assert not selection.start_from_scratch
    assert not selection.all_available
    is_cut = np.array([_is_cut(file, selection) for file in files], np.bool_)[parts.files]
    cut, whole = set(parts.files[is_cut].tolist()), parts.only(~is_cut)
    times, ranges = _QueueTimes(whole), SettledRanges()
    for incarnation, mine in whole.ranges_by_incarnation():
        ranges.add(incarnation, whole.firsts[mine], whole.ends[mine] - whole.firsts[mine])
    for found in _read_as_needed(len(files), times, cut, read_files):
        offsets = np.frombuffer(found.offsets, np.int64)
        ranges.add(QueueIncarnation(files[0].vhost, found.queue, found.epoch), offsets, np.ones_like(offsets))
    totals: defaultdict[str, int] = defaultdict(int)
    for incarnation, starts, ends in ranges.merged():
        totals[incarnation.queue] += int(_unmasked(masks, incarnation, starts, ends).sum())
    return [
        QueueOutcome(queue=queue, messages=count, first_ms=times.min_ms[queue], last_ms=times.max_ms[queue])
        for queue, count in totals.items()
        if count
    ]


def read_unsettled(
    data_dir: Place, file: StoredFile, number: int, masks: Masks, selection: Selection
) -> list[FoundRange]:
    """The unsettled messages in a file.

    Raises:
        StorageError: the file cannot be read, or lacks records.
    """
    keys = keys_of(data_dir / file.path)
    if keys.num_rows != file.records:
        raise StorageError(
            f"{data_dir / file.path}: {keys.num_rows} records of {file.records} are there; {RESTORE}"
        )
    all_offsets, all_ms = (keys.column(name).to_numpy() for name in ("queue_offset", "timestamp_ms"))
    is_cut = _is_cut(file, selection)
    found = []
    for incarnation, rows in unsettled_rows(keys, file.vhost, masks, selection):
        at_ms = all_ms[rows]
        found.append(
            FoundRange(
                incarnation.queue,
                incarnation.epoch,
                number,
                int(at_ms.min()),
                int(at_ms.max()),
                all_offsets[rows].tobytes() if is_cut else b"",
            )
        )
    return found


def _read_as_needed(
    count: int, times: _QueueTimes, first: set[int], read_files: ReadFiles
) -> Iterator[FoundRange]:
    """Read the `first` of so many files, then others until all times are known; yield what is in the `first` ones."""
    is_read = np.zeros(count, np.bool_)
    due = first | times.due(is_read)
    while due:
        for found in read_files(sorted(due)):
            times.note(found)
            if found.file in first:
                yield found
        is_read[list(due)] = True
        due = times.due(is_read)


def _is_cut(file: StoredFile, selection: Selection) -> bool:
    """Whether some of a file's records may have come after the wanted moment."""
    return selection.as_of_ms is not None and file.max_ms > selection.as_of_ms


def unsettled_parts(files: Sequence[StoredFile], masks: Masks, selection: Selection) -> PartColumns:
    """The wanted parts of a vhost's files with unsettled records; an incarnation's ranges are looked at together."""
    parts = columns_of(files)
    is_wanted = np.array([selection.wants(each.queue) for each in parts.incarnations], np.bool_)
    wanted = is_wanted[parts.incarnation_of]
    if selection.as_of_ms is not None:
        wanted &= parts.min_ms <= selection.as_of_ms
    parts = parts.only(wanted)
    unmasked = np.zeros(len(parts.owners))
    for incarnation, mine in parts.ranges_by_incarnation():
        unmasked[mine] = _unmasked(masks, incarnation, parts.firsts[mine], parts.ends[mine])
    return parts.only(np.bincount(parts.owners, unmasked, len(parts.files)) > 0)


def _unmasked(masks: Masks, incarnation: QueueIncarnation, starts: Int64s, ends: Int64s) -> Int64s:
    """Of each interval the number of offsets that a mask does not have."""
    below = masks.get(incarnation, NOTHING).count_below(np.concatenate((starts, ends)))
    return ends - starts - (below[len(starts) :] - below[: len(starts)])

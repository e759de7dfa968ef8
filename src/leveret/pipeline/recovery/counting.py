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
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.recovery_plan import QueueOutcome
from leveret.pipeline.archive.settled_offsets import NOTHING, Int64s, QueueIncarnation, SettledRanges
from leveret.pipeline.archive.tables import RESTORE
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.recovery.unsettled import Masks, keys_of, unsettled_of

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


class _Part(NamedTuple):
    """The records of an incarnation in a file, if some of them are unsettled."""

    file: int
    min_ms: int
    max_ms: int


class _QueueTimes:
    """The times of a queue's unsettled messages, as far as they were read, and the parts that were not."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.min_ms, self.max_ms = _NO_TIME, -1

    def note(self, found: FoundRange) -> None:
        self.min_ms, self.max_ms = min(self.min_ms, found.min_ms), max(self.max_ms, found.max_ms)

    def due(self, read: set[int]) -> set[int]:
        """The files to read next for the times of this queue; none if both are known."""
        left = [part for part in self.parts if part.file not in read]
        if not left:
            return set()
        oldest, newest = min(left, key=lambda part: part.min_ms), max(left, key=lambda part: part.max_ms)
        is_due = {oldest.file: oldest.min_ms < self.min_ms, newest.file: newest.max_ms > self.max_ms}
        if oldest.file == newest.file:
            is_due = {oldest.file: oldest.min_ms < self.min_ms or newest.max_ms > self.max_ms}
        return {file for file, is_it in is_due.items() if is_it}


def with_unsettled(
    files: Sequence[StoredFile], masks: Masks, selection: Selection = EVERYTHING
) -> list[StoredFile]:
    """The files of a vhost with unsettled messages, in their order; seldom one without any."""
    wanted = {at for parts in _parts_with_unsettled(files, masks, selection).values() for at, _ in parts}
    return [files[at] for at in sorted(wanted)]


def count_unsettled(
    files: Sequence[StoredFile], masks: Masks, selection: Selection, read_files: ReadFiles
) -> list[QueueOutcome]:
    """The number of unsettled messages of each queue of a vhost, and the times of the oldest and the newest one.

    Args:
        files: the files of the vhost.
        masks: the messages that a recovery leaves out, settlement records among them (`not_to_recover`).
        selection: the wanted messages; neither from scratch nor `all_available`, which need the messages themselves.
        read_files: reads files of these numbers in `files`.

    Raises:
        StorageError: a file cannot be read.
    """
    assert not selection.start_from_scratch
    assert not selection.all_available
    left = _parts_with_unsettled(files, masks, selection)
    times: defaultdict[str, _QueueTimes] = defaultdict(_QueueTimes)
    ranges = SettledRanges()
    first: set[int] = set()
    for incarnation, parts in left.items():
        for at, number in parts:
            part = files[at].queues[number]
            if _is_cut(files[at], selection):
                first.add(at)
            else:
                times[incarnation.queue].parts.append(_Part(at, part.min_ms, part.max_ms))
                ranges.add(incarnation, *zip(*part.ranges, strict=True))
    read: set[int] = set()
    vhost = files[0].vhost if files else ""
    due = first | _due(times, read)
    while due:
        for found in read_files(sorted(due)):
            times[found.queue].note(found)
            if found.file in first:
                offsets = np.frombuffer(found.offsets, np.int64)
                ranges.add(QueueIncarnation(vhost, found.queue, found.epoch), offsets, np.ones_like(offsets))
        read |= due
        due = _due(times, read)
    totals: defaultdict[str, int] = defaultdict(int)
    for incarnation, starts, ends in ranges.merged():
        totals[incarnation.queue] += int(_unmasked(masks, incarnation, starts, ends).sum())
    return [
        QueueOutcome(queue=queue, messages=count, first_ms=times[queue].min_ms, last_ms=times[queue].max_ms)
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
    found = []
    for incarnation, rows in unsettled_of(keys, file.vhost, masks, selection):
        offsets = rows.column("queue_offset").to_numpy()
        at_ms = rows.column("timestamp_ms").to_numpy()
        found.append(
            FoundRange(
                incarnation.queue,
                incarnation.epoch,
                number,
                int(at_ms.min()),
                int(at_ms.max()),
                offsets.tobytes() if _is_cut(file, selection) else b"",
            )
        )
    return found


def _due(times: dict[str, _QueueTimes], read: set[int]) -> set[int]:
    return {file for each in times.values() for file in each.due(read)}


def _is_cut(file: StoredFile, selection: Selection) -> bool:
    """Whether some of a file's records may have come after the wanted moment."""
    return selection.as_of_ms is not None and file.max_ms > selection.as_of_ms


def _parts_with_unsettled(
    files: Sequence[StoredFile], masks: Masks, selection: Selection
) -> dict[QueueIncarnation, list[tuple[int, int]]]:
    """By incarnation, the numbers of the files and of their parts with unsettled records, all of a queue at once."""
    as_of_ms = selection.as_of_ms
    wanted: defaultdict[QueueIncarnation, list[tuple[int, int]]] = defaultdict(list)
    for at, file in enumerate(files):
        if as_of_ms is not None and file.min_ms > as_of_ms:
            continue
        for number, part in enumerate(file.queues):
            if (
                part.messages
                and selection.wants(part.queue)
                and (as_of_ms is None or part.min_ms <= as_of_ms)
            ):
                wanted[QueueIncarnation(file.vhost, part.queue, part.epoch)].append((at, number))
    found: dict[QueueIncarnation, list[tuple[int, int]]] = {}
    for incarnation, parts in wanted.items():
        owners: list[int] = []
        ranges: list[tuple[int, int]] = []
        for place, (at, number) in enumerate(parts):
            mine = files[at].queues[number].ranges
            owners += [place] * len(mine)
            ranges += mine
        firsts, counts = np.array(ranges, np.int64).T
        left = np.bincount(owners, _unmasked(masks, incarnation, firsts, firsts + counts), len(parts))
        if some := [parts[place] for place in np.flatnonzero(left).tolist()]:
            found[incarnation] = some
    return found


def _unmasked(masks: Masks, incarnation: QueueIncarnation, starts: Int64s, ends: Int64s) -> Int64s:
    """Of each interval the number of offsets that a mask does not have."""
    begins, stops = masks.get(incarnation, NOTHING).intervals()
    if not len(begins):
        return ends - starts
    before = np.append(0, np.cumsum(stops - begins))

    def masked_before(offsets: Int64s) -> Int64s:
        at = np.searchsorted(begins, offsets, "right")
        inside: npt.NDArray[np.int64] = np.minimum(offsets, stops[at - 1]) - begins[at - 1]
        return np.where(at > 0, before[at - 1] + inside, 0)

    return ends - starts - (masked_before(ends) - masked_before(starts))

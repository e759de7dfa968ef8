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
import numpy.typing as npt

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.recovery_plan import QueueOutcome
from leveret.pipeline.archive.settled_offsets import NOTHING, Int64s, Masks, QueueIncarnation, SettledRanges
from leveret.pipeline.archive.tables import RESTORE
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import EVERYTHING, Selection
from leveret.pipeline.recovery.unsettled import keys_of, unsettled_of

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


UnsettledParts = dict[QueueIncarnation, list[tuple[int, int]]]
"""By incarnation, the numbers of the files with unsettled records, and of its parts in them."""


class _QueueTimes:
    """The times of a queue's unsettled messages, as far as they were read, and the bounds in files that were not."""

    def __init__(self) -> None:
        self.oldest: list[tuple[int, int]] = []
        """Of each file, the time before which it has no message of the queue, and its number."""
        self.newest: list[tuple[int, int]] = []
        self.min_ms, self.max_ms = _NO_TIME, -1
        self._is_known = False

    def note(self, found: FoundRange) -> None:
        self.min_ms, self.max_ms = min(self.min_ms, found.min_ms), max(self.max_ms, found.max_ms)

    def due(self, read: set[int]) -> set[int]:
        """The files to read next for the times of this queue; none if both are known."""
        if self._is_known:
            return set()
        none = -1
        oldest_ms, oldest = min(
            (each for each in self.oldest if each[1] not in read), default=(_NO_TIME, none)
        )
        newest_ms, newest = max((each for each in self.newest if each[1] not in read), default=(-1, none))
        found = {oldest} if oldest_ms < self.min_ms else set()
        if newest_ms > self.max_ms:
            found.add(newest)
        self._is_known = not found
        return found


def with_unsettled(
    files: Sequence[StoredFile], masks: Masks, selection: Selection = EVERYTHING
) -> list[StoredFile]:
    """The files of a vhost with unsettled messages, in their order; seldom one without any."""
    return files_of(files, unsettled_parts(files, masks, selection))


def files_of(files: Sequence[StoredFile], parts: UnsettledParts) -> list[StoredFile]:
    """The files with these parts, in their order."""
    return [files[at] for at in sorted({at for some in parts.values() for at, _ in some})]


def count_unsettled(
    files: Sequence[StoredFile],
    parts: UnsettledParts,
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
    times: defaultdict[str, _QueueTimes] = defaultdict(_QueueTimes)
    ranges = SettledRanges()
    cut = {at for at, file in enumerate(files) if _is_cut(file, selection)}
    first: set[int] = set()
    for incarnation, some in parts.items():
        whole = [(at, files[at].queues[number]) for at, number in some if at not in cut]
        first.update(at for at, _ in some if at in cut)
        if whole:
            times[incarnation.queue].oldest += [(part.min_ms, at) for at, part in whole]
            times[incarnation.queue].newest += [(part.max_ms, at) for at, part in whole]
            ranges.add(
                incarnation, *np.array([each for _, part in whole for each in part.ranges], np.int64).T
            )
    for found in _read_as_needed(times, first, read_files):
        offsets = np.frombuffer(found.offsets, np.int64)
        ranges.add(QueueIncarnation(files[0].vhost, found.queue, found.epoch), offsets, np.ones_like(offsets))
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


def _read_as_needed(
    times: defaultdict[str, _QueueTimes], first: set[int], read_files: ReadFiles
) -> Iterator[FoundRange]:
    """Read the `first` files, and then others until all times are known; yield what is in the `first` ones."""
    read: set[int] = set()
    due = first | _due(times, read)
    while due:
        for found in read_files(sorted(due)):
            times[found.queue].note(found)
            if found.file in first:
                yield found
        read |= due
        due = _due(times, read)


def _due(times: dict[str, _QueueTimes], read: set[int]) -> set[int]:
    return {file for each in times.values() for file in each.due(read)}


def _is_cut(file: StoredFile, selection: Selection) -> bool:
    """Whether some of a file's records may have come after the wanted moment."""
    return selection.as_of_ms is not None and file.max_ms > selection.as_of_ms


def unsettled_parts(files: Sequence[StoredFile], masks: Masks, selection: Selection) -> UnsettledParts:
    """The parts of a vhost's files with unsettled records; the ranges of an incarnation are looked at together."""
    as_of_ms = selection.as_of_ms
    wanted: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for at, file in enumerate(files):
        if as_of_ms is not None and file.min_ms > as_of_ms:
            continue
        for number, part in enumerate(file.queues):
            if (
                part.messages
                and selection.wants(part.queue)
                and (as_of_ms is None or part.min_ms <= as_of_ms)
            ):
                wanted[part.queue, part.epoch].append((at, number))
    found: UnsettledParts = {}
    for (queue, epoch), parts in wanted.items():
        incarnation = QueueIncarnation(files[0].vhost, queue, epoch)
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

"""Records that an upstream collected twice, as it may after a crash: the manifest names their files.

Everything that counts or lists messages leaves out the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from leveret.pipeline.archive.manifest import QueuePart, StoredFile
from leveret.pipeline.archive.settled_offsets import NOTHING, Masks, QueueIncarnation, SettledRanges


def collected_again(files: Sequence[StoredFile]) -> dict[str, Masks]:
    """By path, for files with repeated messages, the masks of the offsets that earlier files, or the file itself, have.

    Only queues with repeated messages are in it; almost always there is none.
    """
    doubled = _doubled(files)
    if not doubled:
        return {}
    before = SettledRanges()
    found: dict[str, Masks] = {}
    for file in files:
        mine = [(incarnation, part) for incarnation, part in parts_of([file]) if incarnation in doubled]
        if mine:
            masks = before.masks()
            found[file.path] = {incarnation: masks.get(incarnation, NOTHING) for incarnation, _ in mine}
        for incarnation, part in mine:
            before.add(incarnation, *zip(*part.ranges, strict=True))
    return found


def _doubled(files: Sequence[StoredFile]) -> set[QueueIncarnation]:
    """The queues with repeated records: records that do not follow the earlier ones are looked at exactly."""
    ends: dict[QueueIncarnation, int] = {}
    doubtful: set[QueueIncarnation] = set()
    for incarnation, part in parts_of(files):
        end = ends.get(incarnation, 0)
        for first, count in part.ranges:
            if first < end:
                doubtful.add(incarnation)
            end = max(end, first + count)
        ends[incarnation] = end
    ranges = SettledRanges()
    records: Counter[QueueIncarnation] = Counter()
    for incarnation, part in parts_of(files) if doubtful else ():
        if incarnation in doubtful:
            ranges.add(incarnation, *zip(*part.ranges, strict=True))
            records[incarnation] += sum(count for _, count in part.ranges)
    return {
        incarnation
        for incarnation, starts, stops in ranges.merged()
        if int((stops - starts).sum()) < records[incarnation]
    }


def parts_of(files: Iterable[StoredFile]) -> Iterator[tuple[QueueIncarnation, QueuePart]]:
    """The parts of files that have records, each with the incarnation of its queue."""
    for file in files:
        for part in file.queues:
            if part.ranges:
                yield QueueIncarnation(file.vhost, part.queue, part.epoch), part

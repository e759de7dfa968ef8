"""Records that an upstream collected twice, as it may after a crash: the manifest names their files.

Everything that counts or lists messages leaves out the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from leveret.pipeline.archive.manifest import QueuePart, StoredFile
from leveret.pipeline.archive.settled_offsets import NOTHING, Mask, QueueIncarnation, SettledRanges

Masks = dict[QueueIncarnation, Mask]


def collected_again(files: Sequence[StoredFile]) -> dict[str, Masks]:
    """By path, for files with repeated messages, the masks of the offsets that earlier files, or the file itself, have.

    Only queues with repeated messages are in it; almost always there is none.
    """
    ranges = SettledRanges()
    records: Counter[QueueIncarnation] = Counter()
    for incarnation, part in parts_of(files):
        ranges.add(incarnation, *zip(*part.ranges, strict=True))
        records[incarnation] += sum(count for _, count in part.ranges)
    doubled = {
        incarnation
        for incarnation, starts, ends in ranges.merged()
        if int((ends - starts).sum()) < records[incarnation]
    }
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


def parts_of(files: Iterable[StoredFile]) -> Iterator[tuple[QueueIncarnation, QueuePart]]:
    """The parts of files that have records, each with the incarnation of its queue."""
    for file in files:
        for part in file.queues:
            if part.ranges:
                yield QueueIncarnation(file.vhost, part.queue, part.epoch), part

"""The parts of a vhost's files by columns: an archive of 10,000 queues has a million of them, or more.

A part is what one file has of one queue (`manifest.QueuePart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from leveret.pipeline.archive.manifest import StoredFile
from leveret.pipeline.archive.settled_offsets import Bools, Int64s, QueueIncarnation

Indices: TypeAlias = npt.NDArray[np.intp]


class PartColumns(NamedTuple):
    """Parts in the order of their incarnations, and of their files; each column has one value a part, or a range.

    Attributes:
        incarnations: the incarnations, by number.
        incarnation_of: the number of each part's incarnation.
        files: the number of each part's file.
        min_ms, max_ms: the times of each part's oldest and newest chunk.
        owners: the part of each range; those of a part are side by side.
        firsts, ends: the begin and the end of the offsets of each range.
    """

    incarnations: list[QueueIncarnation]
    incarnation_of: Int64s
    files: Int64s
    min_ms: Int64s
    max_ms: Int64s
    owners: Int64s
    firsts: Int64s
    ends: Int64s

    def only(self, kept: Bools) -> PartColumns:
        """Those parts for which `kept` is true."""
        return self._at(np.flatnonzero(kept))

    def ranges_by_incarnation(self) -> Iterator[tuple[QueueIncarnation, slice]]:
        """Yield the place of the ranges of each incarnation that has some."""
        incarnation_of = self.incarnation_of[self.owners]
        if not len(incarnation_of):
            return
        begins = np.flatnonzero(np.diff(incarnation_of, prepend=-1))
        ends = np.append(begins[1:], len(incarnation_of))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield self.incarnations[incarnation_of[begin]], slice(begin, end)

    def _at(self, places: Indices) -> PartColumns:
        """The parts at these places, in their order."""
        sizes = np.bincount(self.owners, minlength=len(self.files))
        begins = np.cumsum(sizes) - sizes
        kept = sizes[places]
        # The ranges of each part follow those of the part before it.
        ranges = np.repeat(begins[places] - (np.cumsum(kept) - kept), kept) + np.arange(kept.sum())
        return PartColumns(
            self.incarnations,
            self.incarnation_of[places],
            self.files[places],
            self.min_ms[places],
            self.max_ms[places],
            np.repeat(np.arange(len(places)), kept),
            self.firsts[ranges],
            self.ends[ranges],
        )


def columns_of(files: Sequence[StoredFile]) -> PartColumns:
    """The parts of a vhost's files that have messages."""
    vhost = files[0].vhost if files else ""
    by_file = [[part for part in file.queues if part.messages] for file in files]
    parts = list(chain.from_iterable(by_file))
    numbers: dict[tuple[str, int], int] = {}
    number_of = numbers.setdefault
    incarnation_of = np.array([number_of((part.queue, part.epoch), len(numbers)) for part in parts], np.int64)
    ranges = [part.ranges for part in parts]
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(ranges)), np.int64).reshape(-1, 2)
    columns = PartColumns(
        [QueueIncarnation(vhost, queue, epoch) for queue, epoch in numbers],
        incarnation_of,
        _owners(by_file),
        np.array([part.min_ms for part in parts], np.int64),
        np.array([part.max_ms for part in parts], np.int64),
        _owners(ranges),
        flat[:, 0],
        flat[:, 0] + flat[:, 1],
    )
    return columns._at(np.argsort(incarnation_of, kind="stable"))


def _owners(groups: Sequence[Sequence[object]]) -> Int64s:
    """The number of the group of each of all members."""
    sizes = np.fromiter(map(len, groups), np.int64, len(groups))
    return np.repeat(np.arange(len(groups)), sizes)

"""The settled offsets of a queue: intervals while they are few, one bit an offset when they are many.

A `Mask` answers for numpy arrays of offsets at once. Intervals grow with the disorder of the acks, bits with the
length of the queue; each mask takes the smaller form, so a billion random acks cost 125 MB and a queue acked in
order costs sixteen octets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.pipeline.archive.tables import dictionary

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_INTERVAL_BITS: Final = 128
_SMALL: Final = 1 << 16
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""The number of ones in each octet."""
_OF_RANGES: Final = ["queue", "queue_epoch", "first", "count"]


class QueueIncarnation(NamedTuple):
    """One incarnation of a queue: its name may come again with another epoch."""

    vhost: str
    queue: str
    epoch: int


class Mask:
    """A set of offsets."""

    def __init__(self, firsts: Int64s, counts: Int64s) -> None:
        """Take ranges in any order; they may overlap and repeat."""
        starts, ends = _merged(firsts, firsts + counts)
        self._bits: npt.NDArray[np.uint8] | None = None
        if len(starts) and len(starts) * _INTERVAL_BITS > ends[-1] - starts[0]:
            self._bits = _packed(starts, ends)
            starts, ends = starts[:1], ends[-1:]
        self._starts = starts
        self._ends = ends

    def contains(self, offsets: Int64s) -> Bools:
        """Whether each of `offsets` is in the set."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.bool_)
        found = np.searchsorted(self._starts, offsets, "right") - 1
        inside: Bools = (found >= 0) & (offsets < self._ends[found])
        return inside if self._bits is None else self._bit_is_set(self._bits, inside, offsets)

    def covers(self, first: int, count: int) -> bool:
        """Whether all of a range is in the set."""
        if self._bits is not None:
            return bool(self.contains(np.arange(first, first + count)).all())
        found = int(np.searchsorted(self._starts, first, "right")) - 1
        return found >= 0 and first + count <= int(self._ends[found])

    def count_below(self, offsets: Int64s) -> Int64s:
        """Of each of `offsets` the number of offsets of the set that are below it."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.int64)
        if self._bits is None:
            before = np.append(0, np.cumsum(self._ends - self._starts))
            found = np.searchsorted(self._starts, offsets, "right") - 1
            inside: Int64s = np.minimum(offsets, self._ends[found]) - self._starts[found]
            return np.where(found >= 0, before[found] + inside, 0)
        places = np.clip(offsets - self._starts[0], 0, self._ends[0] - self._starts[0])
        before = np.append(0, np.cumsum(_ONES[self._bits], dtype=np.int64))
        octets, lower_bits = places >> 3, (1 << (places & 7)) - 1
        counted: Int64s = before[octets] + _ONES[np.append(self._bits, 0)[octets] & lower_bits]
        return counted

    def intervals(self) -> tuple[Int64s, Int64s]:
        """The starts and ends of disjoint intervals with all offsets of the set, in order."""
        if self._bits is None:
            return self._starts, self._ends
        size = int(self._ends[0] - self._starts[0])
        bits = np.unpackbits(self._bits, count=size, bitorder="little").view(np.int8)
        steps = np.diff(bits, prepend=np.int8(0), append=np.int8(0))
        base = self._starts[0]
        return base + np.flatnonzero(steps == 1), base + np.flatnonzero(steps == -1)

    def _bit_is_set(self, bits: npt.NDArray[np.uint8], inside: Bools, offsets: Int64s) -> Bools:
        places = np.where(inside, offsets - self._starts[0], 0)
        is_set: Bools = (bits[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)
        return inside & is_set


Masks: TypeAlias = dict[QueueIncarnation, Mask]


class SettledRanges:
    """Collects ranges of many queues, and makes masks of them."""

    def __init__(self) -> None:
        self._firsts: defaultdict[QueueIncarnation, list[Int64s]] = defaultdict(list)
        self._counts: defaultdict[QueueIncarnation, list[Int64s]] = defaultdict(list)
        self._tables: defaultdict[str, list[pa.Table]] = defaultdict(list)
        """By vhost, settlements that are not grouped by queue yet: all at once take a fraction of the time."""

    def add(
        self, incarnation: QueueIncarnation, firsts: Iterable[int] | Int64s, counts: Iterable[int] | Int64s
    ) -> None:
        """Add ranges of one queue."""
        self._firsts[incarnation].append(np.asarray(firsts, np.int64))
        self._counts[incarnation].append(np.asarray(counts, np.int64))

    def add_settlements(self, vhost: str, settlements: pa.Table) -> None:
        """Add a sidecar (decode.SETTLEMENTS)."""
        self._tables[vhost].append(settlements.select(_OF_RANGES))

    def merged(self) -> Iterator[tuple[QueueIncarnation, Int64s, Int64s]]:
        """Yield, for each queue with ranges, the starts and ends of disjoint intervals, in order."""
        self._group()
        for incarnation, firsts in self._firsts.items():
            starts = np.concatenate(firsts)
            yield incarnation, *_merged(starts, starts + np.concatenate(self._counts[incarnation]))

    def masks(self) -> Masks:
        """A mask for each queue with ranges."""
        self._group()
        return {
            incarnation: Mask(np.concatenate(firsts), np.concatenate(self._counts[incarnation]))
            for incarnation, firsts in self._firsts.items()
        }

    def _group(self) -> None:
        """Group all added tables by queue."""
        for vhost, tables in self._tables.items():
            settlements = pa.concat_tables(tables, promote_options="permissive")
            firsts = settlements.column("first").to_numpy()
            counts = settlements.column("count").to_numpy()
            for incarnation, rows in rows_by_incarnation(vhost, settlements):
                self.add(incarnation, firsts[rows], counts[rows])
        self._tables.clear()


def rows_by_incarnation(vhost: str, table: pa.Table) -> Iterator[tuple[QueueIncarnation, Int64s]]:
    """Group the rows of a table with columns `queue` (a dictionary) and `queue_epoch`; keeps the order."""
    if not table.num_rows:
        return
    queue = dictionary(table.column("queue"))
    names = queue.dictionary.to_pylist()
    indices = queue.indices.to_numpy()
    epochs = table.column("queue_epoch").to_numpy()
    if np.all(indices == indices[0]) and np.all(epochs == epochs[0]):
        yield QueueIncarnation(vhost, names[indices[0]], int(epochs[0])), np.arange(len(indices))
        return
    # A sort of small numbers takes a twentieth of the time, and mostly leaves the epochs in order, too.
    order = np.argsort(indices.astype(np.uint16) if len(names) <= _SMALL else indices, kind="stable")
    same = np.diff(indices[order]) == 0
    if np.any(same & (np.diff(epochs[order]) < 0)):
        order = np.lexsort((epochs, indices))
    changes = np.flatnonzero(np.diff(indices[order]) | np.diff(epochs[order])) + 1
    for rows in np.split(order, changes):
        yield QueueIncarnation(vhost, names[indices[rows[0]]], int(epochs[rows[0]])), rows


def _merged(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Disjoint intervals, none adjacent to the next, in order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    if not len(starts):
        return starts, ends
    begins = np.append(True, starts[1:] > ends[:-1])
    lasts = np.append(np.flatnonzero(begins)[1:] - 1, len(ends) - 1)
    return starts[begins], ends[lasts]


def _packed(starts: Int64s, ends: Int64s) -> npt.NDArray[np.uint8]:
    """One bit an offset from the first start on, lowest bit first."""
    base = starts[0]
    steps = np.zeros(int(ends[-1] - base) + 1, np.int8)
    steps[starts - base] = 1
    steps[ends - base] = -1
    return np.packbits(np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_), bitorder="little")


NOTHING: Final = Mask(np.empty(0, np.int64), np.empty(0, np.int64))

"""The state of messages: pending, or settled, when and why.

The first settlement of an offset in the order of the log is the one that took the message away; later ones, such as
that of all offsets at a queue's end, found it gone. The reason and the time of settlements that a compaction merged
are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.model.reasons import Reason
from leveret.pipeline.archive.decode import NO_MESSAGE, UNKNOWN
from leveret.pipeline.archive.settled_offsets import Int64s, Mask, QueueIncarnation, rows_by_incarnation
from leveret.pipeline.table.columns import MESSAGES, PENDING, SETTLED

_NAMES: Final = pa.array([reason.name.lower() for reason in Reason])
_PENDING: Final = -1


class SettlementsOfQueue(NamedTuple):
    """Settled ranges of one incarnation of a queue, in the order of the log."""

    firsts: Int64s
    counts: Int64s
    reasons: npt.NDArray[np.uint8]
    times: Int64s

    def at(self, places: Int64s) -> SettlementsOfQueue:
        """Those at these places."""
        firsts, counts, reasons, times = self
        return SettlementsOfQueue(firsts[places], counts[places], reasons[places], times[places])

    def states(self, offsets: Int64s) -> tuple[npt.NDArray[np.int16], Int64s]:
        """The reason (-1: pending) and the time in ms (0: unknown) of each of these offsets, in any order."""
        order = np.argsort(offsets, kind="stable")
        owners = np.full(len(offsets), -1, np.int64)
        begins = np.searchsorted(offsets[order], self.firsts)
        ends = np.searchsorted(offsets[order], self.firsts + self.counts)
        hits = np.flatnonzero(ends > begins)
        for at in reversed(hits.tolist()):
            # The first one stays.
            owners[begins[at] : ends[at]] = at
        reasons = np.full(len(offsets), _PENDING, np.int16)
        times = np.zeros(len(offsets), np.int64)
        is_settled = owners >= 0
        reasons[order[is_settled]] = self.reasons[owners[is_settled]]
        times[order[is_settled]] = self.times[owners[is_settled]]
        return reasons, times


_NOTHING: Final = SettlementsOfQueue(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64)
)


class KnownSettlements:
    """The settlements of the queues of some files."""

    def __init__(self, wanted: Iterable[QueueIncarnation]) -> None:
        """Keep those of these incarnations."""
        self._found: dict[QueueIncarnation, list[SettlementsOfQueue]] = {each: [] for each in wanted}
        self._ordered: dict[QueueIncarnation, SettlementsOfQueue] = {}
        self._masks: dict[QueueIncarnation, Mask] = {}

    def add(self, vhost: str, settlements: pa.Table) -> None:
        """Add the settlements of the next file of a vhost's log, after decode.SETTLEMENTS."""
        all_of_file = SettlementsOfQueue(
            *(settlements.column(name).to_numpy() for name in ("first", "count", "reason", "timestamp_ms"))
        )
        for incarnation, rows in rows_by_incarnation(vhost, settlements):
            if incarnation in self._found:
                self._found[incarnation].append(all_of_file.at(rows))

    def of(self, incarnation: QueueIncarnation) -> SettlementsOfQueue:
        """The settlements of one incarnation, once all files are added."""
        if incarnation not in self._ordered:
            self._ordered[incarnation] = _in_order(self._found[incarnation])
        return self._ordered[incarnation]

    def covers(self, incarnation: QueueIncarnation, ranges: Iterable[tuple[int, int]]) -> bool:
        """Whether all of these ranges (first, count) are settled, records that are no messages among them."""
        if incarnation not in self._masks:
            found = _together(self._found[incarnation])
            self._masks[incarnation] = Mask(found.firsts, found.counts)
        return all(self._masks[incarnation].covers(first, count) for first, count in ranges)


def _in_order(found: list[SettlementsOfQueue]) -> SettlementsOfQueue:
    """Settlements of messages by their files and, within a file, by time."""
    ordered = []
    for each in found:
        order = np.argsort(each.times, kind="stable")
        ordered.append(each.at(order[each.reasons[order] != NO_MESSAGE]))
    return _together(ordered)


def _together(found: list[SettlementsOfQueue]) -> SettlementsOfQueue:
    return SettlementsOfQueue(*map(np.concatenate, zip(_NOTHING, *found, strict=True)))


def state_columns(reasons: npt.NDArray[np.int16], times: Int64s) -> dict[str, pa.Array]:
    """The columns of the state of messages."""
    is_pending = reasons == _PENDING
    is_nameless = is_pending | (reasons == UNKNOWN) | (reasons >= len(_NAMES))
    names = pa.array(np.where(is_nameless, 0, reasons).astype(np.int32), mask=is_nameless)
    at = pa.array(times * 1000, pa.int64(), mask=is_pending | (times == 0))
    return {
        "state": pa.array([SETTLED, PENDING]).take(pa.array(is_pending.astype(np.int32))),
        "settled_at": at.cast(MESSAGES.field("settled_at").type),
        "settled_reason": _NAMES.take(names),
    }


def are_in(state: str, reasons: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Which of these messages are in a state; any, if none is named."""
    if not state:
        return np.ones(len(reasons), np.bool_)
    is_pending: npt.NDArray[np.bool_] = reasons == _PENDING
    return is_pending if state == PENDING else ~is_pending

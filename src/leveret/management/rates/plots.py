"""The numbers that the console plots: rates and lengths from the sums of virtual hosts, and others of the node. Pure.

Moments before the first sample, and gaps in which no sample was taken, have no row: nothing is known of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from leveret.management.rates.history import Values

OWN: Final = (
    "disk_free",
    "longest_step_ms",
    "logs_bytes",
    "archive_bytes",
    "lag_ms",
    "lag_records",
)
"""What the node measures for plots alone; `UNKNOWN` where it does not know a value."""
NAMES: Final = ("publish_rate", "deliver_rate", "messages", *OWN)
UNKNOWN: Final = -1

Row = list[float | None]


class PastCounts(Protocol):
    """A history of counts."""

    def at(self, time_ms: int) -> Values:
        """The counts at a moment."""


class SummedColumns(NamedTuple):
    """Where the sums of virtual hosts have what is plotted."""

    messages: int
    publish: int
    deliver_get: int


class Gap(NamedTuple):
    """No sample was taken after `from_ms` and before `to_ms`."""

    from_ms: int
    to_ms: int


def plot_rows(
    sums: PastCounts, columns: SummedColumns, own: PastCounts, times: Sequence[int], gaps: Sequence[Gap]
) -> list[Row]:
    """A row for each moment: at_ms, then values in the order of `NAMES`; None for what is not known.

    A rate is that since the moment before; across a gap, and where counts began anew, there is none.
    """
    rows: list[Row] = []
    before: tuple[int, Values] | None = None
    for time_ms in times:
        if any(gap.from_ms < time_ms < gap.to_ms for gap in gaps):
            before = None
            continue
        now = sums.at(time_ms)
        rates = [_rate(before, (time_ms, now), at) for at in (columns.publish, columns.deliver_get)]
        known = [None if value == UNKNOWN else value for value in own.at(time_ms)]
        rows.append([time_ms, *rates, now[columns.messages], *known])
        before = time_ms, now
    return rows


def _rate(before: tuple[int, Values] | None, now: tuple[int, Values], at: int) -> float | None:
    if before is None or now[1][at] < before[1][at]:
        return None
    return (now[1][at] - before[1][at]) * 1000 / (now[0] - before[0])

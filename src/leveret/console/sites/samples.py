"""The numbers that plots are drawn from: an hour in full and a day in coarser steps, in bounded memory. Pure.

A number is kept at the moment at which it was heard. Where nothing was heard there is no sample, so a plot has a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from leveret.console.sites.facts import SiteFacts

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_FINE_MS: Final = 5_000
_COARSE_MS: Final = 120_000
NAMES: Final = ("publish_rate", "deliver_rate", "messages", "lag_s", "lag_messages", "disk_free")


class Sample(NamedTuple):
    """Values in the order of `NAMES`; None for what is not known."""

    at_ms: int
    values: tuple[float | None, ...]


class _Ring:
    """Samples at least `step_ms` apart, for `span_ms`."""

    def __init__(self, span_ms: int, step_ms: int) -> None:
        self.step_ms = step_ms
        self.rows: deque[Sample] = deque(maxlen=span_ms // step_ms + 1)

    def add(self, sample: Sample) -> None:
        """Keep it, unless the last one is as good as it."""
        if not self.rows or sample.at_ms - self.rows[-1].at_ms >= self.step_ms:
            self.rows.append(sample)


class Samples:
    """Of one site."""

    def __init__(self) -> None:
        """None yet."""
        self._hour = _Ring(HOUR_MS, _FINE_MS)
        self._day = _Ring(DAY_MS, _COARSE_MS)

    def add(self, facts: SiteFacts, now_ms: int) -> None:
        """Keep what was just heard."""
        sample = Sample(now_ms, values_of(facts))
        self._hour.add(sample)
        self._day.add(sample)

    def series(self, *, day: bool, now_ms: int) -> dict[str, Any]:
        """`step_ms`, and by name a list of runs; a run is a list of [at_ms, value] without a gap inside."""
        ring = self._day if day else self._hour
        since_ms = now_ms - (DAY_MS if day else HOUR_MS)
        rows = [row for row in ring.rows if row.at_ms >= since_ms]
        return {
            "step_ms": ring.step_ms,
            "series": {name: runs(rows, at, 3 * ring.step_ms) for at, name in enumerate(NAMES)},
        }


def runs(rows: Iterable[Sample], at: int, gap_ms: int) -> list[list[tuple[int, float]]]:
    """The values at one place of the samples; a new run begins where one is not known or was not heard for long."""
    found: list[list[tuple[int, float]]] = []
    last_ms: int | None = None
    for row in rows:
        value = row.values[at]
        if value is None:
            last_ms = None
            continue
        if last_ms is None or row.at_ms - last_ms > gap_ms:
            found.append([])
        found[-1].append((row.at_ms, value))
        last_ms = row.at_ms
    return found


def values_of(facts: SiteFacts) -> tuple[float | None, ...]:
    """What one moment is, in the order of `NAMES`."""
    lags_s = [row.lag_ms / 1000 for row in facts.standby.vhosts if row.lag_ms is not None]
    records = [row.lag_records for row in facts.standby.vhosts]
    if facts.replication.leader is not None and facts.replication.leader.lag_s is not None:
        lags_s.append(facts.replication.leader.lag_s)
        records.append(facts.replication.leader.lag_records or 0)
    free = [node.disk_free for node in facts.nodes if node.disk_free is not None]
    stats = facts.overview.message_stats
    return (
        _rate(stats, "publish"),
        _rate(stats, "deliver_get"),
        _number(facts.overview.queue_totals.get("messages")),
        max(lags_s, default=None),
        float(max(records)) if records else None,
        float(min(free)) if free else None,
    )


def _rate(stats: dict[str, Any], name: str) -> float | None:
    details = stats.get(f"{name}_details")
    if isinstance(details, dict):
        return _number(details.get("rate"))
    # A node that never carried a message has no rate of it.
    return 0.0 if name not in stats else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

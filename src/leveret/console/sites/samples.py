"""The numbers in plots: the last hour and the last day of a site, in bounded memory. Pure.

Nodes store these numbers themselves, so a plot reaches back to before the log-in, and a short silence leaves no gap.
The console stores the numbers, too, so the plots of a lost site end, and stay. For a site without a history of its own
(RabbitMQ, an older node), the console stores the numbers of each answer. A moment with no known number has no sample,
so the plot has a gap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from leveret.console.sites.documents import PlotsDocument
from leveret.console.sites.facts import SiteFacts

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_FINE_MS: Final = 5_000
_COARSE_MS: Final = 120_000
_JITTER_MS: Final = 500
_NUMBER_MAX: Final = 2**63
"""A larger number than any that is counted; a site that reports one is not taken at its word."""
NAMES: Final = (
    "publish_rate", "deliver_rate", "messages", "lag_s", "lag_messages", "disk_free", "logs_bytes", "archive_bytes",
    "longest_step_ms",
)  # fmt: skip
PAST: Final = ((600, 5), (3600, 60), (86_400, 1800))
"""The first requests to a node: age and step in seconds, the finest first."""
_THEIRS: Final = {"lag_s": "lag_ms", "lag_messages": "lag_records"}
_SMALLEST: Final = frozenset({"disk_free"})
_LARGEST: Final = frozenset({"lag_s", "lag_messages", "longest_step_ms"})
"""The names whose smallest or largest value counts among the nodes of a cluster; the other values are added."""


class Sample(NamedTuple):
    """Values in the order of `NAMES`, None for an unknown one; `span_ms` is the planned distance to the next sample."""

    at_ms: int
    values: tuple[float | None, ...]
    span_ms: int = _FINE_MS


class _Ring:
    """Samples at least `step_ms` apart, for `span_ms`, oldest first."""

    def __init__(self, span_ms: int, step_ms: int) -> None:
        self.step_ms = step_ms
        self._rows_max = span_ms // step_ms + 1
        self.rows: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add a sample, unless a stored one is less than `step_ms` away."""
        at = bisect_left(self.rows, sample.at_ms, key=attrgetter("at_ms"))
        near = self.rows[max(0, at - 1) : at + 1]
        if any(abs(each.at_ms - sample.at_ms) < self.step_ms - _JITTER_MS for each in near):
            return
        insort(self.rows, sample, key=attrgetter("at_ms"))
        del self.rows[: -self._rows_max]


class Samples:
    """The samples of one site."""

    def __init__(self) -> None:
        """Begin without samples."""
        self._hour = _Ring(HOUR_MS, _FINE_MS)
        self._day = _Ring(DAY_MS, _COARSE_MS)

    def add(self, facts: SiteFacts, now_ms: int) -> None:
        """Store the numbers of the last answers."""
        if facts.plots is None:
            self._keep(Sample(now_ms, values_of(facts)))
        else:
            self.take(facts.plots, _FINE_MS)

    def take(self, document: PlotsDocument, step_ms: int) -> None:
        """Store the numbers from the nodes' history, `step_ms` apart."""
        for sample in samples_of(document, step_ms):
            self._keep(sample)

    def _keep(self, sample: Sample) -> None:
        self._hour.add(sample)
        self._day.add(sample._replace(span_ms=max(sample.span_ms, _COARSE_MS)))

    def series(self, *, day: bool, now_ms: int) -> dict[str, Any]:
        """Return `step_ms`, and by name a list of runs; a run is a list of [at_ms, value] without a gap inside."""
        ring = self._day if day else self._hour
        since_ms = now_ms - (DAY_MS if day else HOUR_MS)
        rows = [row for row in ring.rows if row.at_ms >= since_ms]
        return {
            "step_ms": ring.step_ms,
            "series": {name: runs(rows, at) for at, name in enumerate(NAMES)},
        }


def runs(rows: Iterable[Sample], at: int) -> list[list[tuple[int, float]]]:
    """Return the values at index `at` of the samples, in runs; a run ends at an unknown value or a long distance."""
    found: list[list[tuple[int, float]]] = []
    last: Sample | None = None
    for row in rows:
        value = row.values[at]
        if value is None:
            last = None
            continue
        if last is None or row.at_ms - last.at_ms > 3 * max(row.span_ms, last.span_ms):
            found.append([])
        found[-1].append((row.at_ms, value))
        last = row
    return found


def samples_of(document: PlotsDocument, step_ms: int) -> list[Sample]:
    """Join the histories of a site's nodes into samples: a number is joined over the nodes that have it at a moment."""
    places = {name: at + 1 for at, name in enumerate(document.names)}
    by_moment: dict[int, list[Sequence[float | None]]] = {}
    for node in document.nodes:
        for row in node.rows:
            if row and row[0] is not None:
                by_moment.setdefault(int(row[0]), []).append(row)
    return [
        Sample(at_ms, tuple(_joined(name, places, rows) for name in NAMES), step_ms)
        for at_ms, rows in sorted(by_moment.items())
    ]


def _joined(name: str, places: dict[str, int], rows: Iterable[Sequence[float | None]]) -> float | None:
    at = places.get(_THEIRS.get(name, name), 0)
    values = [value for row in rows if 0 < at < len(row) and (value := _number(row[at])) is not None]
    if not values:
        return None
    join: Callable[[Iterable[float]], float] = sum
    if name in _SMALLEST or name in _LARGEST:
        join = min if name in _SMALLEST else max
    joined = join(values)
    return joined / 1000 if name == "lag_s" else joined


def values_of(facts: SiteFacts) -> tuple[float | None, ...]:
    """Return the present values of a site without a history, in the order of `NAMES`."""
    free = [node.disk_free for node in facts.nodes if node.disk_free is not None]
    stats = facts.overview.message_stats
    known = {
        "publish_rate": _rate(stats, "publish"),
        "deliver_rate": _rate(stats, "deliver_get"),
        "messages": _number(facts.overview.queue_totals.get("messages")),
        "disk_free": float(min(free)) if free else None,
    }
    return tuple(known.get(name) for name in NAMES)


def _rate(stats: dict[str, Any], name: str) -> float | None:
    details = stats.get(f"{name}_details")
    if isinstance(details, dict):
        return _number(details.get("rate"))
    # A node reports no rate before its first message.
    return 0.0 if name not in stats else None


def _number(value: object) -> float | None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not -_NUMBER_MAX < value < _NUMBER_MAX
    ):
        return None
    return float(value)

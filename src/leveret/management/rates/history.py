"""The base of rates: counts at moments, in bounded memory, and the arithmetic over them. Pure.

A row is written only when a count changed, so an idle object costs only its last values. Between two rows no count
changed: the value at any moment is that of the newest row before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from leveret.model.errors import InvalidCommand

SAMPLES_MAX: Final = 500
"""The most samples of one answer, as in RabbitMQ."""
_SECONDS_MAX: Final = 10**9
"""The longest range and the longest step: with longer ones, times are numbers that JSON's readers do not take."""

Values = tuple[int, ...]
T = TypeVar("T")


class Tier(NamedTuple):
    """Rows at least `step_ms` apart, at most `rows_max` of them; older ones go to the next tier."""

    step_ms: int
    rows_max: int


MINUTES: Final = (Tier(0, 121), Tier(60_000, 61))
"""Ten minutes in full and the hour before that in minutes, for one object."""

DAY: Final = (*MINUTES, Tier(600_000, 49), Tier(1_800_000, 49))
"""The same and a day, for the totals of the broker."""


class Range(NamedTuple):
    """The samples of an answer: those of the last `age_ms`, every `step_ms`."""

    age_ms: int
    step_ms: int

    def times(self, now_ms: int) -> range:
        """The moments of the samples, oldest first; the last one is the newest whole step."""
        last = now_ms - now_ms % self.step_ms
        return range(last - self.age_ms // self.step_ms * self.step_ms, last + 1, self.step_ms)


class SampleRanges(NamedTuple):
    """The ranges of a request, by the kind of number; None for the plain rate."""

    lengths: Range | None = None
    msg_rates: Range | None = None
    data_rates: Range | None = None
    node_stats: Range | None = None


NO_RANGES: Final = SampleRanges()


def ranges_of(parameters: Mapping[str, str]) -> SampleRanges:
    """The ranges of a request: `lengths_age` and `lengths_incr` in seconds, and so on.

    Raises:
        InvalidCommand: a range is invalid, or has too many samples.
    """
    return SampleRanges(**{kind: _range_of(kind, parameters) for kind in SampleRanges._fields})


def _range_of(kind: str, parameters: Mapping[str, str]) -> Range | None:
    try:
        age_s, step_s = int(parameters[f"{kind}_age"]), int(parameters[f"{kind}_incr"])
    except (KeyError, ValueError):
        return None
    if not (0 < age_s <= _SECONDS_MAX and 0 < step_s <= _SECONDS_MAX) or age_s // step_s > SAMPLES_MAX:
        shown = [str(number)[:20] for number in (age_s, step_s)]
        raise InvalidCommand(f"Invalid range parameters: age {shown[0]}, incr {shown[1]}")
    return Range(age_s * 1000, step_s * 1000)


class _Rows:
    """Rows of one tier, oldest first."""

    __slots__ = ("cells", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.cells = array("q")

    def row(self, index: int, width: int) -> Values:
        return tuple(self.cells[index * width : (index + 1) * width])


class RateHistory:
    """The history of one object's counts.

    Attributes:
        values: the counts at the newest tick.
        changed_ms: the tick at which they first had these values.
    """

    __slots__ = ("_rows", "changed_ms", "values")

    def __init__(self, values: Values, now_ms: int) -> None:
        """Begin with the counts at the first tick, which are no rate."""
        self.values = values
        self.changed_ms = now_ms
        self._rows: list[_Rows] = []

    def add(
        self, values: Values, now_ms: int, interval_ms: int, tiers: Sequence[Tier], rows_max: int
    ) -> None:
        """Take the counts of a tick if they changed; `rows_max` limits every tier further."""
        if values == self.values:
            return
        if not self._rows:
            self._rows = [_Rows() for _ in tiers]
            self._push(self.changed_ms, tiers, rows_max)
        if now_ms - interval_ms > self.changed_ms:
            self._push(now_ms - interval_ms, tiers, rows_max)
        self.values = values
        self.changed_ms = now_ms
        self._push(now_ms, tiers, rows_max)

    def _push(self, now_ms: int, tiers: Sequence[Tier], rows_max: int) -> None:
        width = len(self.values)
        time, cells = now_ms, array("q", self.values)
        for tier, rows in zip(tiers, self._rows, strict=True):
            if rows.times and time - rows.times[-1] < tier.step_ms:
                return
            rows.times.append(time)
            rows.cells.extend(cells)
            if len(rows.times) <= min(tier.rows_max, rows_max):
                return
            time, cells = rows.times.pop(0), rows.cells[:width]
            del rows.cells[:width]

    def rates(self, tick_ms: int) -> list[float]:
        """The changes a second between the last two ticks, of which `tick_ms` is the newest."""
        if self.changed_ms != tick_ms or not self._rows or len(self._rows[0].times) < 2:
            return [0.0] * len(self.values)
        rows = self._rows[0]
        before = rows.row(len(rows.times) - 2, len(self.values))
        span_ms = tick_ms - rows.times[-2]
        return [(new - old) * 1000 / span_ms for new, old in zip(self.values, before, strict=True)]

    def at(self, time_ms: int) -> Values:
        """The counts at a moment; 0 before the first row."""
        width = len(self.values)
        for rows in self._rows:
            index = bisect_right(rows.times, time_ms) - 1
            if index >= 0:
                return rows.row(index, width)
        if not self._rows and time_ms >= self.changed_ms:
            return self.values
        return (0,) * width


class SummedHistory:
    """Several histories as one."""

    def __init__(self, histories: Sequence[RateHistory], width: int) -> None:
        """Sum any number of histories; `width` counts each."""
        self._histories = histories
        self._width = width

    @property
    def values(self) -> Values:
        """The sums at the newest tick."""
        return self._sum([history.values for history in self._histories])

    def rates(self, tick_ms: int) -> list[float]:
        """See RateHistory."""
        return [sum(rates) for rates in self._columns([each.rates(tick_ms) for each in self._histories])]

    def at(self, time_ms: int) -> Values:
        """See RateHistory."""
        return self._sum([history.at(time_ms) for history in self._histories])

    def _sum(self, rows: Sequence[Values]) -> Values:
        return tuple(sum(column) for column in self._columns(rows))

    def _columns(self, rows: Sequence[Sequence[T]]) -> Iterable[Sequence[T]]:
        return zip(*rows, strict=True) if rows else [()] * self._width


class Block(NamedTuple):
    """Counts that are shown together, with their names, from column `start` of a history on.

    Attributes:
        under: the JSON object for them, empty for the answer itself.
        asked: the kind of a request's range for them.
        always: whether they are shown while all of them are 0.
    """

    names: tuple[str, ...]
    start: int
    under: str
    asked: str
    always: bool = False


def show(
    blocks: Sequence[Block],
    history: RateHistory | SummedHistory,
    current: Values,
    ranges: SampleRanges,
    tick_ms: int,
) -> dict[str, Any]:
    """The JSON of some blocks: each count, and `NAME_details` with its rate and, over a range, its samples."""
    rates = history.rates(tick_ms)
    shown: dict[str, Any] = {}
    for block in blocks:
        columns = slice(block.start, block.start + len(block.names))
        if not block.always and not any(current[columns]):
            continue
        wanted: Range | None = getattr(ranges, block.asked)
        target = shown.setdefault(block.under, {}) if block.under else shown
        if wanted is None:
            for name, value, rate in zip(block.names, current[columns], rates[columns], strict=True):
                target[name] = value
                target[f"{name}_details"] = {"rate": rate}
        else:
            _show_range(target, block.names, history, columns, wanted.times(tick_ms))
    return shown


def _show_range(
    target: dict[str, Any],
    names: Sequence[str],
    history: RateHistory | SummedHistory,
    columns: slice,
    times: Sequence[int],
) -> None:
    rows = [history.at(time)[columns] for time in times]
    newest_first = list(zip(reversed(times), reversed(rows), strict=True))
    for column, name in enumerate(names):
        cells = [row[column] for row in rows]
        details: dict[str, Any] = {
            "rate": 0.0,
            "samples": [{"sample": row[column], "timestamp": time} for time, row in newest_first],
        }
        if len(cells) > 1:
            details["rate"] = (cells[-1] - cells[-2]) * 1000 / (times[-1] - times[-2])
            details["avg_rate"] = (cells[-1] - cells[0]) * 1000 / (times[-1] - times[0])
            details["avg"] = sum(cells) / len(cells)
        target[name] = cells[-1]
        target[f"{name}_details"] = details

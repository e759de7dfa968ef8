"""The histories of all objects of one kind; and the sums of a virtual host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from leveret.management.rates.history import DAY, MINUTES, Block, RateHistory, SampleRanges, Values, show

ROWS_MAX: Final = 200_000
"""The most rows for all objects of a kind together: some 20 MB for queues."""
_ROWS_EACH_MIN: Final = 13
"""The least rows of each: a minute, for any number of objects."""
SLICE: Final = 50

T = TypeVar("T")


class RatedKind(Generic[T]):
    """All live objects of a kind."""

    def __init__(self, live: Callable[[], Iterable[T]], measure: Callable[[T], Values]) -> None:
        """`live` lists them, `measure` reads the counts of one."""
        self.measure = measure
        self._live = live
        self._histories: dict[T, RateHistory] = {}

    def tick(
        self,
        now_ms: int,
        interval_ms: int,
        moved: Callable[[T, list[int]], None],
        gone: Callable[[T, Values], None],
    ) -> Iterator[None]:
        """Sample all objects, in slices with other work in between.

        Args:
            now_ms: the time, later than at the tick before.
            interval_ms: the time since the tick before.
            moved: called with the differences of changed objects, and with all counts of new ones.
            gone: called with the last counts of objects that are gone.
        """
        before = self._histories
        after: dict[T, RateHistory] = {}
        things = list(self._live())
        rows_max = max(ROWS_MAX // max(len(things), 1), _ROWS_EACH_MIN)
        for count, thing in enumerate(things, 1):
            values = self.measure(thing)
            history = before.get(thing)
            if history is None:
                history = RateHistory(values, now_ms)
                moved(thing, list(values))
            elif values != history.values:
                moved(thing, [new - old for new, old in zip(values, history.values, strict=True)])
                history.add(values, now_ms, interval_ms, MINUTES, rows_max)
            after[thing] = history
            if not count % SLICE:
                yield
        self._histories = after
        for count, (thing, history) in enumerate(before.items(), 1):
            if thing not in after:
                gone(thing, history.values)
            if not count % SLICE:
                yield

    def unchanged_since_ms(self, thing: T) -> int | None:
        """The tick since which an object's counts are constant; None if they changed since the last tick."""
        history = self._histories.get(thing)
        if history is None or history.values != self.measure(thing):
            return None
        return history.changed_ms

    def show(self, thing: T, blocks: tuple[Block, ...], ranges: SampleRanges, tick_ms: int) -> dict[str, Any]:
        """The JSON of `blocks` for one object."""
        current = self.measure(thing)
        history = self._histories.get(thing) or RateHistory(current, tick_ms)
        return show(blocks, history, current, ranges, tick_ms)


class Sums:
    """The counts of a virtual host's objects, also of ones that are gone, with their history.

    Attributes:
        history: the history of the sums; None before the first sample.
    """

    def __init__(self, width: int) -> None:
        """All zero."""
        self._values = [0] * width
        self.history: RateHistory | None = None

    def add(self, start: int, differences: Iterable[int]) -> None:
        """Add to the counts from column `start` on."""
        for column, difference in enumerate(differences, start):
            self._values[column] += difference

    def tick(self, now_ms: int, interval_ms: int) -> None:
        """Sample the sums; the first sample is no rate."""
        values = tuple(self._values)
        if self.history is None:
            self.history = RateHistory(values, now_ms)
        else:
            self.history.add(values, now_ms, interval_ms, DAY, ROWS_MAX)

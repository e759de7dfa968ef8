"""All things of one kind that there are, each with its history; and the sums of a virtual host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from leveret.management.rates.history import DAY, MINUTES, Block, RateHistory, SampleRanges, Values, show

ROWS_MAX: Final = 200_000
"""Most rows kept for all things of a kind together: some 20 MB for queues."""
_ROWS_EACH_MIN: Final = 13
"""A minute, however many things there are."""
_SLICE: Final = 250

T = TypeVar("T")


class RatedKind(Generic[T]):
    """All live things of a kind; see the module."""

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
        """Sample all, in slices: between them others may work.

        Args:
            now_ms: later than at the tick before.
            interval_ms: how much later.
            moved: told of the differences of whatever changed, and of all of what is new.
            gone: told of the last counts of what is no more.
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
            if not count % _SLICE:
                yield
        self._histories = after
        for count, (thing, history) in enumerate(before.items(), 1):
            if thing not in after:
                gone(thing, history.values)
            if not count % _SLICE:
                yield

    def unchanged_since_ms(self, thing: T) -> int | None:
        """The tick since which nothing happened to one of them; None if something did since the last."""
        history = self._histories.get(thing)
        if history is None or history.values != self.measure(thing):
            return None
        return history.changed_ms

    def show(self, thing: T, blocks: tuple[Block, ...], ranges: SampleRanges, tick_ms: int) -> dict[str, Any]:
        """What `blocks` say about one of them."""
        current = self.measure(thing)
        history = self._histories.get(thing) or RateHistory(current, tick_ms)
        return show(blocks, history, current, ranges, tick_ms)


class Sums:
    """Counts of a virtual host: what its things counted, those that are gone too, and how that developed.

    Attributes:
        history: of the sums; None before the first sample.
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
        """Sample what was added; what the first sample finds is no rate."""
        values = tuple(self._values)
        if self.history is None:
            self.history = RateHistory(values, now_ms)
        else:
            self.history.add(values, now_ms, interval_ms, DAY, ROWS_MAX)

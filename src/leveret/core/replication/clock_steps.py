"""The age of what was stamped by a wall clock, though that clock was set forward since. Pure.

    steps = ClockSteps(delay_ms, wall_ms, elapsed_ms)
    steps.look(wall_ms, elapsed_ms)     # often
    steps.before_ms                     # what was stamped at this time or before is older than the delay

A wall clock that is set forward by hours makes everything look hours older. What is kept for a set time would be
removed at once, though nobody can bring it back. So each step forward, as far as the wall clock went further than a
clock that nobody sets, is subtracted from the age of what was stamped before it. A step back makes things look younger:
they are kept longer, which does no harm. It also takes back earlier steps forward, so a clock that swings keeps nothing
for ever.

Steps are remembered in memory only: the ages of what was stamped by an earlier process are those of the wall clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_STEP_MS_MIN: Final = 1_000
"""Less is the drift of clocks, or the time between the two readings."""


class _Step(NamedTuple):
    """The wall clock showed `at_ms` and was set forward by `by_ms`."""

    at_ms: int
    by_ms: int


class ClockSteps:
    """See the module.

    Attributes:
        before_ms: see the module; as of the last look.
    """

    __slots__ = ("_delay_ms", "_elapsed_ms", "_steps", "_wall_ms", "before_ms")

    def __init__(self, delay_ms: int, wall_ms: int, elapsed_ms: int) -> None:
        """Begin without a step."""
        self._delay_ms = delay_ms
        self._wall_ms = wall_ms
        self._elapsed_ms = elapsed_ms
        self._steps: list[_Step] = []
        self.before_ms = wall_ms - delay_ms

    def look(self, wall_ms: int, elapsed_ms: int) -> None:
        """Take the two clocks' present times."""
        by_ms = (wall_ms - self._wall_ms) - (elapsed_ms - self._elapsed_ms)
        if by_ms >= _STEP_MS_MIN:
            self._steps.append(_Step(wall_ms - by_ms, by_ms))
        elif by_ms <= -_STEP_MS_MIN:
            self._take_back(-by_ms)
        self._wall_ms, self._elapsed_ms = wall_ms, elapsed_ms
        self.before_ms = self._before(wall_ms - self._delay_ms)

    def _take_back(self, left_ms: int) -> None:
        while self._steps and left_ms > 0:
            at_ms, by_ms = self._steps.pop()
            if by_ms > left_ms:
                self._steps.append(_Step(at_ms, by_ms - left_ms))
            left_ms -= by_ms

    def _before(self, before_ms: int) -> int:
        """Subtract the steps, from the newest on, until one is so long ago that everything before it is due."""
        for index in reversed(range(len(self._steps))):
            at_ms, by_ms = self._steps[index]
            if before_ms - by_ms >= at_ms:
                del self._steps[: index + 1]
                break
            before_ms -= by_ms
        return before_ms

"""The age of what was stamped by a wall clock that is set meanwhile."""

from __future__ import annotations

import random

from leveret.core.replication.clock_steps import ClockSteps

DELAY_MS = 60_000
HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000


class Clocks:
    """A wall clock that is set, beside one that is not; what was stamped, by its true time."""

    def __init__(self) -> None:
        self.now_ms = self.set_by_ms = 0
        self.steps = ClockSteps(DELAY_MS, BEGIN_MS, 0)
        self.kept: list[tuple[int, int]] = []
        self.ages: list[int] = []
        """The true ages of what was removed."""

    def stamp(self) -> None:
        self.kept.append((BEGIN_MS + self.now_ms + self.set_by_ms, self.now_ms))

    def passes(self, ms: int) -> None:
        """Look each second, and remove what is due: the oldest first, as an index has them."""
        for _ in range(ms // 1000):
            self.now_ms += 1000
            self.steps.look(BEGIN_MS + self.now_ms + self.set_by_ms, self.now_ms)
            while self.kept and self.kept[0][0] <= self.steps.before_ms:
                self.ages.append(self.now_ms - self.kept.pop(0)[1])


def test_without_a_step_things_are_due_after_the_delay() -> None:
    clocks = Clocks()
    clocks.stamp()
    clocks.passes(59_000)
    assert not clocks.ages
    clocks.passes(2_000)
    assert clocks.ages == [DELAY_MS]


def test_a_step_of_hours_makes_nothing_due_before_its_time() -> None:
    clocks = Clocks()
    clocks.stamp()
    clocks.passes(10_000)
    clocks.set_by_ms = 6 * HOUR_MS
    clocks.passes(10_000)
    clocks.stamp()
    clocks.passes(200_000)
    assert clocks.ages == [DELAY_MS, DELAY_MS]


def test_a_clock_that_is_set_back_again_keeps_nothing_for_longer_than_the_step() -> None:
    clocks = Clocks()
    clocks.stamp()
    for _ in range(20):
        clocks.set_by_ms = HOUR_MS
        clocks.passes(1_000)
        clocks.set_by_ms = 0
        clocks.passes(1_000)
    assert not clocks.ages
    clocks.passes(30_000)
    assert len(clocks.ages) == 1
    assert DELAY_MS <= clocks.ages[0] <= DELAY_MS + 2_000


def test_whatever_the_clock_does_nothing_goes_early_and_all_goes() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        clocks = Clocks()
        for _ in range(60):
            clocks.stamp()
            if chance.random() < 0.2:
                clocks.set_by_ms = chance.choice((0, HOUR_MS, -HOUR_MS, 5_000, 40 * HOUR_MS))
            clocks.passes(chance.choice((1_000, 5_000, 70_000)))
        clocks.set_by_ms = 0
        clocks.passes(DELAY_MS)
        # A clock that was set back by no more than 41 hours has caught up by then.
        clocks.now_ms += 50 * HOUR_MS
        clocks.passes(DELAY_MS)
        assert not clocks.kept, seed
        assert min(clocks.ages) >= DELAY_MS, seed

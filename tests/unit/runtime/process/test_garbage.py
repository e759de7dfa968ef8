"""runtime.process.garbage: no pass of the collector visits many objects, and what refers to itself is freed at last."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret.runtime.process import garbage
from leveret.runtime.process.garbage import GROWTH_BYTES_MIN, THRESHOLDS, YOUNG_EVERY, Garbage
from leveret.runtime.process.loop_watch import LoopWatch
from leveret.testing.network.waiting import until

OBJECTS = 40_000
A_BEAT = 200
"""The number of objects that are replaced between two beats."""


@pytest.fixture
def as_in_a_node() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*before)


def most_visited(beat: Callable[[], None]) -> int:
    """Replace old objects by new ones, as a publish to all queues does; return the objects of the largest pass."""
    visited = [0]

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            visited.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    old = [[number] for number in range(OBJECTS)]
    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    try:
        for number in range(OBJECTS):
            old[number] = [number + 1]
            if number % A_BEAT == 0:
                beat()
        gc.collect(1)
    finally:
        gc.callbacks.remove(note)
    return max(visited)


@pytest.mark.usefixtures("as_in_a_node")
def test_young_objects_are_visited_while_there_are_few() -> None:
    """Each new object replaced an old one, so Python counted none; then one pass visited all of them."""
    assert most_visited(lambda: None) > OBJECTS
    assert most_visited(Garbage(lambda: 0).beat) < 3 * THRESHOLDS[0]


def test_all_objects_are_visited_when_memory_has_doubled_and_not_before() -> None:
    used, visits = [GROWTH_BYTES_MIN * 2], list[int]()

    def give_back() -> None:
        visits.append(2)
        used[0] -= 1000

    watched = Garbage(lambda: used[0], give_back=give_back)
    for size, expected in (
        (GROWTH_BYTES_MIN * 4 - 1, 0),
        (GROWTH_BYTES_MIN * 4, 1),
        (GROWTH_BYTES_MIN * 6, 1),
        (GROWTH_BYTES_MIN, 1),
        (GROWTH_BYTES_MIN * 8, 2),
    ):
        used[0] = size
        watched.check()
        assert visits == [2] * expected
    small = Garbage(lambda: used[0], give_back=give_back)
    used[0] = 1000
    small._kept_bytes = 1000
    used[0] = GROWTH_BYTES_MIN
    small.check()
    assert len(visits) == 2, "a small node may grow"


class Connection:
    """Refers to itself, as a connection may whose end left something."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("as_in_a_node")
def test_old_garbage_is_freed_once_memory_has_doubled() -> None:
    used = [0]
    watched = Garbage(lambda: used[0])
    lost = Connection()
    is_there = weakref.ref(lost)
    for _ in range(2 * YOUNG_EVERY):
        watched.beat()
    del lost
    for _ in range(10 * YOUNG_EVERY):
        watched.beat()
    assert is_there() is not None, "it was old: the young are visited without it"
    used[0] = GROWTH_BYTES_MIN
    watched.check()
    assert is_there() is None


async def test_a_watched_loop_calls_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.runtime.process.loop_watch._INTERVAL_S", 0.0)
    monkeypatch.setattr(garbage, "YOUNG_EVERY", 2)
    used, visits = [0], list[int]()

    def collect(generation: int) -> int:
        visits.append(generation)
        return 0

    watched = Garbage(lambda: used[0], collect, lambda: visits.append(2))
    task = asyncio.create_task(LoopWatch(watched).run())
    await until(lambda: 1 in visits)
    assert 2 not in visits
    used[0] = GROWTH_BYTES_MIN
    await until(lambda: 2 in visits)
    task.cancel()

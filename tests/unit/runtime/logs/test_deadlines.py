"""runtime.logs.deadlines: every queue is called in its time, once, however often it changes its mind."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.queues.queue import Queue
from leveret.runtime.logs.deadlines import DUE_AT_ONCE, Deadlines
from leveret.testing.network.waiting import until

FAR_MS = 10**400
"""No policy's time to live has an upper bound."""


class Watch:
    """A clock that a test sets, and who was called when."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.called: list[tuple[int, object]] = []
        self.deadlines = Deadlines(lambda: self.now_ms, self._due)
        self.queues = [cast(Queue, object()) for _ in range(5)]

    def _due(self, queues: list[Queue]) -> None:
        self.called += [(self.now_ms, queue) for queue in queues]

    def go_to(self, now_ms: int) -> None:
        """What the loop does when its timer is up: the timer is never later than the first deadline."""
        while self.deadlines._timer is not None and self.deadlines._timer_ms <= now_ms:
            self.now_ms = max(self.now_ms, self.deadlines._timer_ms)
            self.deadlines._ring()
        self.now_ms = now_ms


STEP = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 30))),
    st.tuples(st.just("go"), st.integers(0, 10), st.none()),
)


@settings(max_examples=200)
@given(st.lists(STEP, max_size=200))
def test_who_is_due_is_called_at_its_deadline_once_and_nobody_else_is(steps: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        watch = Watch()
        wanted: dict[object, int] = {}
        expected: list[tuple[int, object]] = []
        for what, number, after_ms in steps:
            if what == "set":
                queue = watch.queues[number]
                watch.deadlines.set(queue, None if after_ms is None else watch.now_ms + after_ms)
                wanted.pop(queue, None)
                if after_ms is not None:
                    wanted[queue] = watch.now_ms + after_ms
            else:
                watch.go_to(watch.now_ms + number)
                due = {queue: at_ms for queue, at_ms in wanted.items() if at_ms <= watch.now_ms}
                expected += [(at_ms, queue) for queue, at_ms in due.items()]
                wanted = {queue: at_ms for queue, at_ms in wanted.items() if queue not in due}
        assert sorted(watch.called, key=str) == sorted(expected, key=str)
        watch.deadlines.stop()

    asyncio.run(play())


async def test_changing_ones_mind_for_ever_takes_no_memory() -> None:
    watch = Watch()
    for at_ms in range(10_000):
        watch.deadlines.set(watch.queues[at_ms % 3], FAR_MS - at_ms)
    assert len(watch.deadlines._heap) < 100
    for queue in watch.queues:
        watch.deadlines.set(queue, None)
    assert not watch.deadlines._deadline_ms
    watch.deadlines.stop()


async def test_the_event_loop_rings_in_time_for_the_nearest_and_takes_the_farthest() -> None:
    watch = Watch()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    watch.deadlines = Deadlines(lambda: int((loop.time() - began_s) * 1000), watch._due)
    watch.deadlines.set(watch.queues[0], FAR_MS)
    watch.deadlines.set(watch.queues[1], 50)
    watch.deadlines.set(watch.queues[2], 10)
    await until(lambda: len(watch.called) == 2)
    assert [queue for _, queue in watch.called] == [watch.queues[2], watch.queues[1]]
    assert loop.time() - began_s >= 0.049
    watch.deadlines.stop()


async def test_thousands_that_are_due_together_are_not_looked_at_in_one_step() -> None:
    called: list[list[Queue]] = []
    deadlines = Deadlines(lambda: 1_000, called.append)
    queues = [cast(Queue, object()) for number in range(1_000)]
    for queue in queues:
        deadlines.set(queue, 500)
    await until(lambda: sum(map(len, called)) == len(queues))
    assert max(map(len, called)) <= DUE_AT_ONCE
    assert [queue for each in called for queue in each] == queues
    deadlines.stop()

"""Deadlines of queues: the times at which messages or queues expire without any other event.

One timer of the event loop serves all queues and is set to the earliest deadline; a heap holds the others. The clock is
one that nobody sets: after a time of day that was set back, no queue would be called for as long.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from leveret.core.queues.queue import Queue

WAIT_MS_MAX: Final = 86_400_000
"""A policy's number of milliseconds may be larger than the event loop, or any machine number, can hold."""
DUE_AT_ONCE: Final = 100
"""The most queues handled in one step of the event loop, of thousands that expire together."""


class Deadlines:
    """Calls back with the queues whose deadline has passed."""

    def __init__(self, elapsed_ms: Callable[[], int], on_due: Callable[[list[Queue]], None]) -> None:
        """Begin without deadlines."""
        self._elapsed_ms = elapsed_ms
        self._on_due = on_due
        self._deadline_ms: dict[Queue, int] = {}
        self._heap: list[tuple[int, int, Queue]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, queue: Queue, deadline_ms: int | None) -> None:
        """Set a queue's deadline; None for none."""
        if self._deadline_ms.get(queue) == deadline_ms:
            return
        if deadline_ms is None:
            self._deadline_ms.pop(queue, None)
            self._tidy()
            return
        self._deadline_ms[queue] = deadline_ms
        # Earlier entries of the queue in the heap are skipped when their time comes.
        heapq.heappush(self._heap, (deadline_ms, next(self._order), queue))
        self._tidy()
        if self._timer is None or deadline_ms < self._timer_ms:
            self._arm()

    def _tidy(self) -> None:
        """Let go of entries of earlier deadlines, and of deleted queues, once they are many."""
        if len(self._heap) > 2 * len(self._deadline_ms) + 64:
            self._heap = [(at_ms, next(self._order), held) for held, at_ms in self._deadline_ms.items()]
            heapq.heapify(self._heap)

    def stop(self) -> None:
        """Call back no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        if self._heap:
            self._timer_ms = self._heap[0][0]
            wait_ms = min(max(0, self._timer_ms - self._elapsed_ms()), WAIT_MS_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._elapsed_ms()
        due: list[Queue] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < DUE_AT_ONCE:
            deadline_ms, _, queue = heapq.heappop(self._heap)
            if self._deadline_ms.get(queue) == deadline_ms:
                del self._deadline_ms[queue]
                due.append(queue)
        self._arm()
        if due:
            self._on_due(due)

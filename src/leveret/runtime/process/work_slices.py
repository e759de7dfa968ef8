"""Long work in the event loop that also carries messages: done a slice at a time.

In each pass of the loop one slice of all such work runs, so ten long answers at once delay a message no longer than one
does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from heapq import merge
from itertools import chain, pairwise
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.004
"""The duration of a slice, after which the loop serves others."""
SORTED_AT_ONCE: Final = 1024

T = TypeVar("T")


class _Queue:
    """The tasks of one loop that wait for a slice."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next_slice(self) -> None:
        """Return in a later pass of the loop, in which no other task returns from here."""
        next_slice = self._loop.create_future()
        self._waiting.append(next_slice)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)
        await next_slice

    def _next(self) -> None:
        next_slice = self._waiting.popleft()
        if not next_slice.done():  # else its task was cancelled
            next_slice.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._next)


_queues: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


async def in_slices(items: Iterable[T], slice_s: float = SLICE_S) -> AsyncIterator[T]:
    """Yield the items one after the other; every `slice_s` the loop serves others.

    The underlying collection may change meanwhile: take a snapshot first.
    """
    until = time.perf_counter() + slice_s
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await others_first()
            until = time.perf_counter() + slice_s


async def result_of(work: Generator[object, None, T]) -> T:
    """Return the result of a piece of work that yields wherever the loop may serve others."""
    is_over = time_slice()
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: T = ended.value
            return result
        if is_over():
            await others_first()
            is_over = time_slice()


async def sorted_in_slices(items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """As `sorted`: sort parts of the list one after the other, and merge them."""
    keyed = [(key(item), number) async for number, item in in_slices(enumerate(items))]
    begins = range(0, len(keyed), SORTED_AT_ONCE)
    parts = [sorted(keyed[begin : begin + SORTED_AT_ONCE]) async for begin in in_slices(begins)]
    in_order = all(before[-1] < after[0] for before, after in pairwise(parts))
    return [items[number] async for _, number in in_slices(chain(*parts) if in_order else merge(*parts))]


def time_slice(slice_s: float = SLICE_S) -> Callable[[], bool]:
    """Return a function that tells whether `slice_s` have passed since the slice began."""
    until = time.perf_counter() + slice_s
    return lambda: time.perf_counter() >= until


async def others_first() -> None:
    """Let the loop serve others, and other long work."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue(loop)
    await queue.next_slice()


async def in_thread_to_its_end(work: Callable[..., T], *args: object) -> T:
    """Return the result of work that a thread does; the call ends after the work does, also if it is cancelled.

    For work that changes files: by then they may be those of another role of this process.
    """
    working = asyncio.get_running_loop().create_task(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        if not working.cancelled() and (error := working.exception()) is not None:
            logger.warning("cancelled_work_failed error=%s", error)
        raise

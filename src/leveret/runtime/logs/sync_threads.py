"""Threads that wait for the disk in place of the event loop.

A lone publish waits for one fdatasync of some 100 us, so the cost of the hand-over to a thread matters. A
`ThreadPoolExecutor` makes a future with a condition for each call, and counts its idle threads by a semaphore, which
adds 10 to 30 us. Here a call is one entry of a queue, and its end one callback of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

Ended: TypeAlias = Callable[[BaseException | None], None]
"""Called on the loop at the end of a call, with the exception that it raised."""

Cleanup: TypeAlias = Callable[[Any], object]
"""Called in the thread with the argument of a call after that has ended, whether it succeeded or not."""

_Call: TypeAlias = tuple[Callable[[Any], object], Any, Ended, Cleanup | None, asyncio.AbstractEventLoop]


class SyncThreads:
    """Threads for the calls of one event loop."""

    def __init__(self, count_max: int, name: str) -> None:
        """Use up to `count_max` threads; each starts when all others are busy."""
        self._count_max = count_max
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0
        self._is_closed = False

    def call(
        self,
        function: Callable[[Any], object],
        argument: Any,
        ended: Ended,
        cleanup: Cleanup | None = None,
    ) -> None:
        """Call a function in a thread, then `ended` on the loop; `cleanup` keeps nobody waiting.

        Raises:
            RuntimeError: no loop runs, the threads have ended, or the machine gives none.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise RuntimeError("the threads have ended")
        if self._busy >= len(self._threads) < self._count_max:
            thread = Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._busy += 1
        self._calls.put((function, argument, ended, cleanup, loop))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, argument, ended, cleanup, loop = call
            error: BaseException | None = None
            try:
                function(argument)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._ended, ended, error)
            except RuntimeError:
                # The loop has ended, and every waiting call with it.
                return
            finally:
                if cleanup is not None:
                    cleanup(argument)

    def _ended(self, ended: Ended, error: BaseException | None) -> None:
        self._busy -= 1
        ended(error)

    def close(self) -> None:
        """End the threads after their last calls."""
        self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

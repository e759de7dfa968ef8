"""A simulated process: all callbacks of one node run in its context, and none runs after it is killed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_current: ContextVar[SimulatedProcess | None] = ContextVar("leveret_simulated_process", default=None)


class DeathWatcher:
    """Another process, to which the kernel reports the end of a process.

    Attributes:
        is_alive: whether the watcher itself runs.
        hangs_s: the delay of its reaction to the end.
    """

    def __init__(self) -> None:
        """Begin alive, without a delay."""
        self.is_alive = True
        self.hangs_s = 0.0

    def noticed(self) -> None:
        """React to the end of the process, after its last instruction."""
        raise NotImplementedError


class SimulatedProcess:
    """One process of the simulation: a run of a node from its start to its end, or a client.

    A killed process runs no more code, not even the `finally` blocks of its coroutines, as after `kill -9`. Its
    coroutines are referenced until `discard`, because Python would run these blocks when it frees them.

    Attributes:
        name: the name of the node or client, and the host of its sockets.
        is_alive: whether its callbacks still run.
        is_paused: whether its callbacks wait, as those of a stopped process.
        clock_offset_s: the difference of its clocks from the simulation's.
        clock_rate: the speed of its clocks, 1 for the simulation's.
        disk_delay_s: the longest delay of its disk's syncs, if that is longer than the usual delay of threads.
        watchers: other processes of its machine that the kernel notifies of its end.
        children: processes that it started, which end with it.
    """

    def __init__(self, name: str) -> None:
        """Make a running process."""
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.clock_offset_s = 0.0
        self.clock_rate = 1.0
        self.disk_delay_s = 0.0
        self.watchers: list[DeathWatcher] = []
        self.children: list[SimulatedProcess] = []
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> Context:
        """Return a context whose callbacks and tasks belong to this process."""
        context = copy_context()
        context.run(_current.set, self)
        return context

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this process."""
        return asyncio.get_running_loop().create_task(work, context=self.context())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Reference a task of this process until it is done."""
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def hold(self, handle: asyncio.Handle) -> None:
        """Hold a callback until the process resumes."""
        self._held.append(handle)

    def pause(self) -> None:
        """Hold all callbacks until `resume`, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> list[asyncio.Handle]:
        """Resume; return the held callbacks in order."""
        self.is_paused = False
        held, self._held = list(self._held), deque()
        return held

    def kill(self) -> None:
        """Drop all later callbacks, and those of its children."""
        self.is_alive = False
        self._held.clear()
        for child in self.children:
            child.kill()

    def report_death(self) -> None:
        """Notify the watchers of a kill; a loss of power ends them, too, so it is not reported."""
        for watcher in self.watchers:
            if watcher.is_alive:
                watcher.noticed()

    def discard(self) -> None:
        """Free the coroutines of a killed process; the actions of their `finally` blocks have no effect."""
        for task in self._tasks:
            coroutine = task.get_coro()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if coroutine is not None:
                with suppress(BaseException):
                    # A coroutine that awaits in a `finally` raises RuntimeError.
                    self.context().run(coroutine.close)
        self._tasks.clear()
        for child in self.children:
            child.discard()
        self.children.clear()


def current_process() -> SimulatedProcess | None:
    """Return the process whose callback runs now; None for the simulation's own."""
    return _current.get()


def process_of(context: Context | None) -> SimulatedProcess | None:
    """Return the process of a context; None stands for the present context."""
    return _current.get() if context is None else context.get(_current)

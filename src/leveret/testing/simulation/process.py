"""A simulated process: all callbacks of one node run in its context, and stop for good when it is killed."""

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
    """Another process, that is told by the kernel when a process has ended.

    Attributes:
        is_alive: whether it runs itself.
        hangs_s: so long after the end it does something at the earliest.
    """

    def __init__(self) -> None:
        """It runs, and does not hang."""
        self.is_alive = True
        self.hangs_s = 0.0

    def noticed(self) -> None:
        """The process has ended: none of its instructions is carried out any more."""
        raise NotImplementedError


class SimulatedProcess:
    """One process of the simulation: a run of a node from its start to its end, or a client.

    A killed process runs nothing any more, not even the `finally` of its coroutines: that is what `kill -9` means. What
    it had is kept until `discard`, because Python would run these blocks as it frees the coroutines.

    Attributes:
        name: of the node or client; the host of its sockets.
        is_alive: whether its callbacks still run.
        is_paused: whether they wait, as those of a stopped process.
        clock_offset_s: difference of its clocks to the simulation's.
        clock_rate: speed of its clocks, 1 for the simulation's.
        watchers: other processes of its machine that learn of its end.
    """

    def __init__(self, name: str) -> None:
        """A process that runs."""
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.clock_offset_s = 0.0
        self.clock_rate = 1.0
        self.watchers: list[DeathWatcher] = []
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def context(self) -> Context:
        """Return a context in which everything belongs to this process."""
        context = copy_context()
        context.run(_current.set, self)
        return context

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this process."""
        return asyncio.get_running_loop().create_task(work, context=self.context())

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of this process until it is done."""
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until the process runs on."""
        self._held.append(handle)

    def pause(self) -> None:
        """Let no callback run until `resume`, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> list[asyncio.Handle]:
        """Run on; return the callbacks that were held, in their order."""
        self.is_paused = False
        held, self._held = list(self._held), deque()
        return held

    def kill(self) -> None:
        """Run no callback any more."""
        self.is_alive = False
        self._held.clear()

    def report_death(self) -> None:
        """Tell the watchers that it was killed: not after a loss of power, in which they end as well."""
        for watcher in self.watchers:
            if watcher.is_alive:
                watcher.noticed()

    def discard(self) -> None:
        """Free the coroutines of a killed process; whatever their `finally` blocks do reaches nobody."""
        for task in self._tasks:
            coroutine = task.get_coro()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if coroutine is not None:
                with suppress(BaseException):
                    # A coroutine that waits in a `finally` says so with a RuntimeError.
                    self.context().run(coroutine.close)
        self._tasks.clear()


def current_process() -> SimulatedProcess | None:
    """Return the process whose callback runs now; None for the simulation's own."""
    return _current.get()


def process_of(context: Context | None) -> SimulatedProcess | None:
    """Return the process of a context; None stands for the present context."""
    return _current.get() if context is None else context.get(_current)

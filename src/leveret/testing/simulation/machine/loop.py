"""An event loop in virtual time: if no callback is ready, the time jumps to the next timer.

All processes of a simulation share the loop. A callback runs as the process whose context it was made in. Callbacks of
a killed process are dropped, those of a paused process wait. Work for threads runs inside the loop, after a delay: so a
run has one thread, and the seed alone decides the order of all steps.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.model.errors import LeveretError
from leveret.testing.simulation.machine.process import SimulatedProcess, current_process, process_of

T = TypeVar("T")

if TYPE_CHECKING:
    # A loop for simulated nodes has a few of the methods of asyncio's loops.
    _Loop = object
else:
    _Loop = asyncio.AbstractEventLoop

STEPS_MAX: Final = 200_000_000
"""The number of callbacks after which a run counts as endless."""


class LoopDeadlock(Exception):
    """The awaited future is not done, and no timer or callback is left that could complete it."""


class _Handle(asyncio.TimerHandle):
    """A callback of a process, perhaps at a set time; without the debugging of asyncio's handles, so it is cheap."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: Any,
        context: Context,
        process: SimulatedProcess | None,
    ) -> None:
        self._callback, self._args, self._context = callback, args, context
        self._loop, self._cancelled, self._when = loop, False, when
        self._scheduled, self._repr, self._source_traceback = False, None, None
        self.process = process

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class VirtualLoop(_Loop):
    """See the module.

    Attributes:
        random: decides delays.
        steps: the number of callbacks so far.
        threads_delay_s: the longest time of work for threads; the median is a tenth of it.
        network: makes connections.
        bug: the first unexpected exception of a callback, or of a task whose end nobody awaited; None without one.
    """

    def __init__(self, random: Random) -> None:
        """Begin at time 0."""
        self.random = random
        self.steps = 0
        self.threads_delay_s = 0.002
        self.network: Any = None
        self.bug: BaseException | None = None
        self._now_s = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = count()
        self._is_running = False
        self._is_closed = False
        self._self: Any = self

    # -- time and callbacks -------------------------------------------------------------------

    def time(self) -> float:
        """Return the seconds of virtual time since the begin of the run."""
        return self._now_s

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        if context is None:
            process, context = current_process(), copy_context()
        else:
            process = process_of(context)
        handle = _Handle(self._now_s, callback, args, self._self, context, process)
        if process is None or process.is_alive:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(
            self._now_s + delay if delay > 0 else self._now_s, callback, *args, context=context
        )

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        if context is None:
            process, context = current_process(), copy_context()
        else:
            process = process_of(context)
        handle = _Handle(when, callback, args, self._self, context, process)
        if process is None or process.is_alive:
            # The loop skips a cancelled handle at its time.
            heapq.heappush(self._timers, (max(when, self._now_s), next(self._numbers), handle))
        return handle

    def resume(self, process: SimulatedProcess) -> None:
        """Queue the callbacks that a paused process could not run."""
        self._ready.extendleft(reversed(process.resume()))  # type: ignore[arg-type]

    # -- running ------------------------------------------------------------------------------

    def run_until_complete(self, future: Coroutine[Any, Any, T]) -> T:
        """See asyncio; raises LoopDeadlock if the future can never be done."""
        before = asyncio._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self._self)
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        self._is_running = True
        try:
            waited: asyncio.Task[T] = self.create_task(future)
            step, is_done = self._step, waited.done
            while not is_done():
                step()
            return waited.result()
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(before)

    def _step(self) -> None:
        ready, timers = self._ready, self._timers
        while not ready:
            if not timers:
                raise LoopDeadlock
            when, _, timer = heapq.heappop(timers)
            if not timer._cancelled:
                self._now_s = when
                ready.append(timer)
        handle = ready.popleft()
        process = handle.process
        if handle._cancelled:
            return
        if process is not None:
            if not process.is_alive:
                return
            if process.is_paused:
                process.hold(handle)
                return
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise LoopDeadlock(f"no end after {self.steps} steps")
        handle._run()

    def _finalize(self, generator: AsyncGenerator[Any, None]) -> None:
        if not self._is_closed:
            self.call_soon(lambda: self.create_task(generator.aclose()))

    def is_running(self) -> bool:
        """See asyncio."""
        return self._is_running

    def is_closed(self) -> bool:
        """See asyncio."""
        return self._is_closed

    def close(self) -> None:
        """Forget every callback."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    # -- methods that asyncio requires --------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self._self)

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """See asyncio."""
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self._self, name=None if name is None else str(name), context=context
        )
        process = process_of(context)
        if process is not None:
            process.adopt(task)
        return task

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio; note a bug, which asyncio would only log."""
        exception = context.get("exception")
        if exception is not None and not isinstance(exception, LeveretError | OSError):
            self.bug = self.bug or exception

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """See asyncio; the work runs in the loop, a little later."""
        return asyncio.wrap_future((executor or SimulatedExecutor()).submit(func, *args), loop=self._self)

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """See asyncio; over the simulated network."""
        connection: tuple[asyncio.BaseTransport, asyncio.BaseProtocol] = await self.network.connect(
            protocol_factory, port
        )
        return connection


def virtual_loop() -> VirtualLoop:
    """Return the running loop of a simulation."""
    loop: Any = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


class SimulatedExecutor:
    """Replaces a pool of threads: work runs in the loop, one piece after the other, each after a delay."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        """Begin without work."""
        self._pending: dict[int, Callable[[], None]] = {}
        self._numbers = count()

    def submit(self, func: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See concurrent.futures.Executor."""
        future: Future[T] = Future()
        loop = virtual_loop()
        number = next(self._numbers)

        def run() -> None:
            if self._pending.pop(number, None) is None or not future.set_running_or_notify_cancel():
                return
            try:
                result = func(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._pending[number] = run
        share, process = loop.random.random(), current_process()
        slow_s = process.disk_delay_s if process is not None else 0.0
        loop.call_later(max(loop.threads_delay_s * share * share * share, slow_s * share), run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See concurrent.futures.Executor."""
        for number, run in list(self._pending.items()):
            if cancel_futures:
                del self._pending[number]
            else:
                run()


class SimulatedSyncThreads:
    """Replaces runtime.logs.sync_threads.SyncThreads."""

    def __init__(self, count_max: int, name: str) -> None:
        """Begin without work."""
        self._executor = SimulatedExecutor()

    def call(
        self,
        function: Callable[[Any], object],
        argument: Any,
        ended: Callable[[BaseException | None], None],
        cleanup: Callable[[Any], object] | None = None,
    ) -> None:
        """See SyncThreads."""
        loop = virtual_loop()

        def work(argument: Any) -> None:
            try:
                function(argument)
            finally:
                if cleanup is not None:
                    cleanup(argument)

        future = self._executor.submit(work, argument)
        future.add_done_callback(lambda done: loop.call_soon(ended, done.exception()))

    def close(self) -> None:
        """See SyncThreads."""
        self._executor.shutdown()

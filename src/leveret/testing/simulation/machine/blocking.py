"""Blocking code in virtual time: a thread of a simulated process is a greenlet, which waits by returning to the loop.

The pipeline's processes sleep, wait for sockets and for threads of their own. Each such wait is a wait of the virtual
loop here, so one real thread still runs everything, and a seed still decides the order of all steps.

A *step* is a moment between two effects of a process: before and after it syncs or renames a file, or uses a socket. At
each of them the process may be interrupted for a while, or killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from leveret.testing.simulation.machine.loop import virtual_loop
from leveret.testing.simulation.machine.process import SimulatedProcess, current_process
from leveret.testing.simulation.machine.waiting import wake_all

T = TypeVar("T")

STEP_S: Final = 0.0005
"""The longest time of a step; most take far less."""
PAUSED_STEPS: Final = 0.01
"""The share of steps after which the system runs another process for a while, at most `PAUSE_S`."""
PAUSE_S: Final = 0.05


class BlockingProcess(SimulatedProcess):
    """A process with threads that block; it ends with its parent, and has the parent's host and clocks.

    Attributes:
        title: for the story.
        parent: the process that started it.
        storage: the values of the modules' variables in this process.
        steps: the number of steps so far.
        last_step: the step after which the process is killed; None for none.
        on_end: called once, with the exit status, when the process has ended in any way.
    """

    def __init__(self, parent: SimulatedProcess, title: str) -> None:
        """Start a process without a thread."""
        super().__init__(parent.name)
        self.title = title
        self.parent = parent
        self.clock_offset_s, self.clock_rate = parent.clock_offset_s, parent.clock_rate
        self.storage: dict[str, Any] = {}
        self.steps = 0
        self.last_step: int | None = None
        self.on_end: Callable[[int], None] = _nothing
        self.threads: list[BlockingThread[Any]] = []
        parent.children.append(self)

    def end(self, status: int) -> None:
        """End the process at once, and close its sockets; a second call does nothing."""
        if self.is_alive:
            self.kill()
            virtual_loop().network.process_ended(self)
            self.on_end(status)

    def discard(self) -> None:
        """See SimulatedProcess; the threads of the process are unwound, without an effect."""
        super().discard()
        for thread in self.threads:
            thread.discard()
        self.threads.clear()


class BlockingThread(Generic[T]):
    """Runs a function in a thread of the present process, or of another one; has the methods of a future.

    Attributes:
        process: the process that the thread belongs to.
    """

    def __init__(self, work: Callable[[], T], process: BlockingProcess | None = None) -> None:
        """Start the thread."""
        self.process = process or blocking_process()
        self._loop = virtual_loop()
        self._work = work
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._outcome: Future[T] = Future()
        self._stack: _Stack | None = None
        self.process.threads.append(self)
        self._loop.call_soon(self._begin, context=self.process.context())

    def _begin(self) -> None:
        self._stack = _Stack(self._run)
        self._stack.gr_context = self.process.context()
        self._stack.switch()

    def _run(self) -> None:
        try:
            result = self._work()
        except GreenletExit:
            return
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)
        if self.process.is_alive and not self._ended.done():
            self._ended.set_result(None)

    def done(self) -> bool:
        """Return whether the function has returned or raised."""
        return self._ended.done()

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the function has returned or raised; return whether it has, within the timeout."""
        return wait(self._ended, timeout_s)

    def result(self) -> T:
        """Block until the function has returned; return its result, or raise its exception."""
        if not self.done():
            self.join()
        return self._outcome.result()

    def exception(self) -> BaseException | None:
        """Return the exception of a function that has ended; None if it has returned."""
        return self._outcome.exception()

    def add_done_callback(self, call: Callable[[BlockingThread[T]], object]) -> None:
        """Have `call` called in the loop once the function has ended; never if its process is killed."""
        self._ended.add_done_callback(lambda _: call(self))

    def discard(self) -> None:
        """Unwind the stack of a thread whose process has ended."""
        if self._stack is not None and not self._stack.dead:
            with suppress(BaseException):
                self._stack.throw()


class _Stack(greenlet):  # type: ignore[misc]
    """The stack of one thread."""


class BlockingPool:
    """Replaces concurrent.futures.ThreadPoolExecutor in blocking code: each piece of work has a thread at once."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        """Begin without work."""
        self._threads: list[BlockingThread[Any]] = []

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> BlockingThread[T]:
        """See concurrent.futures.Executor."""
        thread = BlockingThread(partial(work, *args, **kwargs))
        self._threads.append(thread)
        return thread

    def map(self, work: Callable[..., T], *iterables: Iterable[Any]) -> Iterator[T]:
        """See concurrent.futures.Executor."""
        threads = [self.submit(work, *given) for given in zip(*iterables, strict=False)]
        for thread in threads:
            yield thread.result()

    def shutdown(self, wait: bool = True) -> None:
        """See concurrent.futures.Executor."""
        for thread in self._threads if wait else ():
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


class BlockingLock:
    """Replaces threading.Lock in blocking code."""

    def __init__(self) -> None:
        """Begin free."""
        self._is_held = False
        self._wakes: list[asyncio.Future[None]] = []

    def __enter__(self) -> None:
        while self._is_held:
            self._wakes.append(_awaitable())
            wait(self._wakes[-1])
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
        wake_all(self._wakes)


class BlockingEvent:
    """Replaces threading.Event in blocking code."""

    def __init__(self) -> None:
        """Begin unset."""
        self._is_set = False
        self._wakes: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """See threading.Event."""
        return self._is_set

    def set(self) -> None:
        """See threading.Event."""
        self._is_set = True
        wake_all(self._wakes)

    def clear(self) -> None:
        """See threading.Event."""
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """See threading.Event."""
        if not self._is_set:
            self._wakes = [each for each in self._wakes if not each.done()] + [_awaitable()]
            wake = self._wakes[-1]
            if not wait(wake, timeout_s):
                wake.cancel()
        return self._is_set


class BlockingQueue:
    """Replaces queue.SimpleQueue in blocking code."""

    def __init__(self) -> None:
        """Begin empty."""
        self._items: list[Any] = []
        self._wakes: list[asyncio.Future[None]] = []

    def put(self, item: Any) -> None:
        """Add an item, from any process."""
        self._items.append(item)
        wake_all(self._wakes)

    def get(self) -> Any:
        """Block until there is an item; return the first one."""
        while not self._items:
            self._wakes.append(_awaitable())
            wait(self._wakes[-1])
        return self._items.pop(0)

    def empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items


def is_blocking() -> bool:
    """Return whether the present code runs in a blocking thread."""
    return isinstance(getcurrent(), _Stack)


def blocking_process() -> BlockingProcess:
    """Return the present process, which has blocking threads."""
    process = current_process()
    assert isinstance(process, BlockingProcess)
    return process


def wait(future: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
    """Block the present thread until a future is done, at most `timeout_s`; return whether it is done."""
    stack, process = getcurrent(), blocking_process()
    assert stack.parent is not None
    _end_with(process)
    loop = virtual_loop()
    is_waiting = True

    def wake(*_: object) -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            stack.switch()

    future.add_done_callback(wake)
    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    stack.parent.switch()
    _end_with(process)
    future.remove_done_callback(wake)
    if timer is not None:
        timer.cancel()
    return future.done()


def sleep(seconds: float) -> None:
    """Block the present thread for this time."""
    wait(_awaitable(), max(0.0, seconds))


def step() -> None:
    """Pass a moment at which the present process may be interrupted or killed."""
    process = blocking_process()
    _end_with(process)
    loop = virtual_loop()
    process.steps += 1
    if process.last_step is not None and process.steps >= process.last_step:
        loop.call_soon(partial(process.end, -9))
        _never()
    share = loop.random.random()
    sleep(PAUSE_S * loop.random.random() if share < PAUSED_STEPS else STEP_S * share**6)


def _never() -> NoReturn:
    """Block until the process is killed."""
    while True:
        wait(_awaitable())


def _end_with(process: BlockingProcess) -> None:
    """Unwind the present thread if its process has ended: the code of its `finally` blocks waits no more."""
    if not process.is_alive:
        raise GreenletExit


def _awaitable() -> asyncio.Future[None]:
    """Return what the present thread may wait for. Raises GreenletExit: its process has ended, perhaps the loop too."""
    _end_with(blocking_process())
    return virtual_loop().create_future()


def _nothing(status: int) -> None:
    """Ignore an exit status."""

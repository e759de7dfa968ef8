"""Measures how long steps of the event loop take, and names the long ones.

One event loop does all work for a node's clients, so every client waits for a long step. A timer in the loop beats; the
delay of a beat is the duration of a step. A thread checks whether the beat is overdue, and if so reads the stack of the
loop's thread. Neither lies on the path of a message. Pauses of the garbage collector are steps like others, under
their own name. Time that the machine gave to other processes does not count: the kernel reports how long the thread
was runnable and did not run.

A beat each 10 ms and the thread's checks would cost an idle node 2 % of a core. So a quiet loop beats four times a
second, and the kernel wakes the watch: a timer of the process's CPU time, armed at each slow beat, fires after 5 ms of
use; the beat is due at that moment. A long computation uses up the 5 ms while it runs, so the watch misses none,
whenever it begins. A signal waits for the end of a call into C; CPU time beyond the 5 ms was used by that call, and is
added. Other ways miss steps or cost more: the delay of a slow beat shows only steps that overlap the beat; the CPU time
of the loop's thread bounds the sum of all steps, and new traffic would look like one long step; a clock around each
callback adds cost to each message, and uvloop has no place for one.

The measured time lacks the part of a step before its beat was due: at most 10 ms, the distance of two beats. A
quiet watch misses a step that waits without computing (for a disk), is shorter than 250 ms, and lies between two beats.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NamedTuple

from leveret.model.patterns import take_costly
from leveret.runtime.process.garbage import Garbage

logger = logging.getLogger(__name__)

LONG_STEP_S: Final = 0.02
"""A longer step is logged."""
_BEAT_S: Final = 0.01
_LOOK_S: Final = 0.015
_QUIET_BEAT_S: Final = 0.25
_WORK_S: Final = 0.005
"""CPU time within a slow beat after which the beats become fast."""
_LITTLE_S: Final = 0.0005
"""A beat is quiet if the loop used less CPU time in it."""
_QUIET_AFTER: Final = 20
"""The number of quiet beats after which the beats become slow."""
_REPORT_EVERY_S: Final = 10.0
_INTERVAL_S: Final = 5.0
_INTERVALS: Final = 12
_FRAMES_MAX: Final = 4


class Step(NamedTuple):
    """A step that held up the loop."""

    seconds: float
    cpu_s: float
    waited_s: float
    what: str


class LoopWatch:
    """See the module.

    Attributes:
        long_steps: the number of long steps so far.
        long_seconds: the sum of their durations.
    """

    def __init__(self, garbage: Garbage | None = None) -> None:
        """Start without a measured step; the beats call `garbage`, if there is one."""
        self._garbage = garbage
        self.long_steps = 0
        self.long_seconds = 0.0
        self._longest: deque[float] = deque([0.0], maxlen=_INTERVALS)
        self._untold: Step | None = None
        self._untold_count = 0
        self._reported_at_s = -_REPORT_EVERY_S
        self._due_s = 0.0
        self._held_s = 0.0
        self._beat_cpu_s = 0.0
        self._waiting = _Waiting()
        self._is_quiet = False
        self._quiet_beats = 0
        self._waits: asyncio.Future[None] | None = None
        self._was_woken = False
        self._seen = ""
        self._collection_began_s = 0.0
        self._collection_s = 0.0
        self._collection = ""

    @property
    def longest_s(self) -> float:
        """Return the longest step of the last minute, in seconds."""
        return max(self._longest)

    async def run(self) -> None:
        """Watch the running loop, for ever."""
        self._due_s = time.perf_counter() + _BEAT_S
        ended = threading.Event()
        looker = threading.Thread(
            target=self._look, args=(threading.get_ident(), ended), name="loop-watch", daemon=True
        )
        gc.callbacks.append(self._note_collection)
        looker.start()
        try:
            # The timer ends first: its signal reads the file of `_waiting`.
            with self._waiting, _WorkTimer(self._note_work, self._wake) as work:
                await self._beat(work)
        finally:
            self._due_s = float("inf")
            gc.callbacks.remove(self._note_collection)
            ended.set()

    async def _beat(self, work: _WorkTimer) -> None:
        interval_ends_s = self._due_s + _INTERVAL_S
        self._beat_cpu_s = time.thread_time()
        while True:
            await self._next_beat()
            before_s, self._beat_cpu_s = self._beat_cpu_s, time.thread_time()
            cpu_s = self._beat_cpu_s - before_s
            self._take_beat(cpu_s, self._waiting.since_last_s())
            now_s = time.perf_counter()
            if now_s >= interval_ends_s:
                self._longest.append(0.0)
                interval_ends_s = now_s + _INTERVAL_S
                self._report_patterns()
                if self._garbage is not None:
                    self._garbage.check()
            if self._untold is not None and now_s - self._reported_at_s >= _REPORT_EVERY_S:
                self._report(now_s)
            self._choose_pace(cpu_s, work)
            if self._garbage is not None:
                self._garbage.beat()

    async def _next_beat(self) -> None:
        if self._was_woken:
            return
        loop = asyncio.get_running_loop()
        self._waits = loop.create_future()
        timer = loop.call_later(_QUIET_BEAT_S if self._is_quiet else _BEAT_S, self._end_wait)
        try:
            await self._waits
        finally:
            timer.cancel()

    def _end_wait(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def _wake(self) -> None:
        """The process used `_WORK_S` of CPU time: the beat is due now."""
        self._was_woken = True
        self._end_wait()

    def _choose_pace(self, cpu_s: float, work: _WorkTimer) -> None:
        """Choose the pace of the next beat: slow if the loop was quiet; then the kernel reports new work."""
        self._quiet_beats = self._quiet_beats + 1 if cpu_s < _LITTLE_S and not self._was_woken else 0
        is_quiet = self._quiet_beats >= _QUIET_AFTER or (self._is_quiet and not self._was_woken)
        self._was_woken = False
        # Arm the timer first: it counts all work from here on.
        self._is_quiet = is_quiet and work.arm()
        self._due_s = time.perf_counter() + (_QUIET_BEAT_S if self._is_quiet else _BEAT_S)

    def _note_work(self, frame: FrameType | None) -> None:
        """Handle the timer's signal: the beat is due now. This runs in the loop's thread, in the middle of a step."""
        if not self._is_quiet:
            return
        self._held_s = max(0.0, time.thread_time() - self._beat_cpu_s - _WORK_S)
        self._seen = self._seen or stack_of(frame)
        self._waiting.since_last_s()  # an earlier wait is not a part of this step
        self._due_s = min(self._due_s, time.perf_counter())

    def _take_beat(self, cpu_s: float, waited_s: float) -> None:
        late_s = self._held_s + time.perf_counter() - self._due_s - waited_s
        if late_s > LONG_STEP_S:
            self._note(Step(late_s, cpu_s, waited_s, self._cause(late_s)))
        self._longest[-1] = max(self._longest[-1], late_s)
        self._seen, self._collection_s, self._held_s = "", 0.0, 0.0

    def _cause(self, late_s: float) -> str:
        return (self._collection if self._collection_s > late_s / 2 else self._seen) or "unknown"

    def _note(self, step: Step) -> None:
        self.long_steps += 1
        self.long_seconds += step.seconds
        self._untold_count += 1
        if self._untold is None or step.seconds > self._untold.seconds:
            self._untold = step

    def _report(self, now_s: float) -> None:
        """Log the longest step since the last report: a line for each would be too many."""
        step, count = self._untold, self._untold_count
        self._untold, self._untold_count, self._reported_at_s = None, 0, now_s
        if step is not None:
            logger.warning(
                "event_loop_held_up ms=%d times=%d by=%s cpu_ms=%d others_ran_ms=%d",
                round(step.seconds * 1000),
                count,
                step.what,
                round(step.cpu_s * 1000),
                round(step.waited_s * 1000),
            )

    def _report_patterns(self) -> None:
        for pattern, name in take_costly().items():
            logger.warning("pattern_too_costly pattern=%s name=%s action=not_covered", pattern, name)

    # -- in the thread --------------------------------------------------------------------------

    def _look(self, loop_thread: int, ended: threading.Event) -> None:
        while not ended.wait(_QUIET_BEAT_S if self._is_quiet else _LOOK_S):
            if time.perf_counter() - self._due_s > LONG_STEP_S:
                frame = sys._current_frames().get(loop_thread)
                # The first look sees the step; a later one may come after the step's end.
                if frame is not None and not self._seen:
                    self._seen = stack_of(frame)

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, in any thread: all other threads wait for it."""
        if phase == "start":
            self._collection_began_s = time.perf_counter()
        else:
            self._collection_s += time.perf_counter() - self._collection_began_s
            self._collection = f"garbage collection of generation {info['generation']}"


class _WorkTimer:
    """Calls back in the main thread after the process has used `_WORK_S` of CPU time since `arm`.

    A process has one such timer. `arm` fails outside of the main thread, or after another watch has taken the timer.
    """

    _holder: _WorkTimer | None = None

    def __init__(self, note: Callable[[FrameType | None], None], then: Callable[[], None]) -> None:
        """`note` receives the running frame, in the middle of the step; the loop calls `then` after the step."""
        self._note = note
        self._then = then
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> _WorkTimer:
        if threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            signal.signal(signal.SIGPROF, self._fired)
            # Interrupted system calls go on, in any thread.
            signal.siginterrupt(signal.SIGPROF, False)
            _WorkTimer._holder = self
        return self

    def __exit__(self, *exc: object) -> None:
        if _WorkTimer._holder is self:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            # Not the default action: it would end the process if a signal is pending.
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            _WorkTimer._holder = None

    def arm(self) -> bool:
        """Count from now on; return False if that is impossible."""
        if _WorkTimer._holder is not self:
            return False
        signal.setitimer(signal.ITIMER_PROF, _WORK_S)
        return True

    def _fired(self, number: int, frame: FrameType | None) -> None:
        self._note(frame)
        if self._loop is not None and not self._loop.is_closed():
            # A signal's handler runs between any two lines, so it leaves the work to the loop.
            self._loop.call_soon_threadsafe(self._then)


class _Waiting:
    """How long this thread was runnable and did not run: the kernel counts it in nanoseconds."""

    def __init__(self) -> None:
        """Measure the calling thread, as long as the context is entered."""
        self._file = -1
        self._last_ns = 0

    def __enter__(self) -> _Waiting:
        # A kernel without these counts: every delay counts as a step.
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.since_last_s()
        return self

    def __exit__(self, *exc: object) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def since_last_s(self) -> float:
        """Return the seconds since the last call."""
        if self._file < 0:
            return 0.0
        before_ns, self._last_ns = self._last_ns, int(os.pread(self._file, 80, 0).split()[1])
        return (self._last_ns - before_ns) / 1e9


def stack_of(frame: FrameType | None) -> str:
    """Return the running functions: the innermost first, then its callers."""
    named: list[str] = []
    while frame is not None and len(named) < _FRAMES_MAX:
        module = frame.f_globals.get("__name__", "?").removeprefix("leveret.")
        named.append(f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(named)

"""Measures how long the event loop is held up, and by what.

All that a node does for its clients goes through one event loop, so what takes long in one piece makes
everybody wait. A timer in the loop beats; how late it beats is how long a step took. A thread looks whether the
beat is overdue, and then at what the loop's thread is doing. Neither is on the way of a message. Pauses of the
garbage collector are steps like any other, and told by their name. What the machine gave to others meanwhile
is no step: the kernel says how long the thread could have run and did not.

A beat each 10 ms, and the thread's looks, cost an idle node 2 % of a core. So a loop that does little beats four
times a second, and the kernel wakes the watch: a timer of the process's CPU time, armed anew with each slow beat,
fires when 5 ms were used since, from which moment the beat is due. A step that computes for long uses them up while
it runs, so none is missed, whenever it begins. A signal waits for the end of a call into C; what the thread used
beyond the 5 ms was used by that call, and is added. Other ways miss steps or cost more: the lateness of a slow beat
tells only of steps that it falls into; the loop thread's CPU time since then is a bound for all steps together, and
traffic that sets in would look like one long step; a clock around each callback is paid by each message, and uvloop
has no place for one.

What is measured lacks the part of a step before its beat was due: up to 10 ms, as long as the beats are apart.
What a quiet watch does not see is a step that waits without computing (for a disk), is shorter than 250 ms, and lies
between two beats.
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

logger = logging.getLogger(__name__)

LONG_STEP_S: Final = 0.02
"""What takes longer than this is told."""
_BEAT_S: Final = 0.01
_LOOK_S: Final = 0.015
_QUIET_BEAT_S: Final = 0.25
_WORK_S: Final = 0.005
"""So much CPU time within a slow beat, and the beats are fast from then on."""
_LITTLE_S: Final = 0.0005
"""A beat's time was quiet if the loop used less."""
_QUIET_AFTER: Final = 20
"""Beats are slow after so many quiet ones."""
_REPORT_EVERY_S: Final = 10.0
_INTERVAL_S: Final = 5.0
_INTERVALS: Final = 12
_FRAMES_MAX: Final = 4


class Step(NamedTuple):
    """Something that held up the loop."""

    seconds: float
    cpu_s: float
    waited_s: float
    what: str


class LoopWatch:
    """See the module.

    Attributes:
        long_steps: how many there were so far.
        long_seconds: how long they were together.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
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
        """The longest step of the last minute."""
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
            with _WorkTimer(self._note_work, self._wake) as work, self._waiting:
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
            if self._untold is not None and now_s - self._reported_at_s >= _REPORT_EVERY_S:
                self._report(now_s)
            self._choose_pace(cpu_s, work)

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
        """The process has used `_WORK_S`: the beat that is due now."""
        self._was_woken = True
        self._end_wait()

    def _choose_pace(self, cpu_s: float, work: _WorkTimer) -> None:
        """The next beat is slow if the loop did little for a while, and the kernel tells when it does more."""
        self._quiet_beats = self._quiet_beats + 1 if cpu_s < _LITTLE_S and not self._was_woken else 0
        is_quiet = self._quiet_beats >= _QUIET_AFTER or (self._is_quiet and not self._was_woken)
        self._was_woken = False
        # The timer is armed first: what the loop does from here on is counted.
        self._is_quiet = is_quiet and work.arm()
        self._due_s = time.perf_counter() + (_QUIET_BEAT_S if self._is_quiet else _BEAT_S)

    def _note_work(self, frame: FrameType | None) -> None:
        """The process used `_WORK_S` since the slow beat: the beat is due now; in the loop's thread, amid its step."""
        if not self._is_quiet:
            return
        self._held_s = max(0.0, time.thread_time() - self._beat_cpu_s - _WORK_S)
        self._seen = self._seen or stack_of(frame)
        self._waiting.since_last_s()  # what it waited before is no part of this step
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
        """The longest of those that were not told yet: a line each would be too many."""
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

    # -- the thread's --------------------------------------------------------------------------

    def _look(self, loop_thread: int, ended: threading.Event) -> None:
        while not ended.wait(_QUIET_BEAT_S if self._is_quiet else _LOOK_S):
            if time.perf_counter() - self._due_s > LONG_STEP_S:
                frame = sys._current_frames().get(loop_thread)
                # The first look is at the step; a later one may come when it is over.
                if frame is not None and not self._seen:
                    self._seen = stack_of(frame)

    def _note_collection(self, phase: str, info: dict[str, Any]) -> None:
        """The collector's own call, in whichever thread it runs: all others wait for it."""
        if phase == "start":
            self._collection_began_s = time.perf_counter()
        else:
            self._collection_s += time.perf_counter() - self._collection_began_s
            self._collection = f"garbage collection of generation {info['generation']}"


class _WorkTimer:
    """Calls back in the main thread when the process has used `_WORK_S` of CPU time since this was armed.

    A process has one such timer. In another thread than the main one, or where another watch took the timer after
    this one, it cannot be armed.
    """

    _holder: _WorkTimer | None = None

    def __init__(self, note: Callable[[FrameType | None], None], then: Callable[[], None]) -> None:
        """`note` gets the frame that runs, amid its step; `then` is called by the loop after it."""
        self._note = note
        self._then = then
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> _WorkTimer:
        if threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            signal.signal(signal.SIGPROF, self._fired)
            # Calls of the system that it meets go on, in whichever thread.
            signal.siginterrupt(signal.SIGPROF, False)
            _WorkTimer._holder = self
        return self

    def __exit__(self, *exc: object) -> None:
        if _WorkTimer._holder is self:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            # Not the default: that would end the process, if one is under way.
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
            _WorkTimer._holder = None

    def arm(self) -> bool:
        """Count from now on; whether that is possible."""
        if _WorkTimer._holder is not self:
            return False
        signal.setitimer(signal.ITIMER_PROF, _WORK_S)
        return True

    def _fired(self, number: int, frame: FrameType | None) -> None:
        self._note(frame)
        if self._loop is not None and not self._loop.is_closed():
            # A signal's handler runs between two lines of anything, so it leaves the rest to the loop.
            self._loop.call_soon_threadsafe(self._then)


class _Waiting:
    """How long this thread could have run, and did not: the kernel counts it in nanoseconds."""

    def __init__(self) -> None:
        """Of the thread that asks, for as long as this is entered."""
        self._file = -1
        self._last_ns = 0

    def __enter__(self) -> _Waiting:
        # A kernel without these counts: all that is late is a step.
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.since_last_s()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def since_last_s(self) -> float:
        """Since this was asked last."""
        if self._file < 0:
            return 0.0
        before_ns, self._last_ns = self._last_ns, int(os.pread(self._file, 80, 0).split()[1])
        return (self._last_ns - before_ns) / 1e9


def stack_of(frame: FrameType | None) -> str:
    """The functions that are running: the innermost first, then who called it."""
    named: list[str] = []
    while frame is not None and len(named) < _FRAMES_MAX:
        module = frame.f_globals.get("__name__", "?").removeprefix("leveret.")
        named.append(f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(named)

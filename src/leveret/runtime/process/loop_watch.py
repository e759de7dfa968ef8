"""Measures how long the event loop is held up, and by what.

All that a node does for its clients goes through one event loop, so what takes long in one piece makes
everybody wait. A timer in the loop beats; how late it beats is how long a step took. A thread looks whether the
beat is overdue, and then at what the loop's thread is doing. Neither is on the way of a message. Pauses of the
garbage collector are steps like any other, and told by their name. What the machine gave to others meanwhile
is no step: the kernel says how long the thread could have run and did not.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NamedTuple

from leveret.model.patterns import take_costly

logger = logging.getLogger(__name__)

LONG_STEP_S: Final = 0.02
"""What takes longer than this is told."""
_BEAT_S: Final = 0.01
_LOOK_S: Final = 0.015
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
            await self._beat()
        finally:
            self._due_s = float("inf")
            gc.callbacks.remove(self._note_collection)
            ended.set()

    async def _beat(self) -> None:
        interval_ends_s = self._due_s + _INTERVAL_S
        cpu_s = time.thread_time()
        with _Waiting() as waiting:
            while True:
                await asyncio.sleep(_BEAT_S)
                before_s, cpu_s = cpu_s, time.thread_time()
                self._take_beat(cpu_s - before_s, waiting.since_last_s())
                now_s = time.perf_counter()
                if now_s >= interval_ends_s:
                    self._longest.append(0.0)
                    interval_ends_s = now_s + _INTERVAL_S
                    self._report_patterns()
                if self._untold is not None and now_s - self._reported_at_s >= _REPORT_EVERY_S:
                    self._report(now_s)
                self._due_s = time.perf_counter() + _BEAT_S

    def _take_beat(self, cpu_s: float, waited_s: float) -> None:
        late_s = time.perf_counter() - self._due_s - waited_s
        if late_s > LONG_STEP_S:
            self._note(Step(late_s, cpu_s, waited_s, self._cause(late_s)))
        self._longest[-1] = max(self._longest[-1], late_s)
        self._seen, self._collection_s = "", 0.0

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
        while not ended.wait(_LOOK_S):
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

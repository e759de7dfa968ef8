"""The edges of the pipeline that a simulation replaces for its duration."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

import msgspec

from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.jobs.progress import Event, Inbox
from leveret.pipeline.transfer.compaction import Compaction
from leveret.testing.simulation.machine.blocking import (
    BlockingEvent,
    BlockingLock,
    BlockingPool,
    BlockingProcess,
    BlockingQueue,
    BlockingThread,
    blocking_process,
    is_blocking,
    sleep,
    step,
)
from leveret.testing.simulation.machine.blocking_socket import connected
from leveret.testing.simulation.pipelines.process import start_simulated
from leveret.testing.simulation.pipelines.spark import start_simulated_session

_POOLS: Final = (
    "leveret.pipeline.archive.stored_positions",
    "leveret.pipeline.recovery.driver",
    "leveret.pipeline.recovery.spark_tasks",
    "leveret.pipeline.recovery.dry_run",
    "leveret.pipeline.recovery.unsettled",
    "leveret.pipeline.transfer.compaction",
)
_THREADS: Final = (
    "leveret.pipeline.__main__",
    "leveret.pipeline.recovery.segment_intake",
    "leveret.pipeline.transfer.driver",
    "leveret.pipeline.transfer.source",
)
_VARIABLES: Final = ("leveret.pipeline.upstream.link._links", "leveret.pipeline.transfer.sink._manifests")
"""Variables of modules, of which each process has its own."""
_STEPS: Final = ("fsync", "fdatasync", "rename", "replace", "unlink", "mkdir")
_SESSIONS: Final = ("leveret.pipeline.transfer.driver", "leveret.pipeline.recovery.spark_tasks")


_SEGMENTS_MIN: Final = (
    "leveret.pipeline.recovery.segments.MESSAGES_MIN",
    "leveret.pipeline.recovery.file_shares.MESSAGES_MIN",
)


@contextmanager
def simulated_pipelines(segments_min: int, compact_s: float) -> Iterator[None]:
    """Replace what blocks, and Spark, in the pipeline's code; inside of `nodes.patches.simulated`.

    Args:
        segments_min: the least messages of a queue that are recovered by segments.
        compact_s: the interval of compactions.
    """
    # Only the first call in a process makes a file and removes it: a run would depend on the runs before it.
    tempfile.gettempdir()
    with ExitStack() as patches:

        def replace(target: str, by: Any) -> None:
            patches.enter_context(mock.patch(target, by))

        replace("time.sleep", _if_blocking(time.sleep, sleep))
        replace("socket.create_connection", _if_blocking(socket.create_connection, connected))
        replace("fcntl.flock", _if_blocking(fcntl.flock, SimulatedLocks().lock))
        for name in _STEPS:
            replace(f"os.{name}", _with_steps(getattr(os, name)))
        replace("asyncio.create_subprocess_exec", start_simulated)
        for module in _POOLS:
            replace(f"{module}.ThreadPoolExecutor", BlockingPool)
        replace("leveret.pipeline.recovery.segment_intake.SimpleQueue", BlockingQueue)
        replace("leveret.pipeline.transfer.source.Lock", BlockingLock)
        replace("leveret.pipeline.transfer.source.Event", BlockingEvent)
        for module in _THREADS:
            replace(f"{module}.Thread", _Thread)
        for module in _SESSIONS:
            replace(f"{module}.start_session", start_simulated_session)
        for variable in _VARIABLES:
            replace(variable, _PerProcessVariable(variable))
        for module in ("leveret.pipeline.transfer.source", "leveret.pipeline.transfer.sink"):
            replace(f"{module}.freeze_modules", lambda: None)
        replace("leveret.pipeline.jobs.progress.Inbox.wait", _wait_for_reports)
        for name in _SEGMENTS_MIN:
            replace(name, segments_min)
        turn = Compaction.turn

        def often(compaction: Compaction, job: TransferJob) -> list[dict[str, Any]]:
            return turn(compaction, msgspec.structs.replace(job, compact_interval_s=compact_s))

        replace("leveret.pipeline.transfer.compaction.Compaction.turn", often)
        yield


def _if_blocking(original: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that blocking code has in place of the original."""

    def chosen(*given: Any, **named: Any) -> Any:
        return simulated(*given, **named) if is_blocking() else original(*given, **named)

    return chosen


def _with_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a step before and after it, in blocking code."""

    def stepping(*given: Any, **named: Any) -> Any:
        if not is_blocking():
            return original(*given, **named)
        step()
        result = original(*given, **named)
        step()
        return result

    return stepping


_wait_for_datagrams: Final = Inbox.wait


def _wait_for_reports(inbox: Inbox, timeout_s: float) -> list[Event]:
    """Replace Inbox.wait."""
    found = _wait_for_datagrams(inbox, 0)
    if not found and timeout_s > 0:
        sleep(timeout_s)
        found = _wait_for_datagrams(inbox, 0)
    return found


class SimulatedLocks:
    """Locks of files, as flock gives them to open descriptors: a process that ends gives them back."""

    def __init__(self) -> None:
        """Begin without locks."""
        self._held: dict[tuple[int, int], tuple[BlockingProcess, int]] = {}

    def lock(self, descriptor: int, operation: int) -> None:
        """See fcntl.flock; exclusive, and without waiting."""
        step()
        file = _file(descriptor)
        assert file is not None
        held = self._held.get(file)
        if held is not None and held[0].is_alive and held[1] != descriptor and _file(held[1]) == file:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self._held[file] = blocking_process(), descriptor


def _file(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _PerProcessVariable(MutableMapping[Any, Any]):
    """A dictionary of a module, of which each process has its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _own(self) -> dict[Any, Any]:
        found: dict[Any, Any] = blocking_process().storage.setdefault(self._name, {})
        return found

    def __getitem__(self, key: Any) -> Any:
        return self._own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class _Thread:
    """Replaces threading.Thread."""

    def __init__(self, target: Callable[..., object], args: Sequence[Any] = (), **_: object) -> None:
        self._target = partial(target, *args)
        self._thread: BlockingThread[object] | None = None

    def start(self) -> None:
        """See threading.Thread."""
        self._thread = BlockingThread(self._target)

    def join(self) -> None:
        """See threading.Thread."""
        assert self._thread is not None
        self._thread.join()

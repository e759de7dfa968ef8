"""Runs a pipeline process for the node: starts it with a job, reads its lines, ends it with the node.

The job, credentials included, is written to standard input. The process ends by itself at the end of that input, so a
killed node leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec

from leveret.model.errors import LeveretError

Event = dict[str, Any]
Report = Callable[[Event], None]
"""Receives the events of a task."""
_LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The longest line: it has room for about two million rows of queues. Only actual lines use memory."""
_STOP_TIMEOUT_S: Final = 10.0


class PipelineFailed(LeveretError):
    """A pipeline process could not finish its task; the text is the process's own."""


class PipelineProcess:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take over a started process; callers use `start`."""
        self._process = process
        self.error = ""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @classmethod
    async def start(cls, task: str, job: Mapping[str, Any]) -> PipelineProcess:
        """Start `python -m leveret.pipeline <task>` and hand it the job.

        Raises:
            PipelineFailed: the machine has no process, memory or descriptors for it now.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "leveret.pipeline",
                task,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX,
                # A Ctrl-C in the terminal is for the node, which ends the process.
                start_new_session=True,
            )
        except OSError as error:
            raise PipelineFailed(f"the pipeline's {task} could not be started: {error}; try again") from error
        running = cls(process)
        try:
            await running.send(job)
        except (Exception, asyncio.CancelledError):
            await running.stop()
            raise
        return running

    async def send(self, line: Mapping[str, Any]) -> None:
        """Send one line; does nothing if the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")
            await self._process.stdin.drain()

    async def events(self) -> AsyncIterator[Event]:
        """Yield the process's events until it ends; the text of a final `failed` event goes to `error`.

        Raises:
            PipelineFailed: a line is no event.
        """
        while line := await self._line():
            try:
                event = msgspec.json.decode(line, type=Event)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise PipelineFailed(f"the pipeline process wrote {line[:100]!r}: {error}") from error
            if event.get("event") == "failed":
                self.error = str(event.get("error"))
            yield event
        status = await self._process.wait()
        if status and not self.error:
            self.error = f"the pipeline process ended with status {status}; its log is in the data directory"

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        try:
            return await self._process.stdout.readline()
        except ValueError:
            raise PipelineFailed(
                f"the pipeline process wrote a line of more than {_LINE_BYTES_MAX:,} octets"
            ) from None

    async def stop(self) -> None:
        """End the process, and wait for its end; the next run repeats its unrecorded work."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()


def report_nothing(event: Event) -> None:
    """Take no notice of an event."""


async def ask(
    task: str,
    job: Mapping[str, Any],
    report: Report | None = None,
    process: PipelineProcess | None = None,
) -> Event:
    """Run a task to its end, and report its events; return its `done` event.

    The task runs in a process of its own, or as the last task of a waiting process.

    Raises:
        PipelineFailed: the task did not finish.
    """
    if process is None:
        process = await PipelineProcess.start(task, job)
    else:
        await process.send({"command": task, "job": job})
    try:
        async for event in process.events():
            if event.get("event") == "done":
                return event
            if report is not None:
                report(event)
    finally:
        await process.stop()
    raise PipelineFailed(process.error or f"the pipeline's {task} ended without a result")

"""A pipeline process of a simulated node: `python -m leveret.pipeline TASK`, with its input and output.

The node's own code (`runtime.standby.pipeline_process`) starts it and reads its lines, over what replaces
`asyncio.create_subprocess_exec`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from leveret.pipeline.__main__ import carry_out
from leveret.testing.simulation.machine.blocking import BlockingProcess, BlockingQueue, BlockingThread, sleep
from leveret.testing.simulation.machine.loop import virtual_loop
from leveret.testing.simulation.machine.process import current_process

STARTS_S: Final = 0.5
"""The longest start of a process's Python."""


class _Left(BaseException):
    """The process has ended itself, with a status."""


class SimulatedParentChannel:
    """Replaces pipeline.jobs.parent_channel.ParentChannel.

    Attributes:
        input: the lines that the parent has written.
    """

    def __init__(self, output: asyncio.StreamReader) -> None:
        """Begin without input."""
        self.input = BlockingQueue()
        self._output = output

    def read_line(self) -> bytes:
        """See ParentChannel."""
        line: bytes = self.input.get()
        return line

    def redirect_output(self, log_file: object) -> None:
        """See ParentChannel; nothing else is printed."""

    def end_with_parent(self) -> None:
        """See ParentChannel; the process ends with its parent in any case."""

    def commands(self) -> list[Any]:
        """See ParentChannel."""
        found = []
        while not self.input.empty():
            found.append(self.next_command())
        return found

    def next_command(self) -> Any:
        """See ParentChannel."""
        return msgspec.json.decode(self.read_line())

    def say(self, event: str, **details: object) -> None:
        """See ParentChannel."""
        self.pass_on({"event": event, **details})

    def pass_on(self, event: dict[str, Any]) -> None:
        """See ParentChannel."""
        self._output.feed_data(msgspec.json.encode(event) + b"\n")

    def leave(self, status: int) -> None:
        """See ParentChannel."""
        raise _Left(status)


class _Input:
    """The parent's end of the process's standard input."""

    def __init__(self, parent: SimulatedParentChannel, close: Callable[[], None]) -> None:
        self._parent = parent
        self.close = close
        self._line = b""

    def write(self, octets: bytes) -> None:
        """See asyncio.StreamWriter."""
        *lines, self._line = (self._line + octets).split(b"\n")
        for line in lines:
            self._parent.input.put(line)

    async def drain(self) -> None:
        """See asyncio.StreamWriter."""


class SimulatedSubprocess:
    """Replaces asyncio.subprocess.Process.

    Attributes:
        process: the simulated process.
        returncode: its exit status; None while it runs.
    """

    def __init__(self, task: str, limit: int) -> None:
        """Start a process of the present one."""
        parent = current_process()
        assert parent is not None
        self.process = BlockingProcess(parent, f"{parent.name}: {task}")
        self.process.on_end = self._ended
        self.pid = 0
        self.returncode: int | None = None
        self.stdout = asyncio.StreamReader(limit=limit, loop=virtual_loop()._self)
        self._end: asyncio.Future[int] = virtual_loop().create_future()
        self._parent = SimulatedParentChannel(self.stdout)
        # The end of its input ends the process.
        self.stdin = _Input(self._parent, partial(self.process.end, 0))
        BlockingThread(partial(self._run, task), self.process)

    def _run(self, task: str) -> None:
        status = 1
        sleep(STARTS_S * virtual_loop().random.random())
        try:
            parent: Any = self._parent
            carry_out(task, parent)
        except _Left as left:
            status = left.args[0]
        self.process.end(status)

    def _ended(self, status: int) -> None:
        self.returncode = status
        self.stdout.feed_eof()
        self._end.set_result(status)

    def wait(self) -> asyncio.Future[int]:
        """See asyncio.subprocess.Process.

        The result is no coroutine: the end of a run closes coroutines that wait for processes in a `finally`, and a
        coroutine that is made there has no loop to run in.
        """
        return asyncio.shield(self._end)


async def start_simulated(*command: str, limit: int = 2**16, **_: object) -> SimulatedSubprocess:
    """Replace asyncio.create_subprocess_exec, for `python -m leveret.pipeline TASK`."""
    return SimulatedSubprocess(command[-1], limit)

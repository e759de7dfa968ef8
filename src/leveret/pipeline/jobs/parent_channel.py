"""A pipeline process's own input and output: JSON lines, separate from the output of Spark and Java."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec

from leveret.pipeline.files.files import make_directory
from leveret.pipeline.jobs.progress import Event, remove_addresses


class ParentChannel:
    """Exchanges lines with the parent process, and ends with it.

    Attributes:
        on_command: called in another thread for each command, to end a wait for something else.
    """

    def __init__(self) -> None:
        self._in: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb")
        self._commands: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.on_command: Callable[[], None] = lambda: None
        # Children (the JVM, workers) must neither hold the parent's pipes open nor read from them.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def read_line(self) -> bytes:
        """The first line of input: the job."""
        return self._in.readline()

    def redirect_output(self, log_file: Path) -> None:
        """Send all other output, also Java's, to a file."""
        make_directory(log_file.parent)
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)

    def end_with_parent(self) -> None:
        """Collect commands from now on, and end this process at once when the input ends."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def commands(self) -> list[Event]:
        """The commands since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._commands.get_nowait())
        return found

    def next_command(self) -> Event:
        """Wait for the next command; the end of the input ends this process."""
        return self._commands.get()

    def say(self, event: str, **details: object) -> None:
        """Report an event to the parent."""
        self.pass_on({"event": event, **details})

    def pass_on(self, event: Event) -> None:
        """Pass another process's event on to the parent."""
        try:
            self._out.write(msgspec.json.encode(event) + b"\n")
            # Until all of it is written: a process that is stopped and continued writes a part of a long line.
            self._out.flush()
        except BrokenPipeError:
            self.leave(0)

    def leave(self, status: int) -> NoReturn:
        """End without Spark's slow shutdown: the JVM ends with this process."""
        remove_addresses()
        os._exit(status)

    def _listen(self) -> None:
        for line in self._in:
            with contextlib.suppress(msgspec.DecodeError):
                self._commands.put(msgspec.json.decode(line, type=Event))
                self.on_command()
        self.leave(0)

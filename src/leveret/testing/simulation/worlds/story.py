"""The story of a run: the log lines of all nodes and the faults of the world, in virtual time."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from typing import Final

from leveret.model.errors import LeveretError
from leveret.testing.simulation.machine.loop import VirtualLoop
from leveret.testing.simulation.machine.process import current_process

LINES_MAX: Final = 400


class Story(logging.Handler):
    """Stores the last lines; a failure prints them.

    Attributes:
        bug: the last unexpected error that a node has reported; the node may have gone on without the queue, the
            task or the connection that met it.
    """

    def __init__(self, loop: VirtualLoop, level: int = logging.INFO) -> None:
        """Begin without lines."""
        super().__init__(level)
        self.bug: BaseException | None = None
        self._loop = loop
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        process = current_process()
        self._add(process.name if process else "world", f"{record.levelname} {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            self._lines.append("".join(traceback.format_exception(record.exc_info[1])[-4:]))
            if not isinstance(record.exc_info[1], LeveretError | OSError):
                self.bug = record.exc_info[1]

    def note(self, text: str) -> None:
        """Add a line about an action of the world."""
        self._add("*", text)

    def _add(self, who: str, text: str) -> None:
        self._lines.append(f"{self._loop.time():10.4f} {who:4} {text}")

    def text(self) -> str:
        """Return the lines, oldest first."""
        return "\n".join(self._lines)

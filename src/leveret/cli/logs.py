"""The node's log: its outputs, their severities, and rotated files.

One event is one line (`cli/log_lines`). The console, a file, or both; each event must pass its output's level and the
level of its category.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

from leveret.cli.log_lines import JsonLine, KeyValueLine
from leveret.config.sections.logging import LEVELS, FileLogSettings, LogSettings
from leveret.config.sections.rotation import Rotation
from leveret.model.errors import ConfigError

_DEFAULT: Final = "default"
_FORMATTERS: Final = {"plaintext": KeyValueLine, "json": JsonLine}
CATEGORIES: Final = {
    "connection": (
        "leveret.runtime.sockets.acceptor",
        "leveret.runtime.clients.connection_log",
        "leveret.runtime.sockets.connection_budget",
        "leveret.runtime.clients.stream_peer",
    ),
    "queue": (
        "leveret.runtime.logs.commit",
        "leveret.runtime.logs.engine",
        "leveret.runtime.logs.log_home",
        "leveret.runtime.logs.stream_store",
    ),
    "replication": (
        "leveret.runtime.collecting.collector",
        "leveret.runtime.collecting.outgoing_log",
        "leveret.runtime.schema_sync.downstream",
        "leveret.runtime.schema_sync.schema_sync",
        "leveret.runtime.standby.downstream",
        "leveret.runtime.standby.transfer",
    ),
}
"""The loggers of each category."""


class Threshold(logging.Filter):
    """Passes events from their category's level on, or else from that of the output or the default."""

    def __init__(self, output_level: str, log: LogSettings) -> None:
        """`output_level` is the output's own setting."""
        super().__init__()
        own = None if output_level == _DEFAULT else LEVELS[output_level]
        self._otherwise = LEVELS[log.levels.default] if own is None else own
        self._categories = [
            (names, max(LEVELS[level], own or 0))
            for category, names in CATEGORIES.items()
            if (level := str(getattr(log.levels, category))) != _DEFAULT
        ]

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the event is logged."""
        for names, least in self._categories:
            if record.name in names:
                return record.levelno >= least
        return record.levelno >= self._otherwise

    @property
    def least(self) -> int:
        """The lowest severity of any category that passes."""
        return min([self._otherwise, *(least for _, least in self._categories)])


class LogFile(logging.Handler):
    """A file of events that is rotated by size or time and can be opened anew at any moment.

    If the disk refuses lines, only these are lost: the first line afterwards has their number.
    """

    def __init__(self, path: Path, settings: FileLogSettings) -> None:
        """Open the file; a missing one is made with mode 0600.

        Raises:
            ConfigError: it cannot be opened.
        """
        super().__init__()
        self.path = path
        self._bytes_max = settings.rotation_bytes
        self._keep = settings.rotation_count
        self._when: Rotation | None = settings.rotation_date
        self._lost = 0
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(f"log.file: cannot open {path}: {error.strerror}") from error
        self._next = self._following()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, after a rotation if one is due."""
        line = self.format(record) + "\n"
        try:
            if self._is_full(len(line)) or self._is_due(record.created):
                # A file that cannot be renamed grows; its lines are not lost.
                with contextlib.suppress(OSError):
                    self._rename_away()
            if self._lost:
                self._file.write(f"log_lines_lost count={self._lost}\n")
            self._file.write(line)
            self._file.flush()
            self._lost = 0
        except OSError:
            self._lost += 1
            self._reopened()

    def reopen(self) -> None:
        """Continue in a new file after the old one was moved away; in the old one while no new one can be opened."""
        with self.lock or contextlib.nullcontext():
            self._reopened()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        super().close()

    def _open(self) -> TextIO:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def _reopened(self) -> None:
        with contextlib.suppress(OSError):
            self._replace(self._open())

    def _replace(self, file: TextIO) -> None:
        """Go on in `file`. The one before is closed only now: a closed one would fail whoever logs something."""
        before, self._file = self._file, file
        with contextlib.suppress(OSError):
            before.close()

    def _is_full(self, more: int) -> bool:
        size = self._file.tell()
        return bool(self._bytes_max) and size > 0 and size + more > self._bytes_max

    def _is_due(self, now: float) -> bool:
        return self._next is not None and now >= self._next

    def _following(self) -> float | None:
        return self._when.after(datetime.fromtimestamp(time.time())).timestamp() if self._when else None

    def _rename_away(self) -> None:
        """Rename `log` to `log.0`, `log.0` to `log.1`; remove the oldest."""
        files = [
            self.path,
            *(self.path.with_name(f"{self.path.name}.{number}") for number in range(self._keep)),
        ]
        # Without it, an earlier try has renamed all, and could not open the new file.
        if self.path.exists():
            if not self._keep:
                self.path.unlink()
            for newer, older in reversed(list(pairwise(files))):
                if newer.exists():
                    newer.replace(older)
        self._replace(self._open())
        self._next = self._following()


class Logs:
    """The outputs of a node's log."""

    def __init__(self, log: LogSettings, data_dir: Path) -> None:
        """Open the outputs in the settings and send all events there.

        Raises:
            ConfigError: the log file cannot be opened.
        """
        self._file: LogFile | None = None
        outputs: list[tuple[logging.Handler, str, str]] = []
        if log.console.enabled:
            stream = sys.stdout if log.console.stdio == "stdout" else sys.stderr
            outputs.append((logging.StreamHandler(stream), log.console.level, log.console.formatter))
        if log.file.name is not None:
            self._file = LogFile((log.directory or data_dir / "log") / log.file.name, log.file)
            outputs.append((self._file, log.file.level, log.file.formatter))
        least = LEVELS["none"]
        for handler, level, formatter in outputs:
            threshold = Threshold(level, log)
            handler.setFormatter(_FORMATTERS[formatter]())
            handler.addFilter(threshold)
            least = min(least, threshold.least)
        handlers = [handler for handler, _, _ in outputs] or [logging.NullHandler()]
        logging.basicConfig(level=least, handlers=handlers, force=True)

    def reopen(self) -> None:
        """Continue in new files after logrotate moved the old ones away."""
        if self._file is not None:
            self._file.reopen()

"""The node's log: one line an event on standard error, `key=value`.

    2026-11-21T05:13:09.042Z level=info from=runtime.node started queues=3

A traceback is one value on the same line, so that a line is always an event.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

_LEVELS: Final = {"none": logging.CRITICAL + 1}


class OneLine(logging.Formatter):
    """Formats a record as time, level, room and the message, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line feed."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        room = record.name.removeprefix("leveret.")
        message = record.getMessage().replace("\n", "\\n")
        line = f"{when.removesuffix('+00:00')}Z level={record.levelname.lower()} from={room} {message}"
        if record.exc_info:
            line += f" traceback={json.dumps(self.formatException(record.exc_info))}"
        return line


def start_logging(level: str) -> None:
    """Log everything from `level` on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(level=_LEVELS.get(level, level.upper()), handlers=[handler], force=True)

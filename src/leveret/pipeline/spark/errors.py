"""Extracts the cause of a failure from Spark's report."""

from __future__ import annotations

import re
from typing import Final

from leveret.model.errors import LeveretError

TEXT_CHARS_MAX: Final = 600
_TRACEBACK: Final = "Traceback (most recent call last):"
_QUERY_STATE: Final = "=== Streaming Query ==="
_ERROR: Final = re.compile(r"^(?:\s|: )*(?:[a-z_]\w*\.)*([A-Z]\w+): (.*)$", re.MULTILINE)
"""Python's errors, and Java's as Py4J tells them: behind a line of its own, and a colon."""


class SparkFailed(LeveretError):
    """A Spark job ended in an error; the text is the cause, the log file has the rest."""


def cause_of(error: BaseException) -> str:
    """Return the last error that Python reported inside one of Spark's, or Java's, without its stack; else the text."""
    text = str(error)
    _, traceback, stack = text.rpartition(_TRACEBACK)
    # Spark's own text comes first, and behind it the state of the query, whose lines look like errors.
    relevant = stack if traceback else text.partition(_QUERY_STATE)[0]
    found = _ERROR.search(relevant)
    line = f"{found[1]}: {found[2]}" if found else relevant.strip().split("\n")[0]
    return line[:TEXT_CHARS_MAX]

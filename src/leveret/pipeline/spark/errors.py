"""Extracts the cause of a failure from Spark's report."""

from __future__ import annotations

import re
from typing import Final

from leveret.model.errors import LeveretError

TEXT_CHARS_MAX: Final = 600
_PYTHON_ERROR: Final = re.compile(r"^\s*(?:[a-z_]\w*\.)*([A-Z]\w+): (.*)$", re.MULTILINE)


class SparkFailed(LeveretError):
    """A Spark job ended in an error; the text is the cause, the log file has the rest."""


def cause_of(error: BaseException) -> str:
    """The last error that Python reported inside one of Spark's, without the stacks around it."""
    text = str(error)
    stack = text.rpartition("Traceback (most recent call last):")[2]
    found = _PYTHON_ERROR.search(stack)
    line = f"{found[1]}: {found[2]}" if found else text.strip().split("\n")[0]
    return line[:TEXT_CHARS_MAX]

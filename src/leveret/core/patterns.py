"""Regular expressions that users write: in permissions, policies, filters and listings.

They are Python's. One that could take for ever on some name is matched with a time limit instead: what it
does not find by then it does not cover. So a user who may set a policy cannot stop the node with one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import regex

MATCH_TIMEOUT_S: Final = 0.01
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]|\\\d|\(\?P=")
_UNBOUNDED: Final = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\d*\})")
_UNBOUNDED_MAX: Final = 2
"""Repetitions in a row cost a name's length each; names have 255 octets at most."""


class PatternError(ValueError):
    """Not a regular expression; `position` is where that shows."""

    def __init__(self, reason: str, position: int) -> None:
        """`reason` is the library's text."""
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class Pattern:
    """One regular expression, to be found anywhere in a name."""

    __slots__ = ("_give_up", "_limited", "_quick")

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        """Compile.

        Raises:
            PatternError: it is no regular expression.
        """
        try:
            self._quick = re.compile(text, re.IGNORECASE if ignore_case else 0)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(getattr(error, "msg", str(error)), getattr(error, "pos", 0) or 0) from None
        self._limited: regex.Pattern[str] | None = None
        self._give_up = False
        if _REPEATED_GROUP.search(text) or len(_UNBOUNDED.findall(text)) > _UNBOUNDED_MAX:
            self._limited = _compile_limited(text, ignore_case=ignore_case)

    def covers(self, name: str) -> bool:
        """Whether the expression is found in `name`."""
        if self._limited is None:
            return self._quick.search(name) is not None
        if self._give_up:
            return False
        try:
            return self._limited.search(name, timeout=MATCH_TIMEOUT_S) is not None
        except TimeoutError:
            # It would take as long with the next name.
            self._give_up = True
            return False


def _compile_limited(text: str, *, ignore_case: bool) -> regex.Pattern[str]:
    try:
        return regex.compile(text, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise PatternError(str(error), 0) from None


@lru_cache(maxsize=1024)
def compiled(text: str) -> Pattern:
    """A pattern, compiled once.

    Raises:
        PatternError: it is no regular expression.
    """
    return Pattern(text)

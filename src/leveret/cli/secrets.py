"""Arguments that may be secret: `-`, or none, takes them from standard input, out of the process list."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leveret.cli import exits
from leveret.cli.api import CtlError

FROM_STDIN: Final = "-"


def password_of(argument: str | None) -> str:
    """A password: as given, typed unseen on a terminal, or the first line of a pipe.

    Raises:
        CtlError: there is none, or it is not UTF-8.
    """
    if argument not in (None, FROM_STDIN):
        return str(argument)
    with _as_text():
        password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CtlError(exits.DATA, "password is not provided via argument or stdin")
    return password


def text_of(argument: str) -> str:
    """A document: as given, or all of standard input for `-`.

    Raises:
        CtlError: standard input is not UTF-8.
    """
    with _as_text():
        return sys.stdin.read() if argument == FROM_STDIN else argument


@contextmanager
def _as_text() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise CtlError(exits.DATA, f"standard input is not {error.encoding} at byte {error.start}") from None

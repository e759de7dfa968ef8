"""Arguments that may be secret: `-`, or none, takes them from standard input, out of the process list."""

from __future__ import annotations

import getpass
import sys
from typing import Final

from leveret.cli import exits
from leveret.cli.api import CtlError

FROM_STDIN: Final = "-"


def password_of(argument: str | None) -> str:
    """A password: as given, typed unseen on a terminal, or the first line of a pipe.

    Raises:
        CtlError: there is none.
    """
    if argument not in (None, FROM_STDIN):
        return str(argument)
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CtlError(exits.DATA, "password is not provided via argument or stdin")
    return password


def text_of(argument: str) -> str:
    """A document: as given, or all of standard input for `-`."""
    return sys.stdin.read() if argument == FROM_STDIN else argument

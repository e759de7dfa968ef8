"""Secret arguments: `-`, or none, takes them from standard input, so that the process list does not show them.

A node leaves out the secrets of parameters, unless they are asked for.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from typer import Option

from leveret.cli import exits
from leveret.cli.api import CtlError

FROM_STDIN: Final = "-"

IncludeSecrets = Annotated[
    bool,
    Option("--include-secrets", help="Show passwords in parameters instead of (secret)."),
]


def secrets_query(included: bool) -> dict[str, str]:
    """The query that asks a node for secrets."""
    return {"include_secrets": "true"} if included else {}


def password_of(argument: str | None) -> str:
    """A password: the argument, typed without echo on a terminal, or the first line of a pipe.

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
    """A document: the argument, or all of standard input for `-`.

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

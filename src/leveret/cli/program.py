"""The end of both programs: an exit status of `sysexits.h`, and one line with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import typer
from typer.exceptions import TyperException

from leveret.cli import exits
from leveret.cli.output.terms import printable

_INTERRUPTED: Final = 130


def run(
    app: typer.Typer,
    name: str,
    describe: Callable[[Exception], tuple[int, str] | None],
    arguments: list[str] | None = None,
) -> int:
    """Run `app` on `arguments`, or on the command line; return its exit status.

    `describe` turns an expected error into status and text, or None for a bug, which is raised.
    """
    try:
        status = app(arguments, prog_name=name, standalone_mode=False)
    except TyperException as error:
        return _fail(name, exits.USAGE, f"{error.format_message()} (see {_help_of(error, name)})")
    except typer.Abort:
        return _INTERRUPTED
    except Exception as error:
        known = describe(error)
        if known is None:
            raise
        return _fail(name, *known)
    return status if isinstance(status, int) else exits.OK


def _help_of(error: TyperException, name: str) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else name} --help"


def _fail(name: str, status: int, text: str) -> int:
    print(f"{name}: {printable(' '.join(text.split()))}", file=sys.stderr)
    return status

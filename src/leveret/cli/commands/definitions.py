"""All that was declared, as one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
from typer import Argument

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.values import Text

File = Annotated[str, Argument(help="Path of a JSON file; - for standard output or input.")]
_PIPE: Final = "-"


@command("")
def export_definitions(ctl: Session, file: File) -> Text | None:
    """Write all definitions to a file that only its owner may read, as it has password hashes in it."""
    document = msgspec.json.format(msgspec.json.encode(ctl.api.get("definitions")), indent=2)
    if file == _PIPE:
        return Text(document.decode())
    ctl.announce(f'Exporting definitions in JSON to a file at "{file}" ...')
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(document + b"\n")
    return None


@command("Importing definitions ...")
def import_definitions(ctl: Session, file: File) -> None:
    """Put the definitions of a file on top of what is there; nothing is deleted."""
    path = Path(file)
    if file != _PIPE and not path.is_file():
        raise CtlError(exits.DATA, f"File {file} does not exist")
    ctl.api.post_text("definitions", text=sys.stdin.buffer.read() if file == _PIPE else path.read_bytes())

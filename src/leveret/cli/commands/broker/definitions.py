"""All definitions, as one file."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.output.array_file import private_file
from leveret.cli.output.values import MessageLine, TextDocument
from leveret.cli.secrets import IncludeSecrets, secrets_query
from leveret.model.foreign_json import decode_json

Format = Annotated[Literal["json"], Option("--format", help="The file's format.")]
_PIPE: Final = "-"


@command("", "export_definitions definitions.json")
def export_definitions(
    ctl: Session,
    file: Annotated[str, Argument(help="Path of the file to write; - for standard output.")],
    form: Format = "json",
    include_secrets: IncludeSecrets = False,
) -> TextDocument | None:
    """Write all definitions to a file. It holds password hashes, so only its owner may read it."""
    existing = ctl.api.get("definitions", **secrets_query(include_secrets))
    document = msgspec.json.format(msgspec.json.encode(existing), indent=2)
    if file == _PIPE:
        return TextDocument(document.decode())
    ctl.announce(f'Exporting definitions in JSON to a file at "{file}" ...')
    path = Path(file)
    # A pipe or a terminal has no contents to protect.
    with path.open("wb") if path.exists() and not path.is_file() else private_file(path) as out:
        out.write(document + b"\n")
    return None


@command("", "import_definitions definitions.json")
def import_definitions(
    ctl: Session,
    file: Annotated[str, Argument(help="Path of the file to read; - or none for standard input.")] = _PIPE,
    form: Format = "json",
    skip_if_unchanged: Annotated[
        bool, Option("--skip-if-unchanged", help="Do nothing if all definitions exist already.")
    ] = False,
) -> MessageLine:
    """Import a definitions file. An import adds and overwrites, and deletes nothing."""
    path = Path(file)
    if file != _PIPE and not path.is_file():
        raise CtlError(exits.DATA, f"Bad argument: File {file} does not exist")
    where = "standard input" if file == _PIPE else f'a file at "{file}"'
    ctl.announce(f"Importing definitions in JSON from {where} ...")
    text = sys.stdin.buffer.read() if file == _PIPE else path.read_bytes()
    if skip_if_unchanged and _is_there(ctl, text):
        return MessageLine("Definitions are unchanged, nothing was imported", {"result": "ok"})
    ctl.api.post_text("definitions", text=text)
    return MessageLine("Successfully imported definitions", {"result": "ok"})


def _is_there(ctl: Session, text: bytes) -> bool:
    """Whether every definition of a file is among the node's, field by field."""
    try:
        wanted = decode_json(text, Any)
    except msgspec.DecodeError as error:
        raise CtlError(exits.DATA, f"the definitions are not JSON: {error}") from None
    if not isinstance(wanted, dict):
        raise CtlError(exits.DATA, "the definitions are no JSON object")
    existing = [ctl.api.get("definitions", **secrets_query(included)) for included in (False, True)]
    lists = {kind: each for kind, each in wanted.items() if isinstance(each, list)}
    return all(
        {_digest(each) for each in lists[kind]}
        <= {_digest(each) for document in existing for each in document.get(kind, [])}
        for kind in lists
    )


def _digest(definition: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(definition, order="sorted")).digest()

"""The command lines and settings of README and docs, as they are printed there: each is known to its program."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import documents
import pytest
import typer

from leveret.cli.ctl import build_app, common_options_first, wanted_command
from leveret.cli.families import NAMES
from leveret.cli.program_aliases import server_arguments
from leveret.cli.server import app
from leveret.config import load
from leveret.console.settings import read_settings

ROOT = Path(__file__).parents[3]
PROMPT = re.compile(r"^(?:[\w]+)?[$#] +")
PROGRAM = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/|/opt/leveret/bin/)?(leveret|leveretctl) (.*)")
# A line of the shell that is no argument: a comment, a redirection, a second command.
SHELL = re.compile(r"\s(?:#\s|<<<?|<|>>?\s|&&|\||;)")
SETTING = re.compile(r"^[a-z_]+(?:\.\w+)* = \S")
TABLE = re.compile(r"^\[", re.MULTILINE)
PYTHON = re.compile(r"^\s*(?:import|from) \w|\bspark\.read", re.MULTILINE)
PLACEHOLDER = re.compile(r"…")


def command_lines(path: Path) -> list[str]:
    """The lines of a document's code blocks that call one of the two programs, each in one piece."""
    lines: list[str] = []
    for block in documents.code_blocks(path):
        text = block.replace("\\\n", " ")
        for line in text.splitlines():
            if called := PROGRAM.match(PROMPT.sub("", line.strip())):
                rest = SHELL.split(f"{called[2]} ", maxsplit=1)[0]
                if not PLACEHOLDER.search(rest) and not called[0].startswith("leveret ready"):
                    lines.append(f"{called[1]} {rest.strip()}")
    return lines


CASES = sorted(
    {
        (str(document), line)
        for document in documents.documents(ROOT)
        if not document.is_relative_to(documents.DECISIONS)
        for line in command_lines(ROOT / document)
    }
)


def settings_lines(path: Path) -> list[str]:
    """The code blocks of a document that are settings, each as the text of a file."""
    blocks = [
        [line for line in block.splitlines() if SETTING.match(line)]
        for block in documents.code_blocks(path)
        # Mutations and the console's settings are TOML.
        if not TABLE.search(block) and not PYTHON.search(block)
    ]
    return ["\n".join(lines) for lines in blocks if lines]


SETTINGS = sorted(
    {
        (str(document), text)
        for document in documents.documents(ROOT)
        # The reference shows the syntax of any file, with a secret beside it.
        if document != Path("docs/configuration.md")
        for text in settings_lines(ROOT / document)
    }
)


def check_group(program: str, group: typer.core.TyperGroup, arguments: list[str]) -> None:
    """Parse a line without running it; a wrong name, option or value raises."""
    with group.make_context(program, arguments) as context:
        name, *rest = [*context._protected_args, *context.args]
        command = group.get_command(context, name)
        assert command is not None, f"{program} has no command {name}"
        with command.make_context(name, rest, parent=context):
            pass


def test_the_documents_have_command_lines() -> None:
    assert len(CASES) > 60


@pytest.mark.parametrize(("document", "line"), CASES)
def test_a_command_line_is_understood(document: str, line: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "leveret":
        arguments = server_arguments(arguments)
        group = typer.main.get_command(app)
        given = [text for flag, text in itertools.pairwise(arguments) if flag == "--set"]
        load(None, dict(text.split("=", 1) for text in given))
    elif arguments[0] in ("help", "completion"):
        return
    else:
        arguments = common_options_first(arguments)
        name = wanted_command(arguments)
        assert name in NAMES
        group = typer.main.get_command(build_app(name))
    assert isinstance(group, typer.core.TyperGroup)
    check_group(program, group, arguments)


@pytest.mark.parametrize(("document", "text"), SETTINGS)
def test_a_block_of_settings_is_taken(document: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "leveret.conf"
    file.write_text(text)
    assert load(file) != load(None)


def test_the_settings_of_the_console_are_taken(tmp_path: Path) -> None:
    [text] = filter(TABLE.search, documents.code_blocks(ROOT / "docs/console.md"))
    file = tmp_path / "console.toml"
    file.write_text(text)
    assert [site.name for site in read_settings(file, (), {}).sites] == ["eu", "us"]

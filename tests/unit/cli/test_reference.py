"""The page of all commands, and the help that each of them prints."""

from __future__ import annotations

from pathlib import Path

from leveret.cli.families import NAMES
from leveret.cli.reference import reference

PROJECT = Path(__file__).parents[3]


def test_the_page_of_the_commands_is_that_of_the_program() -> None:
    assert (PROJECT / "docs" / "commands.md").read_text() == reference()


def test_the_page_has_every_command_with_its_arguments() -> None:
    page = reference()
    named = {line.split("`")[1].split()[0] for line in page.splitlines() if line.startswith("| `")}
    assert named == set(NAMES)
    assert "| `set_policy NAME PATTERN DEFINITION [--priority ...] [--apply-to ...]` | " in page

from __future__ import annotations

import json
from typing import Any

import pytest

from leveret.cli.output.formatters import as_json
from leveret.cli.output.terms import cell, term
from leveret.cli.output.values import MessageLine


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("a b", "a b"),
        ("x\ty\nz", "x\\ty\\nz"),
        (True, "true"),
        (1.5, "1.5"),
        ([], "[]"),
        (["a", "b"], "[a, b]"),
        ({}, "[]"),
        ({"k": "v", "n": 3}, '[{"k","v"},{"n",3}]'),
        ({"capabilities": {"basic.nack": True}}, '[{"capabilities",[{"basic.nack",true}]}]'),
        ([1, 2], "[1,2]"),
    ],
)
def test_a_cell_is_what_rabbitmqctl_prints(value: Any, text: str) -> None:
    assert cell(value) == text


def test_a_text_inside_a_term_is_quoted_on_one_line() -> None:
    assert term('say "a\\b"\n\t') == '"say \\"a\\\\b\\"\\n\\t"'
    assert term(None) == "undefined"


@pytest.mark.parametrize("value", ["\x1b]0;owned\x07\r", ["\x1b[2J", "b"], {"k\x9b": "\x7f\x00"}])
def test_a_terminal_obeys_no_name_of_a_client(value: Any) -> None:
    assert all(character.isprintable() for character in cell(value)), repr(cell(value))
    shown = as_json(MessageLine("", {"name": value}), headers=True)
    assert all(character.isprintable() for character in shown.replace("\n", "")), repr(shown)
    assert json.loads(shown) == {"name": value}

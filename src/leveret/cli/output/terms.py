"""Cells in rabbitmqctl's form: Erlang's notation, which scripts already parse."""

from __future__ import annotations

from collections.abc import Mapping


def cell(value: object) -> str:
    """A value on one line: `[a, b]` for words, `[{"k",1}]` for a table, nothing for None."""
    match value:
        case None:
            return ""
        case str():
            return value.replace("\t", "\\t").replace("\n", "\\n")
        case [*words] if words and all(isinstance(word, str) for word in words):
            return f"[{', '.join(map(str, words))}]"
        case _:
            return term(value)


def term(value: object) -> str:
    """A value inside another one."""
    match value:
        case None:
            return "undefined"
        case bool():
            return "true" if value else "false"
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return '"' + escaped.replace("\t", "\\t").replace("\n", "\\n") + '"'
        case Mapping():
            return (
                f"[{','.join('{' + term(str(key)) + ',' + term(each) + '}' for key, each in value.items())}]"
            )
        case [*items]:
            return f"[{','.join(map(term, items))}]"
        case _:
            return str(value)

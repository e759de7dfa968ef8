"""Cells in rabbitmqctl's form: Erlang's notation, which scripts already parse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ENDS_OF_LINES: Final = {code: f"\\u{code:04x}" for code in (0x2028, 0x2029)}
"""Those of Unicode, which some readers of lines obey; U+0085 is a control character."""
_CONTROLS: Final = _ENDS_OF_LINES | {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
}
_CONTROLS_OF_JSON: Final = _ENDS_OF_LINES | {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Those that JSON does not escape itself."""


def printable(text: str) -> str:
    """A text for a terminal, which would obey control characters in a client's names; tabs and line feeds stay."""
    return text.translate(_CONTROLS)


def printable_json(text: str) -> str:
    """A JSON text for a terminal; its values stay."""
    return text.translate(_CONTROLS_OF_JSON)


def cell(value: object) -> str:
    """A value on one line: `[a, b]` for words, `[{"k",1}]` for a table, nothing for None."""
    match value:
        case None:
            return ""
        case str():
            return printable(value.replace("\t", "\\t").replace("\n", "\\n"))
        case [*words] if words and all(isinstance(word, str) for word in words):
            return printable(f"[{', '.join(map(str, words))}]")
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
            return '"' + printable(escaped.replace("\t", "\\t").replace("\n", "\\n")) + '"'
        case Mapping():
            return (
                f"[{','.join('{' + term(str(key)) + ',' + term(each) + '}' for key, each in value.items())}]"
            )
        case [*items]:
            return f"[{','.join(map(term, items))}]"
        case _:
            return str(value)

"""Values in Erlang's notation, as RabbitMQ's refusals show them; clients and scripts already match these texts."""

from __future__ import annotations

from collections.abc import Mapping


def term(value: object) -> str:
    """A JSON value as RabbitMQ prints it: `<<"text">>`, `[1,2]`, `#{<<"key">> => null}`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            suffix = "" if value.isascii() else "/utf8"
            return f"<<{quoted(value)}{suffix}>>" if value else "<<>>"
        case Mapping():
            pairs = (f"{term(key)} => {term(each)}" for key, each in sorted(value.items()))
            return "#{" + ",".join(pairs) + "}"
        case list() | tuple():
            return f"[{','.join(map(term, value))}]"
        case _:
            return str(value)


def pairs(table: Mapping[str, object]) -> str:
    """An object as the list of pairs that Erlang makes of it, by key: `[{<<"key">>,1}]`."""
    return f"[{','.join('{' + term(key) + ',' + term(table[key]) + '}' for key in sorted(table))}]"


def quoted(text: str) -> str:
    """A string in quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


def binary(octets: bytes) -> str:
    """Octets: a quoted string if all are printable, else a list of numbers."""
    if octets and all(32 <= octet < 127 for octet in octets):
        return f"<<{quoted(octets.decode())}>>"
    return f"<<{','.join(map(str, octets))}>>"

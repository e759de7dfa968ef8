"""JSON of others: clients, operators, peers.

How deep a document may be nested does not depend on the interpreter. CPython 3.11 counts calls in C with those in
Python, so a decoder ends at some 900 levels. Later versions let it go on until its stack is full, at some 30,000; what
walks such a value in Python raises RecursionError, far from the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

LEVELS_MAX: Final = 100
"""The most lists and objects that are inside each other.

More than those of definitions (`core.rules.validation`), each of which is refused by its name, and far fewer than calls
can be nested, also where each level takes three.
"""
_KEPT_LEVELS: Final = 2 * LEVELS_MAX
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
"""What levels are counted by: texts, which may hold brackets, and brackets."""
T = TypeVar("T")


def decode_json(octets: bytes | bytearray | msgspec.Raw, type: type[T]) -> T:
    """JSON of this type.

    Raises:
        msgspec.DecodeError: no JSON, of another type, or nested more than `LEVELS_MAX` levels deep.
    """
    text = bytes(octets)
    found = decoded(msgspec.json.decode, text, type)
    # Most documents have fewer brackets than that.
    if text.count(b"[") + text.count(b"{") > LEVELS_MAX:
        _check_levels(found if type is Any else decoded(msgspec.json.decode, text, Any))
    return found


def split_json(octets: bytes | bytearray | msgspec.Raw, type: type[T]) -> T:
    """JSON of a type whose inner values stay octets (`msgspec.Raw`), so that their levels count when they are decoded.

    Of a value that is nested more deeply than the decoder can skip, so many levels are left that `decode_json` refuses
    it, by the name that it has in the document.

    Raises:
        msgspec.DecodeError: no JSON, or of another type.
    """
    try:
        return decoded(msgspec.json.decode, octets, type)
    except _TooDeep:
        return decoded(msgspec.json.decode, _pruned(bytes(octets)), type)


def decoded(
    decode: Callable[..., T], octets: bytes | bytearray | memoryview | msgspec.Raw, type: type[T]
) -> T:
    """What a decoder of msgspec makes of a peer's octets, whose levels do not count.

    Raises:
        msgspec.DecodeError: they are of no such type; also for what the decoder reports otherwise: too many levels for
            the interpreter, and text that is no UTF-8.
    """
    try:
        return decode(octets, type=type)
    except RecursionError:
        raise _TooDeep from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def _check_levels(value: Any) -> None:
    level = [value]
    for _ in range(LEVELS_MAX):
        level = [
            each
            for outer in level
            if isinstance(outer, (list, dict))
            for each in (outer if isinstance(outer, list) else outer.values())
        ]
    if any(isinstance(each, (list, dict)) for each in level):
        raise _TooDeep


def _pruned(text: bytes) -> bytes:
    """The JSON with null in place of what is more than `_KEPT_LEVELS` levels deep."""
    parts, levels, kept, start = list[bytes](), 0, 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                levels += 1
                if levels == _KEPT_LEVELS + 1:
                    start = token.start()
            case b"]" | b"}":
                if levels == _KEPT_LEVELS + 1:
                    parts += [text[kept:start], b"null"]
                    kept = token.end()
                levels -= 1
    return b"".join([*parts, text[kept:]])


class _TooDeep(msgspec.DecodeError):
    def __init__(self) -> None:
        super().__init__(f"nested more than {LEVELS_MAX} levels deep")

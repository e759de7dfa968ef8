"""Secrets in the values of parameters, and values without them.

    masked({"uri": "amqp://u:pw@h", "password": "x"}) == {"uri": "amqp://u:(secret)@h", "password": "(secret)"}

A masked value may come back, in a definitions file or from a tool that shows and sets values. `unmasked` replaces the
masks by the existing secrets, so that an import of an export destroys no password.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

MASK: Final = "(secret)"
SECRET_NAMES: Final = (
    r"(?i)passw(or)?d|passphrase|secret|token|credential|(private|access|account|api|shared).?key"
    r"|(?<![a-z])sas(?![a-z])"
)
"""Names of fields and settings that may hold a password or a key, as a regular expression of Python and of Java."""
_SECRET_KEY: Final = re.compile(SECRET_NAMES)
_WORD: Final = re.compile(r"\S+")
_BEFORE_PASSWORD: Final = re.compile(r"(?<=[A-Za-z0-9+.-])://[^/?#@\s:]*:(?!\d{1,5}[/?#])")
"""What stands before a password in a URI; a number in its place may be a port. Values may be as long as a request's
body, and events of the whole node wait: so no expression here looks at a character more than a few times."""
_QUERY: Final = re.compile(r"(?P<before>[?&](?:password|sig|signature|token|secret)=)[^&#\s]+", re.IGNORECASE)


class Masked(ValueError):
    """A value has a mask, and no existing secret belongs there."""


def names_secret(name: str) -> bool:
    """Return whether a field or a setting of this name may hold a password or a key."""
    return _SECRET_KEY.search(name) is not None


def masked(value: Any) -> Any:
    """Return the value without its secrets: fields with secret names, and passwords in URIs."""
    if isinstance(value, dict):
        return {
            key: MASK if names_secret(str(key)) and _is_text(each) else masked(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if isinstance(value, str):
        without = _WORD.sub(_without_password, value) if "://" in value else value
        return _QUERY.sub(rf"\g<before>{MASK}", without)
    return value


def _without_password(word: re.Match[str]) -> str:
    """Return a word without the password of the URI in it.

    Generous: a stricter reader may not take this for a password, for instance one with a slash.
    """
    text = word[0]
    end = text.rfind("@")
    begin = next((each.end() for each in _BEFORE_PASSWORD.finditer(text)), end)
    return f"{text[:begin]}{MASK}{text[end:]}" if begin < end else text


def unmasked(value: Any, existing: Any) -> Any:
    """Return the value with its masks replaced by the secrets of `existing`.

    Raises:
        Masked: `existing` has no secret for a mask.
    """
    if not _has_mask(value):
        return value
    if masked(existing) == value:
        return existing
    if isinstance(value, dict):
        known = existing if isinstance(existing, dict) else {}
        return {
            key: _known(known.get(key)) if each == MASK else unmasked(each, known.get(key))
            for key, each in value.items()
        }
    if isinstance(value, list):
        # Items may have moved.
        items = existing if isinstance(existing, list) else []
        known_items = {_octets(masked(each)): each for each in reversed(items)}
        return [unmasked(each, known_items.get(_octets(each))) for each in value]
    raise Masked


def _octets(item: Any) -> bytes:
    """Return the same octets for equal items."""
    return msgspec.json.encode(item, order="deterministic")


def _known(existing: Any) -> str:
    if not _is_text(existing):
        raise Masked
    return str(existing)


def _has_mask(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_mask, value.values()))
    if isinstance(value, list):
        return any(map(_has_mask, value))
    return isinstance(value, str) and MASK in value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""

"""Secrets in the values of parameters, and values without them.

    masked({"uri": "amqp://u:pw@h", "password": "x"}) == {"uri": "amqp://u:(secret)@h", "password": "(secret)"}

A masked value may come back, in a definitions file or from a tool that shows and sets values. `unmasked` replaces the
masks by the existing secrets, so that an import of an export destroys no password.
"""

from __future__ import annotations

import re
from typing import Any, Final

MASK: Final = "(secret)"
_SECRET_KEY: Final = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|(private|access|account|api|shared).?key", re.IGNORECASE
)
_USER_INFO: Final = re.compile(r"(?P<before>[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s:]*:)(?!\d{1,5}[/?#])\S+(?=@)")
"""Generous: a stricter reader may not take this for a password, for instance one with a slash."""
_QUERY: Final = re.compile(r"(?P<before>[?&](?:password|sig|signature|token|secret)=)[^&#\s]+", re.IGNORECASE)


class Masked(ValueError):
    """A value has a mask, and no existing secret belongs there."""


def masked(value: Any) -> Any:
    """Return the value without its secrets: fields with secret names, and passwords in URIs."""
    if isinstance(value, dict):
        return {
            key: MASK if _SECRET_KEY.search(str(key)) and _is_text(each) else masked(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if isinstance(value, str):
        return _QUERY.sub(rf"\g<before>{MASK}", _USER_INFO.sub(rf"\g<before>{MASK}", value))
    return value


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
        known_items = existing if isinstance(existing, list) else []
        return [_of_items(each, known_items) for each in value]
    raise Masked


def _of_items(value: Any, existing: list[Any]) -> Any:
    """Return the existing item for one item of a list, which may have moved."""
    return unmasked(value, next((each for each in existing if masked(each) == value), None))


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

"""Moments as operators write them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, with `T` or a space; UTC where it has no offset.

    Raises:
        ValueError: it is none.
    """
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)

"""Times in the formats that operators write."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_ms(text: str) -> int:
    """Parse an ISO 8601 time, with `T` or a space, to milliseconds since 1970. A time without an offset is UTC.

    Raises:
        ValueError: the text is no such time.
    """
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def moment_text(at_ms: int) -> str:
    """A time, in milliseconds since 1970, in ISO 8601 and UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")

"""Numbers of things, durations and ages as text. Pure."""

from __future__ import annotations


def counted(number: object, one: str, many: str = "") -> str:
    """Return a number and its noun: `1 queue`, `1,200 queues`; a value that is no whole number counts as unknown.

    `many` is the plural, if it is not `one` with an s. Both may have a verb, as `counted(n, "queue is", "queues are")`.
    """
    if number == 1 and isinstance(number, int):
        return f"1 {one}"
    many = many or f"{one}s"
    return f"{number:,} {many}" if isinstance(number, int) else f"an unknown number of {many}"


def duration_text(seconds: float) -> str:
    """Return a duration, as precise as a reader needs it: `3.2 s`, `50 s`, `5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"

"""Numbers of things as text. Pure."""

from __future__ import annotations


def counted(number: object, one: str, many: str = "") -> str:
    """Return a number and its noun: `1 queue`, `1,200 queues`; a value that is no whole number counts as unknown.

    `many` is the plural, if it is not `one` with an s. Both may have a verb, as `counted(n, "queue is", "queues are")`.
    """
    if number == 1 and isinstance(number, int):
        return f"1 {one}"
    many = many or f"{one}s"
    return f"{number:,} {many}" if isinstance(number, int) else f"an unknown number of {many}"

"""Whole numbers in the texts of requests, within bounds. Pure."""

from __future__ import annotations


def whole_number(text: str, *, least: int = 0, most: int) -> int | None:
    """Return the number that a text of decimal digits is; None for another text, or a number out of bounds.

    `int` alone takes signs, spaces, underscores and the digits of all scripts, and fails for thousands of digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if least <= number <= most else None

"""Ages in words and in seconds."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def age(ms: float) -> str:
    """The age in its two largest units, and in seconds if those are others: `3 min 20 s (200 s)`."""
    seconds = ms / 1000
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    first = next(index for index, (_, unit) in enumerate(_UNITS) if whole >= unit)
    parts = []
    left = whole
    for name, unit in _UNITS[first : first + 2]:
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count} {name}")
    return f"{' '.join(parts)} ({whole} s)"

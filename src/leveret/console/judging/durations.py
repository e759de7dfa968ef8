"""Durations and ages as text. Pure."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """Return a duration, as precise as a reader needs it: `3.2 s`, `50 s`, `5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"

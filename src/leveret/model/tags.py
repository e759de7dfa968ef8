"""Tags come in two forms over the years: a list, and a text with commas."""

from __future__ import annotations


def tags_of(given: str | list[str]) -> tuple[str, ...]:
    """The tags, each once, in their order."""
    words = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))

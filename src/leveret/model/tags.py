"""Tags in both of RabbitMQ's forms: a list, and a text with commas."""

from __future__ import annotations


def tags_of(given: str | list[str]) -> tuple[str, ...]:
    """Return the tags in their order, each once."""
    words = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))

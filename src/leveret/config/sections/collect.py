"""What becomes of the lines of a family of settings: their values by last word -> the field's value."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def in_order(members: dict[str, T]) -> tuple[T, ...]:
    """The values, in the order of their lines."""
    return tuple(members.values())


def by_name(members: dict[str, T]) -> dict[str, T]:
    """The values by last word, as they are."""
    return members


def chosen(members: dict[str, bool]) -> frozenset[str]:
    """The last words that are true."""
    return frozenset(name for name, is_chosen in members.items() if is_chosen)

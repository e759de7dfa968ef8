"""Converters for families of settings: from values by last word to the value of the field."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def in_order(members: dict[str, T]) -> tuple[T, ...]:
    """Return the values in the order of their lines."""
    return tuple(members.values())


def by_name(members: dict[str, T]) -> dict[str, T]:
    """Return the values by last word, unchanged."""
    return members


def chosen(members: dict[str, bool]) -> frozenset[str]:
    """Return the last words with the value true."""
    return frozenset(name for name, is_chosen in members.items() if is_chosen)

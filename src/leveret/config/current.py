"""The settings in force as lines of a configuration file, for `leveretctl environment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leveret.config.settings import Setting, declared_values
from leveret.config.tree import Config


def settings_in_force(config: Config) -> Iterator[tuple[str, str]]:
    """Return key and text of every setting, in the order of the reference, without secrets."""
    for one, value in declared_values(config):
        if not one.is_secret:
            yield from (line for line in _lines(one, value) if not one.hides(*line))


def _lines(one: Setting, value: Any) -> Iterator[tuple[str, str]]:
    """Return the line of one setting; for a family one line a member, or `none`."""
    if not one.is_family:
        yield one.key, one.kind.show(value)
        return
    members = _members(value)
    for name, member in members.items():
        yield f"{one.prefix}.{name}", member if isinstance(member, str) else one.kind.show(member)
    if not members:
        yield one.prefix, "none"


def _members(value: Any) -> Mapping[str, Any]:
    """Return the members of a family by their last word, from any form in which the tree holds them."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, frozenset):
        return {name: "true" for name in sorted(value)}
    return {str(number): member for number, member in enumerate(value, 1)}

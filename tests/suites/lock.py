"""Reading a lock that pip can install from: names, versions and hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ENTRY: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")


class LockError(Exception):
    """The lock can not be read, or lacks a package; the text says where and what."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of the lock; `text` is its whole entry, as pip reads it."""

    name: str
    version: str
    text: str


def read_lock(text: str) -> dict[str, Locked]:
    """Return the packages of a lock by name, in its order.

    Raises:
        LockError: an entry is no `name==version`, has no hash, or stands there twice.
    """
    packages: dict[str, Locked] = {}
    for line, entry in _entries(text):
        match = _ENTRY.match(entry)
        if match is None:
            raise LockError(f"line {line}: {entry.splitlines()[0]!r} is no name==version")
        if "--hash=" not in entry:
            raise LockError(f"line {line}: {match['name']} has no hash")
        if match["name"] in packages:
            raise LockError(f"line {line}: {match['name']} is locked a second time")
        packages[match["name"]] = Locked(match["name"], match["version"], entry)
    return packages


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield each entry with the number of its first line; a backslash carries it on."""
    held: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not held and (not line.strip() or line.startswith("#")):
            continue
        held.append(line)
        if not line.endswith("\\"):
            yield number - len(held) + 1, "\n".join(held)
            held = []
    if held:
        raise LockError(f"line {len(text.splitlines())}: the lock ends in the middle of an entry")


def extract(packages: dict[str, Locked], names: tuple[str, ...]) -> str:
    """Return a lock of only these packages.

    Raises:
        LockError: one of them is not in the lock.
    """
    missing = [name for name in names if name not in packages]
    if missing:
        raise LockError(f"not in the lock: {', '.join(missing)}; tools/lock writes it from pyproject.toml")
    return "".join(f"{packages[name].text}\n" for name in names)

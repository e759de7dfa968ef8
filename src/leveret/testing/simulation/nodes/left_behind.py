"""Looks for what is left of deleted queues: on the disks of nodes, and in the memory of their parts.

A queue that is forgotten in one table only harms nobody for weeks; then a node with a million queues behind it is slow,
or a later queue of the name meets what its predecessor left. So the audit walks through all that a node's parts refer
to, and names each queue, name of a log, and pair of virtual host and name that it finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

from leveret.core.queues.queue import Queue

_KINDS: Final = ("queues", "streams")
_PRODUCT: Final = "leveret."
_TESTING: Final = "leveret.testing."
_MENTIONS_MAX: Final = 8
_BOUNDED: Final = ("_recent", "_heap", "_cursors", "_join", "_refusals_again_s")
"""The attributes that may have some former queues: the last changes of definitions, a part of the deadlines, the offset
of each log that was mirrored, then led and replaced, what a follower lacked as it joined, and when refusals of a full
disk are logged again."""
_ATOMS: Final = (str, bytes, bytearray, memoryview, int, float, bool, type(None), type, Path)


def on_disk(data_dir: Path) -> list[str]:
    """Return the directories of logs below a data directory."""
    return sorted(f"{kind}/{each.name}" for kind in _KINDS for each in (data_dir / kind).glob("*"))


def in_memory(roots: dict[str, Any], names: Collection[str]) -> list[str]:
    """Return, for each mention of a queue of these names, the way to it from one of the roots; at most some."""
    found: list[str] = []
    seen: set[int] = set()
    waiting = deque(roots.items())
    while waiting and len(found) < _MENTIONS_MAX:
        way, value = waiting.popleft()
        if _is_mention(value, names):
            found.append(f"{way} = {_text(value)}")
        elif not isinstance(value, _ATOMS) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend((f"{way}{step}", each) for step, each in _parts(value))
    return found


def _is_mention(value: Any, names: Collection[str]) -> bool:
    if isinstance(value, Queue):
        return value.key[1] in names
    if isinstance(value, str):
        return value.startswith(("queues/", "streams/"))
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str) and value[1] in names


def _text(value: Any) -> str:
    return f"{type(value).__name__} {value.key[1]}" if isinstance(value, Queue) else repr(value)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to, with the step that leads there."""
    match value:
        case dict():
            for key, each in list(value.items()):
                yield ".key", key
                yield f"[{_text(key)[:60]}]", each
        case list() | tuple() | set() | frozenset() | deque():
            yield from (("[]", each) for each in list(value))
        case partial():
            yield from ((".call", each) for each in (value.func, *value.args, *value.keywords.values()))
        case MethodType():
            yield ".self", value.__self__
        case FunctionType():
            for cell in value.__closure__ or ():
                yield f".{value.__qualname__}", _content(cell)
        case _ if _is_of_product(type(value)):
            yield from _attributes(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # It is empty.


def _is_of_product(kind: type) -> bool:
    return kind.__module__.startswith(_PRODUCT) and not kind.__module__.startswith(_TESTING)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, each in list(getattr(value, "__dict__", {}).items()):
        if name not in _BOUNDED:
            yield f".{name}", each
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__", *_BOUNDED):
                mangled = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                yield f".{name}", getattr(value, mangled, None)

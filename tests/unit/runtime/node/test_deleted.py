"""A node keeps nothing of what was deleted."""

from __future__ import annotations

import asyncio
import types
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from leveret.config import load
from leveret.core.queues.messages import alike
from leveret.model import definitions as d
from leveret.runtime.node.node import Node
from tests.unit.runtime.collecting.site import HEAD

_ENDS: Final = (types.ModuleType, types.FunctionType, type, asyncio.AbstractEventLoop, asyncio.Future)
_CONTAINERS: Final = (dict, list, set, frozenset, tuple, deque)
_BOUNDED: Final = ("Definitions._recent", "LowestOffsets._firsts", "PositionsCheckpoint._said")
"""Of a fixed length, or as long as the outgoing log has the segments that they are about."""
_ROUNDS: Final = 12


def parts(thing: object) -> Iterator[tuple[str, object]]:
    """What an object holds, with the names of its attributes."""
    if isinstance(thing, dict):
        for key, value in list(thing.items()):
            yield "", key
            yield "", value
    elif isinstance(thing, _CONTAINERS):
        yield from (("", each) for each in list(thing))
    elif isinstance(thing, types.MethodType):
        yield "", thing.__self__
    elif isinstance(thing, partial):
        yield from (("", each) for each in (thing.func, *thing.args))
    else:
        kind = type(thing)
        names = [*getattr(thing, "__dict__", ())]
        for each in kind.__mro__:
            slots = each.__dict__.get("__slots__", ())
            names += (slots,) if isinstance(slots, str) else slots
        for name in names:
            value = getattr(thing, name, None)
            if value is not None:
                yield f"{kind.__name__}.{name}", value


def lengths(root: object) -> Counter[str]:
    """The lengths of all containers that an object holds, by class and attribute."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", root)]
    while left:
        where, thing = left.pop()
        if id(thing) in seen or isinstance(thing, (*_ENDS, str, bytes, int, float)):
            continue
        seen.add(id(thing))
        if isinstance(thing, _CONTAINERS):
            found[where] += len(thing)
        left += [(name or where, each) for name, each in parts(thing)]
    return found


async def changed(node: Node, *changes: d.Change) -> None:
    for change in changes:
        node.broker.apply(change)
    await node.commit()


async def churn(node: Node, number: int) -> None:
    """Make one of each kind in a vhost that stays, and in one of its own, use them, and delete all."""
    own = f"own{number}"
    vhost = d.Vhost(name=own, tags=("standby_replication",))
    await changed(node, d.Put(vhost), d.Put(d.User(name=own, password_hash="", tags=())))
    for where in ("v", own):
        policy = d.Policy(
            vhost=where, name=f"p{number}", pattern=f"^q{number}", definition={"remote-dc-replicate": True}
        )
        mirrors = d.Policy(
            vhost=where, name=f"m{number}", pattern=f"^t{number}", definition={"ha-mode": "all"}
        )
        exchange, queue = (
            d.Exchange(name=f"e{number}", vhost=where, type="topic"),
            d.Queue(name=f"q{number}", vhost=where),
        )
        binding = d.Binding(
            vhost=where,
            source=exchange.name,
            destination=queue.name,
            routing_key="k",
            arguments={"a": number},
        )
        transient = d.Queue(name=f"t{number}", vhost=where, durable=False)
        permission = d.Permission(user=own, vhost=where, configure=".*", write=".*", read=".*")
        made = (permission, policy, mirrors, exchange, queue, transient, binding)
        await changed(node, *(d.Put(each) for each in made))
        if where == "v":
            node.broker.queues[queue.key].gathered.add(alike(HEAD, [b"%08d" % number] * 3))
            await node.commit()
        if number % 2:
            await changed(node, d.Delete("policies", policy.key))
        await changed(
            node, *(d.Delete(each.kind, each.key) for each in reversed(made) if each.key != policy.key)
        )
        if number % 2 == 0:
            await changed(node, d.Delete("policies", policy.key))
    await changed(node, d.Delete("vhosts", (own,)), d.Delete("users", (own,)))


async def test_nothing_is_left_of_what_was_deleted(tmp_path: Path) -> None:
    """State files of outgoing logs, and notes of policies, stayed in memory for each vhost and policy (2026-11-30)."""
    node = Node(load(None, {"listeners.tcp": "none", "stream.listeners.tcp": "none"}), tmp_path)
    await node.start()
    await changed(node, d.Put(d.Vhost(name="v", tags=("standby_replication",))))
    for number in range(_ROUNDS):
        await churn(node, number)
    before = lengths(node)
    for number in range(_ROUNDS, 3 * _ROUNDS):
        await churn(node, number)
    after = lengths(node)
    grown = {
        where: (before[where], count)
        for where, count in after.items()
        if count - before[where] >= _ROUNDS and where not in _BOUNDED
    }
    await node.stop()
    assert not grown

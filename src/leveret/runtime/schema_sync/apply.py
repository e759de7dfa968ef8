"""Makes this node's schema equal to its upstream's: applies a delta, and keeps a record of the changes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Final

import msgspec

from leveret.core.broker.broker import Broker
from leveret.core.rules.validation import same_value
from leveret.core.schema.delta import HOLDS, Delta, Key, LocalEntities, canonical, compare
from leveret.core.schema.steps import SchemaStep
from leveret.model.definitions import (
    Binding,
    Change,
    Definitions,
    Delete,
    GlobalParameter,
    Parameter,
    Put,
)
from leveret.model.errors import InvalidCommand, Refusal
from leveret.model.secrets import masked
from leveret.runtime.logs.definitions_store import name_of, place_of
from leveret.runtime.process.work_slices import in_slices, others_first, result_of, time_slice
from leveret.storage.state_file import StateFile

logger = logging.getLogger(__name__)

CHANGES_PER_SLICE: Final = 100
"""The most changes after which they are logged, and the event loop serves others; it does so earlier if they take
longer than a slice."""
HISTORY_MAX: Final = 100
CHANGES_KEPT_MAX: Final = 50
"""The number of changes that a record names; it counts all of them."""


class AppliedDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One applied delta: `stamp` in Unix seconds, `changes` such as `put queues orders/in`."""

    stamp: int
    upstream: str
    upstream_cluster: str
    duration_ms: int
    sent_bytes: int
    received_bytes: int
    puts: int
    deletes: int
    conflicts: int
    refused: int
    changes: list[str]


class SyncHistory:
    """The last applied deltas, newest last; a state file keeps them."""

    def __init__(self, file: StateFile) -> None:
        """Read the stored deltas.

        Raises:
            StorageError: the file is damaged.
            InvalidCommand: the content of the file is invalid.
        """
        self._file = file
        try:
            found = file.load("otherwise remove it: it only shows earlier syncs").get("applied", [])
            kept = msgspec.convert(found, list[AppliedDelta])
        except msgspec.ValidationError as error:
            raise InvalidCommand(f"{file.path}: {error}") from None
        self._applied: deque[AppliedDelta] = deque(kept, HISTORY_MAX)
        self._state: dict[str, Any] = {}
        self._saving = threading.Lock()

    async def add(self, applied: AppliedDelta) -> None:
        """Store one more delta.

        Raises:
            StorageError: the disk refuses the write.
        """
        self._applied.append(applied)
        self._state = {"applied": msgspec.to_builtins(list(self._applied))}
        await asyncio.to_thread(self._save, asyncio.get_running_loop())

    def _save(self, loop: asyncio.AbstractEventLoop) -> None:
        # The thread of a cancelled sync continues, and may end after the thread of the next sync.
        with self._saving:
            self._file.save_in_thread(self._state, loop.call_soon_threadsafe)

    @property
    def last_cluster(self) -> str:
        """The name of the upstream's cluster in the last delta; empty if there is none."""
        return self._applied[-1].upstream_cluster if self._applied else ""

    def rows(self) -> list[dict[str, Any]]:
        """Return all deltas, newest first."""
        rows: list[dict[str, Any]] = msgspec.to_builtins(list(reversed(self._applied)))
        return rows


class QueuesWithMessages:
    """The keys of the queues that hold messages or may hold some. Only the queues in question are examined."""

    def __init__(self, broker: Broker) -> None:
        """Examine the queues of this broker."""
        self._broker = broker

    def __contains__(self, key: object) -> bool:
        """Return whether the queue exists and may hold messages now."""
        queue = self._broker.queues.get(key)  # type: ignore[call-overload]  # whatever it is, it is no key then
        return queue is not None and queue.may_hold_messages


async def delta_here(
    broker: Broker, theirs: Definitions, locals_: LocalEntities, holding: Container[Key]
) -> Delta:
    """Return the delta from this broker's present schema to the upstream's; the event loop serves others meanwhile."""
    own = {kind: dict(entities) for kind, entities in broker.definitions.by_kind.items()}
    return await result_of(compare(own, theirs.by_kind, locals_, holding, exclusive_in(broker)))


def exclusive_in(broker: Broker) -> dict[Key, list[Binding]]:
    """Return the exclusive queues, each with its bindings."""
    return {
        queue.key: broker.topology(queue.key[0]).bindings_into("queue", queue.key[1])
        for queue in broker.exclusive_queues()
    }


class DeltaOutcome(msgspec.Struct):
    """The outcome of a delta: some of the executed `changes`, and all conflicts with their reasons."""

    puts: int = 0
    deletes: int = 0
    changes: list[str] = []
    conflicts: list[str] = []
    refused: list[str] = []


async def apply(
    broker: Broker, found: Delta, holding: Container[Key], flush: Callable[[], None]
) -> DeltaOutcome:
    """Apply all changes that can be applied; a refused change stops no other one.

    Joined steps are applied together; between others a slice is flushed and the event loop serves others. So a queue
    may hold messages by now: it is looked up in `holding` again. An exchange may have other bindings by now: they are
    put back.
    """
    outcome = DeltaOutcome(
        conflicts=[f"{place(each.kind, each.key)}: {each.reason}" for each in found.conflicts],
        refused=[f"{place(each.kind, each.key)}: {each.reason}" for each in found.refused],
    )
    made, is_over = 0, time_slice()
    for step in found.steps:
        if _would_lose_messages(step, holding):
            outcome.conflicts.append(f"{place(*place_of(step.change))}: {HOLDS}")
            continue
        changes = [*step.changes, *_bound_since(broker, step)]
        for change in changes:
            _make(broker, change, outcome)
        made += len(changes)
        if (made >= CHANGES_PER_SLICE or is_over()) and not step.joined:
            flush()
            await others_first()
            made, is_over = 0, time_slice()
    return outcome


def _would_lose_messages(step: SchemaStep, holding: Container[Key]) -> bool:
    kind, key = place_of(step.change)
    return step.instead is not None and kind == "queues" and key in holding


def _bound_since(broker: Broker, step: SchemaStep) -> list[Change]:
    """Return the entities that go with a replaced exchange and were bound after the delta was made.

    A connection that has bound its exclusive queue does not bind it again. The next sync deletes entities that this
    node must not have.
    """
    kind, key = place_of(step.change)
    topology = broker.topologies.get(key[0])
    exchange = topology.exchanges.get(key[-1]) if topology is not None and kind == "exchanges" else None
    if topology is None or exchange is None or step.instead is None:
        return []
    bound = exchange.bindings | {each.key: each for each in topology.bindings_into("exchange", key[-1])}
    known = {put.entity.key for put in step.restored}
    return [Put(binding) for key, binding in bound.items() if key not in known]


def _make(broker: Broker, change: Change, outcome: DeltaOutcome) -> None:
    try:
        broker.apply(change)
    except Refusal as refusal:
        outcome.refused.append(f"{place(*place_of(change))}: {refusal}")
        return
    except Exception as bug:
        logger.critical("definition_failed change=%s action=skip", name_of(change), exc_info=True)
        outcome.refused.append(f"{place(*place_of(change))}: an unexpected error, {bug!r}")
        return
    is_put = isinstance(change, Put)
    outcome.puts += is_put
    outcome.deletes += not is_put
    if len(outcome.changes) < CHANGES_KEPT_MAX:
        outcome.changes.append(f"{'put' if is_put else 'delete'} {place(*place_of(change))}")


async def share(own: Definitions, theirs: Definitions, changes: list[Change]) -> None:
    """Replace entities in `theirs` by this node's equal objects, so that the next comparison costs nothing.

    Only a queue is another object here than at the upstream: it has an epoch of its own.
    """
    async for change in in_slices(changes):
        if isinstance(change, Put) and change.entity.kind == "queues":
            kind, key = place_of(change)
            existing, theirs_now = own.by_kind[kind].get(key), theirs.by_kind[kind].get(key)
            if (
                existing is not None
                and theirs_now is not None
                and canonical(existing) == canonical(theirs_now)
            ):
                theirs.apply(Put(existing))


def rows_of(found: Delta, own: Definitions, unreadable: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Return a delta for operators: the entities to put, replace, delete or keep, in the order of the changes.

    `unreadable` lists entities of the upstream that this node cannot have: kind, name and reason.
    """
    for step in found.steps:
        kind, key = place_of(step.change)
        existing = own.by_kind[kind].get(key)
        put = step.instead if isinstance(step.change, Delete) else step.change
        if put is None:
            yield _row("delete", kind, key, existing, None)
        else:
            action = "replace" if step.instead else "change" if existing is not None else "create"
            yield _row(action, kind, key, existing, put.entity)
    for conflict in found.conflicts:
        yield _left("keep", conflict.kind, conflict.key, conflict.reason)
    for refused in found.refused:
        yield _left("refuse", refused.kind, refused.key, refused.reason)
    for text in unreadable:
        yield _left("refuse", text.partition(" ")[0], (), text)


def _row(action: str, kind: str, key: Key, existing: object | None, wanted: object | None) -> dict[str, Any]:
    was, will = _shown(existing), _shown(wanted)
    named: list[str] = []
    if was is not None and will is not None:
        named = sorted(field for field in will if not same_value(will[field], was.get(field)))
    for shown in (was, will):
        if shown is not None and "password_hash" in shown:
            shown["password_hash"] = "..."
    row = {"action": action, "kind": kind, "entity": "/".join(key), "key": list(key)}
    return {**row, "fields": named, "own": was, "upstream": will, "reason": ""}


def _shown(entity: object | None) -> dict[str, Any] | None:
    if entity is None:
        return None
    shown: dict[str, Any] = msgspec.to_builtins(entity)
    shown.pop("epoch", None)
    if isinstance(entity, Parameter | GlobalParameter):
        shown["value"] = masked(shown["value"])
    return shown


def _left(action: str, kind: str, key: Key, reason: str) -> dict[str, Any]:
    row = {"action": action, "kind": kind, "entity": "/".join(key), "key": list(key)}
    return {**row, "fields": [], "own": None, "upstream": None, "reason": reason}


def place(kind: str, key: Key) -> str:
    """Return an entity's name for logs and the status: `queues orders/in`."""
    return f"{kind} {'/'.join(key)}"

"""What is decided on schema replication is decided for all nodes, one decision after the other, and copied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leveret.core.replication.cluster import ClusterKeys, ClusterState, Event, Presence
from leveret.core.replication.election import PutKey, StoreTransaction, Unchanged
from leveret.core.replication.placement import ClusterView
from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model.errors import ResourceLocked
from leveret.runtime.cluster.membership import definitions_lock
from leveret.runtime.cluster.membership.definitions_lock import DefinitionsLockHolder
from leveret.runtime.cluster.sites.schema_decisions import ClusterSchemaDecisions
from leveret.runtime.schema_sync.decisions import NodeSchemaDecisions
from leveret.storage.state_file import StateFile

FOLLOWS = SchemaDecided(operating_mode=OperatingMode.DOWNSTREAM)
HELD = Unchanged("c/pen", 7)


@dataclass
class Pen:
    """Here when `comes` is set (membership.definitions_lock.DefinitionsLockHolder)."""

    comes: asyncio.Event = field(default_factory=asyncio.Event)
    pins: int = 0
    lock_condition = HELD

    @contextmanager
    def pinned(self) -> Iterator[None]:
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1

    async def fetched(self) -> None:
        await self.comes.wait()

    held = DefinitionsLockHolder.held


class Member:
    """A member as far as decisions go (membership.member.ClusterMember)."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.definitions_lock = Pen()
        self.definitions_lock.comes.set()
        self.found_with = SchemaDecided()
        self.alive: dict[str, Presence] = {}

    async def transact(self, transaction: StoreTransaction) -> bool:
        assert (transaction.conditions, self.definitions_lock.pins) == ((HELD,), 1), (
            "nobody else decides meanwhile"
        )
        [write] = transaction.writes
        assert isinstance(write, PutKey)
        revision = self.state.revision + 1
        self.state.apply([Event(write.key, write.value, revision)], revision)
        return True

    def cluster_view(self) -> ClusterView:
        return ClusterView("a", "", ["a", "b"], self.alive, list)


def node(
    folder: Path, name: str, state: ClusterState
) -> tuple[Any, NodeSchemaDecisions, ClusterSchemaDecisions]:
    """A member, what it keeps itself, and what it decides for all."""
    member: Any = Member(state)
    own = NodeSchemaDecisions(StateFile(folder / f"{name}.json"), name)
    return member, own, ClusterSchemaDecisions(member, own)


async def test_who_waits_to_decide_undoes_nothing_that_was_decided_meanwhile(tmp_path: Path) -> None:
    state = ClusterState(ClusterKeys.under("c"))
    _, own_a, a = node(tmp_path, "a", state)
    member_b, own_b, b = node(tmp_path, "b", state)
    await a.decide(lambda now: FOLLOWS)
    member_b.definitions_lock.comes.clear()
    enabling = asyncio.ensure_future(b.decide(lambda now: SchemaDecided(True, now.operating_mode)))
    await asyncio.sleep(0)
    await a.decide(lambda now: SchemaDecided(now.enabled, OperatingMode.UPSTREAM))
    member_b.definitions_lock.comes.set()
    await enabling
    assert b.decided == a.decided == SchemaDecided(operating_mode=OperatingMode.UPSTREAM)
    await a.keep()
    assert own_a.decided == own_b.decided == b.decided
    assert NodeSchemaDecisions(StateFile(tmp_path / "b.json"), "b").decided == b.decided, (
        "a node started alone knows"
    )


async def test_copies_that_are_kept_at_once_end_with_what_holds(tmp_path: Path) -> None:
    _, own, deciding = node(tmp_path, "a", ClusterState(ClusterKeys.under("c")))
    for mode in (OperatingMode.DOWNSTREAM, OperatingMode.UPSTREAM, OperatingMode.NONE) * 5:
        keeping = [deciding.keep() for _ in range(3)]
        decide = deciding.decide(lambda now, mode=mode: SchemaDecided(not now.enabled, mode))  # type: ignore[misc]
        await asyncio.gather(*keeping, decide, *(deciding.keep() for _ in range(3)))
    await deciding.keep()
    assert own.decided == deciding.decided == SchemaDecided(False, OperatingMode.NONE)
    assert NodeSchemaDecisions(StateFile(tmp_path / "a.json"), "a").decided == deciding.decided


async def test_what_each_decided_alone_holds_until_anything_is_decided_for_all(tmp_path: Path) -> None:
    """A node that was promoted and founds a cluster, and nodes of versions before."""
    StateFile(tmp_path / "a.json").save({"operating_mode": "upstream"})
    state = ClusterState(ClusterKeys.under("c"))
    member_a, _, a = node(tmp_path, "a", state)
    _, own_b, b = node(tmp_path, "b", state)
    assert member_a.found_with == a.decided == SchemaDecided(operating_mode=OperatingMode.UPSTREAM)
    await a.keep()
    await b.keep()
    assert b.decided == own_b.decided == SchemaDecided()
    await b.decide(lambda now: FOLLOWS)
    assert a.decided == FOLLOWS


async def test_nobody_waits_for_ever_for_who_does_not_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions_lock, "DEFINITIONS_LOCK_TIMEOUT_S", 0.05)
    member, _, deciding = node(tmp_path, "a", ClusterState(ClusterKeys.under("c")))
    member.definitions_lock.comes.clear()
    with pytest.raises(ResourceLocked, match=r"was not handed over within .* s; its holder is no node"):
        await deciding.decide(lambda now: FOLLOWS)
    assert (deciding.decided, member.definitions_lock.pins) == (SchemaDecided(), 0)


async def test_who_came_first_of_those_that_serve_follows(tmp_path: Path) -> None:
    member, _, deciding = node(tmp_path, "b", ClusterState(ClusterKeys.under("c")))
    assert deciding.follower == ""
    serves, starts = (Presence("i", uri, "", 0, "1") for uri in ("tcp://h:1", ""))
    found = []
    for member.alive in (
        {"a": starts, "b": serves},
        {"a": serves, "b": serves},
        {"b": serves},
        {"c": serves},
    ):
        found.append(deciding.follower)
    assert found == ["b", "a", "b", ""]

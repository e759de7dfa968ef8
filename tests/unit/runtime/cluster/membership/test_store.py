"""What a node reads from etcd, without an etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from leveret.config import build, gather
from leveret.core.replication.cluster import ClusterKeys, ClusterState, Placement, Presence, encode
from leveret.core.replication.election import PutKey, StoredValue, StoreTransaction, Unchanged
from leveret.runtime.cluster.membership import store as membership_store
from leveret.runtime.cluster.membership.store import ClusterStore, LeaseLost
from leveret.runtime.coordination.etcd import EtcdRefused, EtcdUnreachable, Snapshot, WatchEvents
from leveret.testing.network.waiting import until


def made() -> tuple[ClusterStore, ClusterState, list[str]]:
    """A store with a lease that was read at no revision yet; its state, and the reasons for which it lost the lease."""
    config = build(
        gather(
            overrides={
                "nodename": "a@h",
                "cluster_formation.peer_discovery_backend": "etcd",
                "cluster.etcd.endpoints": "http://127.0.0.1:1",
            }
        )
    )
    state, lost = ClusterState(ClusterKeys.under(config.etcd.prefix)), list[str]()
    store = ClusterStore(
        config, lambda events, revision: void(state.apply(events, revision)), lambda reason: None
    )
    store._lease = cast(Any, SimpleNamespace(id=3, lose=lost.append, is_held_now=lambda: not lost))
    return store, state, lost


async def test_an_etcd_that_was_replaced_before_the_node_is_announced_ends_its_lease_and_not_the_node() -> (
    None
):
    """Found by the simulation of clusters, seed 9206: the second reading of all keys had an older revision."""
    store, state, lost = made()
    read = [Snapshot(88, {}), Snapshot(1, {})]

    async def answer(prefix: str) -> Snapshot:
        return read.pop(0)

    store._etcd = cast(Any, SimpleNamespace(read=answer, endpoint="e"))
    await store._look()
    with pytest.raises(LeaseLost, match="etcd has revision 1, and had 88: it was restored"):
        await store._answered(lambda _: store._look())
    assert len(lost) == 1
    assert state.revision == 88


@pytest.mark.parametrize("revision", [40, 88, 90])
async def test_an_etcd_that_was_restored_from_an_older_copy_ends_the_lease_that_the_copy_has_too(
    revision: int,
) -> None:
    """Else the node leads on by records that nobody else finds, and a watch waits for its revision in silence."""
    store, _, lost = made()
    store.revision, store._turn_modified = 87, 88
    watched: list[int] = []

    async def answer(prefix: str) -> Snapshot:
        return Snapshot(revision, {})

    async def watch(prefix: str, revision: int) -> AsyncGenerator[WatchEvents, None]:
        watched.append(revision)
        yield WatchEvents(91, [])

    store._etcd = cast(Any, SimpleNamespace(read=answer, watch=watch, endpoint="e"))
    if revision < 88:
        with pytest.raises(LeaseLost, match="etcd has revision 40, and had 88: it was restored"):
            await store._watch(is_first=False)
        assert (len(lost), watched) == (1, [])
    else:
        await store._watch(is_first=False)
        assert (lost, watched) == ([], [87])


async def test_what_others_did_before_a_node_was_announced_is_known_before_it_serves() -> None:
    """Until then they could take over its queues."""
    store, state, _ = made()
    taken_over = Placement(7, "b@h", "b1", 3)
    entries = {state.keys.placement("/", "q"): StoredValue(encode(taken_over), 5, 0)}
    read = [Snapshot(4, {}), Snapshot(4, {}), Snapshot(6, entries)]

    async def answer(prefix: str) -> Snapshot:
        return read.pop(0)

    async def transact(transaction: StoreTransaction) -> int:
        return 6

    async def watch(prefix: str, revision: int) -> AsyncGenerator[WatchEvents, None]:
        await asyncio.Event().wait()
        yield WatchEvents(7, [])

    store._etcd = cast(Any, SimpleNamespace(read=answer, watch=watch, endpoint="e"))
    store.transact = cast(Any, transact)  # type: ignore[method-assign]
    await store._look()
    await store.announce(lambda: Presence("a1", "uri", "", 0, ""))
    assert state.placements[("/", "q")].placement == taken_over
    assert store._following is not None
    store._following.cancel()


async def test_of_two_changes_of_a_nodes_record_under_way_neither_undoes_the_other() -> None:
    store, state, _ = made()
    key = state.keys.alive("a@h")
    written: list[Presence] = []
    now = Presence("a1", "uri", "", 0, "", draining=True)

    async def answer(prefix: str) -> Snapshot:
        return Snapshot(1, {key: StoredValue(b"", 1, 3)})

    async def transact(transaction: StoreTransaction) -> int | None:
        nonlocal now
        [put] = transaction.writes
        assert isinstance(put, PutKey)
        written.append(msgspec.json.decode(put.value, type=Presence))
        if len(written) == 1:
            # Meanwhile the other change was written: the condition does not hold.
            now = msgspec.structs.replace(now, streams=("h", 5552))
            return None
        return 2

    store._etcd = cast(Any, SimpleNamespace(read=answer, endpoint="e"))
    store._following = cast(Any, SimpleNamespace())
    store.transact = cast(Any, transact)  # type: ignore[method-assign]
    await store.announce(lambda: now)
    assert (written[-1].draining, written[-1].streams) == (True, ("h", 5552))


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_refusal_tells_nothing_of_an_earlier_attempt_whose_answer_was_lost(is_done: bool) -> None:
    """Else a node whose request for the definitions lock was done would not know that it has the lock, for good."""
    store, state, _ = made()
    entries: dict[str, StoredValue] = {}
    attempts = 0

    async def transact(transaction: StoreTransaction, lease_id: int) -> int | None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            raise EtcdRefused(8, "etcdserver: too many requests")
        if is_done:
            for put in transaction.writes:
                assert isinstance(put, PutKey)
                entries[put.key] = StoredValue(put.value, 7, lease_id)
        raise EtcdUnreachable("no endpoint of etcd answers")

    async def answer(prefix: str) -> Snapshot:
        return Snapshot(7, entries)

    store._etcd = cast(Any, SimpleNamespace(read=answer, transact=transact, endpoint="e"))
    store._turn = store.keys.turn(3)
    asked = store.transact(StoreTransaction((), (PutKey(state.keys.definitions_lock, b'"a@h"'),)))
    if is_done:
        assert await asked == 7
    else:
        with pytest.raises(EtcdRefused):
            await asked


async def test_an_etcd_without_room_is_named_with_the_remedy_until_it_takes_a_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody may write for long, and an operator has made room: so the node tries by itself."""
    monkeypatch.setattr(membership_store, "PROBE_S", 0.001)
    store, state, _ = made()
    rooms = [False] * 4

    async def transact(transaction: StoreTransaction, lease_id: int) -> int | None:
        if rooms:
            rooms.pop()
            raise EtcdRefused(8, "etcdserver: mvcc: database space exceeded")
        return 7

    async def answer(prefix: str) -> Snapshot:
        return Snapshot(6, {})

    store._etcd = cast(Any, SimpleNamespace(read=answer, transact=transact, endpoint="e"))
    store._turn = store.keys.turn(3)
    with pytest.raises(EtcdRefused):
        await store.transact(StoreTransaction((), (PutKey(state.keys.definitions_lock, b'"a@h"'),)))
    assert store.is_full
    await until(lambda: not store.is_full, "a write was taken")
    assert not rooms
    [full] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "etcd_full" in full
    assert "etcdctl_alarm_disarm" in full


@pytest.mark.parametrize("lost", ["none", "refused", "missed"])
async def test_a_turn_whose_condition_does_not_hold_is_taken_once_whichever_answer_is_lost(lost: str) -> None:
    """Found by the simulation of clusters, seed 20271004: the turn was taken without the writes, and tried again."""
    store, state, _ = made()
    entries: dict[str, StoredValue] = {}
    turns: list[bytes] = []
    revision = 4

    async def transact(transaction: StoreTransaction, lease_id: int) -> int | None:
        nonlocal revision
        holds = all(
            (entries[each.key].modified if each.key in entries else 0) == each.modified
            for each in transaction.conditions
            if isinstance(each, Unchanged)
        )
        puts = [put for put in transaction.writes if isinstance(put, PutKey)]
        if holds:
            revision += 1
            turns.extend(put.value for put in puts if put.key == store.keys.turn(3))
            entries.update({put.key: StoredValue(put.value, revision, lease_id) for put in puts})
        if nothing_lost and lost == ("missed" if len(puts) == 1 else "refused"):
            nothing_lost.clear()
            raise EtcdUnreachable("no endpoint of etcd answers")
        return revision if holds else None

    async def answer(prefix: str) -> Snapshot:
        return Snapshot(revision, entries)

    nothing_lost = [True]
    store._etcd = cast(Any, SimpleNamespace(read=answer, transact=transact, endpoint="e"))
    store._turn = store.keys.turn(3)
    key = state.keys.definitions_lock
    entries[key] = StoredValue(b'"b@h"', 4, 9)
    asked = StoreTransaction((Unchanged(key, 0),), (PutKey(key, b'"a@h"'),))
    assert await store.transact(asked) is None
    assert turns == [b"1 not done"]
    assert entries[key].value == b'"b@h"'
    assert await store.transact(StoreTransaction((Unchanged(key, 4),), (PutKey(key, b'"a@h"'),))) == revision
    assert turns == [b"1 not done", b"2"]


def void(value: object) -> None:
    """Forget a value."""

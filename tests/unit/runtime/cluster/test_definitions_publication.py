"""Changes of definitions on their way to all nodes: few transactions, and no moment without what is replaced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.broker.broker import Broker
from leveret.core.broker.limits import OtherConnection
from leveret.core.replication.cluster import ClusterKeys, ClusterState, DefinitionChanged, Event, Placement
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.model import definitions as d
from leveret.runtime.cluster import definitions_publication
from leveret.runtime.cluster.coordinator import take
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.coordination.etcd import EtcdRefused
from leveret.testing.network.waiting import until
from tests.unit.core.broker.test_broker import no_read

KEYS = ClusterKeys.under("c")


def shared(*changes: d.Change, refused: int = 0) -> list[StoreTransaction]:
    """What is written for these, which are known to all at the end; etcd is full at so many attempts."""
    found: list[StoreTransaction] = []
    known: list[int] = []

    class Store:
        async def transact(self, transaction: StoreTransaction) -> int:
            nonlocal refused
            if refused:
                refused -= 1
                raise EtcdRefused(8, "etcdserver: mvcc: database space exceeded")
            found.append(transaction)
            return len(found)

    async def all_have(revision: int) -> None:
        known.append(revision)

    async def scenario() -> None:
        idle, taken = asyncio.Event(), asyncio.Event()
        lock = SimpleNamespace(lock_condition=Unchanged(KEYS.definitions_lock, 3), check=idle.set)
        member: Any = SimpleNamespace(
            store=Store(), state=ClusterState(KEYS), definitions_lock=lock, all_have=all_have
        )
        publication = DefinitionsPublication(
            member, Broker(no_read), lambda queue: Placement(queue.epoch, "a", "i", 1)
        )
        publication.share(list(changes), taken.set)
        await idle.wait()
        assert taken.is_set()

    asyncio.run(scenario())
    assert known == [len(found)]
    return found


def arrive(transaction: StoreTransaction, broker: Broker, state: ClusterState) -> None:
    """Apply a transaction at another node."""
    revision = state.revision + 1
    events = [
        Event(write.key, write.value if isinstance(write, PutKey) else None, revision)
        for write in transaction.writes
    ]
    for change in state.apply(events, revision):
        if isinstance(change, DefinitionChanged):
            take(broker, change.change)


def test_what_is_deleted_and_put_again_is_replaced_in_one_transaction() -> None:
    queue, binding = d.Queue(vhost="/", name="q", epoch=2), d.Binding(vhost="/", source="x", destination="q")
    [written] = shared(
        d.Delete("bindings", binding.key),
        d.Delete("queues", queue.key),
        d.Put(queue),
        d.Put(binding),
        d.Delete("queues", ("/", "gone")),
    )
    by_key = {write.key: type(write) for write in written.writes}
    assert len(by_key) == len(written.writes)
    assert by_key == {
        KEYS.definition("queues", queue.key): PutKey,
        KEYS.placement("/", "q"): PutKey,
        KEYS.definition("bindings", binding.key): PutKey,
        KEYS.definition("queues", ("/", "gone")): DeleteKey,
        KEYS.placement("/", "gone"): DeleteKey,
        KEYS.epoch: PutKey,
    }


def test_no_node_learns_of_a_queue_before_it_learns_where_that_is() -> None:
    """Each node that knew the definition alone led the queue and confirmed; one of them was right (2026-11-30)."""
    queues = [d.Queue(vhost="/", name=f"q{number}", epoch=number + 1) for number in range(200)]
    found = shared(
        d.Put(d.Exchange(vhost="/", name="x", type="fanout")),
        *map(d.Put, queues),
        *(d.Delete("queues", queue.key) for queue in queues[:150]),
    )
    assert len(found) > 2
    for transaction in found:
        kinds = {write.key: type(write) for write in transaction.writes}
        for queue in queues:
            definition = kinds.get(KEYS.definition("queues", queue.key))
            assert definition is kinds.get(KEYS.placement(*queue.key))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (d.User(name="u", password_hash="before"), d.User(name="u", password_hash="after")),
        (d.Vhost(name="v", description="before"), d.Vhost(name="v", description="after")),
    ],
)
def test_what_has_connections_and_is_made_anew_is_gone_for_a_moment_at_all_nodes(
    before: d.User | d.Vhost, after: d.User | d.Vhost
) -> None:
    """That moment closes the connections of the user, or in the vhost, as at the node that made the change."""
    permission = d.Permission(user="u", vhost="v", configure="", write="", read="")
    queue, again = (d.Queue(vhost="v", name="q", epoch=epoch) for epoch in (2, 3))
    one, other = shared(
        d.Put(before),
        d.Delete("permissions", permission.key),
        d.Delete("queues", queue.key),
        d.Delete(before.kind, before.key),
        d.Put(after),
        d.Put(permission),
        d.Put(again),
    )
    broker, state = Broker(no_read), ClusterState(KEYS)
    broker.shared = []
    for each in (d.Vhost(name="v"), d.User(name="u", password_hash=""), before, permission, queue):
        broker.apply_decided(d.Put(each))
    reasons: list[str] = []
    OtherConnection(broker.connections, "u", "v", reasons.append)
    for count, transaction in enumerate((one, other)):
        arrive(transaction, broker, state)
        assert reasons == [f"{before.kind.removesuffix('s')} '{before.key[0]}' is deleted"]
        assert list(state.placements) == [("v", "q")] * count
    kept = broker.definitions.by_kind
    assert kept[before.kind][before.key] == after
    assert kept["permissions"][permission.key] == permission
    assert kept["queues"] == {("v", "q"): again}


def test_a_user_whose_password_changes_keeps_the_connections() -> None:
    [written] = shared(d.Put(d.User(name="u", password_hash="1")), d.Put(d.User(name="u", password_hash="2")))
    assert [type(write) for write in written.writes] == [PutKey, PutKey]


def test_what_is_put_again_comes_no_later_than_what_needs_it() -> None:
    """A vhost and a user get other tags while their queues and permission wait for an earlier transaction."""
    user, tagged = (d.User(name="u", password_hash="", tags=tags) for tags in ((), ("management",)))
    permission = d.Permission(user="u", vhost="v", configure="", write="", read="")
    queues = [d.Queue(vhost="v", name=f"q{number}", epoch=number) for number in range(1, 101)]
    changes: list[d.Change] = [
        d.Put(user),
        d.Put(d.Vhost(name="v")),
        d.Put(permission),
        *(d.Put(queue) for queue in queues),
        d.Put(d.Vhost(name="v", tags=("t",))),
        d.Put(tagged),
    ]
    transactions = shared(*changes)
    broker, state = Broker(no_read), ClusterState(KEYS)
    assert len(transactions) > 1
    for transaction in transactions:
        arrive(transaction, broker, state)
    assert len(broker.queues) == len(queues)
    assert broker.definitions.by_kind["permissions"][permission.key] == permission
    assert broker.definitions.by_kind["users"][("u",)] == tagged


def test_what_was_put_and_deleted_meanwhile_is_gone() -> None:
    exchange = d.Exchange(vhost="/", name="x", type="fanout")
    [written] = shared(d.Put(exchange), d.Delete("exchanges", exchange.key))
    assert {write.key: type(write) for write in written.writes} == {
        KEYS.definition("exchanges", exchange.key): DeleteKey,
        KEYS.epoch: PutKey,
    }


def test_a_change_waits_for_an_etcd_that_is_full_and_costs_the_node_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(definitions_publication, "_RETRY_S", 0.001)
    [written] = shared(d.Put(d.Vhost(name="v")), refused=3)
    assert {write.key for write in written.writes} == {KEYS.definition("vhosts", ("v",)), KEYS.epoch}


async def test_a_failure_behind_the_write_has_the_node_begin_anew_too() -> None:
    """Otherwise it would publish nothing more, keep the definitions lock, and its clients would wait for ever."""
    lost: list[str] = []

    async def transact(transaction: StoreTransaction) -> int:
        return 1

    async def all_have(revision: int) -> None:
        raise RuntimeError("a bug")

    member: Any = SimpleNamespace(
        store=SimpleNamespace(transact=transact),
        state=ClusterState(KEYS),
        definitions_lock=SimpleNamespace(lock_condition=Unchanged(KEYS.definitions_lock, 3)),
        all_have=all_have,
        lost=lost.append,
    )
    publication = DefinitionsPublication(
        member, Broker(no_read), lambda queue: Placement(queue.epoch, "a", "i", 1)
    )
    publication.share([d.Put(d.Vhost(name="v"))], lambda: None)
    await until(lambda: lost)
    assert lost == ["definitions could not be shared: a bug"]

"""The location of a queue from its declaration to its record in etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.config.sections.cluster import Cluster
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import ClusterKeys, ClusterState, Event, Placement, Presence, encode
from leveret.core.replication.election import StoreTransaction, Unchanged
from leveret.core.replication.placement import ClusterView
from leveret.model import definitions as d
from leveret.runtime.cluster.definitions_publication import DefinitionsPublication
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.testing.network.waiting import until
from tests.unit.core.broker.test_broker import no_read

KEYS = ClusterKeys.under("c")
KEY = ("/", "q")


def view() -> ClusterView:
    return ClusterView("a", "i", ["a"], {"a": Presence("i", "uri", "", 0, "")}, list)


def test_a_queue_that_is_declared_anew_while_its_deletion_is_written_has_its_own_placement() -> None:
    state, broker = ClusterState(KEYS), Broker(no_read)
    locations = QueueLocations(Cluster(port=0), state, broker, view)

    def make_queue(definition: d.Queue, read: Reader, exclusive: bool) -> Queue:
        placed = locations.placement_of(definition, exclusive)
        assert placed is not None
        return RemoteQueue(definition, placed.leader)

    def arrives(value: bytes | None) -> None:
        state.apply([Event(KEYS.placement(*KEY), value, state.revision + 1)], state.revision + 1)
        locations.recorded(KEY)

    broker.make_queue = make_queue
    broker.apply(d.Put(d.Vhost(name="/")))
    former = broker.declare_queue(d.Queue(vhost="/", name="q"))
    arrives(encode(locations.first(former.definition)))
    broker.delete_queue(former)
    queue = broker.declare_queue(d.Queue(vhost="/", name="q"))
    # Only now etcd reports the deletion.
    arrives(None)
    assert locations.first(queue.definition).epoch == queue.epoch
    placed = locations.placement_of(queue.definition, False)
    assert placed is not None
    assert placed.epoch == queue.epoch
    arrives(encode(placed))
    assert locations.known(KEY) == placed
    broker.delete_queue(queue)
    arrives(None)
    assert locations.known(KEY) is None


def publishing(
    locations: QueueLocations, broker: Broker, state: ClusterState, all_have: Callable[[int], Awaitable[None]]
) -> DefinitionsPublication:
    written: list[StoreTransaction] = []

    async def transact(transaction: StoreTransaction) -> int:
        written.append(transaction)
        return len(written)

    lock = SimpleNamespace(
        lock_condition=Unchanged(KEYS.definitions_lock, 3), look=lambda: None, check=lambda: None
    )
    member: Any = SimpleNamespace(
        store=SimpleNamespace(transact=transact), state=state, definitions_lock=lock, all_have=all_have
    )
    return DefinitionsPublication(member, broker, locations.first, locations.unrecorded)


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_queue_whose_record_ends_before_this_node_looks_leaves_no_placement(is_seen: bool) -> None:
    """The events of the record and of its end came together, so the node never saw the record."""
    state, broker = ClusterState(KEYS), Broker(no_read)
    locations = QueueLocations(Cluster(port=0), state, broker, view)
    broker.apply(d.Put(d.Vhost(name="/")))

    async def all_have(revision: int) -> None:
        if is_seen:
            state.apply([Event(KEYS.placement(*KEY), None, revision)], revision)
            locations.recorded(KEY)

    publication = publishing(locations, broker, state, all_have)
    queue = d.Queue(vhost="/", name="q", epoch=1)
    placed = locations.placement_of(queue, False)
    publication.share([d.Put(queue)], lambda: None)
    await until(lambda: not publication.is_busy)
    assert locations.known(KEY) == (None if is_seen else placed)


async def test_a_queue_that_is_deleted_before_its_record_is_written_leaves_no_placement() -> None:
    state, broker = ClusterState(KEYS), Broker(no_read)
    locations = QueueLocations(Cluster(port=0), state, broker, view)
    broker.apply(d.Put(d.Vhost(name="/")))

    async def all_have(revision: int) -> None:
        """All nodes have it."""

    publication = publishing(locations, broker, state, all_have)
    queue, next_queue = (d.Queue(vhost="/", name="q", epoch=epoch) for epoch in (1, 2))
    locations.placement_of(queue, False)
    publication.share([d.Put(queue), d.Delete("queues", KEY)], lambda: None)
    await until(lambda: not publication.is_busy)
    assert locations.known(KEY) is None
    locations.placement_of(queue, False)
    placed = locations.placement_of(next_queue, False)
    publication.share([d.Put(queue), d.Delete("queues", KEY), d.Put(next_queue)], lambda: None)
    await until(lambda: not publication.is_busy)
    assert locations.known(KEY) == placed


def test_only_a_record_places_what_another_node_declared() -> None:
    """Otherwise each node that knows the definition alone would place the queue, and several would lead it."""
    state, broker = ClusterState(KEYS), Broker(no_read)
    locations = QueueLocations(Cluster(port=0), state, broker, view)
    broker.apply(d.Put(d.Vhost(name="/")))
    queue = d.Queue(vhost="/", name="q", epoch=7)
    with locations.taking():
        assert locations.placement_of(queue, False) is None
        assert locations.known(KEY) is None
        state.apply([Event(KEYS.placement(*KEY), encode(Placement(6, "b", "i", 1)), 1)], 1)
        assert locations.placement_of(queue, False) is None, "the record is of an earlier queue"
        placed = Placement(7, "b", "i", 1)
        state.apply([Event(KEYS.placement(*KEY), encode(placed), 2)], 2)
        assert locations.placement_of(queue, False) == placed
    own = locations.placement_of(d.Queue(vhost="/", name="own", epoch=8), False)
    assert own is not None
    assert own.leader == "a"

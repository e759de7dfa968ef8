from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leveret.config.sections.cluster import Cluster
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue, leader_is_down
from leveret.core.replication.cluster import (
    Changed,
    ClusterKeys,
    ClusterState,
    DefinitionChanged,
    Event,
    Presence,
    definition_writes,
)
from leveret.core.replication.election import DeleteKey, PutKey
from leveret.core.replication.placement import ClusterView
from leveret.model import definitions as d
from leveret.model.errors import Refusal
from leveret.runtime.cluster.coordinator import Coordinator, take
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.cluster.placement.queues import ClusterQueues
from leveret.runtime.logs.definitions_store import take_over
from leveret.storage.state_file import StateFile
from tests.unit.core.broker.test_broker import no_read


@pytest.fixture
def broker() -> Broker:
    """Of a node of a cluster; a client of its own has just declared something."""
    made = Broker(no_read)
    made.apply(d.Put(d.Vhost(name="/")))
    made.shared = []
    made.apply(d.Put(d.Queue(name="own", vhost="/", epoch=1)))
    return made


def test_what_others_decided_is_not_shared_again_and_what_waits_to_be_shared_is_not_forgotten(
    broker: Broker,
) -> None:
    waiting = list(broker.shared or ())
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=2)))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=3)))
    assert set(broker.queues) == {("/", "own"), ("/", "others")}
    assert waiting
    assert broker.shared == waiting


def test_nor_is_it_when_others_decided_what_cannot_be_taken(broker: Broker) -> None:
    waiting = list(broker.shared or ())
    with pytest.raises(Refusal):
        take(broker, d.Put(d.Queue(name="astray", vhost="nowhere", epoch=2)))
    assert broker.shared == waiting


def test_a_queue_that_others_restarted_keeps_its_bindings_and_one_declared_otherwise_does_not(
    broker: Broker,
) -> None:
    def bound() -> list[str]:
        return [each.destination for each in broker.topology("/").bindings()]

    take(broker, d.Put(d.Exchange(name="source", vhost="/", type="fanout")))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=2)))
    take(broker, d.Put(d.Binding(source="source", vhost="/", destination="others")))
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=3)))
    assert broker.queue("/", "others").epoch == 3
    assert bound() == ["others"]
    take(broker, d.Put(d.Queue(name="others", vhost="/", epoch=4, arguments={"x-max-length": 1})))
    assert broker.queue("/", "others").epoch == 4
    assert bound() == []


def _bound(destination: str, kind: str = "queue") -> d.Binding:
    return d.Binding(source="passing", vhost="/", destination=destination, destination_type=kind)


PASSING = d.Exchange(name="passing", vhost="/", type="fanout", auto_delete=True)
ACTS: dict[str, Callable[[Broker], object]] = {
    "declare exchange": lambda broker: broker.declare_exchange(PASSING),
    **{
        f"{act} {name}": partial(done, name)
        for name in ("q1", "q2")
        for act, done in {
            "declare": lambda name, broker: broker.declare_queue(d.Queue(name=name, vhost="/")),
            "delete": lambda name, broker: broker.delete_queue(broker.queue("/", name)),
            "bind": lambda name, broker: broker.bind(_bound(name)),
            "unbind": lambda name, broker: broker.unbind(_bound(name)),
        }.items()
    },
    "bind exchange": lambda broker: broker.bind(_bound("amq.topic", "exchange")),
    "unbind exchange": lambda broker: broker.unbind(_bound("amq.topic", "exchange")),
}


class _Other:
    """Another node, which takes what the first one publishes: what was changed together in one revision."""

    def __init__(self) -> None:
        self.broker = Broker(no_read)
        self._state = ClusterState(ClusterKeys.under("/cluster"))

    def take(self, changes: list[d.Change]) -> None:
        writes: dict[str, PutKey | DeleteKey] = {}
        for change in changes:
            for write in definition_writes(self._state.keys, change):
                writes.pop(write.key, None)
                writes[write.key] = write
        revision = self._state.revision + 1
        events = [Event(key, getattr(write, "value", None), revision) for key, write in writes.items()]
        for each in self._state.apply(events, revision):
            assert isinstance(each, DefinitionChanged)
            take(self.broker, each.change)


@settings(max_examples=50)
@given(
    st.lists(st.sets(st.sampled_from(sorted(ACTS)), max_size=4).map(sorted) | st.permutations(sorted(ACTS)))
)
@example([["declare exchange", "declare q1", "declare q2", "bind q1"], ["bind q2", "unbind q1"]])
def test_what_is_changed_together_leaves_the_same_definitions_at_all_nodes(story: list[list[str]]) -> None:
    # An auto-delete exchange lives on if another binding came just before its last one went.
    here, other = Broker(no_read), _Other()
    here.shared = []
    here.apply(d.Put(d.Vhost(name="/")))
    for together in story:
        for act in together:
            with suppress(Refusal):
                ACTS[act](here)
        other.take(here.shared)
        here.shared.clear()
    other.take(here.shared)
    assert other.broker.definitions.by_kind == here.definitions.by_kind


def coordinator_of(broker: Broker, pending: list[Changed]) -> Coordinator:
    """Of a node that enters a cluster with these changes; it alone makes a queue that it may place."""
    state = ClusterState(ClusterKeys.under("/cluster"))
    member = SimpleNamespace(name="a", state=state, is_founder=False, pending=lambda: pending)
    controller = SimpleNamespace(definition_changed=lambda change: None)
    view = ClusterView("a", "i", ["a"], {"a": Presence("i", "uri", "", 0, "")}, list)
    locations = QueueLocations(Cluster(port=0), state, broker, lambda: view)
    tree = SimpleNamespace(epochs={}, epoch=1, root=Path("/nowhere"), file=StateFile)
    node: Any = SimpleNamespace(broker=broker, log_store=None, tree=tree, commits=None, engine=None)
    queues = ClusterQueues("a", node, DueQueues())
    broker.make_queue = lambda definition, read, exclusive: queues.new(
        definition, read, locations.placement_of(definition, exclusive)
    )
    parts = SimpleNamespace(member=member, placement_controller=controller, locations=locations)
    return Coordinator(node, cast(Any, parts))


def test_a_queue_of_another_node_is_led_by_none_until_its_record_is_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If each node that knows the definition alone led it, each would confirm what the others do not have."""
    broker = Broker(no_read)
    pending: list[Changed] = [
        DefinitionChanged(d.Put(each)) for each in (d.Vhost(name="/"), d.Queue(name="q", vhost="/", epoch=7))
    ]
    coordinator_of(broker, pending).take_definitions(d.Definitions())
    queue = broker.queue("/", "q")
    assert isinstance(queue, RemoteQueue)
    assert (queue.leader, queue.is_down) == ("", True)
    assert "queue_not_placed_yet vhost=/ queue=q" in caplog.text
    assert "has no leader" in str(leader_is_down(queue, queue.leader))
    assert not broker.declare_queue(d.Queue(name="own", vhost="/")).is_remote


def test_a_queue_of_the_cluster_that_this_node_cannot_take_keeps_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = d.Queue(name="refused", vhost="nowhere", epoch=7)
    broken = d.Queue(name="broken", vhost="/", epoch=8)
    taken = d.Queue(name="taken", vhost="/", epoch=9)
    stored = d.Definitions()
    gone = d.Queue(name="gone", vhost="/", epoch=5)
    for entity in (d.Vhost(name="/"), refused, broken, gone):
        stored.apply(d.Put(entity))
    broker = Broker(no_read)
    broker.shared = []
    pending: list[Changed] = [
        DefinitionChanged(d.Put(each)) for each in (d.Vhost(name="/"), refused, broken, taken)
    ]
    coordinator = coordinator_of(broker, pending)
    works = broker.make_queue

    def fails(queue: d.Queue, *given: Any) -> Queue:
        if queue.name == "broken":
            raise KeyError("an argument of a later version")
        return works(queue, *given)

    monkeypatch.setattr(broker, "make_queue", fails)
    epochs = coordinator.take_definitions(stored)
    assert epochs == {7, 8, 9}
    assert [each for each in broker.changes if isinstance(each, d.Delete)] == [d.Delete("queues", gone.key)]
    assert "definition_not_restored change=put queues nowhere/refused" in caplog.text
    assert "definition_failed change=put queues /broken".replace(" /", " //") in caplog.text


def test_what_was_deleted_while_a_node_entered_is_not_in_its_log() -> None:
    vhost, queue = d.Vhost(name="/"), d.Queue(name="q", vhost="/", epoch=7)
    transient = d.Queue(name="t", vhost="/", durable=False, epoch=9)
    leaver, visitor = (d.User(name=name, password_hash="") for name in ("leaver", "visitor"))
    stored = d.Definitions()
    for entity in (vhost, leaver, queue):
        stored.apply(d.Put(entity))
    broker = Broker(no_read)
    broker.shared = []
    first_read: list[d.AnyEntity] = [vhost, leaver, visitor, queue, d.Queue(name="t", vhost="/", epoch=8)]
    deleted = [
        ("queues", queue.key),
        ("queues", transient.key),
        ("users", leaver.key),
        ("users", visitor.key),
    ]
    pending: list[Changed] = [DefinitionChanged(d.Put(each)) for each in first_read]
    pending += [DefinitionChanged(d.Delete(kind, key)) for kind, key in deleted]
    pending.append(DefinitionChanged(d.Put(transient)))
    epochs = coordinator_of(broker, pending).take_definitions(stored)
    for change in broker.changes:
        stored.apply(change)
    assert stored.entities() == [vhost]
    assert epochs == {transient.epoch}


def test_access_that_is_taken_away_is_not_kept_because_of_a_bug(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.apply(d.Put(d.User(name="u", password_hash="", tags=())))

    def fails(kind: str, key: tuple[str, ...]) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(broker, "_delete", fails)
    assert isinstance(take_over(broker, d.Delete("queues", ("/", "own"))), KeyError)
    with pytest.raises(KeyError):
        take_over(broker, d.Delete("users", ("u",)))

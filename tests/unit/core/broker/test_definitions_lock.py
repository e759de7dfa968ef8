"""Who may change definitions, and what is put off until it may be done."""

from __future__ import annotations

import pytest

from leveret.core.broker.broker import Broker
from leveret.core.broker.definitions_lock import DefinitionsLock
from leveret.core.broker.entities import SHARED_BYTES_MAX
from leveret.core.broker.routing import no_headers
from leveret.model import definitions as d
from leveret.model.errors import InvalidCommand


def test_a_node_alone_may_change_definitions_at_once() -> None:
    """And nobody is asked for anything."""
    definitions_lock, done = DefinitionsLock(), list[str]()
    definitions_lock.on_wanted = lambda: done.append("wanted")
    definitions_lock.want()
    definitions_lock.when_here(lambda: done.append("changed"))
    assert done == ["changed"]
    assert not definitions_lock.has_work


def test_what_nobody_waits_for_is_done_in_order_when_the_pen_arrives() -> None:
    """Once: a pen that arrives again has nothing to do."""
    definitions_lock, done = DefinitionsLock(), list[str]()
    definitions_lock.is_here = False
    definitions_lock.on_wanted = lambda: done.append("wanted")
    definitions_lock.when_here(lambda: done.append("first"))
    definitions_lock.when_here(lambda: done.append("second"))
    assert done == ["wanted", "wanted"]
    assert definitions_lock.has_work
    definitions_lock.arrived()
    assert done[2:] == ["first", "second"]
    definitions_lock.arrived()
    assert done[4:] == []
    assert not definitions_lock.has_work


def test_a_queue_that_is_to_go_when_the_pen_arrives_is_that_one_and_not_its_successor() -> None:
    """Meanwhile another node may have deleted it, and declared one of its name."""
    broker = Broker(lambda queue, offset: [])
    broker.apply(d.Put(d.Vhost(name="/")))
    old = broker.declare_queue(d.Queue(name="q", vhost="/", durable=True))
    broker.definitions_lock.is_here = False
    broker.deletions.delete_when_writable([old])
    broker.apply(d.Delete("queues", ("/", "q")))
    new = broker.declare_queue(d.Queue(name="q", vhost="/", durable=True))
    broker.definitions_lock.arrived()
    assert broker.queues["/", "q"] is new


def test_other_nodes_are_told_of_exclusive_queues_and_of_bindings_to_them() -> None:
    """Which no definitions log has: their replies come from clients of all nodes."""
    broker = Broker(lambda queue, offset: [])
    broker.apply(d.Put(d.Vhost(name="/")))
    broker.shared = []
    owner = object()
    queue = broker.declare_queue(d.Queue(name="mine", vhost="/"), owner)
    binding = d.Binding(source="amq.direct", vhost="/", destination="mine", routing_key="k")
    broker.bind(binding)
    broker.delete_queue(queue)
    assert broker.changes[1:] == []
    assert broker.shared == [
        d.Put(queue.definition),
        d.Put(binding),
        d.Delete("bindings", binding.key),
        d.Delete("queues", ("/", "mine")),
    ]


def test_a_node_that_is_told_of_an_exclusive_queue_deletes_it_when_it_is_told_that_too() -> None:
    """It is not among the definitions there either."""
    broker = Broker(lambda queue, offset: [])
    broker.apply(d.Put(d.Vhost(name="/")))
    make = broker.make_queue

    def foreign(definition: d.Queue, read: object, exclusive: bool) -> object:
        queue = make(definition, lambda *_: [], exclusive)
        queue.owner = "another node's connection"
        return queue

    broker.make_queue = foreign  # type: ignore[assignment]
    binding = d.Binding(source="amq.direct", vhost="/", destination="theirs", routing_key="k")
    broker.apply(d.Put(d.Queue(name="theirs", vhost="/", epoch=7)))
    broker.apply(d.Put(binding))
    assert [each.key[1] for each in broker.route("/", "amq.direct", "k", no_headers)] == ["theirs"]
    broker.apply(d.Delete("bindings", binding.key))
    assert broker.route("/", "amq.direct", "k", no_headers) == []
    broker.apply(d.Delete("queues", ("/", "theirs")))
    assert broker.queues == {}


def test_what_nodes_cannot_share_is_refused_by_one_of_a_cluster() -> None:
    """Etcd would decline it, and this node, then each other one, leave the cluster for it."""
    large = d.Put(d.GlobalParameter(name="large", value="x" * SHARED_BYTES_MAX))
    alone = Broker(lambda queue, offset: [])
    alone.apply(large)
    member = Broker(lambda queue, offset: [])
    member.shared = []
    with pytest.raises(InvalidCommand, match=r"global_parameters large: 1048.* octets are more than"):
        member.apply(large)
    assert (member.shared, member.definitions.by_kind["global_parameters"]) == ([], {})

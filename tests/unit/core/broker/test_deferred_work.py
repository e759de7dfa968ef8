"""core.broker.deferred_work, and what the broker does with it: deletions of what is large, or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leveret.core.broker.actor import Actor
from leveret.core.broker.broker import Broker
from leveret.core.broker.deferred_work import AT_ONCE, ENOUGH, DeferredWork
from leveret.core.broker.routing import no_headers
from leveret.core.queues.head import make_head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import NotFound, PreconditionFailed

MANY = 3 * AT_ONCE


def at_once() -> bool:
    """A flush that has time for one part."""
    return True


def counting(count: int, done: list[str], name: str) -> Iterator[None]:
    for _ in range(count):
        done.append(name)
        yield


def test_what_is_small_is_done_at_once() -> None:
    deferred_work, done = DeferredWork(), list[str]()
    deferred_work.begin(counting(AT_ONCE - 1, done, "a"))
    assert (len(done), bool(deferred_work)) == (AT_ONCE - 1, False)


def test_no_more_is_done_between_two_flushes_however_much_is_begun() -> None:
    deferred_work, done = DeferredWork(), list[str]()
    for _ in range(10):
        deferred_work.begin(counting(AT_ONCE, done, "a"))
    assert len(done) == AT_ONCE
    deferred_work.go_on(at_once)
    deferred_work.begin(counting(2 * AT_ONCE, done, "b"))
    assert done.count("b") == AT_ONCE


def test_each_has_its_turn_until_none_is_left() -> None:
    deferred_work, done = DeferredWork(), list[str]()
    deferred_work.begin(counting(AT_ONCE, [], "before"))
    deferred_work.begin(counting(3, done, "a"))
    deferred_work.begin(counting(2, done, "b"))
    for _ in range(20):
        deferred_work.go_on(at_once)
    assert ("".join(done), bool(deferred_work)) == ("ababa", False)


def test_a_part_that_leaves_much_to_the_flush_ends_the_turn() -> None:
    deferred_work = DeferredWork()
    parts = iter([None, ENOUGH, None, ENOUGH, None])
    deferred_work.begin(parts)
    assert len(list(parts)) == 3
    deferred_work.begin(iter([ENOUGH, ENOUGH]))
    left = [deferred_work.go_on(lambda: False) for _ in range(3)]
    assert left == [True, True, False]


def make_broker() -> Broker:
    broker = Broker(lambda queue, offset: [])
    for entity in (
        d.Vhost(name="/"),
        d.User(name="guest", password_hash=""),
        d.Permission(user="guest", vhost="/", configure=".*", write=".*", read=".*"),
    ):
        broker.apply(d.Put(entity))
    return broker


def binding(
    number: int, destination: str = "q", *, source: str = "amq.topic", kind: str = "queue"
) -> d.Binding:
    key = f"k.{number}"
    return d.Binding(
        vhost="/", source=source, destination=destination, destination_type=kind, routing_key=key
    )


def bound(broker: Broker, count: int) -> Queue:
    queue = broker.declare_queue(d.Queue(name="q", vhost="/"))
    for number in range(count):
        broker.bind(binding(number))
    broker.changes.clear()
    return queue


def finish(broker: Broker) -> int:
    """Flush until nothing is left; how often."""
    count = 1
    while broker.deferred_work.go_on(at_once):
        count += 1
        assert count < 10 * MANY
    return count


def test_a_queue_with_few_bindings_is_deleted_at_once() -> None:
    broker, gone = make_broker(), list[int]()
    broker.deletions.delete_queue(bound(broker, AT_ONCE - 1), gone.append)
    assert gone == [0]
    assert not broker.queues


def test_a_queue_goes_after_its_many_bindings_and_is_served_until_then() -> None:
    """A node may end at any of these records: with the queue, and with a part of its bindings."""
    broker, gone = make_broker(), list[int]()
    queue = bound(broker, MANY)
    broker.deletions.delete_queue(queue, gone.append)
    assert len(broker.changes) == AT_ONCE
    assert broker.queue("/", "q") is queue
    assert [each.key[1] for each in broker.route("/", "amq.topic", f"k.{MANY - 1}", no_headers)] == ["q"]
    assert not broker.route("/", "amq.topic", "k.0", no_headers)
    assert finish(broker) >= MANY - AT_ONCE
    assert gone == [0]
    kinds = [each.kind for each in broker.changes if isinstance(each, d.Delete)]
    assert kinds == ["bindings"] * MANY + ["queues"]
    assert not broker.definitions.by_kind["bindings"]


@pytest.mark.parametrize("condition", [{"if_unused": True}, {"if_empty": True}])
def test_a_queue_that_goes_on_a_condition_is_gone_for_everybody_from_the_moment_at_which_that_held(
    condition: dict[str, bool],
) -> None:
    """It has 20,000 bindings, which take turns; who consumes from it or publishes to it meanwhile would be let down."""
    broker, gone = make_broker(), list[int]()
    queue = bound(broker, MANY)
    version = broker.version
    Actor(broker, "guest", "/").delete_queue_in_turns(queue, gone.append, **condition)
    assert gone == []
    assert len(broker.changes) == AT_ONCE
    assert broker.version > version
    assert not broker.route("/", "amq.topic", f"k.{MANY - 1}", no_headers)
    assert not broker.route("/", "", "q", no_headers)
    assert finish(broker) >= MANY - AT_ONCE
    assert gone == [0]
    assert not broker.queues
    kinds = [each.kind for each in broker.changes if isinstance(each, d.Delete)]
    assert kinds == ["bindings"] * MANY + ["queues"]


def test_who_looks_for_a_queue_that_goes_on_a_condition_does_not_find_it_and_its_deletion_is_told_once() -> (
    None
):
    broker, gone = make_broker(), list[int]()
    queue = bound(broker, MANY)
    actor = Actor(broker, "guest", "/")
    actor.delete_queue_in_turns(queue, gone.append, if_unused=True)
    broker.deletions.delete_when_writable([queue])
    with pytest.raises(NotFound):
        broker.queue("/", "q")
    assert gone == [0]
    again = broker.declare_queue(d.Queue(name="q", vhost="/"))
    finish(broker)
    assert gone == [0]
    assert broker.queue("/", "q") is again


def test_all_who_delete_a_queue_on_a_condition_hear_of_its_end() -> None:
    """A request whose answer was late is sent again, and finds a queue that nobody else finds any more."""
    broker, gone = make_broker(), list[str]()
    queue = bound(broker, MANY)
    broker.deletions.delete_when_writable([queue])
    for name in ("one", "two"):
        broker.deletions.delete_queue(queue, lambda _, name=name: gone.append(name), if_unused=True)  # type: ignore[misc]
    finish(broker)
    assert gone == ["one", "two"]


def test_a_condition_that_does_not_hold_changes_nothing() -> None:
    broker = make_broker()
    queue = bound(broker, MANY)
    queue.gathered.add(alike(make_head(b"", b"q", b"\x00\x3c" + bytes(12)), [b"x"]))
    queue.appended(0, queue.gathered.take())
    with pytest.raises(PreconditionFailed, match="not empty"):
        Actor(broker, "guest", "/").delete_queue_in_turns(queue, lambda count: None, if_empty=True)
    assert len(broker.topology("/").bindings_into("queue", "q")) == MANY
    assert broker.queue("/", "q") is queue


@pytest.mark.parametrize(
    "delete", [Broker.delete_queue, lambda broker, queue: broker.apply(d.Delete("vhosts", ("/",)))]
)
def test_a_queue_that_another_deletes_meanwhile_is_gone_for_both(
    delete: Callable[[Broker, Queue], object],
) -> None:
    broker, gone = make_broker(), list[int]()
    queue = bound(broker, MANY)
    broker.deletions.delete_queue(queue, gone.append)
    broker.deletions.delete_queue(queue, gone.append)
    delete(broker, queue)
    finish(broker)
    assert gone == [0, 0]


def test_the_successor_of_a_queue_keeps_its_bindings() -> None:
    broker = make_broker()
    queue = bound(broker, MANY)
    broker.deletions.delete_queue(queue, lambda _: None)
    broker.delete_queue(queue)
    bound(broker, 5)
    finish(broker)
    assert len(broker.topology("/").bindings_into("queue", "q")) == 5


def test_an_exchange_goes_after_its_many_bindings_in_both_directions() -> None:
    broker, gone = make_broker(), list[bool]()
    bound(broker, 0)
    for name in ("x", "other"):
        broker.declare_exchange(d.Exchange(name=name, vhost="/", type="direct"))
    for number in range(MANY):
        broker.bind(binding(number, source="x"))
        broker.bind(binding(number, "x", source="other", kind="exchange"))
    broker.changes.clear()
    Actor(broker, "guest", "/").delete_exchange_in_turns("x", lambda: gone.append(True))
    assert len(broker.changes) == AT_ONCE
    finish(broker)
    assert gone == [True]
    kinds = [each.kind for each in broker.changes if isinstance(each, d.Delete)]
    assert kinds == ["bindings"] * 2 * MANY + ["exchanges"]


def the_destination_of_many(broker: Broker) -> None:
    """An exchange that nothing is bound to, and that is bound to another one many times."""
    for name in ("x", "other"):
        broker.declare_exchange(d.Exchange(name=name, vhost="/", type="direct"))
    for number in range(MANY):
        broker.bind(binding(number, "x", source="other", kind="exchange"))
    broker.changes.clear()


def test_an_exchange_that_is_unused_goes_in_turns_and_nothing_is_bound_to_it_meanwhile() -> None:
    """That it is unused has to hold when it goes, so it went in one step of a quarter of a second."""
    broker, gone = make_broker(), list[bool]()
    bound(broker, 0)
    the_destination_of_many(broker)
    Actor(broker, "guest", "/").delete_exchange_in_turns("x", lambda: gone.append(True), if_unused=True)
    assert (len(broker.changes), gone) == (AT_ONCE, [])
    finish(broker)
    assert gone == [True]
    kinds = [each.kind for each in broker.changes if isinstance(each, d.Delete)]
    assert kinds == ["bindings"] * MANY + ["exchanges"]


@pytest.mark.parametrize("look", ["bind", "declare", "delete", "publish"])
def test_who_looks_for_an_exchange_that_goes_because_it_is_unused_does_not_find_it(look: str) -> None:
    broker, gone = make_broker(), list[bool]()
    bound(broker, 0)
    the_destination_of_many(broker)
    actor = Actor(broker, "guest", "/")
    version = broker.version
    actor.delete_exchange_in_turns("x", lambda: gone.append(True), if_unused=True)
    assert broker.version > version, "publishers look it up anew"
    fanout = d.Exchange(name="x", vhost="/", type="fanout")
    if look == "declare":
        actor.declare_exchange(fanout)
    elif look == "delete":
        actor.delete_exchange_in_turns("x", lambda: gone.append(False))
    elif look == "bind":
        with pytest.raises(NotFound):
            actor.bind(binding(1, source="x"))
    else:
        with pytest.raises(NotFound):
            broker.route("/", "x", "k", no_headers)
    finish(broker)
    assert sorted(gone) == ([True] if look != "delete" else [False, True])
    existing = broker.find_exchange("/", "x")
    assert (existing is not None and existing.definition == fanout) == (look == "declare")


def test_an_exchange_that_is_in_use_stays_with_all_its_bindings() -> None:
    broker = make_broker()
    bound(broker, 0)
    the_destination_of_many(broker)
    broker.bind(binding(1, source="x"))
    with pytest.raises(PreconditionFailed, match="in use"):
        Actor(broker, "guest", "/").delete_exchange_in_turns("x", lambda: None, if_unused=True)
    finish(broker)
    assert len(broker.topology("/").bindings_into("exchange", "x")) == MANY
    assert broker.exchange("/", "x").name == "x"


@pytest.mark.parametrize("with_vhost", [False, True])
def test_the_successor_of_an_exchange_that_another_deletes_meanwhile_stays(with_vhost: bool) -> None:
    broker, gone = make_broker(), list[bool]()
    bound(broker, 0)
    wanted = d.Exchange(name="x", vhost="/", type="direct")
    broker.declare_exchange(wanted)
    for number in range(MANY):
        broker.bind(binding(number, source="x"))
    Actor(broker, "guest", "/").delete_exchange_in_turns("x", lambda: gone.append(True))
    broker.delete_exchange("/", "x")
    if with_vhost:
        broker.apply(d.Delete("vhosts", ("/",)))
        broker.apply(d.Put(d.Vhost(name="/")))
    broker.declare_exchange(wanted)
    finish(broker)
    assert gone == [True]
    assert broker.exchange("/", "x") == wanted


def test_a_predeclared_exchange_keeps_its_bindings() -> None:
    broker, gone = make_broker(), list[bool]()
    bound(broker, 3)
    for name in ("amq.topic", "none"):
        broker.deletions.delete_exchange("/", name, gone.append)
    assert len(gone) == 2
    assert len(broker.topology("/").bindings()) == 3


def owned(broker: Broker, count: int) -> list[Queue]:
    owner = object()
    return [broker.declare_queue(d.Queue(name=f"q{number}", vhost="/"), owner) for number in range(count)]


def test_many_queues_that_nobody_needs_go_in_turns() -> None:
    broker = make_broker()
    broker.deletions.delete_when_writable(owned(broker, MANY))
    assert len(broker.deleted) <= AT_ONCE
    finish(broker)
    assert len(broker.deleted) == MANY
    assert not broker.queues


def test_who_looks_for_a_queue_that_nobody_needs_does_not_find_it() -> None:
    """Its connection was closed, and whoever was told so may declare it anew."""
    broker = make_broker()
    queues = owned(broker, MANY)
    broker.deletions.delete_when_writable(queues)
    last, one_before = queues[-1], queues[-2]
    anew = broker.declare_queue(d.Queue(name=last.key[1], vhost="/", durable=True))
    assert (anew is last, anew.owner) == (False, None)
    with pytest.raises(NotFound):
        broker.bind(binding(1, one_before.key[1]))
    finish(broker)
    assert list(broker.queues.values()) == [anew]


def test_deletions_wait_where_the_definitions_lock_leaves_meanwhile() -> None:
    broker, gone = make_broker(), list[int]()
    queue = bound(broker, MANY)
    broker.deletions.delete_queue(queue, gone.append)
    broker.deletions.delete_when_writable(owned(broker, 2))
    broker.definitions_lock.is_here = False
    before = len(broker.changes)
    finish(broker)
    assert (len(broker.changes), gone) == (before, [])
    assert broker.definitions_lock.has_work
    broker.definitions_lock.arrived()
    finish(broker)
    assert gone == [0]
    assert not broker.queues

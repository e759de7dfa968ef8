"""core.broker.actor: each operation asks for every permission that it needs, and does nothing without one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from leveret.core.broker.actor import Actor, Unrestricted
from leveret.core.broker.broker import Broker
from leveret.core.queues.messages import Run
from leveret.core.queues.queue import Queue
from leveret.model import definitions as d
from leveret.model.errors import AccessRefused, InvalidCommand, NotFound, Refusal, ResourceLocked

PERMISSIONS: Final = ("configure", "write", "read")
Need = tuple[str, str]


class Row(NamedTuple):
    """What somebody does, and the permissions it takes."""

    act: Callable[[Actor, Broker], object]
    needs: set[Need]


def exchange(name: str, **arguments: object) -> d.Exchange:
    return d.Exchange(name=name, vhost="v", type="fanout", arguments=arguments)


def queue(name: str, **arguments: object) -> d.Queue:
    return d.Queue(name=name, vhost="v", arguments=arguments)


def binding(source: str, destination: str, kind: str = "queue") -> d.Binding:
    return d.Binding(
        source=source, vhost="v", destination=destination, destination_type=kind, routing_key="a.b"
    )


def declare_super(actor: Actor, broker: Broker) -> None:
    actor.declare_super_stream(exchange("new"), [queue("p")], [binding("new", "p")])


def delete_super(actor: Actor, broker: Broker) -> None:
    actor.delete_super_stream("super", {"q": broker.queue("v", "q")})


DEAD: Final = {"x-dead-letter-exchange": "vault"}
TOPIC: Final = ("topic", "topics")
ROWS: Final[dict[str, Row]] = {
    "declare a queue": Row(lambda a, b: a.declare_queue(queue("new")), {("configure", "new")}),
    "declare a queue that is there": Row(lambda a, b: a.declare_queue(queue("q")), {("configure", "q")}),
    "declare a queue with a dead letter exchange": Row(
        lambda a, b: a.declare_queue(queue("new", **DEAD)),
        {("configure", "new"), ("read", "new"), ("write", "vault")},
    ),
    "delete a queue": Row(lambda a, b: a.delete_queue(b.queue("v", "q")), {("configure", "q")}),
    "purge a queue": Row(lambda a, b: a.purge(b.queue("v", "q")), {("read", "q")}),
    "declare an exchange": Row(lambda a, b: a.declare_exchange(exchange("new")), {("configure", "new")}),
    "declare an exchange with an alternate": Row(
        lambda a, b: a.declare_exchange(exchange("new", **{"alternate-exchange": "vault"})),
        {("configure", "new"), ("read", "new"), ("write", "vault")},
    ),
    "delete an exchange": Row(lambda a, b: a.delete_exchange("x"), {("configure", "x")}),
    "bind a queue": Row(lambda a, b: a.bind(binding("x", "q")), {("write", "q"), ("read", "x")}),
    "bind a queue to a topic": Row(
        lambda a, b: a.bind(binding("topics", "q")), {("write", "q"), ("read", "topics"), TOPIC}
    ),
    "bind an exchange": Row(
        lambda a, b: a.bind(binding("x", "vault", "exchange")), {("write", "vault"), ("read", "x")}
    ),
    "unbind a queue": Row(
        lambda a, b: a.unbind(binding("topics", "other")), {("write", "other"), ("read", "topics"), TOPIC}
    ),
    "declare a super stream": Row(
        declare_super, {("configure", "new"), ("configure", "p"), ("write", "p"), ("read", "new")}
    ),
    "delete a super stream": Row(delete_super, {("configure", "super"), ("configure", "q")}),
}
CASES: Final = [(name, need) for name, row in ROWS.items() for need in sorted(row.needs)]


def no_read(queue: Queue, offset: int) -> list[Run]:
    raise AssertionError("nothing is to be read")


@pytest.fixture
def broker() -> Broker:
    made = Broker(no_read)
    topics = d.Exchange(name="topics", vhost="v", type="topic")
    there: list[d.AnyEntity] = [
        exchange("x"),
        exchange("vault"),
        exchange("super", **{"x-super-stream": True}),
        topics,
        queue("q"),
        queue("other"),
        binding("topics", "other"),
    ]
    for entity in (d.Vhost(name="v"), d.User(name="u", password_hash=""), *there):
        made.apply(d.Put(entity))
    made.changes.clear()
    return made


def allow(broker: Broker, needs: set[Need]) -> Actor:
    """A user who has these permissions and no other."""
    patterns = {
        each: "|".join(f"^{name}$" for kind, name in sorted(needs) if kind == each) or "^$"
        for each in PERMISSIONS
    }
    broker.apply(d.Put(d.Permission(user="u", vhost="v", **patterns)))
    topic = ".*" if TOPIC in needs else "^$"
    broker.apply(d.Put(d.TopicPermission(user="u", vhost="v", exchange="topics", write="", read=topic)))
    broker.changes.clear()
    return Actor(broker, "u", "v")


@pytest.mark.parametrize("name", ROWS)
def test_the_permissions_that_an_operation_needs_are_enough(broker: Broker, name: str) -> None:
    ROWS[name].act(allow(broker, ROWS[name].needs), broker)


@pytest.mark.parametrize(("name", "missing"), CASES)
def test_without_one_of_them_nothing_is_done(broker: Broker, name: str, missing: Need) -> None:
    actor = allow(broker, ROWS[name].needs - {missing})
    with pytest.raises(AccessRefused):
        ROWS[name].act(actor, broker)
    assert (broker.changes, broker.dirty) == ([], {})


@pytest.mark.parametrize("name", ROWS)
def test_who_has_no_access_to_the_vhost_does_nothing(broker: Broker, name: str) -> None:
    with pytest.raises(AccessRefused):
        ROWS[name].act(Actor(broker, "u", "v"), broker)
    assert broker.changes == []


@pytest.mark.parametrize("name", ROWS)
def test_the_operator_does_everything(broker: Broker, name: str) -> None:
    ROWS[name].act(Unrestricted(broker, "v"), broker)


@pytest.mark.parametrize("name", [each for each in ROWS if "purge" not in each and "is there" not in each])
def test_what_keeps_definitions_from_being_changed_is_asked_first(broker: Broker, name: str) -> None:
    actor = Unrestricted(broker, "v")

    def refuse() -> None:
        raise InterruptedError

    actor.before_change = refuse
    with pytest.raises(InterruptedError):
        ROWS[name].act(actor, broker)
    assert broker.changes == []


@pytest.mark.parametrize(
    "act",
    [
        lambda actor, held: actor.declare_queue(queue("mine")),
        lambda actor, held: actor.declare_queue(queue("mine"), exclusive=True),
        lambda actor, held: actor.delete_queue(held),
        lambda actor, held: actor.purge(held),
        lambda actor, held: actor.bind(binding("x", "mine")),
        lambda actor, held: actor.unbind(binding("x", "mine")),
    ],
)
def test_an_exclusive_queue_is_its_owner_s_whatever_others_may(
    broker: Broker, act: Callable[[Actor, Queue], object]
) -> None:
    owner = Unrestricted(broker, "v", owner=object())
    held = owner.declare_queue(queue("mine"), exclusive=True)
    owner.bind(binding("x", "mine"))
    with pytest.raises(ResourceLocked):
        act(Unrestricted(broker, "v", owner=object()), held)
    with pytest.raises(ResourceLocked):
        act(Unrestricted(broker, "v"), held)
    assert broker.queues["v", "mine"] is held


def test_a_binding_that_a_locked_queue_lacks_is_removed_by_anyone(broker: Broker) -> None:
    Unrestricted(broker, "v", owner=object()).declare_queue(queue("mine"), exclusive=True)
    Unrestricted(broker, "v").unbind(binding("x", "mine"))


def test_a_reserved_name_is_refused_before_permissions_are_looked_at_and_also_if_it_is_there(
    broker: Broker,
) -> None:
    Unrestricted(broker, "v").declare_queue(queue("amq.gen-1"), is_server_named=True)
    for actor in (Unrestricted(broker, "v"), allow(broker, set())):
        with pytest.raises(
            AccessRefused, match=r"^queue name 'amq\.gen-1' contains reserved prefix 'amq\.\*'$"
        ):
            actor.declare_queue(queue("amq.gen-1"))


def test_an_unknown_type_of_an_exchange_is_refused_before_anything_else(broker: Broker) -> None:
    odd = d.Exchange(name="x", vhost="v", type="odd")
    for actor in (Unrestricted(broker, "v"), allow(broker, set())):
        with pytest.raises(InvalidCommand, match=r"^unknown exchange type 'odd'$"):
            actor.declare_exchange(odd)


@pytest.mark.parametrize(
    "refused", ["too many queues", "reserved stream", "reserved exchange", "other queue"]
)
def test_of_a_super_stream_that_is_refused_nothing_is_left_and_what_was_there_stays(refused: str) -> None:
    broker = Broker(lambda queue, offset: [])
    broker.apply(d.Put(d.Vhost(name="v")))
    there = queue("p0")
    broker.declare_queue(there)
    if refused == "too many queues":
        limits = d.Parameter(vhost="v", component="vhost-limits", name="limits", value={"max-queues": 2})
        broker.apply(d.Put(limits))
    if refused == "other queue":
        broker.declare_queue(queue("p2", **{"x-max-length": 1}))
    name = "amq.s" if refused == "reserved exchange" else "s"
    streams = ["p0", "p1", "amq.p" if refused == "reserved stream" else "p2"]
    before = set(broker.queues), set(broker.topology("v").exchanges)
    with pytest.raises(Refusal):
        Unrestricted(broker, "v").declare_super_stream(
            exchange(name), list(map(queue, streams)), [binding(name, stream) for stream in streams]
        )
    assert (set(broker.queues), set(broker.topology("v").exchanges)) == before


@pytest.mark.parametrize(
    ("name", "ends", "is_one"),
    [
        ("made", [("s1", "queue"), ("s2", "queue"), ("q", "queue")], True),
        ("by-hand", [("s1", "queue"), ("s2", "queue")], True),
        ("ordinary", [], False),
        ("ordinary", [("s1", "queue"), ("s2", "queue"), ("q", "queue")], False),
        ("ordinary", [("s1", "queue"), ("s2", "queue"), ("x", "exchange")], False),
    ],
)
def test_only_a_super_stream_is_deleted_as_one(
    broker: Broker, name: str, ends: list[tuple[str, str]], is_one: bool
) -> None:
    """Else one name too many would delete an ordinary exchange, with streams that others read."""
    actor = Unrestricted(broker, "v")
    actor.declare_exchange(exchange(name, **({"x-super-stream": True} if name == "made" else {})))
    streams = {each: actor.declare_queue(queue(each, **{"x-queue-type": "stream"})) for each in ("s1", "s2")}
    for end, kind in ends:
        actor.bind(binding(name, end, kind))
    if is_one:
        actor.delete_super_stream(name, streams)
    else:
        with pytest.raises(NotFound, match="is no super stream"):
            actor.delete_super_stream(name, streams)
    is_there = name in broker.topology("v").exchanges
    assert (is_there, ("v", "s1") in broker.queues) == (not is_one, not is_one)


def test_no_stream_goes_with_an_exchange_that_may_not_be_deleted(broker: Broker) -> None:
    actor = Unrestricted(broker, "v")
    stream = actor.declare_queue(queue("s", **{"x-queue-type": "stream"}))
    actor.bind(binding("amq.direct", "s"))
    with pytest.raises(AccessRefused, match="system exchange"):
        actor.delete_super_stream("amq.direct", {"s": stream})
    assert ("v", "s") in broker.queues

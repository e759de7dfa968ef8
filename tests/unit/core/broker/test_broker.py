"""core.broker.broker: what exists, what follows from a change, and what the definitions log is told."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.broker import Broker
from leveret.core.broker.routing import no_headers
from leveret.core.broker.topology import PREDECLARED
from leveret.core.queues.consumers import DeliverySource
from leveret.core.queues.head import Head
from leveret.core.queues.messages import Run, alike
from leveret.core.queues.queue import Queue
from leveret.core.rules.validation import NESTING_MAX
from leveret.model import definitions as d
from leveret.model.errors import InvalidCommand, LeveretError, NotFound, PreconditionFailed, Refusal

HEAD = Head(b"", b"", b"", 1, True)
REPLICATE = {"remote-dc-replicate": True}


def no_read(queue: Queue, offset: int) -> list[Run]:
    raise AssertionError("nothing is to be read")


def broker(*entities: d.AnyEntity) -> Broker:
    made = Broker(no_read)
    for entity in (d.Vhost(name="v"), *entities):
        made.apply(d.Put(entity))
    made.changes.clear()
    made.replication_changes.clear()
    return made


def queue(name: str = "q", **more: Any) -> d.Queue:
    return d.Queue(name=name, vhost="v", **more)


def exchange(name: str = "e", **more: Any) -> d.Exchange:
    return d.Exchange(**{"name": name, "vhost": "v", "type": "fanout"} | more)


def binding(destination: str = "q", source: str = "e", **more: Any) -> d.Binding:
    return d.Binding(source=source, vhost="v", destination=destination, **more)


def policy(**more: Any) -> d.Policy:
    return d.Policy(**{"vhost": "v", "name": "p", "pattern": "^q", "definition": REPLICATE} | more)


def kinds(changes: Sequence[d.Change]) -> list[tuple[str, str]]:
    """("put" or "delete", kind) of each change."""
    return [("put", c.entity.kind) if isinstance(c, d.Put) else ("delete", c.kind) for c in changes]


def fill(held: Queue, count: int) -> None:
    held.gathered.add(alike(HEAD, [b"x"] * count))
    held.appended(held.next_offset, held.gathered.take())


class Client:
    """A connection, and a consumer."""

    no_ack = False
    exclusive = False
    priority = 0

    def __init__(self, user: str = "u", vhost: str = "v") -> None:
        self.user: str | None = user
        self.vhost: str | None = vhost
        self.channels = ()
        self.reason = ""
        self.is_told = False

    def force_close(self, reason: str) -> None:
        self.reason = reason

    def capacity(self) -> int:
        return 0

    def queue_deleted(self) -> None:
        self.is_told = True

    def deliver(self, queue: DeliverySource, runs: Sequence[Run], redelivered: bool) -> None:
        raise AssertionError("it has no capacity")


# -- vhosts and users -------------------------------------------------------------------------


def test_a_vhost_has_the_predeclared_exchanges_and_none_of_them_is_a_definition() -> None:
    one = broker()
    assert set(one.topology("v").exchanges) == set(PREDECLARED)
    assert not one.definitions.by_kind["exchanges"]


def test_what_is_in_no_vhost_is_not_found() -> None:
    one = broker()
    asks: list[Callable[[], Any]] = [
        lambda: one.topology("w"),
        lambda: one.queue("w", "q"),
        lambda: one.exchange("w", "e"),
        lambda: one.apply(d.Put(d.Queue(name="q", vhost="w"))),
        lambda: one.apply(d.Put(d.Permission(user="u", vhost="w", configure="", write="", read=""))),
    ]
    for ask in asks:
        with pytest.raises(NotFound, match="vhost 'w' does not exist"):
            ask()
    assert one.changes == []


def test_a_deleted_vhost_takes_everything_in_it_along_and_nothing_else() -> None:
    user = d.User(name="u", password_hash="")
    held: list[d.AnyEntity] = [
        user,
        d.Permission(user="u", vhost="v", configure="", write="", read=""),
        d.TopicPermission(user="u", vhost="v", exchange="e", write="", read=""),
        exchange(),
        queue(),
        binding(),
        policy(),
        d.Parameter(vhost="v", component="vhost-limits", name="limits", value={"max-queues": 9}),
        d.GlobalParameter(name="g", value=1),
        d.Vhost(name="other"),
        d.Queue(name="q", vhost="other"),
    ]
    one = broker(*held)
    inside, outside = Client(), Client(vhost="other")
    one.connections |= {inside, outside}
    doomed = one.queue("v", "q")
    one.apply(d.Delete("vhosts", ("v",)))
    left = {entity.key for entity in one.definitions.entities()}
    assert left == {("u",), ("g",), ("other",), ("other", "q")}
    assert one.deleted == [doomed]
    assert set(one.queues) == {("other", "q")}
    assert (bool(inside.reason), bool(outside.reason)) == (True, False)


def test_a_deleted_user_loses_permissions_and_connections() -> None:
    one = broker(
        d.User(name="u", password_hash=""), d.Permission(user="u", vhost="v", configure="", write="", read="")
    )
    theirs, others = Client("u"), Client("x")
    one.connections |= {theirs, others}
    one.apply(d.Delete("users", ("u",)))
    assert kinds(one.changes) == [("delete", "permissions"), ("delete", "users")]
    assert theirs.reason == "user 'u' is deleted"
    assert others.reason == ""


def test_permissions_are_for_users_that_exist() -> None:
    with pytest.raises(NotFound, match="no user 'u'"):
        broker().apply(d.Put(d.Permission(user="u", vhost="v", configure="", write="", read="")))


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"in": value} if level % 2 else [value]
    return value


def too_deep(levels: int) -> list[d.AnyEntity]:
    value, arguments = nested(levels), {"a": nested(levels - 1)}
    return [
        d.GlobalParameter(name="n", value=value),
        d.Exchange(vhost="v", name="e", type="direct", arguments=arguments),
        d.Queue(vhost="v", name="q", arguments=arguments),
        d.Binding(
            vhost="v",
            source="amq.topic",
            destination="amq.direct",
            destination_type="exchange",
            arguments=arguments,
        ),
    ]


def test_what_is_nested_deeper_than_the_log_can_be_read_again_is_refused_whoever_puts_it() -> None:
    one = broker()
    for entity in too_deep(NESTING_MAX + 2):
        with pytest.raises(InvalidCommand, match="is nested more than 32 levels deep"):
            one.apply(d.Put(entity))
    with pytest.raises(InvalidCommand, match="queues 'v q' is nested"):
        one.declare_queue(d.Queue(vhost="v", name="q", arguments={"a": nested(NESTING_MAX + 1)}))
    with pytest.raises(InvalidCommand, match="users 'u' is nested"):
        one.apply(d.Put(d.User(name="u", password_hash="", limits={"max-channels": nested(1000)})))
    assert not any(one.definitions.by_kind[kind] for kind in ("global_parameters", "exchanges", "queues"))
    for entity in too_deep(NESTING_MAX + 1):
        one.apply(d.Put(entity))
        assert entity.key in one.definitions.by_kind[entity.kind]


def test_deleting_what_is_not_there_does_nothing() -> None:
    one = broker()
    for kind in d.KINDS:
        one.apply(d.Delete(kind, ("v", "x")))
    assert one.changes == []


# -- exchanges --------------------------------------------------------------------------------


def test_an_exchange_declared_twice_is_one_and_with_other_properties_refused() -> None:
    one = broker()
    one.declare_exchange(exchange())
    one.declare_exchange(exchange())
    assert kinds(one.changes) == [("put", "exchanges")]
    for other in ({"type": "direct"}, {"durable": False}, {"auto_delete": True}, {"internal": True}):
        with pytest.raises(PreconditionFailed, match=f"'{next(iter(other))}' for exchange 'e' in vhost 'v'"):
            one.declare_exchange(exchange(**other))


def test_an_unknown_exchange_type_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="x-consistent-hash"):
        broker().declare_exchange(exchange(type="x-consistent-hash"))


def test_a_transient_exchange_is_known_but_not_logged() -> None:
    one = broker()
    one.declare_exchange(exchange(durable=False))
    assert one.exchange("v", "e").durable is False
    assert one.changes == []
    one.delete_exchange("v", "e")
    assert one.changes == []


def test_a_deleted_exchange_takes_bindings_from_and_to_it_along() -> None:
    one = broker(
        exchange(), exchange("f"), queue(), binding(), binding("e", "f", destination_type="exchange")
    )
    one.delete_exchange("v", "e")
    assert kinds(one.changes) == [("delete", "bindings"), ("delete", "bindings"), ("delete", "exchanges")]
    with pytest.raises(NotFound, match="no exchange 'e' in vhost 'v'"):
        one.route("v", "e", "", no_headers)
    assert one.topology("v").bindings() == []


def test_a_predeclared_exchange_stays() -> None:
    one = broker()
    one.delete_exchange("v", "amq.topic")
    assert one.exchange("v", "amq.topic").type == "topic"


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_chain_of_auto_delete_exchanges_goes_whatever_its_length(in_turns: bool) -> None:
    length = 2 * sys.getrecursionlimit()
    chain = [f"e{number}" for number in range(length)]
    one = broker(*[exchange(name, auto_delete=True) for name in chain], queue(), binding(source=chain[-1]))
    for source, destination in pairwise(chain):
        one.bind(binding(destination, source, destination_type="exchange"))
    one.changes.clear()
    if in_turns:
        one.deletions.delete_queue(one.queue("v", "q"), lambda count: None)
    else:
        one.delete_queue(one.queue("v", "q"))
    assert set(one.topology("v").exchanges) == set(PREDECLARED)
    assert one.topology("v").bindings() == []
    deleted = Counter(kind for _, kind in kinds(one.changes))
    assert deleted == {"bindings": length, "exchanges": length, "queues": 1}


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    one = broker(exchange(auto_delete=True), queue(), queue("r"), binding(), binding("r"))
    one.unbind(binding())
    assert "e" in one.topology("v").exchanges
    one.unbind(binding("r"))
    with pytest.raises(NotFound):
        one.exchange("v", "e")
    assert ("delete", "exchanges") in kinds(one.changes)


# -- queues -----------------------------------------------------------------------------------


def test_a_queue_declared_twice_is_one_and_with_other_properties_refused() -> None:
    one = broker()
    first = one.declare_queue(queue())
    assert one.declare_queue(queue()) is first
    assert kinds(one.changes) == [("put", "queues")]
    others: list[dict[str, Any]] = [{"durable": False}, {"auto_delete": True}]
    for other in others:
        with pytest.raises(PreconditionFailed, match=f"'{next(iter(other))}' for queue 'q' in vhost 'v'"):
            one.declare_queue(queue(**other))


def test_each_life_of_a_durable_queue_has_an_epoch_of_its_own_also_after_a_restart() -> None:
    one = broker()
    epochs = []
    for _ in range(3):
        held = one.declare_queue(queue())
        epochs.append(held.epoch)
        one.delete_queue(held)
    epochs.append(one.declare_queue(queue()).epoch)
    assert len(set(epochs)) == 4
    again = Broker(no_read)
    for entity in one.definitions.entities():
        again.apply(d.Put(entity))
    assert again.queue("v", "q").epoch == epochs[-1]
    assert again.declare_queue(queue("other")).epoch not in epochs


def test_an_exclusive_queue_is_its_owners_and_is_never_logged() -> None:
    one = broker(exchange())
    owner = object()
    held = one.declare_queue(queue(durable=False), owner)
    one.bind(binding())
    assert held.owner is owner
    assert one.changes == []
    assert one.definitions.by_kind["queues"] == one.definitions.by_kind["bindings"] == {}
    one.delete_queue(held)
    assert one.changes == []
    assert one.deleted == [held]


def test_a_deleted_queue_goes_with_its_bindings_tells_its_consumers_and_counts_what_it_held() -> None:
    one = broker(exchange(), queue(), binding())
    held, consumer = one.queue("v", "q"), Client()
    held.add_consumer(consumer)
    fill(held, 3)
    one.dirty[held] = None
    with pytest.raises(PreconditionFailed, match="in use"):
        one.delete_queue(held, if_unused=True)
    with pytest.raises(PreconditionFailed, match="not empty"):
        one.delete_queue(held, if_empty=True)
    assert one.delete_queue(held) == 3
    assert kinds(one.changes) == [("delete", "bindings"), ("delete", "queues")]
    assert consumer.is_told
    assert one.deleted == [held]
    assert held not in one.dirty
    assert one.route("v", "", "q", no_headers) == []
    with pytest.raises(NotFound, match="no queue 'q' in vhost 'v'"):
        one.queue("v", "q")


def test_a_damaged_queue_is_down_and_says_why_but_can_be_deleted() -> None:
    one = broker(queue())
    held = one.queue("v", "q")
    held.damage = "log L: damaged chunk"
    asks: list[Callable[[], Any]] = [lambda: one.queue("v", "q"), lambda: one.declare_queue(queue())]
    for ask in asks:
        with pytest.raises(NotFound, match="queue 'q' in vhost 'v' is down: log L: damaged chunk"):
            ask()
    with pytest.raises(PreconditionFailed, match="not empty"):
        one.delete_queue(held, if_empty=True)
    one.apply(d.Delete("queues", ("v", "q")))
    assert ("v", "q") not in one.queues


def test_a_queue_that_is_restarted_is_another_one_and_all_that_is_bound_to_it_stays() -> None:
    one = broker(
        exchange(auto_delete=True), exchange("outer"), queue(arguments={"x-max-length": 9}), binding()
    )
    one.apply(d.Put(binding("e", "outer", destination_type="exchange")))
    held, consumer = one.queue("v", "q"), Client()
    held.add_consumer(consumer)
    fill(held, 3)
    held.damage = "log L: damaged chunk"
    one.changes.clear()
    anew = one.restart_queue(held)
    assert anew.epoch > held.epoch
    assert anew.definition.arguments == {"x-max-length": 9}
    assert (anew.damage, anew.message_count) == (None, 0)
    assert one.queue("v", "q") is anew
    assert one.deleted == [held]
    assert consumer.is_told
    assert one.route("v", "outer", "", no_headers) == [anew]
    # One change: whoever has only a part of a log of definitions has the one queue or the other.
    assert one.changes == [d.Put(anew.definition)]
    again = broker()
    for entity in one.definitions.entities():
        again.apply(d.Put(entity))
    assert again.route("v", "outer", "", no_headers)[0].epoch == anew.epoch


def test_a_queue_that_is_put_again_as_it_was_before_a_restart_is_the_one_there_is() -> None:
    one = broker(queue())
    anew = one.restart_queue(one.queue("v", "q"))
    assert one.declare_queue(queue()) is anew
    one.apply(d.Put(queue()))
    assert one.queue("v", "q") is anew


# -- bindings and routes ----------------------------------------------------------------------


def test_a_binding_needs_both_its_ends() -> None:
    one = broker(exchange(), queue())
    for wrong in (binding("x"), binding(source="x"), binding("x", destination_type="exchange")):
        with pytest.raises(NotFound, match="'x' in vhost 'v'"):
            one.bind(wrong)
    assert one.changes == []


@pytest.mark.parametrize(
    ("source", "destination", "logged"), [(True, True, 1), (False, True, 0), (True, False, 0)]
)
def test_a_binding_is_as_durable_as_both_its_ends(source: bool, destination: bool, logged: int) -> None:
    one = broker(exchange(durable=source), queue(durable=destination))
    one.bind(binding())
    one.bind(binding())
    assert len(one.changes) == logged
    assert one.definitions.by_kind["bindings"]


def test_bindings_that_differ_in_arguments_are_two() -> None:
    one = broker(exchange(type="headers"), queue())
    one.bind(binding(arguments={"a": 1}))
    one.bind(binding(arguments={"a": 2}))
    assert len(one.topology("v").bindings()) == 2
    one.unbind(binding(arguments={"a": 1}))
    assert one.topology("v").bindings() == [binding(arguments={"a": 2})]


def test_every_change_of_a_way_raises_the_version() -> None:
    one = broker(exchange(), queue(), queue("r"), d.User(name="u", password_hash=""))
    steps: list[Callable[[], Any]] = [
        lambda: one.bind(binding()),
        lambda: one.unbind(binding()),
        lambda: one.declare_queue(queue("new")),
        lambda: one.delete_queue(one.queue("v", "r")),
        lambda: one.declare_exchange(exchange("f")),
        lambda: one.delete_exchange("v", "f"),
        lambda: one.apply(d.Put(d.Permission(user="u", vhost="v", configure="", write="", read=""))),
        lambda: one.apply(d.Put(policy(definition={"alternate-exchange": "e"}))),
    ]
    for step in steps:
        before = one.version
        step()
        assert one.version > before


def test_a_policys_alternate_exchange_holds_unless_the_exchange_has_its_own() -> None:
    one = broker(exchange(), exchange("f"), exchange("own", arguments={"alternate-exchange": "amq.fanout"}))
    one.declare_queue(queue())
    one.bind(binding(source="f"))
    one.apply(d.Put(policy(pattern="^(e|own)$", definition={"alternate-exchange": "f"})))
    one.refresh_policies()
    assert [held.definition.name for held in one.route("v", "e", "", no_headers)] == ["q"]
    assert one.route("v", "own", "", no_headers) == []
    one.apply(d.Delete("policies", ("v", "p")))
    one.refresh_policies()
    assert one.route("v", "e", "", no_headers) == []


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        policy(definition={"bogus": 1}),
        d.Parameter(vhost="v", component="operator_policy", name="o", value={}),
        d.Parameter(vhost="v", component="shovel", name="s", value={}),
        d.User(name="u", password_hash="", limits={"bogus": 1}),
        d.Vhost(name="w", default_queue_type="bogus"),
        d.Vhost(name="w" * 256),
        queue("q" * 256),
        exchange("e" * 256),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_logged(wrong: d.AnyEntity) -> None:
    one = broker()
    with pytest.raises(InvalidCommand):
        one.apply(d.Put(wrong))
    assert one.changes == []


# -- default queue type -----------------------------------------------------------------------


def test_a_declaration_without_a_type_gets_the_vhosts() -> None:
    one = broker()
    one.apply(d.Put(d.Vhost(name="v", default_queue_type="quorum")))
    assert one.declare_queue(queue()).definition.arguments == {"x-queue-type": "quorum"}
    assert one.declare_queue(queue()).definition.arguments == {"x-queue-type": "quorum"}
    transient = one.declare_queue(queue("t", durable=False))
    assert transient.definition.arguments == {"x-queue-type": "classic"}
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-queue-type'"):
        one.declare_queue(queue(arguments={"x-queue-type": "classic"}))


def test_a_server_names_only_classic_queues() -> None:
    one = broker()
    one.check_server_named(queue(), exclusive=False)
    one.apply(d.Put(d.Vhost(name="v", default_queue_type="quorum")))
    one.check_server_named(queue(), exclusive=True)
    text = r"^Cannot declare a server-named queue for type rabbit_quorum_queue$"
    with pytest.raises(PreconditionFailed, match=text):
        one.check_server_named(queue(), exclusive=False)


def test_all_arguments_of_the_type_are_compared_in_its_order() -> None:
    one = broker(queue(arguments={"x-max-length": 5, "x-expires": 1000, "x-other": 1}))
    one.declare_queue(queue(arguments={"x-max-length": 5, "x-expires": 1000}))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-expires'"):
        one.declare_queue(queue(arguments={"x-max-length": 6, "x-expires": 2000}))


# -- replication ------------------------------------------------------------------------------

TAGGED = d.Vhost(name="v", tags=("standby_replication",))


def test_a_durable_queue_of_a_tagged_vhost_is_replicated_when_its_policy_asks_for_it() -> None:
    one = broker()
    steps: list[tuple[d.Change, bool]] = [
        (d.Put(queue()), False),
        (d.Put(policy()), False),
        (d.Put(TAGGED), True),
        (d.Put(policy(definition={"remote-dc-replicate": False})), False),
        (d.Put(policy()), True),
        (d.Delete("policies", ("v", "p")), False),
        (d.Put(policy()), True),
        (d.Put(d.Vhost(name="v")), False),
    ]
    was = False
    for change, replicated in steps:
        one.apply(change)
        one.refresh_policies()
        held = one.queue("v", "q")
        assert held.replicated is replicated
        assert one.replication_changes == ([held] if replicated != was else [])
        one.replication_changes.clear()
        was = replicated


def test_transient_exclusive_and_unmatched_queues_are_not_replicated() -> None:
    one = broker(TAGGED, policy())
    assert one.declare_queue(queue()).replicated
    assert not one.declare_queue(queue("q1", durable=False)).replicated
    assert not one.declare_queue(queue("q2"), object()).replicated
    assert not one.declare_queue(queue("other")).replicated
    assert one.declare_queue(queue("q3", arguments={"x-queue-type": "stream"})).replicated, "a stream is"
    assert one.queue("v", "q").policy == "p"
    assert one.queue("v", "other").policy is None


# -- the definitions log ----------------------------------------------------------------------

NAME = st.sampled_from(["a", "b", "c"])
FLAG = st.booleans()
IN = {"vhost": st.just("v")}
NOTHING = {name: st.just("") for name in ("configure", "write", "read")}
TAGS = st.sampled_from([(), ("standby_replication",)])
TYPE, END = st.sampled_from(["fanout", "topic"]), st.sampled_from(["queue", "exchange"])
OPERATOR_POLICY = st.fixed_dictionaries(
    {"pattern": NAME, "priority": st.integers(0, 2), "definition": st.just({"max-length": 5})}
)
ENTITY: st.SearchStrategy[d.AnyEntity] = st.one_of(
    st.builds(d.Vhost, name=st.sampled_from(["v", "w"]), tags=TAGS),
    st.builds(d.User, name=NAME, password_hash=st.just("")),
    st.builds(d.Exchange, name=NAME, type=TYPE, durable=FLAG, auto_delete=FLAG, **IN),
    st.builds(d.Queue, name=NAME, durable=FLAG, **IN),
    st.builds(d.Binding, source=NAME, destination=NAME, destination_type=END, **IN),
    st.builds(
        d.Policy, name=NAME, pattern=NAME, definition=st.just(REPLICATE), priority=st.integers(0, 2), **IN
    ),
    st.builds(d.Permission, user=NAME, **IN, **NOTHING),
    st.builds(d.Parameter, component=st.just("operator_policy"), name=NAME, value=OPERATOR_POLICY, **IN),
)
CHANGE: st.SearchStrategy[d.Change] = st.one_of(
    ENTITY.map(d.Put), ENTITY.map(lambda entity: d.Delete(entity.kind, entity.key))
)


def durable(definitions: d.Definitions) -> set[str]:
    """What must be there after a restart."""

    def lasts(entity: d.AnyEntity) -> bool:
        match entity:
            case d.Exchange() | d.Queue():
                return entity.durable
            case d.Binding():
                ends = [("exchanges", entity.source), (f"{entity.destination_type}s", entity.destination)]
                return all(
                    lasts(end)
                    for kind, name in ends
                    if (end := definitions.by_kind[kind].get((entity.vhost, name))) is not None
                )
        return True

    return {repr(entity) for entity in definitions.entities() if lasts(entity)}


@given(st.lists(CHANGE, max_size=25))
def test_the_log_of_changes_always_tells_exactly_what_is_durable_and_can_be_put_back(
    changes: list[d.Change],
) -> None:
    one = Broker(no_read)
    one.apply(d.Put(d.Vhost(name="v")))
    for change in changes:
        with suppress(Refusal):
            one.apply(change)
    one.refresh_policies()
    logged = d.Definitions()
    for change in one.changes:
        logged.apply(d.decode_change(d.encode_change(change)))
    assert {repr(entity) for entity in logged.entities()} == durable(one.definitions)
    again = Broker(no_read)
    for entity in logged.entities():
        again.apply(d.Put(entity))
    again.refresh_policies()
    assert durable(again.definitions) == durable(one.definitions)
    for key, held in again.queues.items():
        assert (held.epoch, held.replicated, held.policy) == (
            one.queues[key].epoch,
            one.queues[key].replicated,
            one.queues[key].policy,
        )


@given(st.lists(CHANGE, max_size=25))
def test_a_refused_change_changes_nothing(changes: list[d.Change]) -> None:
    one = Broker(no_read)
    one.apply(d.Put(d.Vhost(name="v")))
    for change in changes:
        before = (repr(one.definitions.entities()), len(one.changes), len(one.deleted))
        try:
            one.apply(change)
        except LeveretError:
            assert (repr(one.definitions.entities()), len(one.changes), len(one.deleted)) == before


STREAM = {"x-queue-type": "stream"}
THREE = {**STREAM, "x-initial-cluster-size": 3}


def test_a_policy_that_mirrors_transient_queues_is_noted_once_and_again_when_it_changes() -> None:
    member = broker()

    def put(name: str, **definition: Any) -> None:
        member.apply(
            d.Put(d.Policy(name=name, vhost="v", pattern="^t", definition=definition, apply_to="queues"))
        )
        assert not member.refresh_policies()

    put("ha", **{"ha-mode": "all"})
    for number in range(3):
        member.declare_queue(queue(f"t{number}", durable=False))
    member.declare_queue(queue("t-durable"))
    member.declare_queue(queue("t-mine", durable=False), owner=object())
    [notice] = member.notices
    assert "policy 'ha' asks for mirrors of queue 't0' in vhost 'v', which is transient" in notice
    put("ha", **{"ha-mode": "exactly", "ha-params": 1})
    assert len(member.notices) == 1, "one copy is what a transient queue has"
    put("ha", **{"ha-mode": "exactly", "ha-params": 2})
    assert len(member.notices) == 2
    member.apply(d.Delete("policies", ("v", "ha")))
    assert not member.topology("v").unmirrored, "nothing is left of a policy that is gone"


def test_a_stream_may_ask_for_more_copies_than_there_are_nodes_and_each_such_stream_is_noted_once() -> None:
    member = broker(policy(definition={"initial-cluster-size": 4}))
    member.declare_queue(queue("alone", arguments=THREE))
    member.nodes = lambda: 3
    member.shared = []
    member.declare_queue(queue("alone", arguments=THREE))
    member.declare_queue(queue("enough", arguments=THREE))
    member.apply(d.Put(queue("q", arguments=STREAM)))
    assert {name for _, name in member.queues} == {"alone", "enough", "q"}
    assert member.fewer_copies == [
        "stream 'alone' in vhost 'v' is to have 3 copies (initial-cluster-size), and there is 1 node: it has 1",
        "stream 'q' in vhost 'v' is to have 4 copies (initial-cluster-size), and there are 3 nodes: it has 3",
    ]
    assert member.topology("v").missing_copies(queue("alone", arguments=THREE), 1)[0] == 2
    classic = queue("classic", arguments={"x-queue-type": "classic"})
    assert member.topology("v").missing_copies(classic, 1) == (0, "")

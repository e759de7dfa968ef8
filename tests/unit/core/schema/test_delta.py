"""Digests, what travels, and the delta: a downstream that applies it is as its upstream, locals aside."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.broker.broker import Broker
from leveret.core.broker.routing import no_headers
from leveret.core.queues.queue import Reader
from leveret.core.schema.delta import (
    NODE_PARAMETERS,
    SCHEMA_VHOST,
    Conflict,
    Delta,
    Key,
    LocalEntities,
    canonical,
)
from leveret.core.schema.delta import delta as delta_of
from leveret.core.schema.digests import Digests
from leveret.model.definitions import (
    KINDS,
    LOCAL_KINDS,
    AnyEntity,
    Binding,
    Definitions,
    Delete,
    Exchange,
    GlobalParameter,
    Parameter,
    Permission,
    Policy,
    Put,
    Queue,
    TopicPermission,
    User,
    Vhost,
)
from leveret.model.errors import ConfigError, Refusal
from tests.unit.core.schema.travelling import exported


def _no_messages(*_: object) -> Iterator[object]:
    return iter(())


READ: Reader = _no_messages  # type: ignore[assignment]  # no queue here ever reads


def broker_with(*entities: AnyEntity) -> Broker:
    """A broker with all the entities that it accepts, put in an order that makes sense."""
    broker = Broker(READ)
    order = list(KINDS)
    for entity in sorted(entities, key=lambda e: order.index(e.kind)):
        try:
            broker.apply(Put(entity))
        except Refusal:
            continue
    return broker


def delta(
    own: Definitions,
    theirs: Mapping[str, Sequence[AnyEntity]],
    locals_: LocalEntities,
    holding: Container[Key] = frozenset(),
    exclusive: Mapping[Key, Sequence[Binding]] = MappingProxyType({}),
) -> Delta:
    """The delta against what an upstream told in lists."""
    upstream = {kind: {entity.key: entity for entity in entities} for kind, entities in theirs.items()}
    return delta_of(own, upstream, locals_, holding, exclusive)


def digests_of(definitions: Definitions) -> dict[str, bytes]:
    digests = Digests()
    digests.update(definitions)
    return digests.kinds()


def everything(broker: Broker) -> dict[str, list[AnyEntity]]:
    return {kind: exported(broker.definitions, kind) for kind in KINDS}


def follow(
    down: Broker, theirs: dict[str, list[AnyEntity]], locals_: LocalEntities, holding: Iterable[Key] = ()
) -> Delta:
    """Apply a delta the way a downstream does; a change that the broker refuses fails the test."""
    found = delta(down.definitions, theirs, locals_, set(holding))
    for change in found.changes:
        down.apply(change)
    return found


# -- the property ---------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "local", "local-b"])
vhosts = st.sampled_from(["/", "v", "local-v", SCHEMA_VHOST])
arguments = st.sampled_from([{}, {"x": 1}, {"x": True}, {"y": ["z"]}])
values = st.one_of(
    st.integers(0, 2), st.text(max_size=2), st.dictionaries(st.text(max_size=2), st.booleans())
)
exchange_names = st.one_of(names, st.just("amq.topic"))

entities = st.one_of(
    st.builds(User, name=names, password_hash=st.sampled_from(["", "h"])),
    st.builds(Vhost, name=vhosts, description=st.sampled_from(["", "d"])),
    st.builds(
        Permission, user=names, vhost=vhosts, configure=st.just(""), write=st.just(".*"), read=st.just("")
    ),
    st.builds(
        TopicPermission, user=names, vhost=vhosts, exchange=names, write=st.just(".*"), read=st.just("")
    ),
    st.builds(
        Exchange,
        name=names,
        vhost=vhosts,
        type=st.sampled_from(["direct", "topic"]),
        durable=st.booleans(),
        auto_delete=st.booleans(),
        arguments=arguments,
    ),
    st.builds(GlobalParameter, name=st.one_of(names, st.sampled_from(sorted(NODE_PARAMETERS))), value=values),
    st.builds(Policy, vhost=vhosts, name=names, pattern=st.just("^x"), definition=st.just({})),
    st.builds(
        Parameter,
        vhost=vhosts,
        component=st.sampled_from(["operator_policy", "shovel"]),
        name=names,
        value=values,
    ),
    st.builds(Queue, name=names, vhost=vhosts, durable=st.booleans(), arguments=arguments),
    st.builds(
        Binding,
        vhost=vhosts,
        source=exchange_names,
        destination=names,
        destination_type=st.sampled_from(["queue", "exchange"]),
        routing_key=st.sampled_from(["", "k"]),
        arguments=arguments,
    ),
)
bindings = st.builds(
    Binding,
    vhost=st.just("/"),
    source=st.sampled_from(["a", "b"]),
    destination=names,
    routing_key=st.just(""),
)
varied = st.one_of(
    st.builds(Exchange, name=names, vhost=st.just("/"), type=st.just("topic"), auto_delete=st.booleans()),
    st.builds(Queue, name=names, vhost=st.just("/"), durable=st.booleans(), arguments=arguments),
)
COMMON: list[AnyEntity] = [Vhost(name="/"), Vhost(name="v"), User(name="a", password_hash="")]
TOPOLOGY: list[AnyEntity] = [
    Exchange(name="a", vhost="/", type="topic", auto_delete=True),
    Exchange(name="b", vhost="/", type="topic"),
    *(Queue(name=name, vhost="/") for name in ("a", "b", "local")),
]
schemas = st.lists(entities, max_size=30).map(lambda drawn: [*COMMON, *drawn])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[AnyEntity], list[AnyEntity]]:
    """Two schemas that have much in common, as those of a downstream and its upstream do."""
    common = draw(st.lists(st.one_of(bindings, entities), max_size=12))
    some = st.lists(st.one_of(bindings, varied, entities), max_size=6)
    own, other = draw(some), draw(some)
    # The first of two that contradict each other is the one that counts.
    return [*COMMON, *own, *TOPOLOGY, *common], [*COMMON, *other, *TOPOLOGY, *common]


locals_of_some = st.dictionaries(st.sampled_from(LOCAL_KINDS), st.just("^local")).map(LocalEntities)


def assert_same(
    down: Broker, theirs: dict[str, list[AnyEntity]], locals_: LocalEntities, conflicts: set[tuple[str, Key]]
) -> None:
    for kind in theirs:
        wanted = {e.key: canonical(e) for e in theirs[kind] if not locals_.covers(e)}
        held = down.definitions.by_kind[kind]
        for key, octets in wanted.items():
            if (kind, key) not in conflicts:
                assert canonical(held[key]) == octets
        for entity in exported(down.definitions, kind):
            if not locals_.covers(entity) and (kind, entity.key) not in conflicts:
                assert entity.key in wanted


@given(pairs(), locals_of_some, st.sets(st.tuples(st.sampled_from(["/", "v"]), names), max_size=2))
def test_after_the_delta_the_downstream_is_as_its_upstream_but_for_locals_and_conflicts(
    schema_pair: tuple[list[AnyEntity], list[AnyEntity]], locals_: LocalEntities, holding: set[Key]
) -> None:
    ours, theirs = schema_pair
    down, upstream = broker_with(*ours), everything(broker_with(*theirs))

    found = follow(down, upstream, locals_, holding)

    assert_same(down, upstream, locals_, {(conflict.kind, conflict.key) for conflict in found.conflicts})
    again = delta(down.definitions, upstream, locals_, holding)
    assert again.changes == []
    assert set(again.conflicts) == set(found.conflicts)


OWNED = Queue(vhost="/", name="owned", durable=False)


def with_exclusive_queue(down: Broker, *sources: str) -> dict[Key, list[Binding]]:
    """Let a connection have an exclusive queue that is bound to these exchanges."""
    down.declare_queue(OWNED, owner=object())
    for source in sources:
        if source in down.topology("/").exchanges:
            down.bind(Binding(vhost="/", source=source, destination="owned", routing_key="k"))
    return {OWNED.key: down.topology("/").bindings_into("queue", "owned")}


def present(down: Broker) -> set[tuple[str, Key]]:
    """Exchanges, queues and bindings, those of exclusive queues too."""
    found: set[tuple[str, Key]] = {("queues", key) for key in down.queues}
    for vhost, topology in down.topologies.items():
        found |= {("exchanges", (vhost, name)) for name in topology.exchanges}
        found |= {("bindings", binding.key) for binding in topology.bindings()}
    return found


@given(pairs(), locals_of_some)
def test_what_is_there_before_and_afterwards_is_there_after_every_step(
    schema_pair: tuple[list[AnyEntity], list[AnyEntity]], locals_: LocalEntities
) -> None:
    ours, theirs = schema_pair
    down, upstream = broker_with(*ours), everything(broker_with(*theirs))
    exclusive = with_exclusive_queue(down, "a", "b")
    before = present(down)
    seen: list[set[tuple[str, Key]]] = []

    for step in delta(down.definitions, upstream, locals_, exclusive=exclusive).steps:
        for change in step.changes:
            down.apply(change)
        seen.append(present(down))

    afterwards = present(down)
    for found in seen:
        assert found >= before & afterwards
    for binding in exclusive[OWNED.key]:
        kept = ("exchanges", ("/", binding.source)) in afterwards
        assert (("bindings", binding.key) in afterwards) == kept
    assert delta(down.definitions, upstream, locals_, exclusive=exclusive).changes == []


@given(pairs(), locals_of_some)
def test_only_the_kinds_whose_digest_differs_need_to_be_told(
    schema_pair: tuple[list[AnyEntity], list[AnyEntity]], locals_: LocalEntities
) -> None:
    ours, theirs = schema_pair
    down, up = broker_with(*ours), broker_with(*theirs)
    upstream = everything(up)
    here, there = digests_of(down.definitions), digests_of(up.definitions)

    found = follow(down, {kind: upstream[kind] for kind in KINDS if here[kind] != there[kind]}, locals_)

    assert_same(down, upstream, locals_, {(conflict.kind, conflict.key) for conflict in found.conflicts})


@given(pairs(), locals_of_some)
def test_what_is_local_or_this_nodes_own_is_neither_overwritten_nor_deleted(
    schema_pair: tuple[list[AnyEntity], list[AnyEntity]], locals_: LocalEntities
) -> None:
    ours, theirs = schema_pair
    down = broker_with(*ours)
    # Bindings and permissions end with what they refer to; see the tests of their own.
    own = [e for kind in KINDS if kind not in REFERRING for e in down.definitions.by_kind[kind].values()]
    kept = [e for e in own if locals_.covers(e) or e.key == (SCHEMA_VHOST,) or e.key[0] in NODE_PARAMETERS]

    follow(down, everything(broker_with(*theirs)), locals_)

    for entity in kept:
        assert down.definitions.by_kind[entity.kind][entity.key] == entity


REFERRING = ("bindings", "permissions", "topic_permissions")


@given(schemas, st.randoms(use_true_random=False))
def test_the_order_of_puts_does_not_change_a_digest(schema: Sequence[AnyEntity], random: object) -> None:
    accepted = broker_with(*schema).definitions.entities()
    shuffled = list(accepted)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis's Random
    assert digests_of(definitions(*accepted)) == digests_of(definitions(*shuffled))


def definitions(*put: AnyEntity) -> Definitions:
    made = Definitions()
    for entity in put:
        made.apply(Put(entity))
    return made


# -- digests --------------------------------------------------------------------------------------


def test_a_digest_changes_with_an_entity_and_comes_back_with_it() -> None:
    made = definitions(Vhost(name="/"), Queue(vhost="/", name="q", epoch=1))
    first = digests_of(made)
    made.apply(Put(Queue(vhost="/", name="q", arguments={"x": 1})))
    changed = digests_of(made)
    made.apply(Put(Queue(vhost="/", name="q", epoch=9)))

    assert [kind for kind in KINDS if first[kind] != changed[kind]] == ["queues"]
    assert digests_of(made) == first


@given(schemas, schemas, st.integers(1, 5), st.booleans(), st.integers(0, 9))
def test_what_changes_while_a_schema_is_digested_is_in_the_digests_of_the_next_look(
    before: Sequence[AnyEntity], changes: Sequence[AnyEntity], every: int, looks: bool, changed: int
) -> None:
    """20,000 entities took a step of 64 ms; now others are served between, and may change some of them."""
    made = broker_with(*before).definitions
    digests, left = Digests(), list(changes)
    assert digests.due_count(made) == len(made.entities())
    if changed:
        # Then only what has changed is digested, in slices too.
        digests.update(made)
        for entity in [left.pop() for _ in range(min(changed, len(left)))]:
            known = entity.key in made.by_kind[entity.kind]
            made.apply(Delete(entity.kind, entity.key) if known else Put(entity))
        assert digests.due_count(made) <= changed
    for number, _ in enumerate(digests.updating(made)):
        if left and not number % every:
            entity = left.pop()
            known = entity.key in made.by_kind[entity.kind]
            made.apply(Delete(entity.kind, entity.key) if known else Put(entity))
            if looks:
                digests.update(made)
                assert digests.kinds() == digests_of(made)
    digests.update(made)
    assert digests.kinds() == digests_of(made)


def test_one_and_true_are_different_arguments() -> None:
    made = definitions(Queue(vhost="/", name="q", arguments={"x": 1}))
    first = digests_of(made)
    truth = Queue(vhost="/", name="q", arguments={"x": True})
    found = delta(made, {"queues": [truth]}, LocalEntities())
    made.apply(Put(truth))

    assert found.changes == [Delete("queues", ("/", "q")), Put(truth)]
    assert digests_of(made) != first


def test_an_epoch_never_travels() -> None:
    made = definitions(Queue(vhost="/", name="q", epoch=7))
    assert canonical(exported(made, "queues")[0]) == canonical(Queue(vhost="/", name="q"))
    assert delta(made, {"queues": [Queue(vhost="/", name="q")]}, LocalEntities()) == Delta([], [], [])


def test_a_queue_is_put_without_the_epoch_it_had_elsewhere() -> None:
    found = delta(Definitions(), {"queues": [Queue(vhost="/", name="q", epoch=7)]}, LocalEntities())
    assert found.changes == [Put(Queue(vhost="/", name="q"))]


# -- what travels ---------------------------------------------------------------------------------

NEVER: list[AnyEntity] = [
    Vhost(name=SCHEMA_VHOST),
    Permission(vhost=SCHEMA_VHOST, user="u", configure="", write="", read=""),
    *(GlobalParameter(name=name, value=1) for name in sorted(NODE_PARAMETERS)),
    Exchange(vhost="/", name="", type="direct"),
    Exchange(vhost="/", name="amq.topic", type="topic"),
    Queue(vhost="/", name="t", durable=False),
    Binding(vhost="/", source="", destination="q", routing_key="q"),
]


@pytest.mark.parametrize("entity", NEVER, ids=lambda e: f"{e.kind}-{'-'.join(e.key)}")
def test_what_is_this_nodes_own_is_neither_told_nor_taken_nor_deleted(entity: AnyEntity) -> None:
    own = definitions(entity)
    assert exported(own, entity.kind) == []
    assert delta(own, {kind: [] for kind in KINDS}, LocalEntities()).changes == []
    assert delta(Definitions(), {entity.kind: [entity]}, LocalEntities()).changes == []


def test_a_binding_to_a_transient_queue_does_not_travel_but_one_to_an_exchange_of_its_name_does() -> None:
    to_queue = Binding(vhost="/", source="x", destination="t")
    to_exchange = Binding(vhost="/", source="x", destination="t", destination_type="exchange")
    made = definitions(Queue(vhost="/", name="t", durable=False), to_queue, to_exchange)
    assert exported(made, "bindings") == [to_exchange]


# -- locals ---------------------------------------------------------------------------------------

COVERED: list[tuple[str, AnyEntity]] = [
    ("users", User(name="mine", password_hash="")),
    ("users", Permission(vhost="/", user="mine", configure="", write="", read="")),
    ("users", TopicPermission(vhost="/", user="mine", exchange="x", write="", read="")),
    ("vhosts", Vhost(name="mine")),
    ("vhosts", Queue(vhost="mine", name="q")),
    ("vhosts", Binding(vhost="mine", source="x", destination="q")),
    ("vhosts", Permission(vhost="mine", user="u", configure="", write="", read="")),
    ("policies", Policy(vhost="/", name="mine", pattern="", definition={})),
    ("global_parameters", GlobalParameter(name="mine", value=1)),
    ("parameters", Parameter(vhost="/", component="shovel", name="mine", value=1)),
    ("operator_policies", Parameter(vhost="/", component="operator_policy", name="mine", value=1)),
    ("queues", Queue(vhost="/", name="mine")),
    ("queues", Binding(vhost="/", source="x", destination="mine")),
    ("exchanges", Exchange(vhost="/", name="mine", type="direct")),
    ("exchanges", Binding(vhost="/", source="mine", destination="q")),
    ("exchanges", Binding(vhost="/", source="x", destination="mine", destination_type="exchange")),
    ("exchanges", TopicPermission(vhost="/", user="u", exchange="mine", write="", read="")),
    ("bindings", Binding(vhost="/", source="x", destination="mine")),
    ("permissions", Permission(vhost="/", user="mine", configure="", write="", read="")),
]


@pytest.mark.parametrize(("kind", "entity"), COVERED, ids=lambda v: v if isinstance(v, str) else v.kind)
def test_a_local_entity_and_what_refers_to_it_is_left_alone(kind: str, entity: AnyEntity) -> None:
    locals_ = LocalEntities({kind: "^mine$"})
    assert delta(definitions(entity), {entity.kind: []}, locals_).changes == []
    assert delta(Definitions(), {entity.kind: [entity]}, locals_).changes == []
    assert delta(definitions(entity), {entity.kind: []}, LocalEntities()).changes == [
        Delete(entity.kind, entity.key)
    ]


def test_an_expression_is_searched_for_unless_it_is_anchored() -> None:
    assert LocalEntities({"users": "min"}).names("users", "admin")
    assert not LocalEntities({"users": "^min"}).names("users", "admin")


def test_operator_policies_and_parameters_have_expressions_of_their_own() -> None:
    operator = Parameter(vhost="/", component="operator_policy", name="mine", value=1)
    assert not LocalEntities({"parameters": "mine"}).covers(operator)


@pytest.mark.parametrize(
    ("patterns", "named"), [({"user": "x"}, "locals.user:"), ({"users": "("}, "locals.users = '('")]
)
def test_locals_that_cannot_be_used_are_named(patterns: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("(", r"\(")):
        LocalEntities(patterns)


# -- conflicts and consequences -------------------------------------------------------------------

X = Exchange(vhost="/", name="x", type="direct")
Q = Queue(vhost="/", name="q")
X_TO_Q = Binding(vhost="/", source="x", destination="q")


def test_puts_follow_deletes_each_in_the_order_that_references_need() -> None:
    own = definitions(Vhost(name="old"), Queue(vhost="old", name="q"))
    theirs: dict[str, list[AnyEntity]] = {"vhosts": [Vhost(name="/")], "queues": [Q], "users": []}
    assert delta(own, theirs, LocalEntities()).changes == [
        Delete("queues", ("old", "q")),
        Delete("vhosts", ("old",)),
        Put(Vhost(name="/")),
        Put(Q),
    ]


def test_the_policies_of_a_vhost_change_in_one_go_and_those_of_a_deleted_one_go_before_it() -> None:
    def policy(vhost: str, name: str, priority: int) -> Policy:
        return Policy(vhost=vhost, name=name, pattern="", definition={"max-length": 9}, priority=priority)

    def cap(vhost: str, value: int) -> Parameter:
        return Parameter(vhost=vhost, component="vhost-limits", name="limits", value={"max-queues": value})

    vhosts = [Vhost(name="/"), Vhost(name="v"), Vhost(name="old")]
    was: list[AnyEntity] = [*(policy(vhost, "b", 1) for vhost in "/v"), policy("old", "p", 1), cap("/", 1)]
    user = User(name="u", password_hash="")
    now: list[AnyEntity] = [policy("/", "a", 1), policy("v", "a", 1), cap("/", 2)]
    theirs: dict[str, list[AnyEntity]] = {
        "vhosts": [*vhosts[:2]],
        "users": [user],
        "policies": [*now[:2]],
        "parameters": [now[2]],
        "queues": [Q],
    }
    found = delta(definitions(*vhosts, *was), theirs, LocalEntities())
    assert [(step.change, step.joined) for step in found.steps] == [
        (Delete("policies", ("old", "p")), False),
        (Delete("vhosts", ("old",)), False),
        (Put(user), False),
        (Delete("policies", ("/", "b")), True),
        (Put(now[0]), True),
        (Put(now[2]), False),
        (Delete("policies", ("v", "b")), True),
        (Put(now[1]), False),
        (Put(Q), False),
    ]


def test_a_replaced_queue_gets_its_bindings_back_although_they_did_not_change() -> None:
    down = broker_with(Vhost(name="/"), X, Q, X_TO_Q)
    wanted = Queue(vhost="/", name="q", arguments={"x": 1})
    follow(down, {"queues": [wanted]}, LocalEntities())
    assert canonical(down.definitions.by_kind["queues"][Q.key]) == canonical(wanted)
    assert down.topology("/").has_binding(X_TO_Q)


def test_a_replaced_exchange_gets_its_bindings_back_also_the_local_ones() -> None:
    mine, to_mine = Queue(vhost="/", name="mine"), Binding(vhost="/", source="x", destination="mine")
    down = broker_with(Vhost(name="/"), X, Q, X_TO_Q, mine, to_mine)
    wanted = Exchange(vhost="/", name="x", type="topic")
    theirs: dict[str, list[AnyEntity]] = {"exchanges": [wanted], "queues": [Q], "bindings": [X_TO_Q]}
    follow(down, theirs, LocalEntities({"queues": "^mine$"}))
    assert down.exchange("/", "x") == wanted
    assert down.topology("/").has_binding(X_TO_Q)
    assert down.topology("/").has_binding(to_mine)


def test_an_auto_delete_exchange_outlives_the_binding_that_goes() -> None:
    fleeting = Exchange(vhost="/", name="x", type="direct", auto_delete=True)
    down = broker_with(Vhost(name="/"), fleeting, Q, X_TO_Q)
    follow(down, {"bindings": []}, LocalEntities())
    assert down.exchange("/", "x") == fleeting
    assert not down.topology("/").has_binding(X_TO_Q)


def test_a_queue_that_holds_messages_is_kept_and_reported() -> None:
    wanted = Queue(vhost="/", name="q", arguments={"x": 1})
    found = delta(definitions(Q), {"queues": [wanted]}, LocalEntities(), {Q.key})
    assert found.changes == []
    (conflict,) = found.conflicts
    assert (conflict.kind, conflict.key) == ("queues", ("/", "q"))
    assert "holds messages" in conflict.reason


def test_a_vhost_that_holds_something_local_is_kept_and_reported() -> None:
    own = definitions(Vhost(name="v"), Queue(vhost="v", name="mine"), Queue(vhost="v", name="other"))
    found = delta(own, {"vhosts": [], "queues": []}, LocalEntities({"queues": "^mine$"}))
    assert found.changes == [Delete("queues", ("v", "other"))]
    assert [(conflict.kind, conflict.key) for conflict in found.conflicts] == [("vhosts", ("v",))]


def test_a_transient_queue_gives_way_to_the_upstreams_durable_one() -> None:
    down = broker_with(Vhost(name="/"), X, Queue(vhost="/", name="q", durable=False), X_TO_Q)
    follow(down, {"queues": [Q]}, LocalEntities())
    assert down.queue("/", "q").definition.durable
    assert not down.topology("/").has_binding(X_TO_Q)


def test_an_exclusive_queue_keeps_its_binding_when_the_exchange_is_replaced() -> None:
    down = broker_with(Vhost(name="/"), X, Q)
    exclusive = with_exclusive_queue(down, "x")
    wanted = Exchange(vhost="/", name="x", type="topic")
    for change in delta(
        down.definitions, {"exchanges": [wanted]}, LocalEntities(), exclusive=exclusive
    ).changes:
        down.apply(change)
    assert [queue.key for queue in down.route("/", "x", "k", no_headers)] == [OWNED.key]
    assert down.definitions.by_kind["bindings"] == {}


def test_an_exclusive_queue_with_the_name_of_an_upstreams_queue_is_kept_and_reported() -> None:
    wanted, bound = Queue(vhost="/", name="owned"), Binding(vhost="/", source="x", destination="owned")
    down = broker_with(Vhost(name="/"), X)
    exclusive = with_exclusive_queue(down)
    found = delta(
        down.definitions, {"queues": [wanted], "bindings": [bound]}, LocalEntities(), exclusive=exclusive
    )
    assert found.changes == []
    assert found.conflicts == [
        Conflict("queues", ("/", "owned"), "an exclusive queue of a connection has its name")
    ]


UNKNOWN: list[AnyEntity] = [
    Exchange(vhost="/", name="x", type="x-delayed-message", arguments={"x-delayed-type": "topic"}),
    Exchange(vhost="/", name="x", type="direct", arguments={"alternate-exchange": 1}),
    Queue(vhost="/", name="q", arguments={"x-queue-type": "x-custom"}),
    Queue(vhost="/", name="q", arguments={"x-queue-type": ["a"]}),
]


@pytest.mark.parametrize("wanted", UNKNOWN, ids=str)
def test_what_cannot_be_had_here_is_refused_and_nothing_is_deleted_for_it(wanted: AnyEntity) -> None:
    own = definitions(X, Q, X_TO_Q)
    found = delta(own, {wanted.kind: [wanted]}, LocalEntities())
    assert found.steps == []
    ((kind, key, reason),) = found.refused
    assert (kind, key) == (wanted.kind, wanted.key)
    with pytest.raises(Refusal, match=re.escape(reason)):
        broker_with(Vhost(name="/")).apply(Put(wanted))
    (anew,) = delta(Definitions(), {wanted.kind: [wanted]}, LocalEntities()).refused
    assert anew == found.refused[0]


def test_a_queue_is_replaced_with_its_bindings_in_one_step() -> None:
    fleeting = Exchange(vhost="/", name="f", type="fanout", auto_delete=True)
    to_fleeting = Binding(vhost="/", source="x", destination="f", destination_type="exchange")
    from_fleeting = Binding(vhost="/", source="f", destination="q")
    wanted = Queue(vhost="/", name="q", arguments={"x": 1})
    own = definitions(X, Q, X_TO_Q, fleeting, to_fleeting, from_fleeting)
    (step,) = delta(own, {"queues": [wanted]}, LocalEntities()).steps
    assert step.changes[:3] == [Delete("queues", Q.key), Put(wanted), Put(fleeting)]
    assert {change.entity.key for change in step.changes[3:] if isinstance(change, Put)} == {
        X_TO_Q.key,
        to_fleeting.key,
        from_fleeting.key,
    }

"""The talk of a schema sync: it ends with what the upstream has, in few octets, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.schema import digests as exchange_digests
from leveret.core.schema.delta import canonical
from leveret.core.schema.digests import BUCKET_BYTES, BUCKETS_MAX, Digests
from leveret.model.definitions import (
    KINDS,
    RECENT_MAX,
    AnyEntity,
    Binding,
    Change,
    Definitions,
    Delete,
    Exchange,
    GlobalParameter,
    Put,
    Queue,
    User,
    Vhost,
)
from leveret.session.schema_exchange import (
    BUCKET_ENTRIES_MAX,
    COMPARED_MAX,
    PART_BYTES,
    SchemaFollower,
    answer,
)
from leveret.wire.schema_sync import (
    Ask,
    SchemaSyncError,
    SyncReply,
    SyncRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from tests.unit.core.schema.test_delta import schemas
from tests.unit.core.schema.travelling import exported


def definitions(*put: AnyEntity) -> Definitions:
    made = Definitions()
    for entity in put:
        made.apply(Put(entity))
    return made


@dataclass
class Cost:
    requests: int = 0
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    told: int = 0

    @property
    def octets(self) -> int:
        return sum(self.sent) + sum(self.received)


class Upstream:
    """Answers as a node does; `meanwhile` may change its schema before each answer."""

    def __init__(self, schema: Definitions, meanwhile: Callable[[int], None] = lambda number: None) -> None:
        self.schema = schema
        self._digests = Digests()
        self._meanwhile = meanwhile

    def report(self, following: SchemaFollower) -> Cost:
        """One sync, all octets encoded and decoded; what it cost."""
        cost = Cost()
        request: SyncRequest | None = following.begin()
        while request is not None:
            assert cost.requests < 500, "a sync that has no end"
            self._meanwhile(cost.requests)
            cost.requests += 1
            asked = encode_request(request)
            reply = answer(self._digests, self.schema, decode_request(asked), "up")
            said = encode_reply(reply)
            cost.sent.append(len(asked))
            cost.received.append(len(said))
            cost.told += sum(len(one.entities) for kind in reply.answers.values() for one in kind.values())
            request = following.take(decode_reply(said))
        return cost


def assert_knows(following: SchemaFollower, upstream: Upstream) -> None:
    for kind in KINDS:
        known = {key: canonical(entity) for key, entity in following.theirs.by_kind[kind].items()}
        assert known == {entity.key: canonical(entity) for entity in exported(upstream.schema, kind)}


@given(schemas, schemas)
def test_whatever_was_known_before_afterwards_it_is_what_the_upstream_has(
    before: list[AnyEntity], has: list[AnyEntity]
) -> None:
    known = definitions(*before)
    following = SchemaFollower(definitions(*(e for kind in KINDS for e in exported(known, kind))), "down")
    upstream = Upstream(definitions(*has))
    upstream.report(following)
    assert_knows(following, upstream)
    assert following.upstream_cluster == "up"
    assert upstream.report(following).requests == 1


def test_a_schema_that_cannot_be_digested_is_not_told_in_part_the_next_time() -> None:
    queue = Queue(vhost="/", name="q")
    upstream = Upstream(definitions(GlobalParameter(name="odd", value=object()), queue))
    following = SchemaFollower(definitions(queue), "down")
    for _ in range(2):
        with pytest.raises(TypeError):
            upstream.report(following)
    assert following.theirs.by_kind["queues"] == {queue.key: queue}
    upstream.schema.apply(Delete("global_parameters", ("odd",)))
    upstream.report(following)
    assert_knows(following, upstream)


@given(st.lists(st.builds(Queue, name=st.text(max_size=3), vhost=st.just("/"), epoch=st.integers(0, 9))))
def test_what_is_not_the_same_is_all_that_is_told(queues: list[Queue]) -> None:
    upstream = Upstream(definitions(*queues))
    known = {queue.key: queue for queue in queues[::2]}
    cost = upstream.report(SchemaFollower(definitions(*known.values()), "down"))
    assert cost.told == len({queue.key for queue in queues} - set(known))


# -- 20,000 entities ------------------------------------------------------------------------------

HALF = 10_000


def name(number: int) -> str:
    return f"queue-{number:05}"


def large() -> list[AnyEntity]:
    some: list[AnyEntity] = [Vhost(name="/"), Exchange(vhost="/", name="x", type="topic")]
    some += [Queue(vhost="/", name=name(n), arguments={"x-queue-type": "quorum"}) for n in range(HALF)]
    some += [Binding(vhost="/", source="x", destination=name(n), routing_key=f"k.{n}.#") for n in range(HALF)]
    return some


@pytest.fixture(scope="module")
def entities() -> list[AnyEntity]:
    return large()


def test_an_unchanged_schema_of_20000_entities_costs_a_few_hundred_octets(entities: list[AnyEntity]) -> None:
    upstream, following = Upstream(definitions(*entities)), SchemaFollower(definitions(*entities), "eu.2")
    cost = upstream.report(following)
    assert (cost.requests, cost.told) == (1, 0)
    assert cost.octets < 400


def test_ten_changes_among_20000_entities_cost_less_than_10_kb(entities: list[AnyEntity]) -> None:
    upstream, following = Upstream(definitions(*entities)), SchemaFollower(definitions(*entities), "eu.2")
    for number in range(0, HALF, HALF // 4):
        upstream.schema.apply(Put(Queue(vhost="/", name=name(number), arguments={"x-max-length": number})))
    for number in range(1, HALF, HALF // 4):
        binding = Binding(vhost="/", source="x", destination=name(number), routing_key=f"k.{number}.#")
        upstream.schema.apply(Delete("bindings", binding.key))
    upstream.schema.apply(Put(Queue(vhost="/", name="new")))
    upstream.schema.apply(Put(Binding(vhost="/", source="x", destination="new")))
    cost = upstream.report(following)
    assert (cost.requests, cost.told) == (2, 6)
    assert cost.octets < 8_000
    assert_knows(following, upstream)


@pytest.mark.long
def test_a_large_schema_comes_in_parts_and_they_are_small(entities: list[AnyEntity]) -> None:
    upstream, following = Upstream(definitions(*entities)), SchemaFollower(Definitions(), "down")
    cost = upstream.report(following)
    assert cost.requests > 3
    assert max(cost.received) < PART_BYTES / 4
    assert_knows(following, upstream)


def test_entities_of_any_size_come_each_in_a_part_of_its_own() -> None:
    values = [GlobalParameter(name=f"p{number}", value="x" * 700_000) for number in range(4)]
    upstream, following = Upstream(definitions(*values)), SchemaFollower(Definitions(), "down")
    cost = upstream.report(following)
    assert cost.told == 4
    assert_knows(following, upstream)


def test_far_more_than_the_upstream_has_is_deleted_without_naming_it(entities: list[AnyEntity]) -> None:
    following = SchemaFollower(definitions(*entities), "down")
    upstream = Upstream(definitions(Vhost(name="/"), Queue(vhost="/", name=name(7))))
    assert HALF > BUCKET_ENTRIES_MAX
    assert max(upstream.report(following).sent) < 1_000
    assert_knows(following, upstream)


# -- what may go otherwise ------------------------------------------------------------------------


def test_a_schema_that_changes_while_it_is_told_is_compared_again() -> None:
    schema = definitions(Vhost(name="/"))

    def meanwhile(number: int) -> None:
        if number == 1:
            schema.apply(Put(Vhost(name="v")))
            schema.apply(Put(Queue(vhost="v", name="q")))

    upstream, following = Upstream(schema, meanwhile), SchemaFollower(Definitions(), "down")
    upstream.report(following)
    assert_knows(following, upstream)


def test_a_schema_that_never_rests_is_told_as_far_as_it_goes() -> None:
    schema = definitions(Vhost(name="/"))
    upstream = Upstream(schema, lambda number: schema.apply(Put(User(name=f"u{number}", password_hash=""))))
    cost = upstream.report(SchemaFollower(Definitions(), "down"))
    assert cost.requests == 2 * COMPARED_MAX


def test_a_binding_travels_once_its_transient_queue_is_a_durable_one() -> None:
    binding = Binding(vhost="/", source="x", destination="q")
    schema = definitions(Vhost(name="/"), Exchange(vhost="/", name="x", type="direct"), binding)
    schema.apply(Put(Queue(vhost="/", name="q", durable=False)))
    upstream, following = Upstream(schema), SchemaFollower(Definitions(), "down")
    upstream.report(following)
    assert following.theirs.by_kind["bindings"] == {}
    schema.apply(Put(Queue(vhost="/", name="q")))
    upstream.report(following)
    assert following.theirs.by_kind["bindings"] == {binding.key: binding}


def test_a_transient_queue_has_no_other_entity_digested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients declare one for each request, and an upstream may have many bindings."""
    schema = definitions(Vhost(name="/"), Exchange(vhost="/", name="x", type="direct"))
    for number in range(100):
        schema.apply(Put(Queue(vhost="/", name=f"q{number}")))
        schema.apply(Put(Binding(vhost="/", source="x", destination=f"q{number}")))
    digests = Digests()
    digests.update(schema)
    state = digests.state()
    digested: list[object] = []
    assert most_at_once(digests.updating(schema), digested, monkeypatch) == 0
    for change in (Put(Queue(vhost="/", name="reply", durable=False)), Delete("queues", ("/", "reply"))):
        schema.apply(change)
        digests.update(schema)
        assert (digested, digests.state()) == ([], state)


@pytest.mark.parametrize(
    "ask",
    [Ask(0, {}), Ask(3, {}), Ask(2**17, {}), Ask(4, {4: b""}), Ask(4, {-1: None})],
    ids=lambda ask: f"{ask.count}-{list(ask.held)}",
)
def test_buckets_that_cannot_be_are_refused(ask: Ask) -> None:
    with pytest.raises(SchemaSyncError, match="schema sync request: no "):
        answer(Digests(), Definitions(), SyncRequest("down", asks={"queues": ask}), "up")
    with pytest.raises(SchemaSyncError, match="of 'shoes'"):
        answer(Digests(), Definitions(), SyncRequest("down", asks={"shoes": Ask(1, {})}), "up")


def test_kinds_that_one_side_does_not_know_are_passed_over() -> None:
    request = SyncRequest("down", {"shoes": b"", "users": b""})
    assert set(answer(Digests(), Definitions(), request, "up").buckets) == {"users"}


@pytest.mark.parametrize(
    "buckets", [{"shoes": bytes(BUCKET_BYTES)}, {"users": b""}, {"users": bytes(3 * BUCKET_BYTES)}]
)
def test_digests_that_cannot_be_are_refused(buckets: dict[str, bytes]) -> None:
    following = SchemaFollower(Definitions(), "down")
    following.begin()
    with pytest.raises(SchemaSyncError, match="octets of digests of"):
        following.take(SyncReply("up", b"", buckets))


def test_more_buckets_than_any_schema_needs_are_refused() -> None:
    following = SchemaFollower(Definitions(), "down")
    following.begin()
    most = bytes(BUCKETS_MAX * BUCKET_BYTES)
    with pytest.raises(SchemaSyncError, match="digests of more than 65536 buckets"):
        following.take(SyncReply("up", b"", {"users": most, "queues": bytes(BUCKET_BYTES)}))
    assert following.take(SyncReply("up", b"", {"users": most})) is not None


def test_an_upstream_that_moves_in_the_last_comparison_is_known_to_have_moved() -> None:
    schema = definitions(*(Queue(vhost="/", name=f"q{number}") for number in range(200)))
    following = SchemaFollower(Definitions(), "down")

    def meanwhile(number: int) -> None:
        schema.apply(Put(Queue(vhost="/", name=f"late{number}", arguments={"x": "x" * PART_BYTES})))

    Upstream(schema, meanwhile).report(following)
    assert following.has_moved
    Upstream(schema).report(following)
    assert not following.has_moved


def test_an_upstream_that_answers_nothing_that_was_asked_is_no_upstream() -> None:
    following = SchemaFollower(Definitions(), "down")
    following.begin()
    assert following.take(SyncReply("up", b"", {"users": bytes(BUCKET_BYTES)})) is not None
    with pytest.raises(SchemaSyncError, match="answers nothing that was asked"):
        following.take(SyncReply("up", b"", answers={"queues": {}}))


# -- digests of what changed ----------------------------------------------------------------------


@given(schemas, st.lists(st.tuples(st.booleans(), schemas), max_size=4))
def test_digests_that_were_kept_up_to_date_are_those_made_anew(
    before: list[AnyEntity], steps: list[tuple[bool, list[AnyEntity]]]
) -> None:
    schema, digests = definitions(*before), Digests()
    digests.update(schema)
    for is_put, changed in steps:
        digests.buckets("queues")
        for entity in changed:
            schema.apply(Put(entity) if is_put else Delete(entity.kind, entity.key))
        digests.update(schema)
        anew = Digests()
        anew.update(schema)
        assert (digests.kinds(), digests.state()) == (anew.kinds(), anew.state())
        assert {kind: digests.buckets(kind) for kind in KINDS} == {kind: anew.buckets(kind) for kind in KINDS}


def test_more_changes_than_are_remembered_are_seen_too() -> None:
    schema, digests = definitions(Vhost(name="/")), Digests()
    digests.update(schema)
    for number in range(RECENT_MAX + 1):
        schema.apply(Put(User(name=f"u{number}", password_hash="")))
    assert schema.changed_since(1) is None
    digests.update(schema)
    anew = Digests()
    anew.update(schema)
    assert digests.state() == anew.state()


def test_definitions_know_what_changed_since_a_version() -> None:
    schema = definitions(Vhost(name="a"), Vhost(name="b"))
    schema.apply(Delete("vhosts", ("a",)))
    assert schema.changed_since(3) == set()
    assert schema.changed_since(1) == {("vhosts", ("a",)), ("vhosts", ("b",))}


# -- the work between two pauses ------------------------------------------------------------------


def most_at_once(work: Iterator[None], counted: list[object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Exhaust a piece of work; return the most entities that were put, or digested, between two of its pauses."""

    def digested(entity: AnyEntity) -> bytes:
        counted.append(entity)
        return canonical(entity)

    monkeypatch.setattr(exchange_digests, "canonical", digested)
    most, before = 0, len(counted)
    for _ in work:
        most, before = max(most, len(counted) - before), len(counted)
    return max(most, len(counted) - before)


def test_a_reply_is_taken_entity_by_entity(
    entities: list[AnyEntity], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, schema = Digests(), definitions(*entities)
    theirs = Definitions()
    following = SchemaFollower(theirs, "down")
    request = following.take(answer(digests, schema, following.begin(), "up"))
    assert request is not None
    reply = answer(digests, schema, request, "up")
    told = sum(len(one.entities) for kind in reply.answers.values() for one in kind.values())
    counted: list[object] = []
    apply = Definitions.apply

    def applied(to: Definitions, change: Change) -> None:
        counted.append(change)
        apply(to, change)

    monkeypatch.setattr(Definitions, "apply", applied)
    assert most_at_once(following.taking(reply), counted, monkeypatch) == 1
    assert len(counted) == 2 * told, "each is put once and digested once, and no other entity is looked at"


def test_what_an_upstream_prepared_it_need_not_make_for_its_answer(
    entities: list[AnyEntity], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, schema = Digests(), definitions(*entities)
    assert most_at_once(digests.preparing(schema), [], monkeypatch) == 1
    compared = SchemaFollower(Definitions(), "down").begin()
    hashed: list[int] = []
    made = exchange_digests._hash

    def hash_(octets: Sequence[bytes], size_bytes: int) -> bytes:
        hashed.append(len(octets))
        return made(octets, size_bytes)

    monkeypatch.setattr(exchange_digests, "_hash", hash_)
    assert len(answer(digests, schema, compared, "up").buckets) == 4
    assert hashed == [len(KINDS)], "only the digest of all kinds is left to make"
    schema.apply(Put(Queue(vhost="/", name="one more")))
    hashed.clear()
    answer(digests, schema, compared, "up")
    buckets = [size for size in hashed if size != len(KINDS) and size < HALF]
    assert len(buckets) == 1, "the other buckets are as they were"


def test_a_schema_that_changes_while_its_digests_are_prepared_is_digested_as_it_is(
    entities: list[AnyEntity],
) -> None:
    digests, schema = Digests(), definitions(*entities)
    for number, _ in enumerate(digests.preparing(schema)):
        if number % 5_000 == 0:
            schema.apply(Put(Queue(vhost="/", name=f"meanwhile {number}")))
            schema.apply(Delete("queues", ("/", name(number // 5_000))))
        if number % 20_000 == 0:
            digests.update(schema)
    digests.update(schema)
    anew = Digests()
    anew.update(schema)
    assert (digests.kinds(), digests.state()) == (anew.kinds(), anew.state())
    assert digests.buckets("queues") == anew.buckets("queues")

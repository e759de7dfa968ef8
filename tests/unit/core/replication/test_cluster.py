"""Keys, values and events of a cluster's store, and what a node knows from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication.cluster import (
    AliveChanged,
    Changed,
    ClusterKeys,
    ClusterState,
    DefinitionChanged,
    Event,
    MemberChanged,
    MemberRecord,
    Placement,
    PlacementChanged,
    Presence,
    SchemaSyncDecided,
    StoredPlacement,
    change_write,
    differences,
    encode,
    placement_write,
)
from leveret.core.replication.election import DeleteKey, PutKey, StoredValue, Unchanged, UnreadableState
from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.operating_mode import OperatingMode
from leveret.model import definitions
from leveret.model.definitions import KINDS, Binding, Exchange, Permission, Queue, User, Vhost

KEYS = ClusterKeys.under("site-1/")
PRESENCE = Presence("i1", "tcp://127.0.0.1:25672", "http://127.0.0.1:15672", 5, "1.0")
PLACEMENT = Placement(7, "rabbit@a", "i1", 3, ("rabbit@b", "rabbit@c"), ("rabbit@b",))
ENTITIES: tuple[definitions.AnyEntity, ...] = (
    Vhost(name="/"),
    User(name="u", password_hash=""),
    Permission(vhost="/", user="u", configure=".*", write=".*", read=".*"),
    Exchange(vhost="/", name="a/b %", type="fanout"),
    Queue(vhost="/", name="q", epoch=4),
    Queue(vhost="/", name="exclusive", durable=False, auto_delete=True, epoch=5),
    Binding(vhost="/", source="a/b %", destination="q", routing_key=""),
    Binding(vhost="/", source="a/b %", destination="q", routing_key="#", arguments={"x": 1}),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def put(entity: definitions.AnyEntity, modified: int = 1) -> Event:
    write = change_write(KEYS, definitions.Put(entity))
    assert isinstance(write, PutKey)
    return Event(write.key, write.value, modified)


def gone(entity: definitions.AnyEntity, modified: int = 1) -> Event:
    write = change_write(KEYS, definitions.Delete(entity.kind, entity.key))
    assert isinstance(write, DeleteKey)
    return Event(write.key, None, modified)


def changes_by(state: ClusterState, *events: Event, revision: int = 1) -> list[Changed]:
    return state.apply(events, revision)


class TestKeys:
    def test_of_all_kinds_lie_below_the_prefix(self) -> None:
        assert KEYS.cluster == "site-1/cluster"
        assert KEYS.definitions_lock == "site-1/pen"
        assert KEYS.epoch == "site-1/epoch"
        assert KEYS.member("rabbit@a") == "site-1/members/rabbit%40a"
        assert KEYS.alive("a") == "site-1/alive/a"
        assert KEYS.definitions_lock_wanted("a") == "site-1/pen_wanted/a"
        assert KEYS.placement("/", "a b") == "site-1/placements/%2F/a%20b"
        assert KEYS.definition("queues", ("/", "q")) == "site-1/definitions/queues/%2F/q"

    @given(TEXTS, TEXTS)
    def test_are_taken_apart_to_what_they_were_made_of(self, vhost: str, name: str) -> None:
        assert KEYS.parse(KEYS.placement(vhost, name)) == ("placements", (vhost, name))
        assert KEYS.parse(KEYS.member(name)) == ("members", (name,))
        key = (vhost, name, "queue", "", name, "~")
        assert KEYS.parse(KEYS.definition("bindings", key)) == ("definitions", ("bindings", *key))

    @pytest.mark.parametrize(
        "key",
        [
            "site-1/leader",
            "site-1/in_sync",
            "site-1/members",
            "site-1/members/a/b",
            "site-1/cluster/x",
            "other/pen",
        ],
    )
    def test_of_others_do_not_matter(self, key: str) -> None:
        assert KEYS.parse(key) is None
        state = ClusterState(KEYS)
        assert changes_by(state, Event(key, b"\xff", 1)) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_every_kind_of_entity_have_room(self, kind: str) -> None:
        longest = ("x",) * 6
        assert KEYS.parse(KEYS.definition(kind, longest)) == ("definitions", (kind, *longest))


class TestState:
    def test_knows_nodes_and_who_of_them_runs(self) -> None:
        state = ClusterState(KEYS)
        later, first = MemberRecord("a", "n1", 20), MemberRecord("b", "n2", 10)
        changed = changes_by(
            state,
            Event(KEYS.cluster, encode("c1"), 2),
            Event(KEYS.member("a"), encode(later), 2),
            Event(KEYS.member("b"), encode(first), 2),
            Event(KEYS.alive("a"), encode(PRESENCE), 3),
            revision=3,
        )
        assert changed == [MemberChanged("a", later), MemberChanged("b", first), AliveChanged("a", PRESENCE)]
        assert (state.cluster_id, state.names, state.revision) == ("c1", ["b", "a"], 3)
        assert state.alive == {"a": PRESENCE}
        assert state.unchanged(KEYS.alive("a")) == Unchanged(KEYS.alive("a"), 3)

        assert changes_by(state, Event(KEYS.alive("a"), None, 4), revision=4) == [AliveChanged("a", None)]
        assert changes_by(state, Event(KEYS.member("a"), None, 5), revision=5) == [MemberChanged("a", None)]
        assert (state.alive, state.names) == ({}, ["b"])
        assert state.unchanged(KEYS.alive("a")) == Unchanged(KEYS.alive("a"), 0)

    def test_knows_since_when_each_node_runs(self) -> None:
        state = ClusterState(KEYS)
        presence = encode(PRESENCE)
        state.apply(differences({}, {KEYS.alive("a"): StoredValue(presence, 6, 1, 4)}, 6), 6)
        assert (state.begun_since(3), state.begun_since(4)) == ({"a"}, set())
        # It announces something, in the same run; then it ends, and another run begins.
        changes_by(state, Event(KEYS.alive("a"), presence, 7, created=4), revision=7)
        assert (state.begun_since(3), state.begun_since(4)) == ({"a"}, set())
        changes_by(state, Event(KEYS.alive("a"), None, 8), revision=8)
        assert state.begun_since(0) == set()
        changes_by(state, Event(KEYS.alive("a"), presence, 9, created=9), revision=9)
        assert (state.begun_since(8), state.begun_since(9)) == ({"a"}, set())

    def test_knows_who_has_the_definitions_lock_and_who_wants_it(self) -> None:
        state = ClusterState(KEYS)

        def after(revision: int, *events: Event) -> tuple[str | None, int, frozenset[str]]:
            assert changes_by(state, *events, revision=revision) == []
            return state.definitions_lock, state.definitions_lock_modified, state.definitions_lock_wanted

        taken = Event(KEYS.definitions_lock, encode("a"), 2)
        wanted = Event(KEYS.definitions_lock_wanted("b"), encode("b"), 2)
        assert after(2, taken, wanted) == ("a", 2, frozenset({"b"}))
        handed = Event(KEYS.definitions_lock, encode("b"), 3)
        assert after(3, handed, Event(KEYS.definitions_lock_wanted("b"), None, 3)) == ("b", 3, frozenset())
        assert after(4, Event(KEYS.definitions_lock, encode("b"), 4)) == ("b", 4, frozenset())
        assert after(5, Event(KEYS.definitions_lock, None, 5)) == (None, 0, frozenset())

    def test_keeps_placements_with_what_wrote_them(self) -> None:
        state = ClusterState(KEYS)
        write = placement_write(KEYS, ("/", "q"), PLACEMENT)
        assert isinstance(write, PutKey)
        assert changes_by(state, Event(write.key, write.value, 9), revision=9) == [
            PlacementChanged(("/", "q"), PLACEMENT)
        ]
        assert state.placements == {("/", "q"): StoredPlacement(PLACEMENT, 9)}
        assert state.unchanged(write.key) == Unchanged(write.key, 9)
        removed = placement_write(KEYS, ("/", "q"), None)
        event = Event(removed.key, None, 10)
        assert changes_by(state, event, revision=10) == [PlacementChanged(("/", "q"), None)]
        assert changes_by(state, event, revision=11) == []
        assert state.unchanged(write.key) == Unchanged(write.key, 0)

    def test_knows_the_highest_epoch(self) -> None:
        state = ClusterState(KEYS)
        changes_by(state, Event(KEYS.epoch, encode(41), 2), revision=2)
        assert state.epoch == 41
        changes_by(state, Event(KEYS.epoch, None, 3), revision=3)
        assert state.epoch == 0

    def test_knows_what_was_decided_on_schema_replication(self) -> None:
        state = ClusterState(KEYS)
        decided = SchemaDecided(enabled=False, operating_mode=OperatingMode.UPSTREAM)
        found = changes_by(state, Event(KEYS.schema_sync, encode(decided), 2), revision=2)
        assert (found, state.schema_sync) == ([SchemaSyncDecided(decided)], decided)
        assert changes_by(state, Event(KEYS.schema_sync, None, 3), revision=3) == [SchemaSyncDecided(None)]
        assert state.schema_sync is None

    @given(st.permutations(ENTITIES))
    def test_hands_definitions_on_so_that_no_reference_is_missing(
        self, shuffled: list[definitions.AnyEntity]
    ) -> None:
        order = list(KINDS)
        changed = changes_by(ClusterState(KEYS), *map(put, shuffled))
        kinds = [change.entity.kind for change in _changes(changed) if isinstance(change, definitions.Put)]
        assert len(kinds) == len(ENTITIES)
        assert kinds == sorted(kinds, key=order.index)
        changed = changes_by(ClusterState(KEYS), *map(gone, shuffled))
        kinds = [change.kind for change in _changes(changed) if isinstance(change, definitions.Delete)]
        assert len(kinds) == len(ENTITIES)
        assert kinds == sorted(kinds, key=order.index, reverse=True)

    def test_deletes_definitions_before_it_puts_any_and_places_queues_last(self) -> None:
        state = ClusterState(KEYS)
        queue = Queue(vhost="/", name="r", epoch=9)
        place = placement_write(KEYS, ("/", "r"), PLACEMENT)
        assert isinstance(place, PutKey)
        changed = changes_by(state, Event(place.key, place.value, 1), put(queue), gone(ENTITIES[4]))
        assert changed == [
            DefinitionChanged(definitions.Delete("queues", ("/", "q"))),
            DefinitionChanged(definitions.Put(queue)),
            PlacementChanged(("/", "r"), PLACEMENT),
        ]

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (KEYS.alive("a"), b"{}"),
            (KEYS.member("a"), b"\xff"),
            (KEYS.epoch, b'"7"'),
            (KEYS.definitions_lock, b"7"),
            (KEYS.placement("/", "q"), b'{"epoch":1}'),
            (KEYS.definition("queues", ("/", "q")), b"{"),
            (KEYS.definition("queues", ("/", "other")), put(ENTITIES[4]).value),
            (KEYS.definition("vhosts", ("/",)), b'{"delete":"vhosts","key":["/"]}'),
            (KEYS.definition("no-such-kind", ("/",)), None),
        ],
    )
    def test_names_the_key_that_nobody_can_read_and_takes_nothing(
        self, key: str, value: bytes | None
    ) -> None:
        state = ClusterState(KEYS)
        with pytest.raises(UnreadableState) as failure:
            changes_by(state, Event(KEYS.epoch, encode(4), 2), Event(key, value, 2), revision=2)
        assert f"etcd's key {key} has a value that no node" in str(failure.value)
        assert "cluster.etcd.prefix" in str(failure.value)
        assert (state.epoch, state.revision) == (0, 0)

    def test_takes_no_events_twice_and_none_late(self) -> None:
        state = ClusterState(KEYS)
        changes_by(state, revision=5)
        with pytest.raises(ValueError, match="revision 4 came after those of 5"):
            changes_by(state, revision=4)

    def test_does_not_know_what_wrote_a_definition(self) -> None:
        with pytest.raises(ValueError, match="is not known"):
            ClusterState(KEYS).unchanged(put(ENTITIES[0]).key)

    def test_takes_values_of_a_later_version_that_say_more(self) -> None:
        state = ClusterState(KEYS)
        value = msgspec.json.encode({**msgspec.to_builtins(PRESENCE), "new": 1})
        assert changes_by(state, Event(KEYS.alive("a"), value, 1)) == [AliveChanged("a", PRESENCE)]


def _changes(changed: list[Changed]) -> list[definitions.Change]:
    return [one.change for one in changed if isinstance(one, DefinitionChanged)]


# -- a watch, and reading again -------------------------------------------------------------------

NAMES = st.sampled_from(("a", "b", "q/%"))
SMALL = st.integers(0, 2)
WRITTEN = st.one_of(
    st.tuples(st.just(KEYS.cluster), st.just(encode("c"))),
    st.tuples(NAMES.map(KEYS.member), SMALL.map(lambda n: encode(MemberRecord("m", "i", n)))),
    st.tuples(
        NAMES.map(KEYS.alive), SMALL.map(lambda n: encode(msgspec.structs.replace(PRESENCE, run_id=f"i{n}")))
    ),
    st.tuples(st.just(KEYS.definitions_lock), NAMES.map(encode)),
    st.tuples(NAMES.map(KEYS.definitions_lock_wanted), NAMES.map(encode)),
    st.tuples(st.just(KEYS.epoch), SMALL.map(encode)),
    st.tuples(
        NAMES.map(lambda name: KEYS.placement("/", name)),
        SMALL.map(lambda n: encode(msgspec.structs.replace(PLACEMENT, term=n))),
    ),
    st.sampled_from(ENTITIES).map(lambda entity: (put(entity).key, put(entity).value)),
)
REVISIONS = st.lists(st.lists(st.tuples(WRITTEN, st.booleans()), max_size=4), max_size=12)


class Store:
    """What etcd does, one revision after the other."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, StoredValue] = {}

    def write(self, writes: list[tuple[tuple[str, bytes], bool]]) -> list[Event]:
        self.revision += 1
        events = {}
        for (key, value), is_put in writes:
            if is_put:
                made = self.entries[key].created if key in self.entries else self.revision
                self.entries[key] = StoredValue(value, self.revision, 0, made)
                events[key] = Event(key, value, self.revision)
            elif self.entries.pop(key, None) is not None:
                events[key] = Event(key, None, self.revision)
        return list(events.values())

    def look(self, known: dict[str, int]) -> list[Event]:
        return differences(known, self.entries, self.revision)


class Node:
    """What a node knows, with the definitions as its broker has them."""

    def __init__(self) -> None:
        self.state = ClusterState(KEYS)
        self.definitions = definitions.Definitions()
        self.known: dict[str, int] = {}

    def take(self, events: list[Event], revision: int) -> None:
        for event in events:
            self.known.pop(event.key, None)
            if event.value is not None:
                self.known[event.key] = event.modified
        for one in self.state.apply(events, revision):
            if isinstance(one, DefinitionChanged):
                self.definitions.apply(one.change)

    def all_it_knows(self) -> tuple[object, ...]:
        state = self.state
        named = [
            state.unchanged(key)
            for key in sorted(self.known)
            if (parsed := KEYS.parse(key)) and parsed.family != "definitions"
        ]
        known = (
            state.revision,
            state.cluster_id,
            state.members,
            state.alive,
            state.definitions_lock,
            state.definitions_lock_wanted,
        )
        return (*known, state.epoch, state.placements, named, self.definitions.by_kind, self.known)


@given(REVISIONS, REVISIONS, st.integers(0, 12))
def test_who_follows_knows_what_who_looks_anew_knows(
    before: list[Any], after: list[Any], lost_from: int
) -> None:
    store, followed, cut_off, late = Store(), Node(), Node(), Node()
    for writes in before:
        store.write(writes)
    for node in (followed, cut_off):
        node.take(store.look({}), store.revision)
    for number, writes in enumerate(after):
        events = store.write(writes)
        followed.take(events, store.revision)
        if number < lost_from:
            cut_off.take(events, store.revision)
    cut_off.take(store.look(cut_off.known), store.revision)
    late.take(store.look({}), store.revision)
    assert followed.all_it_knows() == late.all_it_knows()
    assert cut_off.all_it_knows() == late.all_it_knows()
    assert store.look(followed.known) == []


@pytest.mark.parametrize("entity", ENTITIES[:3], ids=lambda each: each.kind)
def test_who_missed_a_deletion_hears_of_it_if_it_closes_connections(entity: definitions.AnyEntity) -> None:
    store, node = Store(), Node()
    key, value = put(entity).key, put(entity).value or b""
    store.write([((key, value), True)])
    node.take(store.look({}), store.revision)
    store.write([((key, value), True)])
    changed = definitions.Put(entity)
    assert _changes(node.state.apply(store.look(node.known), store.revision)) == [changed]
    for is_put in (False, True):
        store.write([((key, value), is_put)])
    deleted = [definitions.Delete(entity.kind, entity.key)] if entity.kind != "permissions" else []
    assert _changes(node.state.apply(store.look(node.known), store.revision)) == [*deleted, changed]


def test_records_keep_the_name_that_earlier_versions_have_for_the_id_of_a_run() -> None:
    """Nodes of two versions are in one cluster while it is upgraded."""
    assert msgspec.json.decode(encode(PRESENCE))["incarnation"] == PRESENCE.run_id
    assert msgspec.json.decode(encode(Placement(1, "a", "a1", 1)))["incarnation"] == "a1"

"""Who may lead, what is written for it, and how long a lease counts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.core.replication.election import (
    Candidacy,
    Candidate,
    ElectedLeader,
    ElectionDeclined,
    ElectionKeys,
    Holds,
    LeaseClock,
    Observed,
    PutKey,
    RememberedStore,
    StoredValue,
    StoreTransaction,
    Unchanged,
    UnreadableState,
    observe,
    record,
    stand,
)

KEYS = ElectionKeys.under("leveret")
NODES = ("a", "b", "c")
A = Candidate("a", "tcp://a:5679", 4)
NOTHING_SEEN = RememberedStore()


class Store:
    """What etcd does with transactions and leases."""

    def __init__(self) -> None:
        self.revision = 1
        self.entries: dict[str, StoredValue] = {}

    def run(self, transaction: StoreTransaction, lease: int = 0) -> bool:
        if not all(self._holds(one) for one in transaction.conditions):
            return False
        self.revision += 1
        for put in transaction.writes:
            assert isinstance(put, PutKey)
            self.entries[put.key] = StoredValue(put.value, self.revision, lease if put.leased else 0)
        return True

    def end(self, lease: int) -> None:
        self.entries = {key: entry for key, entry in self.entries.items() if entry.lease != lease}
        self.revision += 1

    def observed(self) -> Observed:
        return observe(KEYS, self.entries)

    def _holds(self, condition: Unchanged | Holds) -> bool:
        entry = self.entries.get(condition.key)
        match condition:
            case Unchanged(_, modified):
                return (entry.modified if entry else 0) == modified
            case Holds(_, value):
                return entry is not None and entry.value == value


def candidacy(
    store: Store, candidate: Candidate, memory: RememberedStore = NOTHING_SEEN, *, force: bool = False
) -> Candidacy:
    decision = stand(KEYS, store.observed(), memory, candidate, force=force)
    assert isinstance(decision, Candidacy)
    return decision


def refusal(store: Store, candidate: Candidate, memory: RememberedStore = NOTHING_SEEN) -> ElectionDeclined:
    decision = stand(KEYS, store.observed(), memory, candidate)
    assert isinstance(decision, ElectionDeclined)
    return decision


def led_by_a(in_sync: frozenset[str] = frozenset("ab")) -> Store:
    store = Store()
    mine = candidacy(store, A)
    assert store.run(mine.transaction, lease=7)
    assert store.run(record(KEYS, mine.leader, store.revision, in_sync))
    return store


def test_keys_stand_under_the_prefix_of_the_settings() -> None:
    assert KEYS == ("leveret/", "leveret/leader", "leveret/epoch", "leveret/in_sync")
    assert ElectionKeys.under("/sites/one/").leader == "/sites/one/leader"


def test_the_first_one_of_all_leads_and_is_recorded_as_in_sync() -> None:
    store = Store()
    first = candidacy(store, A)
    assert (first.leader, first.in_sync) == (ElectedLeader("a", "tcp://a:5679", 5), frozenset("a"))
    assert store.run(first.transaction, lease=7)
    observed = store.observed()
    assert (observed.leader, observed.leader_lease) == (first.leader, 7)
    assert (observed.epoch, observed.in_sync) == (5, frozenset("a"))
    assert [put.key for put in first.transaction.writes if isinstance(put, PutKey) and put.leased] == [
        KEYS.leader
    ]


def test_nobody_leads_beside_a_leader_and_is_told_who_it_is() -> None:
    declined = refusal(led_by_a(), Candidate("b", "", 5))
    assert declined == ("node a leads in epoch 5", ElectedLeader("a", "tcp://a:5679", 5))


def test_one_that_was_in_sync_follows_and_the_record_stays_until_it_is_changed() -> None:
    store = led_by_a()
    store.end(7)
    second = candidacy(store, Candidate("b", "tcp://b:5679", 5))
    assert (second.leader.epoch, second.in_sync) == (6, frozenset("ab"))
    assert store.run(second.transaction, lease=8)
    assert store.observed().in_sync == frozenset("ab")


def test_one_with_a_damaged_log_does_not_lead_while_another_one_was_in_sync() -> None:
    store = led_by_a()
    store.end(7)
    torn = Candidate("b", "", 5, is_torn=True)
    assert refusal(store, torn).reason.endswith("in sync beside it when there was a leader: a")
    forced = stand(KEYS, store.observed(), RememberedStore(), torn, force=True)
    assert isinstance(forced, Candidacy)


def test_one_with_a_damaged_log_leads_if_no_other_one_can_have_more() -> None:
    store = Store()
    first = candidacy(store, A)
    assert store.run(first.transaction, lease=7)
    store.end(7)
    assert candidacy(store, A._replace(is_torn=True)).leader.node_id == "a"
    emptied = stand(
        KEYS, Store().observed(), RememberedStore(in_sync=frozenset("a")), A._replace(is_torn=True)
    )
    assert isinstance(emptied, ElectionDeclined), "the record is gone: another one may have been in it since"


def test_one_that_was_not_in_sync_does_not_follow_unless_forced_and_then_alone() -> None:
    store = led_by_a()
    store.end(7)
    late = Candidate("c", "tcp://c:5679", 5)
    assert "may lack confirmed messages; in sync when there was a leader: a, b" in refusal(store, late).reason
    forced = candidacy(store, late, force=True)
    assert forced.in_sync == frozenset("c")
    assert store.run(forced.transaction, lease=9)
    assert store.observed().in_sync == frozenset("c")


def test_force_does_not_put_away_a_leader() -> None:
    assert isinstance(stand(KEYS, led_by_a().observed(), RememberedStore(), A, force=True), ElectionDeclined)


@pytest.mark.parametrize(
    ("own", "seen", "remembered"), [(9, 5, 5), (5, 9, 5), (5, 5, 9)], ids=["its own", "etcd's", "remembered"]
)
def test_an_epoch_is_higher_than_every_other(own: int, seen: int, remembered: int) -> None:
    store = Store()
    store.run(StoreTransaction((), (PutKey(KEYS.epoch, str(seen).encode()),)))
    assert candidacy(store, Candidate("a", "", own), RememberedStore(remembered)).leader.epoch == 10


@pytest.mark.parametrize("key", [KEYS.leader, KEYS.epoch, KEYS.in_sync])
def test_a_candidacy_fails_when_anything_it_saw_has_changed(key: str) -> None:
    store = led_by_a()
    store.end(7)
    mine = candidacy(store, A)
    value = msgspec.json.encode(ElectedLeader("b", "", 6)) if key == KEYS.leader else store.entries[key].value
    store.run(StoreTransaction((), (PutKey(key, value),)))
    assert not store.run(mine.transaction, lease=8)


def test_only_the_leader_changes_the_record_and_a_late_write_of_its_own_does_not() -> None:
    store = led_by_a()
    leader, modified = store.observed().leader, store.observed().unchanged(KEYS.in_sync).modified
    assert leader is not None
    grown, shrunk = (record(KEYS, leader, modified, frozenset(names)) for names in ("abc", "a"))
    assert store.run(shrunk)
    assert not store.run(grown)
    store.end(7)
    assert not store.run(
        record(KEYS, leader, store.observed().unchanged(KEYS.in_sync).modified, frozenset("ab"))
    )
    assert store.observed().in_sync == frozenset("a")


def test_after_a_loss_of_the_stores_data_those_who_saw_it_go_by_what_they_saw() -> None:
    before = RememberedStore().after(led_by_a().observed())
    assert before == RememberedStore(5, frozenset("ab"))
    empty = Store()
    assert before.after(empty.observed()) == before
    assert "in sync when there was a leader: a, b" in refusal(empty, Candidate("c", "", 5), before).reason
    again = candidacy(empty, Candidate("b", "", 2), before)
    assert (again.leader.epoch, again.in_sync) == (6, frozenset("b"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEYS.leader, b"{}"),
        (KEYS.leader, b"a"),
        (KEYS.epoch, b'"5"'),
        (KEYS.in_sync, b"[1]"),
        (KEYS.in_sync, b""),
    ],
)
def test_what_no_node_wrote_is_not_taken_for_something_else(key: str, value: bytes) -> None:
    with pytest.raises(UnreadableState, match=f"key {key} has a value that no node .* cluster.etcd.prefix"):
        observe(KEYS, {key: StoredValue(value, 2, 0)})


def test_keys_of_others_under_the_prefix_do_not_matter() -> None:
    assert observe(KEYS, {"leveret/else": StoredValue(b"\xff", 2, 0)}).leader is None


# The lease.


def test_a_lease_counts_from_when_it_was_asked_for_and_leaves_a_margin() -> None:
    lease = LeaseClock(2, 100)
    assert lease.is_held(101.79)
    assert lease.ends_s == pytest.approx(101.8)
    assert lease.keepalive_s == pytest.approx(100.2)
    assert lease.fresh_until_s == pytest.approx(100 + 2 / 3)
    lease.renewed(2, 101, 101.5)
    assert lease.is_held(102.79)
    lease.renewed(2, 100.5, 101.6)
    assert lease.ends_s == pytest.approx(102.8)


def test_a_lease_that_was_over_once_is_over_whatever_comes_late() -> None:
    lease = LeaseClock(2, 100)
    lease.renewed(2, 101.5, 101.8)
    assert not lease.is_held(101.7)
    lease = LeaseClock(2, 100)
    assert not lease.is_held(101.8)
    lease.renewed(2, 101.9, 102)
    assert not lease.is_held(102)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=8))
def test_a_holder_gives_up_before_the_store_ends_the_lease(waits: list[tuple[float, float]]) -> None:
    """The store gets each keepalive somewhere between sending and answer; here as early as it can."""
    now = 0.0
    lease, store_ends = LeaseClock(2, now), now + 2
    for before, under_way in waits:
        now += before
        if now >= store_ends:
            break
        sent, store_ends = now, now + 2
        now += under_way
        lease.renewed(2, sent, now)
        if lease.is_held(now):
            assert now < store_ends
    assert not lease.is_held(store_ends)


# Many who try at once, with answers that come late and a store that loses its data.


class Contenders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.own_epoch = dict.fromkeys(NODES, 0)
        self.memory = dict.fromkeys(NODES, RememberedStore())
        self.pending: list[tuple[str, int, Candidacy]] = []
        self.led: list[tuple[int, str]] = []
        self.leases = 0
        self.in_sync: frozenset[str] | None = None

    def look(self, node: str) -> Observed:
        observed = self.store.observed()
        self.memory[node] = self.memory[node].after(observed)
        return observed

    @rule(node=st.sampled_from(NODES))
    def someone_decides(self, node: str) -> None:
        observed = self.look(node)
        decision = stand(KEYS, observed, self.memory[node], Candidate(node, "", self.own_epoch[node]))
        if isinstance(decision, Candidacy):
            self.leases += 1
            self.pending.append((node, self.leases, decision))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def a_candidacy_arrives(self, data: st.DataObject) -> None:
        node, lease, decision = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        if self.store.run(decision.transaction, lease):
            epoch = decision.leader.epoch
            assert all(epoch > other for other, _ in self.led)
            assert self.in_sync is None or node in self.in_sync
            self.led.append((epoch, node))
            self.own_epoch[node] = epoch
            self.in_sync = decision.in_sync

    @precondition(lambda self: self.store.observed().leader is not None)
    @rule(others=st.frozensets(st.sampled_from(NODES)))
    def the_leader_records(self, others: frozenset[str]) -> None:
        leader = self.store.observed().leader
        assert leader is not None
        in_sync = others | {leader.node_id}
        modified = self.look(leader.node_id).unchanged(KEYS.in_sync).modified
        assert self.store.run(record(KEYS, leader, modified, in_sync))
        self.in_sync = in_sync

    @precondition(lambda self: self.store.observed().leader is not None)
    @rule()
    def the_lease_ends(self) -> None:
        self.store.end(self.store.observed().leader_lease)

    @rule()
    def all_look_and_then_the_data_is_lost(self) -> None:
        for node in NODES:
            self.look(node)
        self.store.entries = {}
        self.pending.clear()  # Their leases are lost as well.

    @invariant()
    def who_leads_is_the_last_who_won(self) -> None:
        leader = self.store.observed().leader
        assert leader is None or (leader.epoch, leader.node_id) == self.led[-1]


TestContenders = Contenders.TestCase
TestContenders.settings = settings(max_examples=60, stateful_step_count=40)

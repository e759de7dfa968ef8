"""Transactions that are too long are done in parts."""

from __future__ import annotations

from itertools import combinations, pairwise, starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication.election import DeleteKey, Holds, PutKey, StoreTransaction, Unchanged
from leveret.core.replication.transactions import OPS_MAX, parts


def runs(transaction: StoreTransaction, had: dict[str, bytes]) -> dict[str, bytes]:
    """What the keys are afterwards."""
    has = dict(had)
    for write in transaction.writes:
        match write:
            case PutKey(key, value):
                has[key] = value
            case DeleteKey(key, True):
                has = {other: value for other, value in has.items() if not other.startswith(key)}
            case DeleteKey(key):
                has.pop(key, None)
    return has


def concerns(write: PutKey | DeleteKey, key: str) -> bool:
    return key.startswith(write.key) if isinstance(write, DeleteKey) and write.is_prefix else key == write.key


def touches(one: PutKey | DeleteKey, other: PutKey | DeleteKey) -> bool:
    return concerns(one, other.key) or concerns(other, one.key)


KEY = st.text("ab", min_size=1, max_size=3)
WRITES = st.lists(
    st.one_of(st.builds(PutKey, KEY, st.binary(max_size=4)), st.builds(DeleteKey, KEY, st.booleans())),
    max_size=20,
)


@given(WRITES, st.sets(KEY, max_size=5), st.integers(6, 9), st.integers(1, 12), st.sampled_from(["", "aa"]))
def test_parts_do_the_same_and_fit(
    writes: list[PutKey | DeleteKey], guarded: set[str], ops_max: int, bytes_max: int, pair: str
) -> None:
    def belong_together(one: PutKey | DeleteKey, other: PutKey | DeleteKey) -> bool:
        return bool(pair) and (one.key, other.key) == (pair, "b")

    definitions_lock = Holds("pen", b"me")
    conditions = [Unchanged(key, 3) for key in sorted(guarded)]
    whole = StoreTransaction((definitions_lock, *conditions), tuple(writes))
    had = {"a": b"1", "ab": b"2", "b": b"3"}
    has = had
    found = parts(whole, ops_max, bytes_max, belong_together)
    for part in found:
        assert len(part.writes) <= ops_max
        assert len(part.conditions) <= ops_max
        octets = sum(len(write.key) + len(getattr(write, "value", b"")) for write in part.writes)
        assert octets <= bytes_max or len(part.writes) == 1 or belong_together(*part.writes)
        assert part.conditions[0] == definitions_lock
        assert not any(touches(one, other) for one, other in combinations(part.writes, 2))
        has = runs(part, has)
    assert has == runs(whole, had)
    pairs = sum(starmap(belong_together, pairwise(writes)))
    assert sum(belong_together(*each) for part in found for each in pairwise(part.writes)) == pairs
    for condition in conditions:
        held = [number for number, part in enumerate(found) if condition in part.conditions]
        writing = [
            number
            for number, part in enumerate(found)
            if any(concerns(one, condition.key) for one in part.writes)
        ]
        assert held == (writing[:1] or list(range(len(found))))


def test_a_condition_on_what_is_written_goes_with_its_first_write_only() -> None:
    writes = (PutKey("a", b"1"), PutKey("b", b"1"), PutKey("a", b"2"))
    whole = StoreTransaction((Unchanged("pen", 4), Unchanged("a", 7), Unchanged("b", 0)), writes)
    assert parts(whole) == [
        StoreTransaction((Unchanged("pen", 4), Unchanged("a", 7), Unchanged("b", 0)), writes[:2]),
        StoreTransaction((Unchanged("pen", 4),), writes[2:]),
    ]


def test_a_transaction_that_fits_is_left_as_it_is() -> None:
    assert parts(StoreTransaction((Unchanged("pen", 4),), ())) == [
        StoreTransaction((Unchanged("pen", 4),), ())
    ]
    writes = tuple(PutKey(f"k{number}", b"") for number in range(OPS_MAX))
    assert parts(StoreTransaction((Unchanged("pen", 4),), writes)) == [
        StoreTransaction((Unchanged("pen", 4),), writes)
    ]
    assert [len(part.writes) for part in parts(StoreTransaction((), (*writes, PutKey("one more", b""))))] == [
        OPS_MAX,
        1,
    ]


def test_too_many_conditions_are_refused() -> None:
    conditions = tuple(Unchanged(f"k{number}", 0) for number in range(OPS_MAX + 1))
    with pytest.raises(ValueError, match="121 conditions are more than one transaction takes"):
        parts(StoreTransaction(conditions, (PutKey("x", b""),)))

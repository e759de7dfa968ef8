"""core.replication.mirror_acks, beside a model that looks at everything each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.replication.mirror_acks import MirrorAcks

A, B, C = "a", "b", "c"


def acks_of(*logs: str, majority: bool = False) -> MirrorAcks[str]:
    acks: MirrorAcks[str] = MirrorAcks()
    for log in logs:
        assert acks.lead(log, majority=majority) == []
    return acks


def test_a_promise_waits_for_all_that_are_to_have_it_and_for_nobody_else() -> None:
    acks = acks_of("q")
    assert acks.promise({"q": 5}, "nobody mirrors") == ["nobody mirrors"]
    assert acks.wait_for("q", [{A, B}], 5) == []
    assert acks.promise({"q": 7}, "p") == []
    assert acks.acked("q", A, 7) == acks.acked("q", C, 9) == []
    assert acks.acked("q", B, 6) == []
    assert acks.acked("q", B, 8) == ["p"]
    assert acks.promise({"q": 7, "elsewhere": 3}, "there already") == ["there already"]


def test_a_set_that_shrinks_lets_go_and_one_that_grows_holds() -> None:
    acks = acks_of("q")
    acks.wait_for("q", [{A}], 0)
    assert acks.promise({"q": 4}, "p") == []
    assert acks.wait_for("q", [{A, B}], 4) == []
    assert acks.acked("q", A, 4) == []
    assert acks.wait_for("q", [{A}], 4) == ["p"]
    assert acks.wait_for("q", [], 4) == []


@pytest.mark.parametrize(
    ("mirrors", "needed"), [("", 0), ("a", 1), ("ab", 1), ("abc", 2), ("abcd", 2), ("abcde", 3)]
)
def test_a_majority_counts_the_leader(mirrors: str, needed: int) -> None:
    acks = acks_of("q", majority=True)
    acks.wait_for("q", [set(mirrors)], 0)
    kept = acks.promise({"q": 1}, "p")
    for count, node in enumerate(mirrors):
        assert bool(kept) == (count >= needed)
        kept += acks.acked("q", node, 1)
    assert kept == ["p"]


def test_a_record_under_way_needs_a_majority_of_the_old_and_of_the_new_set() -> None:
    """Leader, a and b; b is to be dropped. What only a majority with b has is not enough for the new set."""
    acks = acks_of("q", majority=True)
    acks.wait_for("q", [{A, B}], 0)
    assert acks.promise({"q": 1}, "p1") == []
    assert acks.acked("q", B, 1) == ["p1"]
    assert acks.wait_for("q", [{A, B}, {A}], 1, "record") == []
    assert acks.acked("q", B, 2) == []
    assert acks.promise({"q": 2}, "p2") == []
    assert acks.acked("q", A, 1) == ["record"]
    assert acks.acked("q", A, 2) == ["p2"]


def test_then_is_told_once_the_new_one_has_all_that_was_in_the_log() -> None:
    acks = acks_of("q")
    assert acks.promise({"q": 10}, "promised to nobody's knowledge") != []
    assert acks.acked("q", A, 8) == []
    assert acks.wait_for("q", [{A}], 10, "record a") == []
    assert acks.promise({"q": 12}, "p") == []
    assert acks.acked("q", A, 10) == ["record a"]
    assert acks.acked("q", A, 12) == ["p"]
    assert acks.wait_for("q", [{A, B}], 12, "record b") == []
    assert acks.wait_for("q", [{A, B, C}], 12, "record b and c") == []
    assert acks.acked("q", B, 12) == []
    assert acks.acked("q", C, 12) == ["record b and c"]


def test_a_log_that_is_led_elsewhere_takes_its_promises_with_it_and_a_deleted_one_does_not() -> None:
    acks = acks_of("q", "r", "s")
    for log in "qrs":
        acks.wait_for(log, [{A}], 0)
    assert acks.promise({"q": 1, "r": 1}, "both") == acks.promise({"r": 1, "q": 1}, "both too") == []
    assert acks.promise({"r": 2}, "r") == acks.promise({"s": 1, "r": 1}, "s and r") == []
    assert acks.cease("q") == 2
    assert acks.deleted("s") == []
    assert acks.acked("r", A, 1) == ["s and r"]
    assert acks.deleted("r") == ["r"]
    assert acks.waiting == acks.cease("r") == 0
    with pytest.raises(KeyError):
        acks.wait_for("r", [{A}], 0)


LOGS, NODES = ("q", "r"), (A, B, C)
SETS = st.lists(st.frozensets(st.sampled_from(NODES)), max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(LOGS)),
        st.tuples(st.just("promise"), st.sets(st.sampled_from(LOGS), min_size=1)),
        st.tuples(st.just("ack"), st.sampled_from(LOGS), st.sampled_from(NODES), st.integers(0, 3)),
        st.tuples(st.just("anew"), st.sampled_from(LOGS), st.sampled_from(NODES)),
        st.tuples(st.just("wait_for"), st.sampled_from(LOGS), SETS),
        st.tuples(st.just("majority"), st.sampled_from(LOGS), st.booleans()),
    ),
    max_size=60,
)


class Model:
    """Everything is looked at, each time."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(LOGS, 0)
        self.sets: dict[str, list[frozenset[str]]] = {log: [] for log in LOGS}
        self.majority = dict.fromkeys(LOGS, False)
        self.has = {(log, node): 0 for log in LOGS for node in NODES}
        self.due: list[tuple[int, dict[str, int]]] = []

    def is_met(self, log: str, offset: int) -> bool:
        for nodes in self.sets[log]:
            having = sum(self.has[log, node] >= offset for node in nodes)
            if self.majority[log]:
                if 2 * (having + 1) <= len(nodes) + 1:
                    return False
            elif having < len(nodes):
                return False
        return True

    def kept(self) -> set[int]:
        met = {n for n, needs in self.due if all(self.is_met(log, end) for log, end in needs.items())}
        self.due = [each for each in self.due if each[0] not in met]
        return met


@settings(max_examples=300)
@given(STEPS)
def test_what_is_kept_is_what_a_model_keeps(steps: list[tuple[Any, ...]]) -> None:
    acks: MirrorAcks[int] = MirrorAcks()
    model = Model()
    for log in LOGS:
        acks.lead(log, majority=False)
    for number, step in enumerate(steps):
        kept: list[int] = []
        match step:
            case ("append", log):
                model.ends[log] += 1
            case ("promise", logs):
                needs = {log: model.ends[log] for log in sorted(logs)}
                model.due.append((number, needs))
                kept = acks.promise(needs, number)
            case ("ack", log, node, count):
                model.has[log, node] = min(model.ends[log], model.has[log, node] + count)
                kept = acks.acked(log, node, model.has[log, node])
            case ("anew", log, node):
                model.has[log, node] = 0
                kept = acks.acked(log, node, 0)
            case ("wait_for", log, sets):
                model.sets[log] = sets
                kept = acks.wait_for(log, sets, model.ends[log])
            case ("majority", log, majority):
                model.majority[log] = majority
                kept = acks.lead(log, majority=majority)
        assert len(kept) == len(set(kept))
        assert set(kept) == model.kept()
    rest: list[int] = []
    for log in LOGS:
        for node in NODES:
            rest += acks.acked(log, node, model.ends[log])
    assert sorted(rest) == [number for number, _ in model.due]
    assert acks.waiting == 0

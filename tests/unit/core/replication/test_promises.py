"""core.replication.promises, beside a model that looks at everything each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.replication.promises import Promises
from leveret.core.replication.replica_set import Acks

A, B, C = "a", "b", "c"


class Site:
    """A leader of some logs, and one link to each of its mirrors, which has every log live."""

    def __init__(self, *logs: str) -> None:
        self.promises: Promises[Any] = Promises()
        self.acks = {node: Acks() for node in (A, B, C)}
        for log in logs:
            self.joins(log, *self.acks)

    def joins(self, log: str, *nodes: str) -> None:
        self.promises.lead(log)
        for node in nodes:
            self.promises.replicas[log].joined(node, self.acks[node], 0)

    def acked(self, node: str, cut: int) -> list[Any]:
        self.acks[node].cut = cut
        return self.promises.acked(node)


def test_a_promise_waits_for_all_that_are_to_have_it_and_for_nobody_else() -> None:
    site = Site("q")
    promises = site.promises
    assert promises.promise({"q": 5}, "nobody mirrors") == ["nobody mirrors"]
    assert promises.wait_for("q", [frozenset({A, B})], 5) == []
    assert promises.promise({"q": 7}, "p") == []
    assert site.acked(A, 7) == site.acked(C, 9) == []
    assert site.acked(B, 6) == []
    assert site.acked(B, 8) == ["p"]
    assert promises.promise({"q": 7, "elsewhere": 3}, "there already") == ["there already"]


def test_a_set_that_shrinks_lets_go_and_one_that_grows_holds() -> None:
    site = Site("q")
    site.promises.wait_for("q", [frozenset({A})], 0)
    assert site.promises.promise({"q": 4}, "p") == []
    assert site.promises.wait_for("q", [frozenset({A, B})], 4) == []
    assert site.acked(A, 4) == []
    assert site.promises.wait_for("q", [frozenset({A})], 4) == ["p"]
    assert site.promises.wait_for("q", [], 4) == []


def test_the_record_is_written_once_the_new_one_has_the_last_cut_of_the_log() -> None:
    site = Site("q")
    promises = site.promises
    assert promises.promise({"q": 10}, "promised to nobody's knowledge") != []
    assert site.acked(A, 8) == []
    assert promises.wait_for("q", [frozenset({A})], 10, then="record a") == []
    assert promises.promise({"q": 12}, "p") == []
    assert site.acked(A, 10) == ["record a"]
    assert site.acked(A, 12) == ["p"]
    assert promises.wait_for("q", [frozenset({A, B})], 12, then="record b") == []
    assert promises.wait_for("q", [frozenset({A, B, C})], 12, then="record b and c") == []
    assert site.acked(B, 12) == []
    assert site.acked(C, 12) == ["record b and c"]


def test_a_log_that_is_led_elsewhere_takes_its_promises_with_it_and_a_deleted_one_does_not() -> None:
    site = Site("q", "r", "s")
    promises = site.promises
    for log in "qrs":
        promises.wait_for(log, [frozenset({A})], 0)
    assert promises.promise({"q": 1, "r": 1}, "both") == promises.promise({"r": 1, "q": 1}, "both too") == []
    assert promises.promise({"r": 2}, "r") == promises.promise({"s": 1, "r": 1}, "s and r") == []
    assert promises.cease("q") == ["both", "both too"]
    assert promises.let_go("s") == []
    assert site.acked(A, 1) == ["s and r"]
    assert promises.let_go("r") == ["r"]
    assert (promises.waiting, promises.cease("r")) == (0, [])
    with pytest.raises(KeyError):
        promises.wait_for("r", [frozenset({A})], 0)


def test_a_log_that_is_led_elsewhere_costs_the_promises_of_no_other_log() -> None:
    """A node that stops hands over thousands of logs, each with promises under way."""

    class Needs(dict[str, int]):
        def __contains__(self, log: object) -> bool:
            raise AssertionError(f"a promise of another log is looked at for {log}")

    site = Site("q", "r")
    for log in "qr":
        site.promises.wait_for(log, [frozenset({A})], 0)
        assert site.promises.promise(Needs({log: 1}), log) == []
    assert site.promises.cease("q") == ["q"]
    assert site.acked(A, 1) == ["r"]


def test_what_the_next_leader_of_one_log_has_is_promised_once_the_other_log_is_mirrored_and_the_rest_fails() -> (
    None
):
    """A message in two queues, one of which is handed over to its mirror while that of the other one is slow."""
    site = Site("q", "r")
    promises = site.promises
    promises.wait_for("q", [frozenset({A})], 0)
    promises.wait_for("r", [frozenset({B})], 0)
    assert promises.promise({"q": 1, "r": 1}, "handed over") == []
    assert promises.promise({"r": 2, "q": 3}, "not quite") == []
    assert site.acked(B, 2) == []
    assert promises.cease("r") == []
    assert site.acked(A, 2) == ["handed over"]
    promises.lead("r")
    promises.wait_for("r", [frozenset({C})], 9)
    assert site.acked(A, 3) == ["not quite"], "it needs nothing more of a log that is led here again"


def test_an_ack_counts_for_the_logs_that_have_joined_and_for_no_other() -> None:
    """One ack for all logs of a link: of one that is still copied from disk it says nothing."""
    site = Site("q")
    promises = site.promises
    promises.lead("r")
    for log in "qr":
        promises.wait_for(log, [frozenset({A})], 0)
    assert promises.promise({"q": 3}, "q") == promises.promise({"r": 3}, "r") == []
    assert site.acked(A, 5) == ["q"]
    promises.replicas["r"].joined(A, site.acks[A], 6)
    assert promises.acked(A) == []
    assert site.acked(A, 6) == ["r"]


LOGS, NODES = ("q", "r"), (A, B, C)
SETS = st.lists(st.frozensets(st.sampled_from(NODES)), max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(LOGS)),
        st.tuples(st.just("promise"), st.sets(st.sampled_from(LOGS), min_size=1)),
        st.tuples(st.just("ack"), st.sampled_from(NODES), st.integers(0, 3)),
        st.tuples(st.just("anew"), st.sampled_from(LOGS), st.sampled_from(NODES)),
        st.tuples(st.just("left"), st.sampled_from(LOGS), st.sampled_from(NODES)),
        st.tuples(st.just("wait_for"), st.sampled_from(LOGS), SETS),
        st.tuples(st.just("majority"), st.sampled_from(LOGS), st.booleans()),
    ),
    max_size=60,
)


class Model:
    """Everything is looked at, each time."""

    def __init__(self) -> None:
        self.cut = 0
        self.ends = dict.fromkeys(LOGS, 0)
        self.acked = dict.fromkeys(NODES, 0)
        self.live: dict[tuple[str, str], int | None] = {(log, node): 0 for log in LOGS for node in NODES}
        """From which cut on a node's acks count for a log; None while they do not."""
        self.sets: dict[str, list[frozenset[str]]] = {log: [] for log in LOGS}
        self.majority = dict.fromkeys(LOGS, False)
        self.has = {(log, node): 0 for log in LOGS for node in NODES}
        self.due: list[tuple[int, dict[str, int]]] = []

    def counts(self, log: str, node: str) -> None:
        since = self.live[log, node]
        if since is not None and self.acked[node] >= since:
            self.has[log, node] = self.acked[node]

    def waits_for(self, log: str, sets: list[frozenset[str]]) -> None:
        self.sets[log] = sets
        for node in NODES:
            if self.live[log, node] is None and not any(node in nodes for nodes in sets):
                self.has[log, node] = 0

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
    site, model = Site(*LOGS), Model()
    promises = site.promises
    for number, step in enumerate(steps):
        kept: list[int] = []
        match step:
            case ("append", log):
                model.cut += 1
                model.ends[log] = model.cut
            case ("promise", logs):
                needs = {log: model.ends[log] for log in sorted(logs)}
                model.due.append((number, needs))
                kept = promises.promise(needs, number)
            case ("ack", node, count):
                model.acked[node] = min(model.cut, model.acked[node] + count)
                for log in LOGS:
                    model.counts(log, node)
                kept = site.acked(node, model.acked[node])
            case ("anew", log, node):
                model.has[log, node], model.live[log, node] = 0, model.acked[node] + 1
                promises.replicas[log].begins_anew(node)
                promises.replicas[log].joined(node, site.acks[node], model.acked[node] + 1)
            case ("left", log, node):
                model.live[log, node] = None
                promises.replicas[log].left(node)
            case ("wait_for", log, sets):
                model.waits_for(log, sets)
                kept = promises.wait_for(log, sets, model.ends[log])
            case ("majority", log, majority):
                model.majority[log] = majority
                model.waits_for(log, model.sets[log])
                kept = promises.wait_for(log, model.sets[log], model.ends[log], majority=majority)
        assert len(kept) == len(set(kept))
        assert set(kept) == model.kept()
    model.cut += 1
    rest: list[int] = []
    for log in LOGS:
        for node in NODES:
            promises.replicas[log].joined(node, site.acks[node], model.cut)
    for node in NODES:
        rest += site.acked(node, model.cut)
    assert sorted(rest) == [number for number, _ in model.due]
    assert promises.waiting == 0

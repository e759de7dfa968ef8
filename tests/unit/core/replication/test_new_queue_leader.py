"""core.replication.new_queue_leader: which node leads a new queue.

Cases of RabbitMQ's queue_master_location_SUITE have their names; what is not about the choice (that a policy is
refused, that a declaration on three nodes ends there) is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.replication.new_queue_leader import CandidateNodes, leader_location, locator
from leveret.core.rules.mirror_policy import NOT_MIRRORED, MirrorPolicy, mirror_policy
from leveret.model.locators import QUEUE_MASTER_LOCATORS

NODES = ("a", "b", "c")
LED = {"a": 15, "b": 8, "c": 1}
BY_ARGUMENT = {"x-queue-master-locator": "min-masters"}
BY_POLICY = {"queue-master-locator": "min-masters"}


def first(nodes: Sequence[str]) -> str:
    return nodes[0]


def last(nodes: Sequence[str]) -> str:
    return nodes[-1]


def nodes(client: str = "a", alive: Sequence[str] = NODES, draining: str = "", **led: int) -> CandidateNodes:
    return CandidateNodes(client=client, alive=alive, draining=draining, led=led or LED)


def declared(
    arguments: dict[str, Any], policy: dict[str, Any], configured: str = "client-local", **there: Any
) -> str:
    """Where a queue is led that is declared at `a`."""
    strategy = locator(arguments, policy, queue_master_locator=configured)
    return leader_location(strategy, nodes(**there), first, policy=mirror_policy(policy))


def test_declare_args() -> None:
    assert declared(BY_ARGUMENT, {}) == "c"


def test_declare_policy() -> None:
    assert declared({}, BY_POLICY) == "c"


def test_declare_config() -> None:
    assert declared({}, {}, "min-masters") == "c"
    assert declared({}, {}) == "a"


def test_declare_policy_nodes() -> None:
    assert declared({}, {**BY_POLICY, "ha-mode": "nodes", "ha-params": ["b", "a"]}) == "b"


def test_declare_policy_all() -> None:
    assert declared({}, {**BY_POLICY, "ha-mode": "all"}) == "c"


def test_declare_policy_exactly() -> None:
    assert declared({}, {**BY_POLICY, "ha-mode": "exactly", "ha-params": 2}) == "c"


def test_declare_with_min_masters_and_some_nodes_under_maintenance() -> None:
    assert declared({}, BY_POLICY, draining="ab") == "c"
    assert declared({}, BY_POLICY, draining="ac") == "b"


def test_declare_with_min_masters_and_all_nodes_under_maintenance() -> None:
    assert declared({}, BY_POLICY, draining="abc") == "a"
    assert declared({}, BY_POLICY, draining="abc", client="b") == "b"


def test_declare_with_random_and_some_nodes_under_maintenance() -> None:
    assert leader_location("random", nodes(draining="ac"), last) == "b"


def test_declare_with_random_and_all_nodes_under_maintenance() -> None:
    assert leader_location("random", nodes(draining="abc"), last) == "a"


def test_calculate_min_master() -> None:
    assert declared(BY_ARGUMENT, {}) == "c"
    assert declared(BY_ARGUMENT, {}, a=1, b=1, c=1) == "a"
    assert declared(BY_ARGUMENT, {}, a=1, b=1) == "c"
    assert declared(BY_ARGUMENT, {}, alive="cba", a=2, b=1, c=1) == "b"


def test_calculate_random() -> None:
    assert leader_location("random", nodes(), first) == "a"
    assert leader_location("random", nodes(), last) == "c"


def test_calculate_client_local() -> None:
    assert declared({"x-queue-master-locator": "client-local"}, {}, "min-masters") == "a"
    assert declared({"x-queue-master-locator": "client-local"}, {}, client="b") == "b"


def test_the_node_of_the_client_is_taken_although_it_is_under_maintenance() -> None:
    assert leader_location("client-local", nodes(draining="a"), first) == "a"


def test_a_classic_queue_asks_its_argument_then_its_policy_then_the_node() -> None:
    policy = {"queue-master-locator": "random"}
    assert locator(BY_ARGUMENT, policy, queue_master_locator="client-local") == "min-masters"
    assert locator({}, policy, queue_master_locator="min-masters") == "random"
    assert locator({}, {}, queue_master_locator="min-masters", queue_leader_locator="client-local") == (
        "min-masters"
    )
    assert (
        locator({"x-queue-leader-locator": "balanced"}, {"queue-leader-locator": "balanced"})
        == "client-local"
    )


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_replicated_queue_asks_its_policy_then_its_argument_then_the_node(kind: str) -> None:
    local = {"x-queue-type": kind, "x-queue-leader-locator": "client-local"}
    assert locator(local, {"queue-leader-locator": "balanced"}) == "min-masters"
    assert locator(local, {}, queue_leader_locator="balanced") == "client-local"
    assert locator({"x-queue-type": kind}, {}, queue_leader_locator="balanced") == "min-masters"
    assert locator({"x-queue-type": kind}, {}, queue_master_locator="min-masters") == "client-local"


@pytest.mark.parametrize("old_name", ["random", "least-leaders"])
def test_the_old_names_of_balanced_still_mean_it(old_name: str) -> None:
    assert locator({"x-queue-type": "quorum", "x-queue-leader-locator": old_name}, {}) == "min-masters"


@pytest.mark.parametrize("strategy", ["client-local", "min-masters", "random"])
@pytest.mark.parametrize(
    ("listed", "alive", "led_by"),
    [
        (["b", "x"], NODES, "b"),
        (["x", "b"], ["a", "b"], "b"),
        (["c", "b"], ["a", "b"], "b"),
    ],
)
def test_a_queue_mirrored_to_certain_nodes_is_led_by_one_that_runs(
    strategy: str, listed: list[str], alive: Sequence[str], led_by: str
) -> None:
    policy = mirror_policy({"ha-mode": "nodes", "ha-params": listed})
    assert leader_location(strategy, nodes(alive=alive), last, policy=policy) == led_by
    assert leader_location(strategy, nodes(alive=alive, draining="b"), last, policy=policy) == led_by


def test_the_client_s_node_leads_if_it_is_listed_else_the_first_listed() -> None:
    on_bc = mirror_policy({"ha-mode": "nodes", "ha-params": ["c", "b"]})
    assert leader_location("client-local", nodes(client="b"), first, policy=on_bc) == "b"
    assert leader_location("client-local", nodes(client="a"), first, policy=on_bc) == "c"


def test_where_no_listed_node_runs_the_queue_is_led_where_its_client_is() -> None:
    nowhere = mirror_policy({"ha-mode": "nodes", "ha-params": ["x", "y"]})
    assert leader_location("client-local", nodes(), first, policy=nowhere) == "a"


def test_an_exclusive_queue_is_led_where_its_client_is() -> None:
    policy = mirror_policy({"ha-mode": "nodes", "ha-params": ["b"]})
    for strategy in QUEUE_MASTER_LOCATORS:
        assert leader_location(strategy, nodes(), last, policy=policy, is_exclusive=True) == "a"


POLICIES = st.one_of(
    st.just(NOT_MIRRORED),
    st.just(MirrorPolicy(mode="all")),
    st.builds(
        lambda listed: MirrorPolicy(mode="nodes", params=tuple(listed)), st.sets(st.sampled_from("abcdx"))
    ),
)


@given(
    strategy=st.sampled_from(QUEUE_MASTER_LOCATORS),
    alive=st.sets(st.sampled_from("abcd"), min_size=1),
    draining=st.sets(st.sampled_from("abcd")),
    policy=POLICIES,
    data=st.data(),
)
def test_whoever_is_chosen_runs_and_is_listed_if_any_that_runs_is(
    strategy: str, alive: set[str], draining: set[str], policy: MirrorPolicy, data: st.DataObject
) -> None:
    client = data.draw(st.sampled_from(sorted(alive)))
    there = CandidateNodes(client=client, alive=sorted(alive), draining=draining)
    found = leader_location(
        strategy, there, lambda some: data.draw(st.sampled_from(list(some))), policy=policy
    )
    assert found in alive
    listed = set(policy.params) & alive if isinstance(policy.params, tuple) else set()
    assert found in (listed or alive)
    assert found == client or found not in draining or (listed or alive) <= draining

"""core.rules.mirror_policy: what policies may say of mirrors, what two of them say together, and how it is read.

Cases of RabbitMQ's unit_policy_validators_SUITE, policy_SUITE and queue_master_location_SUITE have their names.
"""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.broker.policies import VhostPolicies, merge_definitions
from leveret.core.broker.policy_validation import definition_fault
from leveret.core.rules.mirror_policy import NOT_MIRRORED, MirrorPolicy, group_policy, mirror_policy
from leveret.model.definitions import Parameter, Policy


def fault(definition: dict[str, Any], *, operator: bool = False) -> str | None:
    return definition_fault("p", definition, operator=operator)


@pytest.mark.parametrize(
    "definition",
    [
        {"ha-mode": "all"},
        {"ha-mode": "exactly", "ha-params": 2, "message-ttl": 60000},
        {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"]},
        {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-sync-batch-size": 10},
        {"ha-mode": "all", "ha-promote-on-failure": "always", "ha-promote-on-shutdown": "when-synced"},
        {"ha-mode": "all", "ha-confirm": "majority"},
    ],
)
def test_what_rabbitmq_takes_is_taken(definition: dict[str, Any]) -> None:
    assert fault(definition) is None


# Asked of RabbitMQ 3.10.8.
@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, none given'),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        ({"ha-mode": "exactly", "ha-params": "x"}, 'ha-mode="exactly" takes an integer, <<"x">> given'),
        ({"ha-mode": "nodes"}, 'ha-mode="nodes" takes a list, none given'),
        ({"ha-mode": "nodes", "ha-params": 3}, 'ha-mode="nodes" takes a list, 3 given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        (
            {"ha-mode": "nodes", "ha-params": [1]},
            'ha-mode="nodes" takes a list of strings, [1] was not a string',
        ),
        ({"ha-mode": "foo"}, '<<"foo">> is not a valid ha-mode value'),
        (
            {"ha-sync-mode": "automatic"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": "x"},
            'ha-sync-mode must be "manual" or "automatic", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "x"},
            'ha-promote-on-failure must be "always" or "when-synced", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": "x"},
            'ha-promote-on-shutdown must be "always" or "when-synced", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0, "ha-sync-mode": 1, "ha-promote-on-failure": "x"},
            'ha-sync-mode must be "manual" or "automatic", got 1',
        ),
        ({"ha-mode": "all", "bogus": 1}, '[{<<"bogus">>,1}] are not recognised policy settings'),
        ({"ha-mode": "foo", "queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
    ],
)
def test_what_will_not_do_is_refused_in_rabbitmqs_words(definition: dict[str, Any], text: str) -> None:
    assert fault(definition) == text


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"ha-mode": "all", "ha-confirm": "some"}, 'ha-confirm must be "all" or "majority", got <<"some">>'),
        ({"ha-mode": "all", "ha-confirm": 2}, 'ha-confirm must be "all" or "majority", got 2'),
        (
            {"ha-confirm": "majority"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
    ],
)
def test_the_key_that_rabbitmq_does_not_have_is_checked_like_the_others(
    definition: dict[str, Any], text: str
) -> None:
    assert fault(definition) == text


@pytest.mark.parametrize(
    ("definition", "is_taken"),
    [
        ({"ha-mode": "exactly", "ha-params": 2}, True),
        ({"ha-mode": "nodes", "ha-params": ["rabbit@host1", "rabbit@host2"]}, True),
        ({"ha-mode": "all"}, True),
        ({"ha-mode": "lolwut", "ha-params": 2}, False),
    ],
)
def test_classic_queue_ha_mode(definition: dict[str, Any], is_taken: bool) -> None:
    assert (fault(definition) is None) == is_taken


@pytest.mark.parametrize(
    "definition",
    [
        {"ha-mode": "exactly", "ha-params": "2"},
        {"ha-mode": "nodes", "ha-params": "lolwut"},
        {"ha-mode": "all", "ha-params": "lolwut"},
        {"ha-mode": "lolwut", "ha-params": 2},
    ],
)
def test_classic_queue_ha_params(definition: dict[str, Any]) -> None:
    """RabbitMQ's suite never calls its case of this name, which expects two of these to be taken."""
    assert fault(definition) is not None


def test_declare_invalid_policy() -> None:
    locator = {"queue-master-locator": "min-masters"}
    assert fault({**locator, "ha-mode": "exactly", "ha-params": 2}) is None
    text = 'ha-mode="exactly" takes an integer, <<"2">> given'
    assert fault({**locator, "ha-mode": "exactly", "ha-params": "2"}) == text


def test_is_supported_operator_policy_ha() -> None:
    definition = {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}
    assert fault(definition, operator=True) is None
    value = {"pattern": ".*", "definition": definition, "priority": 0, "apply-to": "all"}
    policies = VhostPolicies()
    policies.put(Parameter(vhost="/", component="operator_policy", name="o", value=value))
    assert policies.for_queue("q", "classic").definition == definition
    assert policies.for_queue("q", "quorum").definition == {}
    assert policies.for_queue("q", "stream").definition == {}


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        (
            {"ha-sync-mode": "manual"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            '[{<<"ha-sync-batch-size">>,0}] are not recognised policy settings',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "when-synced"},
            '[{<<"ha-promote-on-failure">>,<<"when-synced">>}] are not recognised policy settings',
        ),
        (
            {"ha-mode": "all", "ha-confirm": "majority"},
            '[{<<"ha-confirm">>,<<"majority">>}] are not recognised policy settings',
        ),
    ],
)
def test_operators_say_where_mirrors_are_and_how_they_synchronise_and_no_more(
    definition: dict[str, Any], text: str
) -> None:
    assert fault(definition, operator=True) == text


ONE, TWO = {"ha-mode": "exactly", "ha-params": 1}, {"ha-mode": "exactly", "ha-params": 2}
EVERYWHERE = {"ha-mode": "all"}
ON_A, ON_BOTH = {"ha-mode": "nodes", "ha-params": ["a"]}, {"ha-mode": "nodes", "ha-params": ["a", "b"]}
MANUAL = {"ha-mode": "all", "ha-sync-mode": "manual"}
AUTOMATIC = {"ha-mode": "all", "ha-sync-mode": "automatic"}


@pytest.mark.parametrize(
    ("policy", "operator", "together"),
    [
        (EVERYWHERE, TWO, EVERYWHERE),
        (TWO, EVERYWHERE, EVERYWHERE),
        (EVERYWHERE, ON_BOTH, EVERYWHERE),
        (ON_BOTH, EVERYWHERE, EVERYWHERE),
        (MANUAL, AUTOMATIC, AUTOMATIC),
        (AUTOMATIC, MANUAL, MANUAL),
        (TWO, ON_BOTH, TWO),
        (ON_BOTH, TWO, TWO),
        (TWO, ONE, TWO),
        (ONE, TWO, TWO),
        (ON_BOTH, ON_A, ON_BOTH),
        (ON_A, ON_BOTH, ON_BOTH),
    ],
)
def test_target_count_policy(
    policy: dict[str, Any], operator: dict[str, Any], together: dict[str, Any]
) -> None:
    merged = merge_definitions(policy, operator)
    assert {key: merged[key] for key in together} == together
    assert mirror_policy(merged) == mirror_policy(together)


def test_of_lists_as_long_the_operators_counts_and_a_list_of_names_is_never_more_than_a_number() -> None:
    on_c = {"ha-mode": "nodes", "ha-params": ["c"]}
    assert merge_definitions(ON_A, on_c) == on_c
    assert merge_definitions(on_c, ON_A) == ON_A
    assert merge_definitions(ONE, ON_BOTH) == merge_definitions(ON_BOTH, ONE) == ONE


def test_what_only_one_of_the_policies_says_stays() -> None:
    policy = {"ha-mode": "exactly", "ha-params": 2, "ha-sync-batch-size": 50, "ha-confirm": "majority"}
    assert merge_definitions(policy, {"max-length": 5}) == {**policy, "max-length": 5}
    assert merge_definitions({"max-length": 5}, TWO) == {**TWO, "max-length": 5}


def test_what_a_policy_does_not_say_is_rabbitmqs_default() -> None:
    read = mirror_policy(EVERYWHERE)
    assert read == MirrorPolicy(
        mode="all",
        params=0,
        sync_mode="manual",
        sync_batch_size=4096,
        promote_on_shutdown="when-synced",
        promote_on_failure="always",
        confirm="all",
    )
    assert read.is_mirrored
    assert not read.is_automatic


def test_all_that_a_policy_says_is_read() -> None:
    definition = {
        "ha-mode": "nodes",
        "ha-params": ["b", "a", "b"],
        "ha-sync-mode": "automatic",
        "ha-sync-batch-size": 2,
        "ha-promote-on-shutdown": "always",
        "ha-promote-on-failure": "when-synced",
        "ha-confirm": "majority",
        "max-length": 5,
    }
    assert mirror_policy(definition) == MirrorPolicy(
        mode="nodes",
        params=("b", "a"),
        sync_mode="automatic",
        sync_batch_size=2,
        promote_on_shutdown="always",
        promote_on_failure="when-synced",
        confirm="majority",
    )
    assert mirror_policy(definition).is_automatic


@pytest.mark.parametrize(
    "definition", [{}, {"max-length": 5}, {"ha-sync-mode": "automatic"}, {"ha-mode": "x"}]
)
def test_without_a_mode_nothing_is_mirrored(definition: dict[str, Any]) -> None:
    assert mirror_policy(definition) is NOT_MIRRORED
    assert not NOT_MIRRORED.is_mirrored


def test_an_exclusive_queue_is_never_mirrored() -> None:
    assert mirror_policy(EVERYWHERE, is_exclusive=True) is NOT_MIRRORED


@pytest.mark.parametrize(("size", "read"), [(None, 100), (1, 100), (2, 2), (50_000, 50_000)])
def test_a_batch_of_one_is_the_configured_one(size: int | None, read: int) -> None:
    definition = EVERYWHERE if size is None else {**EVERYWHERE, "ha-sync-batch-size": size}
    assert mirror_policy(definition, batch_messages=100).sync_batch_size == read


@pytest.mark.parametrize(("queue_type", "applied"), [("classic", "ha"), ("quorum", None), ("stream", None)])
def test_a_mirroring_policy_is_for_classic_queues(queue_type: str, applied: str | None) -> None:
    policies = VhostPolicies()
    policies.put(
        Policy(vhost="/", name="ha", pattern="", apply_to="all", definition={"ha-mode": "all"}, priority=0)
    )
    assert policies.for_queue("q", queue_type).policy == applied


# -- quorum queues --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "applied", "size"),
    [
        ({}, {}, 3),
        ({"x-quorum-initial-group-size": 5}, {}, 5),
        ({"x-quorum-initial-group-size": 5}, {"target-group-size": 2}, 2),
        ({}, {"ha-mode": "all", "ha-promote-on-failure": "always"}, 3),
    ],
)
def test_a_quorum_queue_is_mirrored_to_a_group_of_a_size(
    arguments: dict[str, Any], applied: dict[str, Any], size: int
) -> None:
    found = group_policy(arguments, applied, group_size=3, batch_messages=9)
    assert (found.mode, found.params, found.confirm, found.sync_batch_size) == (
        "exactly",
        size,
        "majority",
        9,
    )
    assert found.is_automatic
    assert (found.promote_on_failure, found.promote_on_shutdown) == ("when-synced", "when-synced")

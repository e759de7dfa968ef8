from __future__ import annotations

from typing import Any

import pytest

from leveret.core.policies import VhostPolicies
from leveret.core.policy_validation import definition_fault
from leveret.model.definitions import Policy


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
        ({"ha-mode": "all", "bogus": 1}, '[{<<"bogus">>,1}] are not recognised policy settings'),
        ({"ha-mode": "foo", "queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
    ],
)
def test_what_will_not_do_is_refused_in_rabbitmqs_words(definition: dict[str, Any], text: str) -> None:
    assert fault(definition) == text


def test_operators_may_not_ask_for_mirrors() -> None:
    assert fault({"ha-mode": "all"}, operator=True) == (
        '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings'
    )


@pytest.mark.parametrize(("queue_type", "applied"), [("classic", "ha"), ("quorum", None), ("stream", None)])
def test_a_mirroring_policy_is_for_classic_queues(queue_type: str, applied: str | None) -> None:
    policies = VhostPolicies()
    policies.put(
        Policy(vhost="/", name="ha", pattern="", apply_to="all", definition={"ha-mode": "all"}, priority=0)
    )
    assert policies.for_queue("q", queue_type).policy == applied

"""core.policies: which one applies, and what it may say."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.policies import check_policy, policy_for_exchange, policy_for_queue
from leveret.model.definitions import Policy
from leveret.model.errors import InvalidCommand


def policy(name: str = "p", pattern: str = ".*", **more: Any) -> Policy:
    given: dict[str, Any] = {"vhost": "v", "definition": {"remote-dc-replicate": True}} | more
    return Policy(name=name, pattern=pattern, **given)


def chosen(policies: list[Policy], name: str = "orders", kind: str = "classic") -> str | None:
    found = policy_for_queue(policies, "v", name, kind)
    return found.name if found else None


@pytest.mark.parametrize("definition", [{"remote-dc-replicate": False}, {"alternate-exchange": "other"}])
def test_what_is_served_passes(definition: dict[str, Any]) -> None:
    check_policy(policy(definition=definition))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"pattern": "("}, "not a regular expression"),
        ({"apply_to": "people"}, "apply-to must be one of"),
        ({"definition": {}}, "no policy provided"),
        ({"definition": {"remote-dc-replicate": "yes"}}, "remote-dc-replicate"),
        ({"definition": {"alternate-exchange": 1}}, "alternate exchange"),
        ({"definition": {"max-length": 1}}, r"\[max-length\] are not recognised"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidCommand, match=f"Validation failed\n\n.*{text}"):
        check_policy(policy(**wrong))


def test_no_policy_applies_to_a_name_that_none_matches() -> None:
    assert chosen([policy(pattern="^x")]) is None
    assert chosen([policy(vhost="w")]) is None
    assert chosen([]) is None


def test_the_highest_priority_wins_then_the_first_name() -> None:
    low, high = policy("a", priority=1), policy("b", priority=2)
    assert chosen([low, high]) == chosen([high, low]) == "b"
    assert chosen([policy("z"), policy("m")]) == chosen([policy("m"), policy("z")]) == "m"
    assert chosen([low, policy("c", pattern="^x", priority=9)]) == "a"


@pytest.mark.parametrize(
    ("apply_to", "kinds", "exchanges"),
    [
        ("all", {"classic", "quorum", "stream"}, True),
        ("queues", {"classic", "quorum", "stream"}, False),
        ("classic_queues", {"classic"}, False),
        ("quorum_queues", {"quorum"}, False),
        ("streams", {"stream"}, False),
        ("exchanges", set(), True),
    ],
)
def test_a_policy_applies_to_the_kinds_it_names(apply_to: str, kinds: set[str], exchanges: bool) -> None:
    one = [policy(apply_to=apply_to)]
    assert {kind for kind in ("classic", "quorum", "stream") if chosen(one, kind=kind)} == kinds
    assert (policy_for_exchange(one, "v", "e") is not None) == exchanges

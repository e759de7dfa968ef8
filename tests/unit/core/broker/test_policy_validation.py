"""core.broker.policy_validation: what policies may say; the texts were seen on RabbitMQ (tests/conformance)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.core.broker.policy_validation import check_policy, check_policy_term
from leveret.model.definitions import Policy
from leveret.model.errors import InvalidCommand

GOOD: dict[str, Any] = {
    "alternate-exchange": "e",
    "consumer-timeout": 0,
    "dead-letter-exchange": "",
    "dead-letter-routing-key": "k",
    "dead-letter-strategy": "at-least-once",
    "message-ttl": 0,
    "expires": 1,
    "max-length": 0,
    "max-length-bytes": 2**40,
    "max-in-memory-length": 0,
    "max-in-memory-bytes": 0,
    "queue-mode": "lazy",
    "queue-version": 2,
    "overflow": "reject-publish-dlx",
    "delivery-limit": 0,
    "max-age": "7D",
    "queue-leader-locator": "balanced",
    "queue-master-locator": "min-masters",
    "initial-cluster-size": 0,
    "stream-max-segment-size-bytes": 3_000_000_000,
    "stream-filter-size-bytes": 16,
    "target-group-size": 1,
    "remote-dc-replicate": False,
}
OF_OPERATORS = {
    "message-ttl",
    "expires",
    "max-length",
    "max-length-bytes",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "queue-version",
    "overflow",
    "delivery-limit",
    "target-group-size",
    "remote-dc-replicate",
}


def policy(**more: Any) -> Policy:
    return Policy(**{"vhost": "v", "name": "p", "pattern": ".*", "definition": {"max-length": 5}} | more)


def refusal(value: object, *, operator: bool = False) -> str:
    with pytest.raises(InvalidCommand) as caught:
        check_policy_term("p", value, operator=operator)
    return str(caught.value)


def fault(definition: object, *, operator: bool = False) -> str:
    text = refusal({"pattern": "", "priority": 0, "definition": definition}, operator=operator)
    assert text.startswith("Validation failed\n\n")
    assert text.endswith("\n")
    return text.removeprefix("Validation failed\n\n").removesuffix("\n")


@pytest.mark.parametrize("key", GOOD)
def test_every_key_of_rabbitmq_has_values_that_pass(key: str) -> None:
    check_policy(policy(definition={key: GOOD[key]}))


@pytest.mark.parametrize("key", GOOD)
def test_an_operator_policy_has_only_the_keys_of_limits(key: str) -> None:
    value = {"pattern": "", "priority": 1.5, "definition": {key: GOOD[key]}}
    if key in OF_OPERATORS:
        check_policy_term("p", value, operator=True)
    else:
        assert refusal(value, operator=True).endswith("are not recognised policy settings\n")


@pytest.mark.parametrize("key", GOOD)
def test_no_key_takes_a_list(key: str) -> None:
    assert fault({key: [1]}).startswith("[1] ")


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"max-length": "a"}, '<<"a">> is not a valid maximum length'),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length": 1.5}, "1.5 is not a valid maximum length"),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"max-length": None}, "null is not a valid maximum length"),
        ({"max-length": {"a": 1}}, '#{<<"a">> => 1} is not a valid maximum length'),
        ({"queue-version": 1.0}, "1.0 is not a valid queue-version value"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-age": "7x"}, '<<"7x">> is not a valid max age'),
        ({"max-age": "9" * 5000 + "Y"}, f'<<"{"9" * 5000}Y">> is not a valid max age'),
        ({"max-age": "0D"}, '<<"0D">> is not a valid max age'),
        ({"queue-master-locator": "x"}, '<<"x">> invalid queue-master-locator value'),
        (
            {"stream-filter-size-bytes": 256},
            "256 is not a valid filter size. Valid range is 16-255",
        ),
        ({"bogus": 1}, '[{<<"bogus">>,1}] are not recognised policy settings'),
        ({"z": 1, "max-length": 5, "a": ""}, '[{<<"a">>,<<>>},{<<"z">>,1}] are not recognised policy settings'),
        ({"bogus": 1, "max-length": "a"}, '<<"a">> is not a valid maximum length'),
        ({"message-ttl": "x", "expires": "y"}, '<<"y">> is not a valid queue expiry'),
        ({}, "no policy provided"),
        ("x", 'parse error while reading policy p: <<"x">>'),
    ],
)  # fmt: skip
def test_a_definition_that_will_not_do_is_refused_in_rabbitmqs_words(definition: object, text: str) -> None:
    assert fault(definition) == text


def test_all_that_is_wrong_is_told_the_last_check_first() -> None:
    text = refusal(
        {"pattern": "(", "definition": {"max-length": "a"}, "apply-to": "x", "priority": "y", "q": 1}
    )
    first, blank, *faults, end = text.split("\n")
    assert (first, blank, end) == ("Validation failed", "", "")
    assert faults[:3] == [
        'Unrecognised terms [{<<"q">>,1}] in p',
        '<<"a">> is not a valid maximum length',
        "apply-to 'x' unrecognised; should be one of: 'queues', 'classic_queues',  'quorum_queues', 'streams', "
        "'exchanges', or 'all'",
    ]
    assert faults[3].startswith("pattern should be regular expression but is invalid: {")
    assert faults[4:] == ['priority should be a number, actually was <<"y">>']


def test_what_is_missing_is_named() -> None:
    assert refusal({"definition": {"max-length": 1}}).split("\n")[2:-1] == [
        'Key "pattern" not found in p',
        'Key "priority" not found in p',
    ]
    assert refusal(1).split("\n")[2] == "p not a list 1"
    assert refusal({"pattern": 1, "definition": {"max-length": 1}, "priority": 0}).split("\n")[2] == (
        "pattern should be a binary but was 1"
    )


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"remote-dc-confirm": True}, None),
        ({"remote-dc-confirm": "all", "remote-dc-confirm-timeout": 1}, None),
        ({"remote-dc-confirm": "any", "remote-dc-confirm-on-timeout": "nack"}, None),
        ({"remote-dc-confirm": 1}, "1 is not a valid remote-dc-confirm value"),
        (
            {"remote-dc-confirm": True, "remote-dc-confirm-timeout": 0},
            "0 is not a valid remote-dc-confirm-timeout",
        ),
        (
            {"remote-dc-confirm": True, "remote-dc-confirm-on-timeout": "drop"},
            "is not a valid remote-dc-confirm-on",
        ),
        ({"remote-dc-confirm-timeout": 9}, "remote-dc-confirm must be specified"),
        ({"remote-dc-confirm": True, "remote-dc-replicate": False}, "needs remote-dc-replicate to be true"),
    ],
)
@pytest.mark.parametrize("operator", [False, True])
def test_confirms_at_another_site_are_asked_for_in_full(
    keys: dict[str, Any], fault: str | None, operator: bool
) -> None:
    value = {"pattern": ".*", "definition": {"remote-dc-replicate": True} | keys}
    if fault is None:
        check_policy_term("p", value | {"priority": 0}, operator=operator)
    else:
        assert fault in refusal(value | {"priority": 0}, operator=operator)

"""core.broker.parameters: which runtime parameters there are; texts as seen on RabbitMQ (tests/conformance)."""

from __future__ import annotations

import pytest

from leveret.core.broker.parameters import check_parameter, check_user_limits
from leveret.model.definitions import Parameter
from leveret.model.errors import InvalidCommand


def parameter(component: str, value: object, name: str = "limits") -> Parameter:
    return Parameter(vhost="v", component=component, name=name, value=value)


@pytest.mark.parametrize("value", [{}, [], {"max-connections": 5}, {"max-queues": -1, "max-connections": 0}])
def test_limits_of_a_vhost_are_whole_numbers(value: object) -> None:
    check_parameter(parameter("vhost-limits", value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"max-connections": "a"}, 'max-connections should be a number, actually was <<"a">>'),
        ({"max-queues": 1.5}, "max-queues should be a number, actually was 1.5"),
        ({"max-queues": True}, "max-queues should be a number, actually was true"),
        ({"bogus": 1, "max-queues": 2}, 'Unrecognised terms [{<<"bogus">>,1}] in limits'),
        (5, "limits not a list 5"),
        ([1], "Unrecognised terms [1] in limits"),
    ],
)
def test_what_are_no_limits_is_refused_in_rabbitmqs_words(value: object, text: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        check_parameter(parameter("vhost-limits", value))
    assert str(caught.value) == f"Validation failed\n\n{text}\n"


def test_limits_that_would_never_be_looked_at_are_refused() -> None:
    with pytest.raises(InvalidCommand, match="named 'limits', not 'other'"):
        check_parameter(parameter("vhost-limits", {}, "other"))


def test_an_operator_policy_is_a_parameter_and_a_policy_is_none() -> None:
    value = {"pattern": "", "priority": 0, "definition": {"max-length": 5}}
    check_parameter(parameter("operator_policy", value))
    with pytest.raises(InvalidCommand, match="are not recognised policy settings"):
        check_parameter(parameter("operator_policy", {**value, "definition": {"queue-mode": "lazy"}}))
    with pytest.raises(InvalidCommand, match=r"^policies may not be set using this method$"):
        check_parameter(parameter("policy", value))


def test_a_component_that_nobody_serves_is_refused() -> None:
    with pytest.raises(InvalidCommand, match=r"^Validation failed\n\ncomponent shovel not found\n$"):
        check_parameter(parameter("shovel", {}))


def test_limits_of_a_user_are_connections_and_channels() -> None:
    check_user_limits({"max-connections": 1, "max-channels": -1})
    with pytest.raises(InvalidCommand, match=r'^Unrecognised terms \[{<<"max-queues">>,1}] in user-limits$'):
        check_user_limits({"max-queues": 1})

"""Runtime parameters: known components, and the valid values of each.

`operator_policy` and `vhost-limits` are the components of this broker. The components of RabbitMQ's plugins
(federation, shovel) are refused as RabbitMQ refuses them while the plugin is off. Global parameters are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leveret.core.broker.limits import LIMITS_NAME, MAX_CHANNELS, MAX_CONNECTIONS, MAX_QUEUES, VHOST_LIMITS
from leveret.core.broker.policy_validation import check_policy_term, validation_failed
from leveret.core.rules.erlang_terms import pairs, term
from leveret.model.definitions import OPERATOR_POLICY, Parameter
from leveret.model.errors import InvalidCommand

_USER_LIMITS: Final = "user-limits"


def check_parameter(parameter: Parameter) -> None:
    """Refuse a runtime parameter of an unknown component, or with an invalid value.

    Raises:
        InvalidCommand: in RabbitMQ's words.
    """
    match parameter.component:
        case "policy":
            raise InvalidCommand("policies may not be set using this method")
        case component if component == OPERATOR_POLICY:
            check_policy_term(parameter.name, parameter.value, operator=True)
        case component if component == VHOST_LIMITS:
            _check_vhost_limits(parameter)
        case component:
            raise validation_failed(f"component {component} not found")


def check_user_limits(limits: object) -> None:
    """Refuse invalid limits of a user.

    Raises:
        InvalidCommand: in RabbitMQ's words.
    """
    wrong = _limit_faults(_USER_LIMITS, limits, (MAX_CONNECTIONS, MAX_CHANNELS))
    if wrong:
        raise InvalidCommand("\n".join(wrong))


def _check_vhost_limits(parameter: Parameter) -> None:
    if parameter.name != LIMITS_NAME:
        # RabbitMQ fails with an internal error, and keeps the parameter.
        raise validation_failed(
            f"{VHOST_LIMITS} of a vhost are named '{LIMITS_NAME}', not '{parameter.name}'"
        )
    wrong = _limit_faults(parameter.name, parameter.value, (MAX_CONNECTIONS, MAX_QUEUES))
    if wrong:
        raise validation_failed(*wrong)


def _limit_faults(name: str, value: object, allowed: tuple[str, ...]) -> list[str]:
    if value == []:
        return []
    if isinstance(value, list):
        return [f"Unrecognised terms {term(value)} in {name}"]
    if not isinstance(value, Mapping):
        return [f"{name} not a list {term(value)}"]
    unknown = {key: each for key, each in value.items() if key not in allowed}
    wrong = [f"Unrecognised terms {pairs(unknown)} in {name}"] if unknown else []
    for key in reversed(allowed):
        if key in value and (isinstance(value[key], bool) or not isinstance(value[key], int)):
            wrong.append(f"{key} should be a number, actually was {term(value[key])}")
    return wrong

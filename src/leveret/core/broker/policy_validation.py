"""Validation of policies and operator policies; refusals are in RabbitMQ's words.

Both have one shape, the value of a runtime parameter: `pattern`, `definition`, `priority`, `apply-to`. Federation is
not served, and its keys are not recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from leveret.core.queues.queue_settings import (
    ALL_DOWNSTREAMS,
    ANY_DOWNSTREAM,
    LOCAL,
    NACK,
    REMOTE_CONFIRM,
    REMOTE_CONFIRM_ON_TIMEOUT,
    REMOTE_CONFIRM_TIMEOUT,
)
from leveret.core.rules.erlang_terms import pairs, term
from leveret.core.rules.mirror_policy import MIRROR_KEYS, OPERATOR_MIRROR_KEYS, mirroring_fault
from leveret.core.rules.queue_arguments import (
    DEAD_LETTER_STRATEGIES,
    FILTER_BYTES,
    OVERFLOWS,
    QUEUE_MODES,
    SEGMENT_BYTES_MAX,
)
from leveret.core.rules.validation import interval_of
from leveret.model.definitions import Policy
from leveret.model.errors import InvalidCommand
from leveret.model.locators import QUEUE_LEADER_LOCATORS, QUEUE_MASTER_LOCATORS
from leveret.model.patterns import PatternError, compiled

APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
REPLICATE: Final = "remote-dc-replicate"


def _is_integer(value: Any, least: int, most: int | None = None) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and value >= least and (most is None or value <= most)


def _at_least(least: int, most: int | None = None) -> Callable[[Any], bool]:
    return lambda value: _is_integer(value, least, most)


def _among(*allowed: object) -> Callable[[Any], bool]:
    return lambda value: any(type(value) is type(each) and value == each for each in allowed)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


_KEYS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "alternate-exchange": (_is_string, "is not a valid alternate exchange name"),
    "consumer-timeout": (_at_least(0), "is not a valid consumer timeout"),
    "dead-letter-exchange": (_is_string, "is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (_is_string, "is not a valid dead letter routing key"),
    "dead-letter-strategy": (_among(*DEAD_LETTER_STRATEGIES), "is not a valid dead letter strategy"),
    "message-ttl": (_at_least(0), "is not a valid message TTL"),
    "expires": (_at_least(1), "is not a valid queue expiry"),
    "max-length": (_at_least(0), "is not a valid maximum length"),
    "max-length-bytes": (_at_least(0), "is not a valid maximum length in bytes"),
    "max-in-memory-length": (_at_least(0), "is not a valid maximum memory in bytes"),
    "max-in-memory-bytes": (_at_least(0), "is not a valid maximum memory in bytes"),
    "queue-mode": (_among(*QUEUE_MODES), "is not a valid queue-mode value"),
    "queue-version": (_among(1, 2), "is not a valid queue-version value"),
    "overflow": (_among(*OVERFLOWS), "is not a valid overflow value"),
    "delivery-limit": (_at_least(0), "is not a valid delivery limit"),
    "max-age": (lambda value: bool(interval_of(value)), "is not a valid max age"),
    "queue-leader-locator": (_among(*QUEUE_LEADER_LOCATORS), "is not a valid queue leader locator value"),
    "queue-master-locator": (_among(*QUEUE_MASTER_LOCATORS), "invalid queue-master-locator value"),
    "initial-cluster-size": (_at_least(0), "is not a valid cluster size"),
    "stream-max-segment-size-bytes": (_at_least(0, SEGMENT_BYTES_MAX), "is not a valid segment size"),
    "stream-filter-size-bytes": (
        _at_least(FILTER_BYTES.start, FILTER_BYTES.stop - 1),
        "is not a valid filter size. Valid range is 16-255",
    ),
    "target-group-size": (_at_least(1), "is not a valid qq target count value"),
    REPLICATE: (lambda value: isinstance(value, bool), f"is not a valid {REPLICATE} value"),
    REMOTE_CONFIRM: (
        _among(True, False, ANY_DOWNSTREAM, ALL_DOWNSTREAMS),
        f"is not a valid {REMOTE_CONFIRM} value",
    ),
    REMOTE_CONFIRM_TIMEOUT: (_at_least(1), f"is not a valid {REMOTE_CONFIRM_TIMEOUT} in milliseconds"),
    REMOTE_CONFIRM_ON_TIMEOUT: (_among(LOCAL, NACK), f"is not a valid {REMOTE_CONFIRM_ON_TIMEOUT} value"),
}
"""By key: the check of a value, and RabbitMQ's text for an invalid one."""

_REMOTE_CONFIRM_KEYS: Final = (REMOTE_CONFIRM, REMOTE_CONFIRM_TIMEOUT, REMOTE_CONFIRM_ON_TIMEOUT)
_OPERATOR_KEYS: Final = frozenset(
    {
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
        "queue-version",
        "overflow",
        "target-group-size",
        REPLICATE,
        *_REMOTE_CONFIRM_KEYS,
        *OPERATOR_MIRROR_KEYS,
    }
)
"""The keys of operator policies."""


def check_policy(policy: Policy) -> None:
    """Refuse a policy with an invalid pattern, kind or key.

    Raises:
        InvalidCommand: names all faults.
    """
    value = {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }
    check_policy_term(policy.name, value, operator=False)


def check_policy_term(name: str, value: object, *, operator: bool) -> None:
    """Refuse a value that is no policy, or no operator policy; `name` is the policy's name.

    Raises:
        InvalidCommand: names all faults.
    """
    wrong = list(_faults(name, value, operator))
    if wrong:
        raise validation_failed(*wrong)


def validation_failed(*wrong: str) -> InvalidCommand:
    """The refusal of a runtime parameter, one line for each fault."""
    return InvalidCommand("\n".join(("Validation failed\n", *wrong, "")))


def _faults(name: str, value: object, operator: bool) -> Iterator[str]:
    """Yield the faults in RabbitMQ's order, which begins with the last check."""
    if not isinstance(value, Mapping):
        yield f"{name} not a list {term(value)}"
        return
    checks = (
        ("definition", lambda given: definition_fault(name, given, operator=operator)),
        ("apply-to", _apply_to_fault),
        ("pattern", _pattern_fault),
        ("priority", _priority_fault),
    )
    unknown = {key: each for key, each in value.items() if key not in dict(checks)}
    if unknown:
        yield f"Unrecognised terms {pairs(unknown)} in {name}"
    for key, check in checks:
        if key in value:
            fault = check(value[key])
            if fault is not None:
                yield fault
        elif key != "apply-to":
            yield f'Key "{key}" not found in {name}'


def definition_fault(name: str, definition: object, *, operator: bool) -> str | None:
    """The fault of the settings: the first invalid value, else the unknown keys."""
    if definition in ({}, []):
        return "no policy provided"
    if not isinstance(definition, Mapping):
        return f"parse error while reading policy {name}: {term(definition)}"
    allowed = _OPERATOR_KEYS if operator else _KEYS.keys() | MIRROR_KEYS
    for key in sorted(definition):
        if key in allowed and key in _KEYS and not _KEYS[key][0](definition[key]):
            return f"{term(definition[key])} {_KEYS[key][1]}"
    given = [key for key in _REMOTE_CONFIRM_KEYS if key in definition]
    if given and definition.get(REPLICATE) is not True:
        return f"{given[0]} needs {REPLICATE} to be true in the same definition: nothing else is sent to a downstream"
    if given and REMOTE_CONFIRM not in given:
        return f"{REMOTE_CONFIRM} must be specified to specify {given[0]}"
    fault = mirroring_fault({key: definition[key] for key in definition.keys() & allowed})
    if fault is not None:
        return fault
    unknown = {key: value for key, value in definition.items() if key not in allowed}
    return f"{pairs(unknown)} are not recognised policy settings" if unknown else None


def _apply_to_fault(value: object) -> str | None:
    if value in APPLY_TO:
        return None
    shown = value if isinstance(value, str) else term(value)
    return (
        f"apply-to '{shown}' unrecognised; should be one of: 'queues', 'classic_queues',  'quorum_queues', "
        "'streams', 'exchanges', or 'all'"
    )


def _pattern_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return f"pattern should be a binary but was {term(value)}"
    try:
        compiled(value)
    except PatternError as error:
        reason = f'{{"{error.reason}",{error.position}}}'
        return f"pattern should be regular expression but is invalid: {reason}"
    return None


def _priority_fault(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None
    return f"priority should be a number, actually was {term(value)}"

"""Which policy applies to a queue, and what it may say.

One policy applies at a time: among those that match by name and kind, the one with the highest
priority (of equals, the first by name). Validation and its texts are RabbitMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from leveret.core.access import is_pattern
from leveret.model.definitions import Policy
from leveret.model.errors import InvalidCommand

APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")
_QUEUES: Final = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
REPLICATE: Final = "remote-dc-replicate"
ALTERNATE_EXCHANGE: Final = "alternate-exchange"


def check_policy(policy: Policy) -> None:
    """Refuse a policy whose pattern, kind or keys make no sense.

    Raises:
        InvalidCommand: in RabbitMQ's words.
    """
    if not is_pattern(policy.pattern):
        raise InvalidCommand(f"Validation failed\n\n{policy.pattern!r} is not a regular expression\n")
    if policy.apply_to not in APPLY_TO:
        raise InvalidCommand(
            f"Validation failed\n\napply-to must be one of {', '.join(APPLY_TO)}, got {policy.apply_to}\n"
        )
    if not policy.definition:
        raise InvalidCommand("Validation failed\n\nno policy provided\n")
    for key, value in policy.definition.items():
        _check_key(key, value)


def _check_key(key: str, value: Any) -> None:
    if key == REPLICATE:
        if not isinstance(value, bool):
            raise InvalidCommand(
                f"Validation failed\n\n{value!r} is not a valid value for {REPLICATE}: true or false\n"
            )
    elif key == ALTERNATE_EXCHANGE:
        if not isinstance(value, str):
            raise InvalidCommand(f"Validation failed\n\n{value!r} is not a valid alternate exchange name\n")
    else:
        raise InvalidCommand(f"Validation failed\n\n[{key}] are not recognised policy settings\n")


def policy_for_queue(policies: Iterable[Policy], vhost: str, name: str, queue_type: str) -> Policy | None:
    """The policy that applies to a queue."""
    kinds = {"all", "queues", _QUEUES.get(queue_type, "classic_queues")}
    return _best(policies, vhost, name, kinds)


def policy_for_exchange(policies: Iterable[Policy], vhost: str, name: str) -> Policy | None:
    """The policy that applies to an exchange."""
    return _best(policies, vhost, name, {"all", "exchanges"})


def _best(policies: Iterable[Policy], vhost: str, name: str, kinds: set[str]) -> Policy | None:
    matching = (
        policy
        for policy in policies
        if policy.vhost == vhost and policy.apply_to in kinds and re.search(policy.pattern, name)
    )
    return max(
        sorted(matching, key=lambda policy: policy.name), key=lambda policy: policy.priority, default=None
    )

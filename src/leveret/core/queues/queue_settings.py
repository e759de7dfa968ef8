"""The effective settings of a queue, from its arguments and policies.

Settings come from three places: the arguments of the declaration, the policy that applies to the queue, and the
operator policy that applies to it. The two policies are merged first (`policies`). Of an argument and the merged
policies the smaller number counts, and the argument for anything else. Two exceptions: for a stream the policy always
counts; for a quorum queue the policy counts for overflow and expiry, and `reject-publish-dlx` is the default,
`drop-head`. These are RabbitMQ's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leveret.core.rules.queue_arguments import AT_LEAST_ONCE, AT_MOST_ONCE, DEAD_LETTER_STRATEGY
from leveret.core.rules.validation import QUORUM, STREAM, field_type, queue_type
from leveret.model.definitions import Arguments
from leveret.model.stream import interval_ms

UNBOUNDED: Final = 1 << 62
"""The room of a queue without a limit."""
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REMOTE_CONFIRM: Final = "remote-dc-confirm"
REMOTE_CONFIRM_TIMEOUT: Final = "remote-dc-confirm-timeout"
REMOTE_CONFIRM_ON_TIMEOUT: Final = "remote-dc-confirm-on-timeout"
REMOTE_CONFIRM_TIMEOUT_MS: Final = 5_000
LOCAL: Final = "local"
NACK: Final = "nack"
ANY_DOWNSTREAM: Final = "any"
ALL_DOWNSTREAMS: Final = "all"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings of one queue; None means no such limit.

    Attributes:
        message_ttl_ms: a message's longest time in the queue; 0 means it must go to a waiting consumer at once.
        expires_ms: the time without use after which the queue is deleted.
        max_length: the most ready messages.
        max_length_bytes: the most octets of their bodies.
        overflow: the reaction to a publish when the queue is full.
        dead_letter_exchange: the exchange for expired, dropped and rejected messages; "" is the default exchange.
        dead_letter_routing_key: their new routing key; None keeps their own.
        dead_letter_strategy: whether dead letters that no queue takes are dropped, or kept (`keeps_dead_letters`).
        delivery_limit: returns of a message before it is dropped or dead-lettered.
        consumer_timeout_ms: a delivery's longest wait for its acknowledgement; None for the node's.
        max_age_ms: for a stream, the highest age of a segment.
        segment_bytes_max: for a stream, the largest size of a segment.
        remote_confirm: how many downstreams a confirm waits for, `any` or `all`; None for none.
        remote_confirm_timeout_ms: the longest wait for them.
        remote_confirm_on_timeout: what follows it: `local`, a confirm by this site alone, or `nack`.
    """

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: str = AT_MOST_ONCE
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    max_age_ms: int | None = None
    segment_bytes_max: int | None = None
    remote_confirm: str | None = None
    remote_confirm_timeout_ms: int = REMOTE_CONFIRM_TIMEOUT_MS
    remote_confirm_on_timeout: str = LOCAL

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether dead letters stay in the queue until every target has them."""
        return self.dead_letter_strategy == AT_LEAST_ONCE and not self.why_dead_letters_are_dropped

    @property
    def why_dead_letters_are_dropped(self) -> str:
        """What else at-least-once needs (RabbitMQ's rules), as words for a log; empty for nothing."""
        if self.dead_letter_exchange is None:
            return "no dead-letter-exchange is configured"
        if self.overflow != REJECT_PUBLISH:
            return f"it needs overflow {REJECT_PUBLISH}, and has {self.overflow}"
        return ""

    @property
    def may_reject(self) -> bool:
        """Whether publishes are rejected once the queue is full; not without a limit, whatever the overflow."""
        return self.overflow != DROP_HEAD and (
            self.max_length is not None or self.max_length_bytes is not None
        )

    def room(self, count: int, octets: int, body_bytes: int) -> int:
        """The number of further messages of a size within the limits, beside `count` of so many octets.

        It is negative if these exceed the limits.
        """
        room = UNBOUNDED if self.max_length is None else self.max_length - count
        if self.max_length_bytes is not None:
            left = self.max_length_bytes - octets
            room = min(room, left // body_bytes if body_bytes else UNBOUNDED if left >= 0 else 0)
        return room


_NONE: Final = QueueSettings()
_KEYS: Final = {
    "message_ttl_ms": "message-ttl",
    "expires_ms": "expires",
    "max_length": "max-length",
    "max_length_bytes": "max-length-bytes",
    "overflow": "overflow",
    "dead_letter_exchange": "dead-letter-exchange",
    "dead_letter_routing_key": "dead-letter-routing-key",
    "dead_letter_strategy": DEAD_LETTER_STRATEGY,
    "delivery_limit": "delivery-limit",
    "max_age_ms": "max-age",
    "segment_bytes_max": "stream-max-segment-size-bytes",
}
_POLICY_FIRST_IN_QUORUM: Final = ("overflow", "expires")
_CONSUMER_TIMEOUT: Final = "consumer-timeout"
_NEVER_MS: Final = 2**63


def queue_settings(arguments: Arguments, policies: Mapping[str, Any]) -> QueueSettings:
    """The effective settings of a queue from its declaration's arguments and its merged policies."""
    if not arguments and not policies:
        return _NONE
    kind = queue_type(arguments)
    values = {}
    for field, key in _KEYS.items():
        argument, policy = arguments.get(f"x-{key}"), policies.get(key)
        if argument is not None or policy is not None:
            values[field] = _effective(kind, key, argument, policy)
    if "max_age_ms" in values:
        values["max_age_ms"] = interval_ms(values["max_age_ms"])
    if kind == QUORUM and values.get("overflow") == REJECT_PUBLISH_DLX:
        # It is accepted, and such queues do not know it.
        values["overflow"] = DROP_HEAD
    if values.get("delivery_limit", 0) < 0:
        values["delivery_limit"] = None
    values |= _remote_confirm(policies)
    return QueueSettings(**values, consumer_timeout_ms=_consumer_timeout_ms(arguments, policies))


def _remote_confirm(policies: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of confirms at another site, which only policies have; `true` is `any`."""
    asked = policies.get(REMOTE_CONFIRM)
    if not asked:
        return {}
    found: dict[str, Any] = {"remote_confirm": ANY_DOWNSTREAM if asked is True else asked}
    for field, key in (
        ("remote_confirm_timeout_ms", REMOTE_CONFIRM_TIMEOUT),
        ("remote_confirm_on_timeout", REMOTE_CONFIRM_ON_TIMEOUT),
    ):
        if key in policies:
            found[field] = policies[key]
    return found


def _consumer_timeout_ms(arguments: Arguments, policies: Mapping[str, Any]) -> int | None:
    """The smaller of both values, for queues of all types; an accepted argument that is no number is no timeout."""
    given: list[Any] = [arguments.get(f"x-{_CONSUMER_TIMEOUT}"), policies.get(_CONSUMER_TIMEOUT)]
    if given == [None, None]:
        return None
    return min((each for each in given if field_type(each) in ("signedint", "long")), default=_NEVER_MS)


def _effective(kind: str, key: str, argument: Any, policy: Any) -> Any:
    if argument is None or policy is None:
        return policy if argument is None else argument
    if kind == STREAM or (kind == QUORUM and key in _POLICY_FIRST_IN_QUORUM):
        return policy
    return argument if isinstance(argument, str) else min(argument, policy)

"""Validation of queue arguments for each queue type; refusals are in RabbitMQ's words.

An argument that no type knows is ignored; an argument that only another type knows is refused. The order of the checks
is RabbitMQ's, so that of several mistakes the same one is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from leveret.core.rules.erlang_terms import quoted
from leveret.core.rules.validation import (
    CLASSIC,
    QUORUM,
    STREAM,
    check_exchange_argument,
    check_name,
    field_type,
    interval_of,
    queue_type,
)
from leveret.model.definitions import Arguments, Queue
from leveret.model.durations import DURATION_MS_MAX
from leveret.model.errors import PreconditionFailed
from leveret.model.locators import QUEUE_LEADER_LOCATORS, QUEUE_MASTER_LOCATORS

PRIORITY_MAX: Final = 255
SEGMENT_BYTES_MAX: Final = 3_000_000_000
FILTER_BYTES: Final = range(16, 256)
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
AT_LEAST_ONCE: Final = "at-least-once"
AT_MOST_ONCE: Final = "at-most-once"
DEAD_LETTER_STRATEGIES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE)
DEAD_LETTER_STRATEGY: Final = "dead-letter-strategy"
"""In a policy; `x-` goes before it in a declaration."""
QUEUE_MODES: Final = ("default", "lazy")
STREAM_COPIES: Final = "initial-cluster-size"
"""In a policy; `x-` goes before it in a declaration."""

ARGUMENTS: Final = {
    CLASSIC: (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-master-locator",
    ),
    QUORUM: (
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
        "x-queue-leader-locator",
    ),
    STREAM: (
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
"""What each type of queue knows, in the order in which RabbitMQ compares a redeclaration."""
CONSUMER_ARGUMENTS: Final = {
    CLASSIC: ("x-cancel-on-ha-failover", "x-priority"),
    QUORUM: ("x-priority",),
    STREAM: ("x-stream-offset",),
}
"""What a consumer may ask of each type of queue."""

_Check = Callable[[Any, Arguments], str | None]
"""(value, all arguments) -> what is wrong with it, as RabbitMQ prints it."""


def check_queue(queue: Queue, *, exclusive: bool) -> None:
    """Refuse a queue that cannot be made.

    Raises:
        InvalidCommand: its name is too long.
        PreconditionFailed: as `check_queue_arguments`.
    """
    check_name("queue", queue.name)
    check_queue_arguments(queue, exclusive=exclusive)


def wanted_copies(stream: Queue, applied: Mapping[str, Any]) -> int:
    """The number of copies that a stream asks for; 0 for none in particular.

    Args:
        stream: the declared stream.
        applied: the definition of the policies that apply to it; its own argument goes before that.
    """
    for key, values in ((f"x-{STREAM_COPIES}", stream.arguments), (STREAM_COPIES, applied)):
        if isinstance(asked := values.get(key), int) and asked > 0:
            return asked
    return 0


def missing_copies(stream: Queue, applied: Mapping[str, Any], nodes: int) -> tuple[int, str]:
    """The number of copies that a stream asks for and does not get, and the sentence that says so.

    `nodes` is the number of nodes on which it may be; see `wanted_copies` for the rest.
    """
    missing = wanted_copies(stream, applied) - nodes
    if missing <= 0:
        return 0, ""
    there = "there is 1 node" if nodes == 1 else f"there are {nodes} nodes"
    return missing, (
        f"stream '{stream.name}' in vhost '{stream.vhost}' is to have {nodes + missing} copies "
        f"({STREAM_COPIES}), and {there}: it has {nodes}"
    )


def check_queue_arguments(queue: Queue, *, exclusive: bool) -> None:
    """Refuse what RabbitMQ refuses of a queue that is not there yet.

    Raises:
        PreconditionFailed: names the argument or property, the queue and what is wrong.
    """
    arguments = queue.arguments
    if not arguments:
        return
    where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    check_exchange_argument(arguments, DEAD_LETTER_EXCHANGE, where)
    _check_values(arguments, ("x-queue-type",), where)
    kind = queue_type(arguments)
    _check_values(arguments, ARGUMENTS[kind], where)
    _check_known(arguments, ARGUMENTS, kind, where)
    if kind != CLASSIC:
        _check_properties(queue, exclusive, where)
    if kind == STREAM:
        _check_stream(arguments)


def check_consumer_arguments(queue: Queue, arguments: Arguments) -> None:
    """Refuse what RabbitMQ refuses of a consumer; a stream looks at its `x-stream-offset` itself.

    Raises:
        PreconditionFailed: names the argument, the queue and what is wrong.
    """
    kind = queue_type(queue.arguments)
    where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    _check_values(arguments, CONSUMER_ARGUMENTS[kind], where)
    _check_known(arguments, CONSUMER_ARGUMENTS, kind, where)


def _check_known(
    arguments: Arguments, of_types: Mapping[str, tuple[str, ...]], kind: str, where: str
) -> None:
    """Refuse the arguments that only other types know."""
    for name in arguments:
        if name not in of_types[kind] and any(name in names for names in of_types.values()):
            raise PreconditionFailed(f"invalid arg '{name}' for {where} of queue type rabbit_{kind}_queue")


def with_default_type(queue: Queue, default: str, *, exclusive: bool) -> Queue:
    """The declaration as its vhost's default type completes it.

    A queue that a replicated type cannot be (exclusive, transient, auto-delete) stays a classic one, and
    says so from then on. Where the default is classic nothing is added: that is what no type means.
    """
    if default == CLASSIC or "x-queue-type" in queue.arguments:
        return queue
    fits = queue.durable and not exclusive and not queue.auto_delete
    kind = default if fits else CLASSIC
    return msgspec.structs.replace(queue, arguments={**queue.arguments, "x-queue-type": kind})


def _check_values(arguments: Arguments, names: tuple[str, ...], where: str) -> None:
    for name, check in _CHECKS.items():
        if name in names and name in arguments:
            wrong = check(arguments[name], arguments)
            if wrong is not None:
                raise PreconditionFailed(f"invalid arg '{name}' for {where}: {wrong}")


def _check_properties(queue: Queue, exclusive: bool, where: str) -> None:
    """Queues that are meant to be replicated are durable, and nobody's own."""
    if queue.auto_delete:
        raise PreconditionFailed(f"invalid property 'auto-delete' for {where}")
    if exclusive:
        raise PreconditionFailed(f"invalid property 'exclusive-owner' for {where}")
    if not queue.durable:
        raise PreconditionFailed(f"invalid property 'non-durable' for {where}")


def _check_stream(arguments: Arguments) -> None:
    if arguments.get("x-stream-max-segment-size-bytes", 0) > SEGMENT_BYTES_MAX:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    filter_bytes = arguments.get("x-stream-filter-size-bytes", FILTER_BYTES.start)
    if field_type(filter_bytes) != "signedint" or filter_bytes not in FILTER_BYTES:
        raise PreconditionFailed("Invalid value for  x-stream-filter-size-bytes")


# -- one value ------------------------------------------------------------------------------------


def _integer(value: Any, _: Arguments) -> str | None:
    kind = field_type(value)
    return None if kind in ("signedint", "long") else f'"expected integer, got {kind}"'


def _not_negative(value: Any, arguments: Arguments) -> str | None:
    return _integer(value, arguments) or (f"{{value_negative,{value}}}" if value < 0 else None)


def _positive(value: Any, arguments: Arguments) -> str | None:
    return _not_negative(value, arguments) or (f"{{value_zero,{value}}}" if value == 0 else None)


def _duration(value: Any, arguments: Arguments) -> str | None:
    too_large = f"{{value_too_large,{value}}}"
    return _not_negative(value, arguments) or (too_large if value > DURATION_MS_MAX else None)


def _expiry(value: Any, arguments: Arguments) -> str | None:
    return _positive(value, arguments) or _duration(value, arguments)


def _priority(value: Any, arguments: Arguments) -> str | None:
    too_large = f"{{max_value_exceeded,{value}}}"
    return _not_negative(value, arguments) or (too_large if value > PRIORITY_MAX else None)


def _version(value: Any, arguments: Arguments) -> str | None:
    unknown = f"\"unsupported queue version '{value}'\""
    return _not_negative(value, arguments) or (None if value in (1, 2) else unknown)


def _string(value: Any, _: Arguments) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{field_type(value)}}}"


def _routing_key(value: Any, arguments: Arguments) -> str | None:
    return _string(value, arguments) or (
        None if DEAD_LETTER_EXCHANGE in arguments else "routing_key_but_no_dlx_defined"
    )


def _boolean(value: Any, _: Arguments) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{field_type(value)}}}"


def _one_of(allowed: tuple[str, ...], wrong: str) -> _Check:
    """A string among `allowed`; `wrong` may hold `{}` for the value."""

    def check(value: Any, arguments: Arguments) -> str | None:
        text = wrong if "{}" not in wrong else quoted(wrong.format(value))
        return _string(value, arguments) or (None if value in allowed else text)

    return check


def _max_age(value: Any, arguments: Arguments) -> str | None:
    return _string(value, arguments) or (None if interval_of(value) else "invalid_max_age")


_CHECKS: Final[dict[str, _Check]] = {
    "x-expires": _expiry,
    "x-message-ttl": _duration,
    "x-dead-letter-exchange": _string,
    "x-dead-letter-routing-key": _routing_key,
    "x-dead-letter-strategy": _one_of(DEAD_LETTER_STRATEGIES, "invalid_dlx_strategy"),
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priority,
    "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
    "x-queue-mode": _one_of(QUEUE_MODES, "unsupported queue mode '{}'"),
    "x-queue-version": _version,
    "x-single-active-consumer": _boolean,
    "x-queue-type": _one_of((CLASSIC, QUORUM, STREAM), "unsupported queue type '{}'"),
    "x-quorum-initial-group-size": _positive,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-initial-cluster-size": _positive,
    "x-queue-leader-locator": _one_of(QUEUE_LEADER_LOCATORS, "invalid_queue_locator_arg"),
    # RabbitMQ ends the connection with an internal error for a locator it does not know, and takes
    # whatever it is given for a delivery limit.
    "x-queue-master-locator": _one_of(QUEUE_MASTER_LOCATORS, "invalid_queue_locator_arg"),
    "x-delivery-limit": _integer,
    "x-priority": _integer,
    "x-cancel-on-ha-failover": _boolean,
}
"""By argument, in RabbitMQ's order."""

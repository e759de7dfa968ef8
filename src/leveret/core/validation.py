"""Declarations: which arguments mean something, and when two declarations are the same.

Arguments that RabbitMQ gives a meaning and Leveret does not serve yet are refused by name: a queue
that silently ignored `x-message-ttl` would be worse than none.
"""

from __future__ import annotations

from typing import Any, Final

from leveret.model.definitions import Arguments, Exchange, Queue
from leveret.model.errors import PreconditionFailed

_QUEUE_TYPES: Final = ("classic", "quorum")
_NOT_SERVED: Final = frozenset(
    {
        "x-expires",
        "x-message-ttl",
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-priority",
        "x-single-active-consumer",
        "x-delivery-limit",
        "x-max-age",
    }
)


def queue_type(arguments: Arguments) -> str:
    """`x-queue-type`, classic when absent."""
    return str(arguments.get("x-queue-type", "classic"))


def check_queue_arguments(queue: Queue) -> None:
    """Refuse arguments that are not valid or not served.

    Raises:
        PreconditionFailed: names the argument, the queue and what is allowed.
    """
    where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    kind = queue_type(queue.arguments)
    if kind not in _QUEUE_TYPES:
        raise PreconditionFailed(
            f"invalid arg 'x-queue-type' for {where}: \"unsupported queue type '{kind}'\""
        )
    for name in sorted(_NOT_SERVED & queue.arguments.keys()):
        raise PreconditionFailed(f"invalid arg '{name}' for {where}: not served by this version")


def check_exchange_arguments(exchange: Exchange) -> None:
    """Refuse an alternate exchange that is no name.

    Raises:
        PreconditionFailed: names the argument and the exchange.
    """
    alternate = exchange.arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        raise PreconditionFailed(
            f"invalid arg 'alternate-exchange' for exchange '{exchange.name}' in vhost '{exchange.vhost}': not a string"
        )


def equivalent(
    wanted: Exchange | Queue, held: Exchange | Queue, fields: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    """Check a redeclaration against what exists, field by field, then argument by argument.

    Raises:
        PreconditionFailed: in RabbitMQ's words, for the first difference.
    """
    kind = "queue" if isinstance(wanted, Queue) else "exchange"
    where = f"for {kind} '{wanted.name}' in vhost '{wanted.vhost}'"
    for field in fields:
        asked, is_now = getattr(wanted, field), getattr(held, field)
        if asked != is_now:
            raise PreconditionFailed(
                f"inequivalent arg '{field}' {where}: received '{_text(asked)}' but current is '{_text(is_now)}'"
            )
    for name in arguments:
        asked, is_now = wanted.arguments.get(name), held.arguments.get(name)
        if asked != is_now and not (name == "x-queue-type" and {asked, is_now} == {None, "classic"}):
            raise PreconditionFailed(
                f"inequivalent arg '{name}' {where}: received {_value(asked)} but current is {_value(is_now)}"
            )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(value: Any) -> str:
    """An argument as RabbitMQ prints it in a refusal."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the value '{_text(value)}' of type 'bool'"
    if isinstance(value, int):
        return f"the value '{value}' of type 'signedint'"
    return f"the value '{value}' of type 'longstr'"

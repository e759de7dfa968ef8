"""Validation of declarations: equivalence of two declarations, and valid exchanges and bindings.

`queue_arguments` validates the arguments of queues. Definitions hold arguments as JSON's types, so a refusal names the
AMQP type that a client would have used for the value.
"""

from __future__ import annotations

from typing import Any, Final

from leveret.core.rules.erlang_terms import term
from leveret.model.definitions import (
    AnyEntity,
    Arguments,
    Binding,
    Exchange,
    GlobalParameter,
    Parameter,
    Policy,
    Queue,
    User,
)
from leveret.model.errors import InvalidCommand, PreconditionFailed
from leveret.model.stream import interval_ms

NAME_BYTES_MAX: Final = 255
"""What fits AMQP's short string."""
RESERVED_PREFIX: Final = "amq."
"""Clients declare no queue, exchange or stream whose name begins so."""
NESTING_MAX: Final = 32
"""How deep tables and lists may lie in each other: far below what the log, a link and a document can take."""
ALTERNATE_EXCHANGE: Final = "alternate-exchange"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
_MATCH_MODES: Final = ("all", "any", "all-with-x", "any-with-x")
_INT_MAX: Final = 2**31
_INTERVAL_LENGTH_MAX: Final = 20


def declared_name(given: str) -> str:
    """The name that a declare means: without line ends, which RabbitMQ removes."""
    return given.replace("\r", "").replace("\n", "")


def queue_type(arguments: Arguments) -> str:
    """`x-queue-type`, classic when absent."""
    return str(arguments.get("x-queue-type", CLASSIC))


def field_type(value: object) -> str:
    """The AMQP type of an argument's value, by RabbitMQ's name for it."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case int():
            return "signedint" if -_INT_MAX <= value < _INT_MAX else "long"
        case float():
            return "double"
        case list() | tuple():
            return "array"
        case dict():
            return "table"
        case _:
            return "longstr"


def interval_of(value: object) -> int | None:
    """The interval of a client, such as `7D`, in ms; None for anything else, also for a number of absurd length.

    Python converts no text of more than 4,300 digits to a number.
    """
    return interval_ms(value) if isinstance(value, str) and len(value) <= _INTERVAL_LENGTH_MAX else None


def check_name(kind: str, name: str) -> None:
    """Refuse what AMQP cannot name.

    Raises:
        InvalidCommand: it is longer than a short string.
    """
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise InvalidCommand(f"{kind} name is longer than {NAME_BYTES_MAX} octets: '{name[:40]}...'")


def check_nesting(entity: AnyEntity) -> None:
    """Refuse what is nested so deep that it could be put, and then be neither told nor read from the log again.

    Raises:
        InvalidCommand: it is.
    """
    match entity:
        case Exchange() | Queue() | Binding():
            free: Any = entity.arguments
        case Policy():
            free = entity.definition
        case Parameter() | GlobalParameter():
            free = entity.value
        case User():
            free = entity.limits
        case _:
            return
    if _is_deeper(free, NESTING_MAX):
        raise InvalidCommand(
            f"{entity.kind} '{' '.join(entity.key)[:80]}' is nested more than {NESTING_MAX} levels deep"
        )


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return False
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in value)


def check_exchange_arguments(exchange: Exchange) -> None:
    """Refuse an alternate exchange that is no name.

    Raises:
        PreconditionFailed: names the argument and the exchange, in RabbitMQ's words.
    """
    check_exchange_argument(
        exchange.arguments,
        ALTERNATE_EXCHANGE,
        f"exchange '{exchange.name}' in vhost '{exchange.vhost}'",
    )


def check_exchange_argument(arguments: Arguments, name: str, where: str) -> None:
    """Refuse an argument that names an exchange and is no name.

    Raises:
        PreconditionFailed: names the argument and `where` it stands, in RabbitMQ's words.
    """
    if name in arguments and not isinstance(arguments[name], str):
        kind = field_type(arguments[name])
        raise PreconditionFailed(f"invalid type '{kind}' for arg '{name}' in {where}")


def check_binding(binding: Binding, exchange_type: str) -> None:
    """Refuse a binding that its source could not match by.

    Raises:
        PreconditionFailed: a headers exchange does not know the value of `x-match`.
    """
    if exchange_type != "headers" or "x-match" not in binding.arguments:
        return
    mode = binding.arguments["x-match"]
    if not isinstance(mode, str):
        shown = "undefined" if mode is None else term(mode)
        raise PreconditionFailed(
            f"Invalid x-match field type {field_type(mode)} (value {shown}); expected longstr"
        )
    if mode not in _MATCH_MODES:
        raise PreconditionFailed(
            f"Invalid x-match field value {term(mode)}; expected all, any, all-with-x, or any-with-x"
        )


def equivalent(
    wanted: Exchange | Queue, existing: Exchange | Queue, fields: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    """Check a redeclaration against what exists, field by field, then argument by argument.

    Numbers are equal whatever their AMQP type; a queue without `x-queue-type` is a classic one.

    Raises:
        PreconditionFailed: in RabbitMQ's words, for the first difference.
    """
    for field in fields:
        asked, is_now = getattr(wanted, field), getattr(existing, field)
        if asked != is_now:
            raise _inequivalent(wanted, field, _plain(asked), _plain(is_now))
    for name in arguments:
        asked, is_now = wanted.arguments.get(name, _NONE), existing.arguments.get(name, _NONE)
        is_classic = all(each is _NONE or each == CLASSIC for each in (asked, is_now))
        if same_value(asked, is_now) or (name == "x-queue-type" and is_classic):
            continue
        shown = _typed if asked is _NONE or is_now is _NONE else _plain
        raise _inequivalent(wanted, name, shown(asked), shown(is_now))


_NONE: Final = object()


def same_value(one: Any, other: Any) -> bool:
    """Whether two arguments or headers are the same: other than in Python, true is not 1 and 1.0 is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return type(one) is type(other) and bool(one == other)


def _inequivalent(wanted: Exchange | Queue, name: str, asked: str, is_now: str) -> PreconditionFailed:
    kind = "queue" if isinstance(wanted, Queue) else "exchange"
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {kind} '{wanted.name}' in vhost '{wanted.vhost}': "
        f"received {asked} but current is {is_now}"
    )


def _plain(value: Any) -> str:
    """A value as RabbitMQ prints it beside another one; it takes a void one for none."""
    if value is None:
        return "none"
    return f"'{value if isinstance(value, str) else term(value)}'"


def _typed(value: Any) -> str:
    """A value as RabbitMQ prints it where the other side has none."""
    if value is _NONE:
        return "none"
    shown = "'undefined'" if value is None else _plain(value)
    return f"the value {shown} of type '{field_type(value)}'"

"""The destination of a message: permission, exchange, properties, copies, in RabbitMQ's order and words."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from leveret.core.broker.broker import Broker
from leveret.core.broker.direct_reply import DirectReply
from leveret.core.broker.routing import MessageHeaders
from leveret.core.queues.counters import Counters
from leveret.core.queues.head import expiration_ms_of
from leveret.core.queues.queue import Queue
from leveret.model.definitions import User
from leveret.model.durations import DURATION_MS_MAX
from leveret.model.errors import PreconditionFailed
from leveret.session.amqp091.channel_base import ChannelBase
from leveret.session.amqp091.connection_base import ConnectionBase
from leveret.session.amqp091.direct_reply import with_reply_name
from leveret.session.amqp091.replies import Fault
from leveret.wire import properties as props
from leveret.wire import tables
from leveret.wire.content_header import DELIVERY_MODES

_BINDINGS_OF_A_FRAME: Final = 8
"""To compare a message with so many bindings takes as long as a frame."""
_KEYS_OF_A_FRAME: Final = 4
"""So does it to look up so many routing keys."""
HEADER_BYTES_OF_A_FRAME: Final = 128
"""So does it to decode so many octets of headers, of which each may be a value."""
_FIELD_TYPES: Final = tables.INTEGER_NAMES | {
    b"L": "long",
    b"S": "longstr",
    b"F": "table",
    b"V": "void",
    b"t": "bool",
    b"f": "float",
    b"d": "double",
    b"D": "decimal",
    b"T": "timestamp",
    b"x": "binary",
}
"""RabbitMQ's names of the types of a header, but of arrays."""
IMPERSONATOR: Final = "impersonator"
"""The tag of users that may publish with another user's user-id."""


class Resolved(NamedTuple):
    """The targets of a message, and its content header there; `exchange` counts the publishes to the exchange.

    `replies` are clients that take replies without a queue; `by_headers` are the names of headers that exchanges asked
    for: the targets depend on these, if there are any.
    """

    queues: list[Queue]
    header: bytes
    exchange: Counters
    replies: tuple[DirectReply, ...]
    by_headers: Sequence[Container[bytes]]


def resolve(channel: ChannelBase, exchange: bytes, routing_key: bytes, header: bytes) -> Resolved:
    """Route a message, after the checks of permission, existence and properties.

    Raises:
        Refusal: no such exchange, no permission, an internal exchange, another user's user-id, an invalid property.
    """
    connection = channel.connection
    name = _text(exchange)
    vhost = connection.vhost or ""
    connection.actor.require("write", "exchange", name)
    definition = connection.broker.exchange(vhost, name)
    if definition.internal:
        raise Fault(403, f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
    if name and definition.type == "topic":
        connection.actor.require_topic("write", name, _text(routing_key))
    flags, properties = props.property_flags(header), props.split_whole(header)
    # Malformed headers would be taken for a broken connection by clients of consumers.
    tables.check(properties.get(props.HEADERS, b""))
    if flags & props.REPLY_TO:
        header = with_reply_name(channel.reply_consumer, header)
    _check_properties(properties, connection)
    keys = [routing_key]
    if flags & props.HEADERS and b"CC" in header:
        header, keys = _carbon_copies(header, keys)
    mode = properties.get(props.DELIVERY_MODE)
    if mode is not None and mode[0] not in DELIVERY_MODES:
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{mode[0]}}}")
    return find_targets(channel, name, keys, header)


def find_targets(channel: ChannelBase, exchange: str, keys: list[bytes], header: bytes) -> Resolved:
    """Route a message that passed all checks, by its routing keys and its headers."""
    connection = channel.connection
    vhost, broker, headers = connection.vhost or "", connection.broker, MessageHeaders(header)
    topology = broker.topologies[vhost]
    before = topology.looked_at
    key, *copies = map(_text, keys)
    queues = broker.route(vhost, exchange, key, headers.read, copies)
    connection.take_turn(
        (topology.looked_at - before) // _BINDINGS_OF_A_FRAME
        + len(keys) // _KEYS_OF_A_FRAME
        + (len(header) // HEADER_BYTES_OF_A_FRAME if headers.asked else 0)
    )
    replies: tuple[DirectReply, ...] = ()
    if not exchange:
        found = [broker.direct_replies.get(each) for each in dict.fromkeys((key, *copies))]
        replies = tuple(each for each in found if each is not None)
        if not (queues or replies) and channel.leaders is not None:
            elsewhere = channel.leaders.direct_reply(vhost, key)
            replies = () if elsewhere is None else (elsewhere,)
    return Resolved(queues, header, topology.exchanges[exchange].counters, replies, headers.asked)


def _check_properties(properties: dict[int, bytes], connection: ConnectionBase) -> None:
    """Refuse another user's name and an invalid time to live."""
    claimed, user = properties.get(props.USER_ID), connection.user or ""
    if claimed is not None and claimed != user.encode() and not _may_impersonate(connection.broker, user):
        raise PreconditionFailed(
            f"user_id property set to '{_text(claimed)}' but authenticated user was '{user}'"
        )
    expiration = properties.get(props.EXPIRATION)
    if expiration is not None and not is_expiration(expiration):
        text = _text(expiration)
        raise PreconditionFailed(f"invalid expiration '{text}': {_why_no_expiration(text)}")


def is_expiration(text: bytes) -> bool:
    """Whether a time to live is valid, as a publisher writes it."""
    duration_ms = expiration_ms_of(text)
    return duration_ms is not None and duration_ms <= DURATION_MS_MAX


def _may_impersonate(broker: Broker, user: str) -> bool:
    existing = broker.definitions.by_kind["users"].get((user,))
    return isinstance(existing, User) and IMPERSONATOR in existing.tags


def _why_no_expiration(text: str) -> str:
    """The fault of an expiration, in RabbitMQ's words."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    if not number:
        return "no_integer"
    if len(number) < len(digits):
        return f'{{leftover_string,"{digits[len(number) :]}"}}'
    if text.startswith("-"):
        return f"{{value_negative,{int(text)}}}"
    return f"{{value_too_large,{int(text)}}}"


def _carbon_copies(header: bytes, keys: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The header without BCC, and all routing keys: the message's own, CC's and BCC's."""
    properties = props.split(header)
    headers = tables.split(properties[props.HEADERS])
    keys = keys[:]
    for name in (b"CC", b"BCC"):
        value = headers.get(name)
        if value is None:
            continue
        if value[:1] != b"A":
            kind = _FIELD_TYPES.get(value[:1], "array")
            raise PreconditionFailed(
                f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}'
            )
        keys += tables.texts_of(tables.split_array(value))
    if headers.pop(b"BCC", None) is not None:
        properties[props.HEADERS] = tables.join(headers)
        header = props.join(properties, props.body_bytes_of(header))
    return header, keys


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise props.SyntaxFault(f"a name is not UTF-8: {error}") from None

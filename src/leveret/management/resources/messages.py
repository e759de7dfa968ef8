"""Publish to an exchange, get from a queue; and the test of both, `/api/aliveness-test`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from leveret.core.queues.queue import Queue
from leveret.management.request.call import (
    NAME_BYTES_MAX,
    Call,
    json_errors,
    resource,
    with_definitions_lock,
)
from leveret.management.request.large_answers import answer_to, need_room
from leveret.management.request.leadership import need_serving
from leveret.management.request.other_nodes import JSON_BYTES_MAX, pass_on
from leveret.management.request.places import at_leader, leader_elsewhere, need_led_here
from leveret.management.request.replies import BadRequest, json_reply, octets_reply
from leveret.management.views.message_view import Properties, header_of, message_json
from leveret.model.definitions import Queue as QueueDefinition
from leveret.model.errors import AccessRefused, InvalidCommand, LeveretError, NotFound
from leveret.model.foreign_json import decode_json, decoded
from leveret.runtime.process.work_slices import in_slices, others_first
from leveret.session.amqp091.replies import code_of, reply_text
from leveret.session.ingest import ApiClient

COUNT_MAX: Final = 50_000
BYTES_MAX: Final = 64 * 1024 * 1024
"""The approximate limit of one answer's messages, in octets; further ones stay in the queue."""
_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,18}")
_ALIVE: Final = "aliveness-test"
_DECIDE_TIMEOUT_S: Final = 30.0
_ABSENT: Final = msgspec.Raw()


class PublishBody(msgspec.Struct):
    """The body that publishes."""

    routing_key: str
    properties: Properties
    payload: str
    payload_encoding: Literal["string", "base64"]


class _PublishFields(msgspec.Struct):
    """The same, while its fields are octets. Only a text may be large: it is decoded in one short step."""

    routing_key: msgspec.Raw = _ABSENT
    properties: msgspec.Raw = _ABSENT
    payload: msgspec.Raw = _ABSENT
    payload_encoding: msgspec.Raw = _ABSENT


class GetBody(msgspec.Struct):
    """The body that gets; `truncate` is the largest number of octets that are shown of a payload.

    Both numbers are as in `_integer`.
    """

    count: Any
    ackmode: Literal[
        "ack_requeue_true",
        "ack_requeue_false",
        "reject_requeue_true",
        "reject_requeue_false",
    ]
    encoding: Literal["auto", "base64"]
    truncate: Any = msgspec.UNSET


async def publish(call: Call) -> Response:
    """Publish one message, and answer once it is as safe as a confirmed one."""
    vhost, exchange = call.vhost(), call.exchange_name()
    wanted = _wanted(await call.octets() or b"{}")
    body = _payload(wanted)
    if len(wanted.routing_key.encode()) > NAME_BYTES_MAX:
        raise InvalidCommand(f"routing_key should be at most {NAME_BYTES_MAX} bytes")
    _need_in_service(call)
    api_client = _api_client(call, vhost)
    decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    api_client.when_decided = decided.set_result
    try:
        routed = api_client.publish(
            exchange, wanted.routing_key, header_of(wanted.properties, len(body)), body
        )
    except LeveretError as error:
        raise InvalidCommand(_amqp_text(error)) from None
    await call.node.messages_durable()
    if routed and api_client.outcome is None:
        # A queue that another node leads, or mirrors: that node decides when it is safe. Or one that is not logged yet.
        await asyncio.wait([decided], timeout=_DECIDE_TIMEOUT_S)
        if api_client.outcome is None:
            reason = (
                f"not all leaders and mirrors took the message, or this node's disk not its queue's definition, within "
                f"{_DECIDE_TIMEOUT_S:g} s; they may do so later"
            )
            raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE)
    if routed and api_client.outcome is not True:
        raise InvalidCommand("the message was not taken: a queue is full, or its log refused it")
    return json_reply({"routed": routed})


async def get(call: Call) -> Response:
    """Get messages, in their order, and acknowledge, return or reject them."""
    vhost, name = call.vhost(), call.path("name")
    wish = await call.body(GetBody)
    count, truncate = _integer("count", wish.count), None
    if wish.truncate is not msgspec.UNSET:
        truncate = _integer("truncate", wish.truncate)
        if truncate < 0:
            raise InvalidCommand("truncate should not be negative")
    api_client = _api_client(call, vhost)
    count = COUNT_MAX if count < 0 else min(count, COUNT_MAX)
    no_ack = wish.ackmode == "ack_requeue_false"
    shown: list[bytes] = []
    size, answer = 0, answer_to(call.request)
    try:
        async for _ in in_slices(range(count)):
            existing = await _at_rest(call, (vhost, name))
            if existing is not None and existing.is_remote and shown:
                # Another node leads it since the last step; the answer has the messages before that.
                break
            if existing is not None:
                need_led_here(call, existing)
            if not answer.has_room and shown:
                break
            # Before a message is taken, because some modes settle it.
            need_room(call.request)
            found = api_client.get(name, 1, no_ack=no_ack)
            if not found:
                break
            message = message_json(found[0], wish.encoding, truncate)
            shown.append(msgspec.json.encode(message))
            answer.add(len(shown[-1]))
            size += len(message["payload"])
            if size >= BYTES_MAX:
                break
    except (NotFound, AccessRefused, BadRequest):
        raise
    except LeveretError as error:
        raise InvalidCommand(_amqp_text(error)) from None
    finally:
        if wish.ackmode == "reject_requeue_false":
            api_client.reject()
        else:
            api_client.requeue()
        await call.node.messages_durable()
    return octets_reply(b"[%b]" % b",".join(shown))


def _integer(name: str, value: Any) -> int:
    """A number, as RabbitMQ reads it here: also the digits in a string, and a float without its fraction.

    Raises:
        InvalidCommand: it is none.
    """
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    raise InvalidCommand(f"not_integer: {name}")


async def _at_rest(call: Call, key: tuple[str, str]) -> Queue | None:
    """The queue, once all that came back to it is there, sorted and measured."""
    while (queue := call.broker.queues.get(key)) is not None and not queue.is_remote and queue.damage is None:
        if queue.pending_returns:
            await call.returned(queue)
        elif queue.prepare():
            break
        else:
            await others_first()
    return queue


async def check_alive(call: Call) -> Response:
    """Declare a queue, publish to it and get from it, as the caller; so only a leader answers."""
    need_serving(call.node)
    vhost = call.vhost()
    actor = call.caller.in_vhost(vhost)
    actor.require("configure", "queue", _ALIVE)
    async with with_definitions_lock(call.cluster):
        actor.declare_queue(QueueDefinition(name=_ALIVE, vhost=vhost, durable=False))
        await call.node.commit()
    leader = leader_elsewhere(call, (vhost, _ALIVE))
    if leader is not None:
        # It was declared just now, at the node that the leader locator chose.
        return await pass_on(call, leader)
    api_client = _api_client(call, vhost)
    api_client.publish("", _ALIVE, header_of(Properties(), len(_ALIVE)), _ALIVE.encode())
    await call.node.messages_durable()
    found = api_client.get(_ALIVE, 1, no_ack=True)
    await call.node.messages_durable()
    if not found:
        raise BadRequest("failed", "the message did not come back", HTTPStatus.SERVICE_UNAVAILABLE)
    return json_reply({"status": "ok"})


async def _at_leader(call: Call) -> str | None:
    """As `at_leader`; the answer of another node is held here as well."""
    leader = await at_leader(call)
    if leader is not None:
        need_room(call.request)
    return leader


async def _at_aliveness(call: Call) -> str | None:
    return leader_elsewhere(call, (call.path("vhost"), _ALIVE))


def _need_in_service(call: Call) -> None:
    """Refuse messages at a drained node, which may be about to hand over its queues.

    Raises:
        BadRequest: it is drained.
    """
    if call.node.maintenance.is_draining:
        reason = (
            "this node is drained, in maintenance mode or rejoining as a downstream, and takes no messages; "
            "publish at another node, or after it is revived"
        )
        raise BadRequest("unavailable", reason, HTTPStatus.SERVICE_UNAVAILABLE)


def _api_client(call: Call, vhost: str) -> ApiClient:
    return call.node.api_client(None if call.caller.is_operator else call.caller.name, vhost)


def _wanted(octets: bytes) -> PublishBody:
    """The body that publishes.

    Raises:
        InvalidCommand: it is no JSON, or a field, which the text names, is missing, malformed or too large.
    """
    given: dict[str, Any] = {}
    with json_errors():
        fields = decoded(msgspec.json.decode, octets, _PublishFields)
        for name in fields.__struct_fields__:
            text = bytes(getattr(fields, name))
            if len(text) > JSON_BYTES_MAX and not text.startswith(b'"'):
                raise InvalidCommand(
                    f"{name} should be at most {JSON_BYTES_MAX} bytes, actually was {len(text)}"
                )
            if text:
                given[name] = decode_json(text, Any)
        return msgspec.convert(given, PublishBody, strict=False)


def _payload(message: PublishBody) -> bytes:
    if message.payload_encoding == "string":
        return message.payload.encode()
    try:
        return base64.b64decode(message.payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidCommand("not_base64: payload") from None


def _amqp_text(error: LeveretError) -> str:
    """The text with which a channel would be closed: `404 NOT_FOUND - no exchange ...`."""
    code = code_of(error)
    return f"{code} {reply_text(code, str(error))}"


ROUTES = [
    resource("/api/exchanges/{vhost}/{name}/publish", defines=False, takes_documents=True, POST=publish),
    resource("/api/queues/{vhost}/{name}/get", defines=False, place=_at_leader, POST=get),
    resource("/api/aliveness-test/{vhost}", place=_at_aliveness, GET=check_alive),
]

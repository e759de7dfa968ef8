"""What queues and exchanges may be declared with, and when two declarations are one.

Texts are those of RabbitMQ; where 3.10.8 ends the whole connection with an internal error, Leveret
refuses with a reason, and that stands in tests/unit/core.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from pamqp import commands

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import FRAME_METHOD, Peer, raw_frame
from tests.conformance.verbs import channel_refuses, drain

INTEGER = '"expected integer, got {}"'
UNACCEPTABLE = "{{unacceptable_type,{}}}"
TIMESTAMP = datetime(2020, 1, 1, tzinfo=UTC)


def of(kind: str, **arguments: Any) -> dict[str, Any]:
    """Arguments of a queue of this type, by their names without the `x-`."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return named | ({} if kind == "classic" else {"x-queue-type": kind})


@pytest.mark.parametrize(
    "arguments",
    [
        of("classic", expires=315_360_000_000, message_ttl=0, max_length=0, max_length_bytes=2**62),
        of("classic", dead_letter_exchange="nowhere yet", dead_letter_routing_key=""),
        of("classic", overflow="reject-publish-dlx", queue_mode="lazy", queue_version=2),
        of("classic", single_active_consumer=True, queue_master_locator="min-masters"),
        of("classic", max_priority=255),
        of("classic", something=1, consumer_timeout=5, cancel_on_ha_failover=True),
        of("quorum", delivery_limit=5, dead_letter_exchange="x", dead_letter_strategy="at-least-once"),
        of("quorum", max_in_memory_length=5, quorum_initial_group_size=1, queue_leader_locator="balanced"),
        of("stream", max_age="7D", max_length_bytes=10**6, stream_max_segment_size_bytes=10**6),
        of("stream", initial_cluster_size=1, queue_leader_locator="client-local"),
    ],
)
def test_arguments_that_make_sense_pass(channel: Any, name: str, arguments: dict[str, Any]) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_delete(name)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (of("classic", expires=0), "{value_zero,0}"),
        (of("classic", expires=-1), "{value_negative,-1}"),
        (of("classic", expires=2**40), "{value_too_large,1099511627776}"),
        (of("classic", expires=True), INTEGER.format("bool")),
        (of("classic", message_ttl=-1), "{value_negative,-1}"),
        (of("classic", message_ttl="5"), INTEGER.format("longstr")),
        (of("classic", message_ttl=None), INTEGER.format("void")),
        (of("classic", max_length=[1]), INTEGER.format("array")),
        (of("classic", max_length_bytes={"a": 1}), INTEGER.format("table")),
        (of("classic", max_priority=256), "{max_value_exceeded,256}"),
        (of("classic", max_priority=-1), "{value_negative,-1}"),
        (of("classic", dead_letter_routing_key="k"), "routing_key_but_no_dlx_defined"),
        (of("classic", overflow="x"), "invalid_overflow"),
        (of("classic", overflow=1), UNACCEPTABLE.format("signedint")),
        (of("classic", overflow=2**31), UNACCEPTABLE.format("long")),
        (of("classic", queue_mode="x"), "\"unsupported queue mode 'x'\""),
        (of("classic", queue_version=3), "\"unsupported queue version '3'\""),
        (of("classic", single_active_consumer="true"), UNACCEPTABLE.format("longstr")),
        ({"x-queue-type": "bogus"}, "\"unsupported queue type 'bogus'\""),
        ({"x-queue-type": 5}, UNACCEPTABLE.format("signedint")),
        (of("quorum", dead_letter_strategy="x"), "invalid_dlx_strategy"),
        (of("quorum", quorum_initial_group_size=0), "{value_zero,0}"),
        (of("quorum", max_in_memory_bytes=-5), "{value_negative,-5}"),
        (of("quorum", queue_leader_locator="x"), "invalid_queue_locator_arg"),
        (of("stream", max_age="7x"), "invalid_max_age"),
        (of("stream", max_age="0D"), "invalid_max_age"),
        (of("stream", max_age=7), UNACCEPTABLE.format("signedint")),
        (of("stream", stream_max_segment_size_bytes=-1), "{value_negative,-1}"),
        (of("stream", initial_cluster_size=0), "{value_zero,0}"),
    ],
)
def test_a_value_that_will_not_do_is_refused(
    channel: Any, name: str, arguments: dict[str, Any], wrong: str
) -> None:
    argument = next(iter(arguments))
    text = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '/': {wrong}"
    with channel_refuses(406, text):
        channel.queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        ("classic", "x-delivery-limit", 5),
        ("classic", "x-max-age", "7D"),
        ("classic", "x-dead-letter-strategy", "at-most-once"),
        ("classic", "x-queue-leader-locator", "balanced"),
        ("quorum", "x-max-priority", 5),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-queue-version", 2),
        ("quorum", "x-max-age", "7D"),
        ("stream", "x-max-length", 5),
        ("stream", "x-message-ttl", 5),
        ("stream", "x-expires", 5),
        ("stream", "x-dead-letter-exchange", "e"),
        ("stream", "x-single-active-consumer", True),
        ("stream", "x-delivery-limit", 5),
    ],
)
def test_an_argument_of_another_type_is_refused(
    channel: Any, name: str, kind: str, argument: str, value: object
) -> None:
    where = f"invalid arg '{argument}' for queue '{name}' in vhost '/' of queue type rabbit_{kind}_queue"
    with channel_refuses(406, f"PRECONDITION_FAILED - {where}"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, argument: value})


@pytest.mark.parametrize("value", [5, True, None])
def test_a_dead_letter_exchange_that_is_no_name_is_refused(channel: Any, name: str, value: object) -> None:
    kind = {5: "signedint", True: "bool", None: "void"}[value]  # type: ignore[index]
    text = f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'"
    with channel_refuses(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(name, arguments={"x-dead-letter-exchange": value})


def test_a_segment_of_a_stream_has_a_largest_size(channel: Any, name: str) -> None:
    arguments = of("stream", stream_max_segment_size_bytes=3_000_000_001)
    text = "PRECONDITION_FAILED - Exceeded max value for x-stream-max-segment-size-bytes"
    with channel_refuses(406, text):
        channel.queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
        ({"durable": False, "exclusive": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_replicated_queue_is_durable_and_shared_and_stays(
    channel: Any, name: str, kind: str, properties: dict[str, bool], wrong: str
) -> None:
    text = f"PRECONDITION_FAILED - invalid property '{wrong}' for queue '{name}' in vhost '/'"
    with channel_refuses(406, text):
        channel.queue_declare(name, **({"durable": True} | properties), arguments=of(kind))


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_server_names_only_classic_queues(channel: Any, kind: str) -> None:
    text = f"PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_{kind}_queue"
    with channel_refuses(406, text):
        channel.queue_declare("", durable=True, arguments=of(kind))


ONE, OTHER = of("classic", max_length=5), of("classic", max_length=6)
LONG = of("classic", max_length=2**40)


@pytest.mark.parametrize(
    ("first", "second", "argument", "mismatch"),
    [
        (ONE, OTHER, "x-max-length", "received '6' but current is '5'"),
        (ONE, LONG, "x-max-length", "received '1099511627776' but current is '5'"),
        (ONE, {}, "x-max-length", "received none but current is the value '5' of type 'signedint'"),
        ({}, ONE, "x-max-length", "received the value '5' of type 'signedint' but current is none"),
        ({}, LONG, "x-max-length", "received the value '1099511627776' of type 'long' but current is none"),
        (ONE, of("classic", max_length="5"), "x-max-length", "received '5' but current is '5'"),
        (ONE, of("classic", max_length=None), "x-max-length", "received none but current is '5'"),
        (of("classic", max_length=1), of("classic", max_length=True), "x-max-length",
         "received 'true' but current is '1'"),
        (of("classic", queue_mode="lazy"), of("classic", queue_mode="default"), "x-queue-mode",
         "received 'default' but current is 'lazy'"),
        ({}, of("classic", queue_mode="default"), "x-queue-mode",
         "received the value 'default' of type 'longstr' but current is none"),
        (of("classic", single_active_consumer=True), {}, "x-single-active-consumer",
         "received none but current is the value 'true' of type 'bool'"),
        (of("classic", max_length=5, expires=10**6), of("classic", max_length=6, expires=2 * 10**6), "x-expires",
         "received '2000000' but current is '1000000'"),
        (of("classic", dead_letter_exchange="a"), of("classic", dead_letter_exchange=5),
         "x-dead-letter-exchange", "received '5' but current is 'a'"),
        ({}, of("quorum"), "x-queue-type",
         "received the value 'quorum' of type 'longstr' but current is none"),
        (of("quorum"), {}, "x-queue-type",
         "received none but current is the value 'quorum' of type 'longstr'"),
        (of("quorum"), {"x-queue-type": "classic"}, "x-queue-type",
         "received 'classic' but current is 'quorum'"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(
    channel: Any, name: str, first: dict[str, Any], second: dict[str, Any], argument: str, mismatch: str
) -> None:
    channel.queue_declare(name, durable=True, arguments=first)
    text = f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{name}' in vhost '/': {mismatch}"
    with channel_refuses(406, text):
        channel.queue_declare(name, durable=True, arguments=second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"x-queue-type": "classic"}),
        ({"x-queue-type": "classic"}, {}),
        ({"x-other": 1}, {"x-other": 2}),
        ({}, {"x-consumer-timeout": 5}),
        ({}, {"x-max-age": "7D"}),
    ],
)
def test_arguments_that_its_type_does_not_have_are_not_compared(
    channel: Any, name: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    channel.queue_declare(name, durable=True, arguments=first)
    channel.queue_declare(name, durable=True, arguments=second)


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({"exchange_type": "topic"}, "'type' {}: received 'topic' but current is 'direct'"),
        ({"durable": True}, "'durable' {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' {}: received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' {}: received 'true' but current is 'false'"),
        ({"arguments": {"alternate-exchange": "b"}},
         "'alternate-exchange' {}: received 'b' but current is 'a'"),
        ({"arguments": {}},
         "'alternate-exchange' {}: received none but current is the value 'a' of type 'longstr'"),
    ],
)  # fmt: skip
def test_an_exchange_stays_what_it_was_declared(
    channel: Any, name: str, change: dict[str, Any], mismatch: str
) -> None:
    first = {"exchange_type": "direct", "arguments": {"alternate-exchange": "a"}}
    channel.exchange_declare(name, **first)
    channel.exchange_declare(name, **(first | {"arguments": {"alternate-exchange": "a", "x-other": 1}}))
    where = f"for exchange '{name}' in vhost '/'"
    with channel_refuses(406, f"PRECONDITION_FAILED - inequivalent arg {mismatch.format(where)}"):
        channel.exchange_declare(name, **(first | change))


def test_an_alternate_exchange_that_is_no_name_is_refused(channel: Any, name: str) -> None:
    text = f"invalid type 'signedint' for arg 'alternate-exchange' in exchange '{name}' in vhost '/'"
    with channel_refuses(406, f"PRECONDITION_FAILED - {text}"):
        channel.exchange_declare(name, "direct", arguments={"alternate-exchange": 5})


def test_nobody_asks_for_the_default_exchange(channel: Any) -> None:
    with channel_refuses(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        channel.exchange_declare("", passive=True)


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        ("most", 'value <<"most">>; expected all, any, all-with-x, or any-with-x'),
        (5, "type signedint (value 5); expected longstr"),
        (True, "type bool (value true); expected longstr"),
        (None, "type void (value undefined); expected longstr"),
    ],
)
def test_a_headers_binding_says_how_to_match(channel: Any, queue: str, mode: object, wrong: str) -> None:
    channel.queue_bind(queue, "amq.direct", "k", arguments={"x-match": mode})
    channel.queue_unbind(queue, "amq.headers", "k", arguments={"x-match": mode})
    with channel_refuses(406, f"PRECONDITION_FAILED - Invalid x-match field {wrong}"):
        channel.queue_bind(queue, "amq.headers", "", arguments={"x-match": mode})


@pytest.mark.parametrize(
    ("wanted", "sent", "matches"),
    [
        (1, 1, True),
        (1, 2**40, False),
        (1, True, False),
        (True, 1, False),
        ("1", 1, False),
        ("x", "x", True),
        (None, 5, True),
        ([1, "a"], [1, "a"], True),
        ([1], [True], False),
        ({"a": 1}, {"a": 1}, True),
        (TIMESTAMP, TIMESTAMP, True),
    ],
)
def test_a_header_matches_only_in_its_own_type(
    channel: Any, queue: str, wanted: object, sent: object, matches: bool
) -> None:
    channel.queue_bind(queue, "amq.headers", "", arguments={"x-match": "any", "key": wanted})
    channel.confirm_delivery()
    channel.basic_publish("amq.headers", "", b"x", pika.BasicProperties(headers={"key": sent}))
    assert drain(channel, queue) == ([b"x"] if matches else [])


@pytest.mark.parametrize(
    ("permissions", "what"), [({"read": ""}, "exchange 'mine'"), ({"write": "^mine$"}, "exchange 'target'")]
)
def test_an_alternate_exchange_must_be_writable_and_the_exchange_readable(
    broker: Broker, connect: Any, name: str, permissions: dict[str, str], what: str
) -> None:
    broker.add_vhost(name)
    broker.add_user(name, "secret")
    broker.set_permissions(name, name, **permissions)
    channel = connect(name, "secret", vhost=name).channel()
    refused = f"access to {what} in vhost '{name}' refused for user '{name}'"
    with channel_refuses(403, f"ACCESS_REFUSED - {refused}"):
        channel.exchange_declare("mine", "direct", arguments={"alternate-exchange": "target"})


def test_of_two_missing_ends_of_a_binding_the_source_is_told(channel: Any, name: str) -> None:
    with channel_refuses(404, f"NOT_FOUND - no exchange '{name}' in vhost '/'"):
        channel.queue_bind(name, name, "k")


def test_no_name_that_the_broker_keeps_for_itself_is_deleted(channel: Any) -> None:
    text = "ACCESS_REFUSED - deletion of system exchange 'amq.other' in vhost '/' not allowed"
    with channel_refuses(403, text):
        channel.exchange_delete("amq.other")


def test_line_ends_are_no_part_of_a_name(channel: Any, name: str) -> None:
    channel.exchange_declare(f"{name}\r\n", "fanout", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(f"{name}\n", f"\r{name}")
    channel.confirm_delivery()
    channel.basic_publish(name, "", b"x", mandatory=True)
    assert drain(channel, name) == [b"x"]


def test_a_name_of_line_ends_alone_is_none(peer: Peer) -> None:
    # Client libraries do not send this, or wait for an answer with the same name.
    reserved, name, exclusive, arguments = b"\0\0", b"\x02\r\n", b"\x04", b"\0\0\0\0"
    peer.send_octets(raw_frame(FRAME_METHOD, 1, b"\0\x32\0\x0a" + reserved + name + exclusive + arguments))
    assert str(peer.expect(1, commands.Queue.DeclareOk).queue).startswith("amq.gen-")


@pytest.mark.parametrize(
    ("kind", "arguments", "wrong"),
    [
        ("classic", {"x-priority": "a"}, ': "expected integer, got longstr"'),
        ("classic", {"x-priority": True}, ': "expected integer, got bool"'),
        ("quorum", {"x-priority": None}, ': "expected integer, got void"'),
        ("classic", {"x-cancel-on-ha-failover": 1}, ": {unacceptable_type,signedint}"),
        ("quorum", {"x-cancel-on-ha-failover": True}, " of queue type rabbit_quorum_queue"),
        ("classic", {"x-stream-offset": "first"}, " of queue type rabbit_classic_queue"),
        ("stream", {"x-priority": 5}, " of queue type rabbit_stream_queue"),
    ],
)
def test_what_a_consumer_asks_for_its_queue_has(
    channel: Any, name: str, kind: str, arguments: dict[str, Any], wrong: str
) -> None:
    channel.queue_declare(name, durable=True, arguments=of(kind))
    channel.basic_qos(prefetch_count=1)
    where = f"invalid arg '{next(iter(arguments))}' for queue '{name}' in vhost '/'{wrong}"
    with channel_refuses(406, f"PRECONDITION_FAILED - {where}"):
        channel.basic_consume(name, print, arguments=arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("classic", {"x-priority": -5, "x-cancel-on-ha-failover": True, "x-other": 1}),
        ("quorum", {"x-priority": 2**40}),
        ("stream", {"x-stream-offset": "first"}),
    ],
)
def test_a_consumer_that_asks_for_what_there_is_may_consume(
    channel: Any, name: str, kind: str, arguments: dict[str, Any]
) -> None:
    channel.queue_declare(name, durable=True, arguments=of(kind))
    channel.basic_qos(prefetch_count=1)
    channel.basic_cancel(channel.basic_consume(name, print, arguments=arguments))
    channel.queue_delete(name)

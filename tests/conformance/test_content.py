"""Bodies of all sizes, properties and header tables arrive as they were sent."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import random
import struct
from typing import Any

import pika
import pytest
from pamqp import body, commands, header

from tests.conformance.brokers import Broker
from tests.conformance.rawclient import FRAME_BODY, FRAME_HEADER, HEADER_BYTES, Peer, raw_frame
from tests.conformance.verbs import Consumer, publish, take

MEGABYTE = 1_000_000

PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "correlated",
    "reply_to": "answers",
    "expiration": "3600000",
    "message_id": "m-1",
    "timestamp": 1_357_000_000,
    "type": "flight",
    "user_id": "guest",
    "app_id": "conformance",
    "cluster_id": "here",
}

# Every type of field there is, by its code: the value as octets.
FIELDS: dict[str, bytes] = {
    "t": b"\x01",
    "b": b"\x80",
    "B": b"\xff",
    "s": struct.pack(">h", -2),
    "u": struct.pack(">H", 65535),
    "I": struct.pack(">i", -3),
    "i": struct.pack(">I", 2**32 - 1),
    "l": struct.pack(">q", -(2**63)),
    "f": struct.pack(">f", 1.5),
    "d": struct.pack(">d", -2.25),
    "D": struct.pack(">Bi", 2, 314),
    "S": struct.pack(">I", 6) + "größ".encode(),
    "A": struct.pack(">I", 7) + b"t\x01I\x00\x00\x00\x07",
    "T": struct.pack(">Q", 1_357_000_000),
    "F": struct.pack(">I", 4) + b"\x01kt\x00",
    "V": b"",
    "x": struct.pack(">I", 3) + b"\x00\xff\xfe",
}


def header_payload(body_bytes: int, fields: bytes) -> bytes:
    """The payload of a content header whose only property is the table `fields`."""
    return struct.pack(">HHQH", 60, 0, body_bytes, 0x2000) + struct.pack(">I", len(fields)) + fields


def field(code: str) -> bytes:
    """A table entry named after its type."""
    return b"\x01" + code.encode() + code.encode() + FIELDS[code]


def sent_and_got(peer: Peer, queue: str, payload: bytes, exchange: str = "") -> bytes:
    """Publish an empty message with this content header; return the payload of the one it comes back with."""
    peer.send(1, commands.Basic.Publish(exchange=exchange, routing_key=queue))
    peer.send_octets(raw_frame(FRAME_HEADER, 1, payload))
    peer.call(1, commands.Basic.Get(queue=queue, no_ack=True), commands.Basic.GetOk)
    return peer.receive_frame()[2][HEADER_BYTES:-1]


@pytest.fixture
def own_queue(peer: Peer, name: str) -> str:
    """A queue of the raw connection."""
    peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    return name


# Bodies


@pytest.mark.parametrize("size", [0, 1, 4096, 131_063, 131_064, 131_065, 262_128, MEGABYTE])
def test_a_body_of_any_size_arrives_whole(channel: Any, queue: str, size: int) -> None:
    content = random.Random(size).randbytes(size)
    publish(channel, queue, content)
    assert take(channel, queue).body == content


def test_a_body_of_five_megabytes_arrives_at_a_consumer(channel: Any, queue: str) -> None:
    content = random.Random(5).randbytes(5 * MEGABYTE)
    consumer = Consumer(channel, queue)
    channel.basic_publish("", queue, content, pika.BasicProperties(delivery_mode=2))
    (received,) = consumer.bodies(1)
    assert hashlib.sha256(received).digest() == hashlib.sha256(content).digest()


def test_a_body_may_come_in_many_small_frames(broker: Broker, name: str) -> None:
    pieces = [bytes([number % 256]) * (1 + number % 7) for number in range(1000)]
    with broker.peer() as peer:
        peer.login()
        peer.open_channel(1)
        peer.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
        start = commands.Basic.Publish(routing_key=name)
        size = sum(map(len, pieces))
        bodies = [body.ContentBody(one) for one in pieces]
        peer.send(1, start, header.ContentHeader(body_size=size), *bodies)
        peer.call(1, commands.Basic.Get(queue=name), commands.Basic.GetOk)
        assert peer.expect_content(1) == b"".join(pieces)


def test_an_empty_body_frame_within_a_body_is_harmless(peer: Peer, own_queue: str) -> None:
    start = commands.Basic.Publish(routing_key=own_queue)
    bodies = [body.ContentBody(one) for one in (b"ab", b"", b"c")]
    peer.send(1, start, header.ContentHeader(body_size=3), *bodies)
    peer.call(1, commands.Basic.Get(queue=own_queue), commands.Basic.GetOk)
    assert peer.expect_content(1) == b"abc"


def test_bodies_of_mixed_sizes_keep_their_borders(channel: Any, queue: str) -> None:
    mixed = random.Random(1)
    contents = [mixed.randbytes(mixed.choice([0, 1, 10, 1000, 140_000])) for _ in range(60)]
    publish(channel, queue, *contents)
    assert Consumer(channel, queue).bodies(len(contents)) == contents


# Properties


@pytest.mark.parametrize("one", [*PROPERTIES, "all", "none"])
def test_properties_arrive_as_sent(channel: Any, queue: str, one: str) -> None:
    sent = {key: value for key, value in PROPERTIES.items() if one in (key, "all")}
    channel.basic_publish("", queue, b"x", pika.BasicProperties(**sent))
    got = take(channel, queue).properties
    assert {key: value for key in PROPERTIES if (value := getattr(got, key)) is not None} == sent
    assert got.headers is None


def test_headers_arrive_as_sent(channel: Any, queue: str) -> None:
    headers = {
        "true": True,
        "small": 1,
        "big": 2**40,
        "negative": -5,
        "text": "grün",
        "octets": b"\x00\xff",
        "decimal": decimal.Decimal("3.14"),
        "when": datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC),
        "nothing": None,
        "list": [1, "two", [True, None]],
        "table": {"in": {"in": "deep"}},
    }
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    got = take(channel, queue).properties.headers
    got["when"] = got["when"].replace(tzinfo=datetime.UTC)
    assert got == headers


@pytest.mark.parametrize("code", FIELDS)
def test_a_header_field_of_each_type_arrives_octet_for_octet(peer: Peer, own_queue: str, code: str) -> None:
    payload = header_payload(0, field(code))
    assert sent_and_got(peer, own_queue, payload) == payload


def test_a_table_with_a_field_of_each_type_arrives_octet_for_octet(peer: Peer, own_queue: str) -> None:
    payload = header_payload(0, b"".join(field(code) for code in FIELDS))
    assert sent_and_got(peer, own_queue, payload) == payload


def test_a_headers_exchange_reads_the_table_and_leaves_it_as_it_was(peer: Peer, own_queue: str) -> None:
    arguments: dict[str, Any] = {"x-match": "all", "t": True, "S": "größ"}
    bind = commands.Queue.Bind(queue=own_queue, exchange="amq.headers", routing_key="", arguments=arguments)
    peer.call(1, bind, commands.Queue.BindOk)
    payload = header_payload(0, b"".join(field(code) for code in FIELDS))
    assert sent_and_got(peer, own_queue, payload, exchange="amq.headers") == payload


def test_a_binding_argument_of_another_width_matches_the_same_number(
    channel: Any, peer: Peer, own_queue: str
) -> None:
    """pika sends a number in four octets, the raw client in one."""
    arguments: dict[str, Any] = {"x-match": "all", own_queue: 7}
    bind = commands.Queue.Bind(queue=own_queue, exchange="amq.headers", routing_key="", arguments=arguments)
    assert b"b\x07" in bind.marshal()
    peer.call(1, bind, commands.Queue.BindOk)
    channel.confirm_delivery()
    channel.basic_publish("amq.headers", "", b"seven", pika.BasicProperties(headers={own_queue: 7}))
    peer.call(1, commands.Basic.Get(queue=own_queue, no_ack=True), commands.Basic.GetOk)
    assert peer.expect_content(1) == b"seven"


@pytest.mark.parametrize("headers", [{}, {"x-anything": 1}, {"x-death": "mine"}])
def test_a_header_table_without_meaning_is_left_alone(
    channel: Any, queue: str, headers: dict[str, Any]
) -> None:
    channel.basic_publish("", queue, b"x", pika.BasicProperties(headers=headers))
    assert (take(channel, queue).properties.headers or {}) == headers


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(b"\x80\x00", id="ends where a property is due"),
        pytest.param(b"\x80\x00\x01agarbage", id="goes on after its properties"),
        pytest.param(b"\x20\x00\x00\x00\x00\x02\x05a", id="a key longer than its table"),
        pytest.param(b"\x20\x00\x00\x00\x00\x03\x01aZ", id="a value of no type"),
        pytest.param(b"\x20\x00\x00\x00\x00\x09\x01aF\x00\x00\x00\x02\x05b", id="a table in the table"),
    ],
)
def test_a_content_header_that_cannot_be_read_ends_its_publishers_connection_and_reaches_nobody(
    peer: Peer, channel: Any, queue: str, properties: bytes
) -> None:
    peer.send(1, commands.Basic.Publish(routing_key=queue))
    peer.send_octets(raw_frame(FRAME_HEADER, 1, struct.pack(">HHQ", 60, 0, 1) + properties))
    peer.send_octets(raw_frame(FRAME_BODY, 1, b"x"))
    assert peer.expect_connection_close()[0] in (501, 541)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0

"""Publishing and getting over HTTP, as RabbitMQ does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pika
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import Broker
from tests.conformance.http_scene import client_of

PROPERTIES: Final = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": "x", "c": [1, "y"], "d": {"e": True}, "g": 1.5},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "k",
}

Publish = Callable[..., httpx.Response]
Get = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def queue(http: httpx.Client, name: str) -> Iterator[str]:
    http.put(f"queues/%2F/{name}", json={"durable": True})
    yield name
    http.delete(f"queues/%2F/{name}")


@pytest.fixture
def publish(http: httpx.Client, queue: str) -> Publish:
    def post(payload: str = "hi", exchange: str = "amq.default", **fields: Any) -> httpx.Response:
        body = {"routing_key": queue, "properties": {}, "payload": payload, "payload_encoding": "string"}
        return http.post(f"exchanges/%2F/{exchange}/publish", json=body | fields)

    return post


@pytest.fixture
def get(http: httpx.Client, queue: str) -> Get:
    def post(ackmode: str = "ack_requeue_true", count: int = 10, **fields: Any) -> list[dict[str, Any]]:
        body = {"count": count, "ackmode": ackmode, "encoding": "auto"} | fields
        reply = http.post(f"queues/%2F/{queue}/get", json=body)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()
        return found

    return post


def test_a_message_is_routed_or_not(publish: Publish) -> None:
    assert publish().json() == {"routed": True}
    assert publish(routing_key="nowhere").json() == {"routed": False}


def test_a_message_comes_out_as_it_went_in(publish: Publish, get: Get, queue: str) -> None:
    publish(properties=PROPERTIES)
    [message] = get()
    assert message == {
        "payload_bytes": 2,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 0,
        "properties": PROPERTIES,
        "payload": "hi",
        "payload_encoding": "string",
    }


def test_a_message_without_properties_has_an_empty_list_of_them(publish: Publish, get: Get) -> None:
    publish()
    assert get()[0]["properties"] == []


@pytest.mark.parametrize(
    "properties",
    [
        {"headers": {"a": 0.1, "b": 1e308, "c": -(2**63), "d": 2**63 - 1, "": True, "e": [[], {}]}},
        {"headers": {}},
        {"app_id": "", "correlation_id": ""},
        {"timestamp": 0},
        {"timestamp": 2**63 - 1},
        {"timestamp": 2**64 - 1, "priority": 255},
    ],
)
def test_values_at_their_limits_come_out_as_they_went_in(
    publish: Publish, get: Get, properties: dict[str, Any]
) -> None:
    assert publish(properties=properties).json() == {"routed": True}
    assert [each["properties"] for each in get()] == [properties]


def test_an_empty_list_stands_for_no_headers(publish: Publish, get: Get) -> None:
    """PHP writes an empty object so."""
    publish(properties={"headers": []})
    assert [each["properties"] for each in get()] == [{"headers": {}}]


def test_consumers_get_numbers_of_64_bits(publish: Publish, channel: Any, queue: str) -> None:
    publish(properties={"headers": {"a": 1, "b": 2**40, "c": -1}})
    _, found, _ = channel.basic_get(queue, auto_ack=True)
    assert found.headers == {"a": 1, "b": 2**40, "c": -1}
    assert {type(each).__name__ for each in found.headers.values()} == {"long"}


def test_a_payload_that_is_no_text_is_given_in_base64(publish: Publish, get: Get) -> None:
    publish("//8=", payload_encoding="base64")
    publish("aGk=", payload_encoding="base64")
    binary, text = get()
    assert (binary["payload"], binary["payload_encoding"], binary["payload_bytes"]) == ("//8=", "base64", 2)
    assert (text["payload"], text["payload_encoding"]) == ("hi", "string")
    assert get(encoding="base64", truncate=1)[1]["payload"] == "aA=="
    assert get(truncate=1)[1]["payload"] == "h"


@pytest.mark.parametrize(
    ("truncate", "shown"), [(0, ""), (1, "h"), (1.9, "h"), ("1", "h"), (10**12, "hi"), (1e300, "hi")]
)
def test_a_payload_is_cut_by_whole_numbers_also_in_other_forms(
    publish: Publish, get: Get, truncate: Any, shown: str
) -> None:
    publish()
    assert [each["payload"] for each in get(truncate=truncate)] == [shown]
    assert len(get(count="1")) == len(get(count=1.9)) == 1


@pytest.mark.parametrize("value", [None, "x", "", "1.5", True, []])
@pytest.mark.parametrize("field", ["count", "truncate"])
def test_a_number_that_is_none_is_refused(
    http: httpx.Client, publish: Publish, queue: str, field: str, value: Any
) -> None:
    publish()
    wish = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", field: value}
    assert http.post(f"queues/%2F/{queue}/get", json=wish).status_code == 400


@pytest.mark.parametrize("value", [-1, "-1"])
def test_a_payload_is_not_cut_to_less_than_nothing(
    http: httpx.Client, publish: Publish, queue: str, value: Any
) -> None:
    """RabbitMQ answers 500, after it has taken the message."""
    publish()
    wish = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": value}
    assert http.post(f"queues/%2F/{queue}/get", json=wish).status_code in (400, 500)


def test_messages_come_in_order_and_count_those_behind_them(publish: Publish, get: Get) -> None:
    for payload in "abc":
        publish(payload)
    assert [(each["payload"], each["message_count"]) for each in get()] == [("a", 2), ("b", 1), ("c", 0)]
    assert [each["redelivered"] for each in get(count=2)] == [True, True]
    assert get(count=0) == []


@pytest.mark.parametrize(
    ("ackmode", "left"),
    [
        ("ack_requeue_true", ["a", "b"]),
        ("reject_requeue_true", ["a", "b"]),
        ("ack_requeue_false", ["b"]),
        ("reject_requeue_false", ["b"]),
    ],
)
def test_what_was_got_is_given_back_or_is_gone(
    publish: Publish, get: Get, ackmode: str, left: list[str]
) -> None:
    publish("a")
    publish("b")
    assert [each["payload"] for each in get(ackmode, 1)] == ["a"]
    wait_until(lambda: [each["payload"] for each in get()] == left, f"{left} in the queue", 10)


def test_what_is_rejected_is_dead_lettered(http: httpx.Client, name: str) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    http.put(f"queues/%2F/{name}", json={"arguments": letters})
    http.put(f"queues/%2F/{name}-dead", json={})
    body = {"routing_key": name, "properties": {}, "payload": "x", "payload_encoding": "string"}
    http.post("exchanges/%2F/amq.default/publish", json=body)
    wish = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    http.post(f"queues/%2F/{name}/get", json=wish)

    def dead() -> list[dict[str, Any]]:
        reply = http.post(f"queues/%2F/{name}-dead/get", json=wish | {"ackmode": "ack_requeue_true"})
        found: list[dict[str, Any]] = reply.json()
        return found

    wait_until(lambda: len(dead()) == 1, "the dead letter", 10)
    [letter] = dead()
    assert letter["properties"]["headers"]["x-first-death-reason"] == "rejected"


def test_copies_go_where_the_headers_say(publish: Publish, get: Get, queue: str) -> None:
    publish(routing_key="nowhere", properties={"headers": {"CC": [queue], "BCC": ["other"]}})
    [message] = get()
    assert message["properties"]["headers"] == {"CC": [queue]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"exchange": "none"}, "404 NOT_FOUND - no exchange 'none' in vhost '/'"),
        ({"exchange": "amq.rabbitmq.trace"}, "403 ACCESS_REFUSED - cannot publish to internal exchange"),
        ({"properties": {"user_id": "other"}}, "406 PRECONDITION_FAILED - user_id property set to 'other'"),
        ({"payload": "%%", "payload_encoding": "base64"}, "not_base64"),
        ({"payload_encoding": "odd"}, ""),
        ({"properties": {"delivery_mode": "x"}}, ""),
        ({"properties": {"content_type": 5}}, ""),
        ({"payload": 5}, ""),
        ({"properties": {"content_type": None}}, ""),
        ({"properties": {"delivery_mode": "2"}}, "not_int"),
        ({"properties": {"delivery_mode": None}}, "not_int"),
        (
            {"properties": {"delivery_mode": 3}},
            "406 PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,3}",
        ),
        (
            {"properties": {"delivery_mode": 0}},
            "406 PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,0}",
        ),
        ({"properties": {"priority": "3"}}, "not_int"),
        ({"properties": {"priority": 1.5}}, "not_int"),
        ({"properties": {"priority": True}}, "not_int"),
        ({"properties": {"timestamp": None}}, "not_int"),
        ({"properties": {"headers": {"a": None}}}, "null_not_allowed"),
        ({"properties": {"headers": {"a": [None]}}}, "null_not_allowed"),
        ({"properties": {"headers": {"a": {"b": None}}}}, "null_not_allowed"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(
    publish: Publish, get: Get, fields: dict[str, Any], reason: str
) -> None:
    refused = publish(**fields)
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
    assert reason in str(refused.json()["reason"])
    assert get() == []


def test_what_publishing_and_getting_need_is_asked_for(http: httpx.Client, queue: str) -> None:
    for path in ("exchanges/%2F/amq.default/publish", f"queues/%2F/{queue}/get"):
        reply = http.post(path, json={})
        assert (reply.status_code, reply.json()["error"]) == (400, "bad_request")
    wish = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "odd"}
    assert http.post(f"queues/%2F/{queue}/get", json=wish).status_code == 400
    reply = http.post("queues/%2F/none/get", json=wish | {"encoding": "auto"})
    assert (reply.status_code, reply.json()["error"]) == (404, "not_found")


def test_a_user_needs_permission_to_publish_and_to_get(
    broker: Broker, http: httpx.Client, queue: str
) -> None:
    http.put(f"users/{queue}", json={"password": "p", "tags": "management"})
    nothing = {"configure": "^$", "write": "^$", "read": "^$"}
    http.put(f"permissions/%2F/{queue}", json=nothing)
    with client_of(broker, queue, "p") as user:
        body = {"routing_key": queue, "properties": {}, "payload": "x", "payload_encoding": "string"}
        assert user.post("exchanges/%2F/amq.direct/publish", json=body).status_code == 400
        wish = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        refused = user.post(f"queues/%2F/{queue}/get", json=wish)
        assert (refused.status_code, refused.json()["error"]) == (401, "not_authorised")
    http.delete(f"users/{queue}")


def test_a_published_message_reaches_a_consumer(publish: Publish, channel: Any, queue: str) -> None:
    publish(properties={"headers": {"n": 2**40}, "delivery_mode": 1})
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, properties.headers, properties.delivery_mode, body) == (
        queue,
        {"n": 2**40},
        1,
        b"hi",
    )
    assert isinstance(properties, pika.BasicProperties)


def test_a_broker_that_works_is_alive(http: httpx.Client) -> None:
    assert http.get("aliveness-test/%2F").json() == {"status": "ok"}
    assert http.get("aliveness-test/nowhere").status_code == 404

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leveret.model.definitions import Permission, Put

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode


def message(**fields: Any) -> dict[str, Any]:
    return {"routing_key": "q", "properties": {}, "payload": "hi", "payload_encoding": "string"} | fields


def wish(**fields: Any) -> dict[str, Any]:
    return {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"} | fields


def test_the_operator_publishes_and_gets_without_permissions(operator: Client) -> None:
    operator.put("/api/queues/%2F/q")
    assert operator.post("/api/exchanges/%2F/amq.default/publish", **message()).json() == {"routed": True}
    [got] = operator.post("/api/queues/%2F/q/get", **wish(ackmode="ack_requeue_false")).json()
    assert got["payload"] == "hi"
    assert operator.post("/api/queues/%2F/q/get", **wish()).json() == []


@pytest.mark.parametrize(
    "properties",
    [
        {"priority": 256},
        {"priority": -1},
        {"timestamp": -1},
        {"timestamp": 2**64},
        {"headers": {"a": 2**63}},
        {"headers": {"a": -(2**63) - 1}},
        {"headers": [1]},
        {"headers": {"k" * 129: 1}},
        {"headers": {"a": [{"k" * 129: 1}]}},
    ],
)
def test_a_property_that_amqp_cannot_hold_is_refused(admin: Client, properties: dict[str, Any]) -> None:
    admin.put("/api/queues/%2F/q")
    refused = admin.post("/api/exchanges/%2F/amq.default/publish", **message(properties=properties))
    [name] = properties
    assert (refused.status_code, f"properties.{name}" in refused.json()["reason"]) == (400, True)
    assert admin.post("/api/queues/%2F/q/get", **wish()).json() == []


def test_a_message_that_a_full_queue_refuses_is_an_error(admin: Client) -> None:
    admin.put("/api/queues/%2F/q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    assert admin.post("/api/exchanges/%2F/amq.default/publish", **message()).status_code == 200
    refused = admin.post("/api/exchanges/%2F/amq.default/publish", **message())
    assert (refused.status_code, "a queue is full" in refused.json()["reason"]) == (400, True)


def test_a_drained_node_takes_no_messages(admin: Client, node: FakeNode) -> None:
    admin.put("/api/queues/%2F/q")
    node.maintenance.is_draining = True
    refused = admin.post("/api/exchanges/%2F/amq.default/publish", **message())
    assert (refused.status_code, "this node is drained" in refused.json()["reason"]) == (503, True)
    node.maintenance.is_draining = False
    assert admin.post("/api/exchanges/%2F/amq.default/publish", **message()).status_code == 200
    assert len(admin.post("/api/queues/%2F/q/get", **wish()).json()) == 1


def test_what_is_published_and_got_is_counted(admin: Client, node: FakeNode) -> None:
    admin.put("/api/queues/%2F/q")
    admin.post("/api/exchanges/%2F/amq.default/publish", **message())
    admin.post("/api/queues/%2F/q/get", **wish(count=1))
    admin.post("/api/queues/%2F/q/get", **wish(ackmode="ack_requeue_false"))
    counters = node.broker.queue("/", "q").counters
    assert (counters.publish, counters.get, counters.get_no_ack, counters.get_empty, counters.redeliver) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert node.broker.counters.publish == 1


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"content_type": "x" * 256}, "content_type"),
        ({"priority": 256}, "priority"),
        ({"timestamp": -1}, "timestamp"),
        ({"headers": {"x" * 300: 1}}, "headers"),
        ({"headers": {"a": 1 << 70}}, "headers"),
    ],
)
def test_a_property_that_amqp_has_no_room_for_is_named(
    admin: Client, properties: dict[str, Any], field: str
) -> None:
    refused = admin.post("/api/exchanges/%2F/amq.default/publish", **message(properties=properties))
    assert (refused.status_code, f"properties.{field}" in refused.json()["reason"]) == (400, True)


def test_an_exclusive_queue_is_not_got_from(admin: Client, node: FakeNode) -> None:
    from leveret.model.definitions import Queue

    node.broker.declare_queue(Queue(name="mine", vhost="/", durable=False), owner=object())
    refused = admin.post("/api/queues/%2F/mine/get", **wish())
    assert (refused.status_code, refused.json()["reason"][:19]) == (400, "405 RESOURCE_LOCKED")


def test_the_test_of_aliveness_needs_permissions_like_any_client(admin: Client, node: FakeNode) -> None:
    assert admin.get("/api/aliveness-test/%2F").json() == {"status": "ok"}
    node.broker.apply(Put(Permission(user="guest", vhost="/", configure="^x", write=".*", read=".*")))
    assert admin.get("/api/aliveness-test/%2F").status_code == 401

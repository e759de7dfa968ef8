from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client


def test_arguments_may_be_an_empty_list_as_php_writes_them(admin: Client) -> None:
    assert admin.put("/api/exchanges/%2F/e", type="topic", arguments=[]).status_code == 201
    assert admin.put("/api/queues/%2F/q", arguments=[]).status_code == 201
    assert admin.post("/api/bindings/%2F/e/e/q/q", routing_key="k", arguments=[]).status_code == 201
    for path in ("exchanges/%2F/e", "queues/%2F/q", "bindings/%2F/e/e/q/q/k"):
        assert admin.get(f"/api/{path}").json()["arguments"] == {}
    refused = admin.put("/api/queues/%2F/r", arguments=[1])
    assert (refused.status_code, "arguments" in refused.json()["reason"]) == (400, True)


def test_a_space_in_a_routing_key_is_percent_encoded_in_the_name_of_its_binding(admin: Client) -> None:
    admin.put("/api/queues/%2F/q")
    assert admin.post("/api/bindings/%2F/e/amq.topic/q/q", routing_key="a b").status_code == 201
    shown = admin.get("/api/exchanges/%2F/amq.topic/bindings/source").json()
    assert [each["properties_key"] for each in shown] == ["a%20b"]
    assert admin.delete("/api/bindings/%2F/e/amq.topic/q/q/a%2520b").status_code == 204


def test_a_binding_is_made_shown_and_removed(admin: Client) -> None:
    admin.put("/api/exchanges/%2F/e", type="topic")
    admin.put("/api/queues/%2F/q")
    reply = admin.post("/api/bindings/%2F/e/e/q/q", routing_key="a.b", arguments={"x": 1})
    location = reply.headers["location"]
    assert (reply.status_code, location.startswith("q/a.b~")) == (201, True)
    assert admin.post("/api/bindings/%2F/e/e/q/q").headers["location"] == "q/~"
    path = f"/api/bindings/%2F/e/e/q/{location}"
    expected = {
        "source": "e",
        "vhost": "/",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "a.b",
        "arguments": {"x": 1},
        "properties_key": location.removeprefix("q/"),
    }
    assert admin.get(path).json() == expected
    assert expected in admin.get("/api/bindings/%2F/e/e/q/q").json()
    assert expected in admin.get("/api/queues/%2F/q/bindings").json()
    assert expected in admin.get("/api/exchanges/%2F/e/bindings/source").json()
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404


def test_exchanges_are_bound_to_exchanges(admin: Client) -> None:
    admin.put("/api/exchanges/%2F/from", type="fanout")
    admin.put("/api/exchanges/%2F/to", type="fanout")
    assert admin.post("/api/bindings/%2F/e/from/e/to").status_code == 201
    assert [each["source"] for each in admin.get("/api/exchanges/%2F/to/bindings/destination").json()] == [
        "from"
    ]


def test_every_queue_is_bound_to_the_default_exchange(admin: Client) -> None:
    admin.put("/api/queues/%2F/q")
    [binding] = admin.get("/api/bindings/%2F").json()
    assert (binding["source"], binding["destination"], binding["routing_key"]) == ("", "q", "q")
    assert admin.get("/api/exchanges/%2F/amq.default/bindings/source").json() == [binding]
    assert admin.post("/api/bindings/%2F/e/amq.default/q/q").status_code == 401

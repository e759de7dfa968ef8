from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client


def test_an_exchange_is_declared_once_and_again(admin: Client) -> None:
    assert admin.put("/api/exchanges/%2F/e", type="topic").status_code == 201
    assert admin.put("/api/exchanges/%2F/e", type="topic").status_code == 204
    assert admin.get("/api/exchanges/%2F/e").json()["type"] == "topic"
    reply = admin.put("/api/exchanges/%2F/e", type="fanout")
    assert "inequivalent arg 'type' for exchange 'e' in vhost '/'" in reply.json()["reason"]


def test_an_unknown_type_is_refused(admin: Client) -> None:
    assert admin.put("/api/exchanges/%2F/e", type="x-no").status_code == 400


def test_the_predeclared_exchanges_are_shown_and_stay(admin: Client) -> None:
    names = [each["name"] for each in admin.get("/api/exchanges/%2F").json()]
    assert {"", "amq.direct", "amq.topic"} <= set(names)
    assert admin.get("/api/exchanges/%2F/amq.default").json()["name"] == ""
    assert admin.delete("/api/exchanges/%2F/amq.topic").status_code == 401
    assert admin.put("/api/exchanges/%2F/amq.new", type="topic").status_code == 401


def test_an_exchange_in_use_is_not_deleted_if_unused_is_asked(admin: Client) -> None:
    admin.put("/api/exchanges/%2F/e", type="topic")
    admin.put("/api/queues/%2F/q")
    admin.post("/api/bindings/%2F/e/e/q/q", routing_key="k")
    reply = admin.delete("/api/exchanges/%2F/e?if-unused=true")
    assert (reply.status_code, reply.json()["reason"]) == (400, "exchange 'e' in vhost '/' in use")
    assert admin.delete("/api/exchanges/%2F/e").status_code == 204
    assert admin.get("/api/exchanges/%2F/e").status_code == 404


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


def test_a_binding_to_nothing_is_not_found(admin: Client) -> None:
    assert (
        admin.post("/api/bindings/%2F/e/amq.topic/q/none").json()["reason"] == "no queue 'none' in vhost '/'"
    )
    assert admin.post("/api/bindings/%2F/e/none/q/none").status_code == 404
    assert admin.get("/api/bindings/%2F/e/amq.topic/x/none").status_code == 404

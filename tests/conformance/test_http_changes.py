"""What the HTTP API answers to changes, right and wrong: status and error word, as RabbitMQ does.

A story is a list of requests in their order; `$n` is a name that nobody else has.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
import pika.exceptions
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import Broker


class Step(NamedTuple):
    """One request and its answer; `error` is the word of an error object, empty for none."""

    method: str
    path: str
    body: Any
    status: int
    error: str = ""


NOT_FOUND: Final = "Object Not Found"
BAD: Final = "bad_request"
REFUSED: Final = "not_authorised"
MISSING: Final = "not_found"
ALL: Final = {"configure": ".*", "write": ".*", "read": ".*"}
POLICY: Final = {"pattern": "^q", "definition": {"max-length": 5}}

STORIES: Final[dict[str, list[Step]]] = {
    "a queue": [
        Step("PUT", "queues/%2F/$n", None, 201),
        Step("PUT", "queues/%2F/$n", {}, 204),
        Step("PUT", "queues/%2F/$n", {"durable": True}, 400, BAD),
        Step("PUT", "queues/%2F/$n", {"durable": "yes"}, 400, BAD),
        Step("PUT", "queues/%2F/$n", {"durable": "false"}, 204),
        Step("PUT", "queues/%2F/$n", {"auto_delete": 5}, 400, BAD),
        Step("PUT", "queues/%2F/$n-2", {"arguments": {"x-max-length": "a"}}, 400, BAD),
        Step("PUT", "queues/%2F/$n-2", {"node": "other@nowhere"}, 400, BAD),
        Step("PUT", "queues/%2F/$n-2", {"unknown": 1}, 201),
        Step("PUT", "queues/%2F/amq.$n", {}, 401, REFUSED),
        Step("PUT", "queues/nowhere/$n", {}, 404, MISSING),
        Step("PUT", "queues/%2F/" + "n" * 300, {}, 400, BAD),
        Step("POST", "queues/%2F/$n", {}, 405),
        Step("GET", "queues/%2F/$n/contents", None, 405),
        Step("POST", "queues/%2F/$n/actions", {"action": "sync"}, 204),
        Step("POST", "queues/%2F/$n/actions", {"action": "odd"}, 400, BAD),
        Step("POST", "queues/%2F/$n/actions", {}, 400, BAD),
        Step("DELETE", "queues/%2F/$n/contents", None, 204),
        Step("DELETE", "queues/%2F/$n?if-empty=true&if-unused=true", None, 204),
        Step("DELETE", "queues/%2F/$n", None, 404, NOT_FOUND),
        Step("DELETE", "queues/%2F/$n/contents", None, 404, NOT_FOUND),
        Step("GET", "queues/%2F/$n", None, 404, NOT_FOUND),
        Step("GET", "queues/nowhere", None, 404, NOT_FOUND),
    ],
    "a name with a slash": [
        Step("PUT", "queues/%2F/$n%2Fa%20b%25", {}, 201),
        Step("GET", "queues/%2F/$n%2Fa%20b%25", None, 200),
        Step("DELETE", "queues/%2F/$n%2Fa%20b%25", None, 204),
    ],
    "an exchange": [
        Step("PUT", "exchanges/%2F/$n", {}, 201),
        Step("PUT", "exchanges/%2F/$n", {"type": "direct"}, 204),
        Step("PUT", "exchanges/%2F/$n", {"type": "topic"}, 400, BAD),
        Step("PUT", "exchanges/%2F/$n-2", {"type": "odd"}, 400, BAD),
        Step("PUT", "exchanges/%2F/$n-2", {"type": "direct", "internal": "true"}, 201),
        Step("PUT", "exchanges/%2F/amq.$n", {"type": "topic"}, 401, REFUSED),
        Step("PUT", "exchanges/%2F/amq.topic", {"type": "topic"}, 400, BAD),
        Step("PUT", "exchanges/%2F/amq.default", {"type": "direct"}, 401, REFUSED),
        Step("PUT", "exchanges/nowhere/$n", {"type": "direct"}, 404, MISSING),
        Step("DELETE", "exchanges/%2F/$n?if-unused=true", None, 204),
        Step("DELETE", "exchanges/%2F/$n", None, 404, NOT_FOUND),
        Step("DELETE", "exchanges/%2F/amq.topic", None, 401, REFUSED),
        Step("DELETE", "exchanges/%2F/amq.default", None, 401, REFUSED),
        Step("GET", "exchanges/%2F/$n", None, 404, NOT_FOUND),
        Step("GET", "exchanges/%2F/$n/bindings/source", None, 200),
    ],
    "bindings": [
        Step("PUT", "queues/%2F/$n", {}, 201),
        Step("PUT", "exchanges/%2F/$n", {"type": "topic"}, 201),
        Step("POST", "bindings/%2F/e/$n/q/$n", {}, 201),
        Step("POST", "bindings/%2F/e/$n/q/$n", None, 201),
        Step("POST", "bindings/%2F/e/$n/q/$n", {"routing_key": "a/b#"}, 201),
        Step("POST", "bindings/%2F/e/$n/e/amq.topic", {"routing_key": "k"}, 201),
        Step("POST", "bindings/%2F/e/none/q/$n", {}, 404, MISSING),
        Step("POST", "bindings/%2F/e/$n/q/none", {}, 404, MISSING),
        Step("POST", "bindings/%2F/e/amq.default/q/$n", {}, 401, REFUSED),
        Step("POST", "bindings/nowhere/e/$n/q/$n", {}, 404, MISSING),
        Step("GET", "bindings/%2F/e/$n/q/$n/a%2Fb%23", None, 200),
        Step("GET", "bindings/%2F/e/$n/q/$n/a%252Fb%2523", None, 200),
        Step("GET", "bindings/%2F/e/$n/q/$n/none", None, 404, NOT_FOUND),
        Step("GET", "bindings/%2F/e/none/q/$n", None, 200),
        Step("DELETE", "exchanges/%2F/$n?if-unused=true", None, 400, BAD),
        Step("DELETE", "bindings/%2F/e/$n/q/$n/~", None, 204),
        Step("DELETE", "bindings/%2F/e/$n/q/$n/a%252Fb%2523", None, 204),
        Step("DELETE", "bindings/%2F/e/$n/q/$n/none", None, 404, NOT_FOUND),
        Step("DELETE", "bindings/%2F/e/amq.default/q/$n/$n", None, 401, REFUSED),
        Step("DELETE", "exchanges/%2F/$n", None, 204),
    ],
    "a vhost": [
        Step("PUT", "vhosts/$n", {"description": "d", "tags": "a,b"}, 201),
        Step("PUT", "vhosts/$n", {"tags": ["c"]}, 204),
        Step("PUT", "vhosts/$n", None, 204),
        Step("GET", "permissions/$n/guest", None, 200),
        Step("POST", "vhosts/$n/start/none", None, 400, BAD),
        Step("DELETE", "vhosts/$n", None, 204),
        Step("DELETE", "vhosts/$n", None, 404, NOT_FOUND),
    ],
    "a user": [
        Step("PUT", "users/$n", {"password": "p", "tags": "management"}, 201),
        Step("PUT", "users/$n", {"password": "p"}, 400, BAD),
        Step("PUT", "users/$n", {"tags": ["x"]}, 204),
        Step("PUT", "users/$n", {"password_hash": "!!", "tags": ""}, 400, BAD),
        Step("PUT", "users/$n", {"password": "a", "password_hash": "b", "tags": ""}, 400, BAD),
        Step("PUT", "users/$n", {"password": "", "tags": ""}, 204),
        Step("PUT", "users/$n", {"password_hash": "", "tags": ["a"]}, 204),
        Step("PUT", "user-limits/$n/max-connections", {"value": 5}, 204),
        Step("PUT", "user-limits/$n/max-connections", {"value": "x"}, 400, BAD),
        Step("PUT", "user-limits/$n/odd", {"value": 5}, 400, BAD),
        Step("PUT", "user-limits/$n/max-channels", {}, 400, BAD),
        Step("PUT", "user-limits/none/max-channels", {"value": 5}, 400, BAD),
        Step("DELETE", "user-limits/$n/max-connections", None, 204),
        Step("DELETE", "user-limits/$n/max-connections", None, 204),
        Step("PUT", "permissions/%2F/$n", ALL, 201),
        Step("PUT", "permissions/%2F/$n", ALL, 204),
        Step("PUT", "permissions/%2F/$n", {"configure": ".*"}, 400, BAD),
        Step("PUT", "permissions/%2F/$n", ALL | {"write": "("}, 400, BAD),
        Step("PUT", "permissions/nowhere/$n", ALL, 400, BAD),
        Step("DELETE", "permissions/nowhere/$n", None, 404, NOT_FOUND),
        Step("DELETE", "permissions/%2F/$n", None, 204),
        Step("DELETE", "permissions/%2F/$n", None, 404, NOT_FOUND),
        Step("PUT", "topic-permissions/%2F/$n", {"exchange": "e", "write": "a", "read": "b"}, 201),
        Step("PUT", "topic-permissions/%2F/$n", {"exchange": "e", "write": "(", "read": "b"}, 400, BAD),
        Step("PUT", "topic-permissions/%2F/$n", {"write": "a"}, 400, BAD),
        Step("PUT", "topic-permissions/%2F/none", {"exchange": "e", "write": "a", "read": "b"}, 400, BAD),
        Step("DELETE", "topic-permissions/%2F/$n", None, 204),
        Step("DELETE", "topic-permissions/%2F/$n", None, 404, NOT_FOUND),
        Step("POST", "users/bulk-delete", {"users": ["none"]}, 400, BAD),
        Step("POST", "users/bulk-delete", {}, 400, BAD),
        Step("POST", "users/bulk-delete", {"users": ["$n"]}, 204),
        Step("DELETE", "users/$n", None, 404, NOT_FOUND),
    ],
    "limits of a vhost": [
        Step("PUT", "vhosts/$n", {}, 201),
        Step("PUT", "vhost-limits/$n/max-queues", {"value": 5}, 204),
        Step("PUT", "vhost-limits/$n/max-queues", {"value": -1}, 204),
        Step("PUT", "vhost-limits/$n/max-queues", {"value": "x"}, 400, BAD),
        Step("PUT", "vhost-limits/$n/odd", {"value": 5}, 400, BAD),
        Step("PUT", "vhost-limits/$n/max-queues", {}, 400, BAD),
        Step("PUT", "vhost-limits/nowhere/max-queues", {"value": 5}, 404, MISSING),
        Step("DELETE", "vhost-limits/$n/max-queues", None, 204),
        Step("DELETE", "vhost-limits/$n/max-queues", None, 204),
        Step("DELETE", "vhosts/$n", None, 204),
    ],
    "a policy": [
        Step("PUT", "policies/%2F/$n", POLICY, 201),
        Step("PUT", "policies/%2F/$n", POLICY, 204),
        Step("PUT", "policies/%2F/$n", POLICY | {"priority": "x"}, 400, BAD),
        Step("PUT", "policies/%2F/$n", POLICY | {"apply-to": "x"}, 400, BAD),
        Step("PUT", "policies/%2F/$n", POLICY | {"pattern": "("}, 400, BAD),
        Step("PUT", "policies/%2F/$n", POLICY | {"definition": {"odd": 1}}, 400, BAD),
        Step("PUT", "policies/%2F/$n", POLICY | {"definition": {"max-length": "x"}}, 400, BAD),
        Step("PUT", "policies/%2F/$n", POLICY | {"definition": {}}, 400, BAD),
        Step("PUT", "policies/%2F/$n", {"pattern": "x"}, 400, BAD),
        Step("PUT", "policies/nowhere/$n", POLICY, 404, MISSING),
        Step("DELETE", "policies/%2F/$n", None, 204),
        Step("DELETE", "policies/%2F/$n", None, 404, NOT_FOUND),
        Step("PUT", "operator-policies/%2F/$n", POLICY, 201),
        Step(
            "PUT",
            "operator-policies/%2F/$n",
            POLICY | {"definition": {"dead-letter-exchange": "x"}},
            400,
            BAD,
        ),
        Step("PUT", "operator-policies/%2F/$n", {"pattern": "x"}, 400, BAD),
        Step("GET", "parameters/operator_policy/%2F/$n", None, 200),
        Step("DELETE", "operator-policies/%2F/$n", None, 204),
        Step("DELETE", "operator-policies/%2F/$n", None, 404, NOT_FOUND),
    ],
    "parameters": [
        Step("PUT", "parameters/odd/%2F/$n", {"value": 1}, 400, BAD),
        Step("PUT", "parameters/policy/%2F/$n", {"value": POLICY}, 400, BAD),
        Step("PUT", "parameters/odd/nowhere/$n", {"value": 1}, 404, MISSING),
        Step("DELETE", "parameters/odd/%2F/$n", None, 404, NOT_FOUND),
        Step("PUT", "global-parameters/$n", {"value": [1]}, 201),
        Step("PUT", "global-parameters/$n", {"value": 2}, 204),
        Step("PUT", "global-parameters/$n", {}, 400, BAD),
        Step("DELETE", "global-parameters/$n", None, 204),
        Step("DELETE", "global-parameters/$n", None, 404, NOT_FOUND),
    ],
    "definitions": [
        Step("POST", "definitions", {}, 204),
        Step("POST", "definitions", [], 400, BAD),
        Step("POST", "definitions", {"queues": [{"name": "$n"}]}, 400, BAD),
        Step("POST", "definitions", {"users": [{"name": "$n"}]}, 400, BAD),
        Step("POST", "definitions/nowhere", {}, 404, MISSING),
        Step(
            "POST",
            "definitions/%2F",
            {"queues": [{"name": "$n", "durable": True, "auto_delete": False, "arguments": {}}]},
            204,
        ),
        Step("GET", "queues/%2F/$n", None, 200),
        Step("POST", "definitions/%2F", {"users": [{"name": "$n", "tags": "", "password": "a"}]}, 204),
        Step("GET", "users/$n", None, 404, NOT_FOUND),
        Step(
            "POST",
            "definitions",
            {"permissions": [{"user": "none", "vhost": "/", "configure": "", "write": "", "read": ""}]},
            400,
            BAD,
        ),
    ],
    "the whole": [
        Step("POST", "rebalance/queues", {}, 204),
        Step("GET", "rebalance/queues", None, 405),
        Step("PUT", "cluster-name", {}, 400, BAD),
        Step("PUT", "cluster-name", {"name": "$n"}, 204),
        Step("PUT", "feature-flags/quorum_queue/enable", {"name": "quorum_queue"}, 204),
        Step("PUT", "feature-flags/odd/enable", {"name": "odd"}, 400, BAD),
        Step("GET", "health/checks/port-listener/x", None, 400, BAD),
        Step("GET", "health/checks/certificate-expiration/1/x", None, 400, BAD),
        Step("GET", "health/checks/certificate-expiration/x/days", None, 400, BAD),
        Step("GET", "auth/attempts/none", None, 404, NOT_FOUND),
        Step("GET", "nosuch", None, 404, NOT_FOUND),
        Step("POST", "overview", {}, 405),
        Step("HEAD", "overview", None, 200),
        Step("HEAD", "queues/%2F/none", None, 404),
        Step("OPTIONS", "overview", None, 200),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_a_change_is_answered_as_rabbitmq_answers_it(http: httpx.Client, name: str, story: str) -> None:
    for step in STORIES[story]:
        path = step.path.replace("$n", name)
        content = {} if step.body is None else {"json": _named(step.body, name)}
        reply = http.request(step.method, path, **content)
        error = reply.json().get("error", "") if step.error else ""
        assert (step.method, path, reply.status_code, error) == (step.method, path, step.status, step.error)


def _named(body: Any, name: str) -> Any:
    if isinstance(body, dict):
        return {key: _named(value, name) for key, value in body.items()}
    if isinstance(body, list):
        return [_named(each, name) for each in body]
    return body.replace("$n", name) if isinstance(body, str) else body


@pytest.mark.parametrize("content", [b"{bad", b"[1]"])
def test_a_body_that_is_no_object_is_a_bad_request(http: httpx.Client, name: str, content: bytes) -> None:
    reply = http.put(f"queues/%2F/{name}", content=content)
    assert (reply.status_code, reply.json()["error"]) == (400, BAD)


def test_a_binding_is_found_under_its_location(http: httpx.Client, name: str) -> None:
    http.put(f"queues/%2F/{name}", json={})
    path = f"bindings/%2F/e/amq.topic/q/{name}"
    location = http.post(path, json={"routing_key": "a/b#", "arguments": {"k": 1}}).headers["location"]
    found = http.get(f"bindings/%2F/e/amq.topic/q/{location}").json()
    assert (found["routing_key"], found["arguments"]) == ("a/b#", {"k": 1})


def test_line_ends_are_no_part_of_a_declared_name(http: httpx.Client, name: str) -> None:
    for path, body in (("queues", {"durable": True}), ("exchanges", {"type": "direct"})):
        assert http.put(f"{path}/%2F/{name}%0D%0A-x", json=body).status_code == 201
        assert http.get(f"{path}/%2F/{name}%0D%0A-x").status_code == 404
        assert http.get(f"{path}/%2F/{name}-x").status_code == 200
        assert http.delete(f"{path}/%2F/{name}-x").status_code == 204


def test_the_name_of_the_cluster_is_shown_once_it_is_set(
    http: httpx.Client, broker: Broker, name: str
) -> None:
    http.put("cluster-name", json={"name": name})
    with broker.connect() as client:
        assert client._impl.server_properties["cluster_name"] == name
    assert http.get("cluster-name").json() == {"name": name}
    assert http.get("overview").json()["cluster_name"] == name


def test_definitions_are_taken_from_a_form_and_given_under_a_name(http: httpx.Client, name: str) -> None:
    file = b'{"vhosts": [{"name": "%b"}]}' % name.encode()
    assert http.post("definitions", files={"file": ("x.json", file)}).status_code == 204
    assert http.get(f"vhosts/{name}").status_code == 200
    reply = http.get("definitions?download=my.json")
    assert "my.json" in reply.headers["content-disposition"]
    http.delete(f"vhosts/{name}")


def test_a_connection_is_closed_for_a_reason(http: httpx.Client, broker: Broker) -> None:
    client = broker.connect(client_properties={"connection_name": "to be closed"})
    wait_until(lambda: bool(_named_connection(http, "to be closed")), "the connection", 20)
    held = _named_connection(http, "to be closed")
    assert (
        http.delete(f"connections/{quote(held, safe='')}", headers={"x-reason": "enough"}).status_code == 204
    )
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        client.process_data_events(10)
    wait_until(lambda: http.get(f"connections/{quote(held, safe='')}").status_code == 404, "its end", 20)


def _named_connection(http: httpx.Client, name: str) -> str:
    found = [
        each["name"] for each in http.get("connections").json() if each.get("user_provided_name") == name
    ]
    return found[0] if found else ""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leveret.core.broker.access import check_password
from leveret.core.broker.routing import no_headers
from leveret.model.definitions import Queue, User

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

# As RabbitMQ 3.10.8 exports it over HTTP.
FROM_RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "users": [
        {
            "name": "app",
            "password_hash": "tppsse2//TRaK6Saml5j0PbBOKxegEHDEUYM0IvAFKyc3Ws+",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management"],
            "limits": {},
        },
        {"name": "old", "password": "p", "tags": "a,b"},
    ],
    "vhosts": [
        {"name": "v"},
        {"name": "tagged", "metadata": {"description": "d", "tags": ["standby_replication"]}},
        {"name": "odd", "default_queue_type": "undefined"},
    ],
    "permissions": [{"user": "app", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "g", "value": 1}],
    "policies": [
        {
            "vhost": "v",
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"remote-dc-replicate": True},
            "priority": 0,
        }
    ],
    "queues": [
        {
            "name": "q",
            "vhost": "v",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "classic"},
        }
    ],
    "exchanges": [
        {
            "name": "e",
            "vhost": "v",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        {
            "source": "e",
            "vhost": "v",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "a.b",
            "arguments": {"x": 1},
        }
    ],
}


def test_a_file_of_rabbitmq_is_taken(admin: Client, node: FakeNode) -> None:
    assert admin.post("/api/definitions", **FROM_RABBITMQ).status_code == 204
    broker = node.broker
    assert broker.queue("v", "q").policy == "p"
    assert [queue.key for queue in broker.route("v", "e", "a.b", no_headers)] == [("v", "q")]
    app, old = broker.definitions.by_kind["users"][("app",)], broker.definitions.by_kind["users"][("old",)]
    for user in (app, old):
        assert isinstance(user, User)
        assert check_password(user, "p")
    assert admin.get("/api/vhosts/tagged").json()["tags"] == ["standby_replication"]
    assert admin.get("/api/vhosts/odd").json()["default_queue_type"] == "classic"


def test_what_goes_out_comes_in_again_and_changes_nothing(admin: Client) -> None:
    admin.post("/api/definitions", **FROM_RABBITMQ)
    document = admin.get("/api/definitions").json()
    assert "epoch" not in document["queues"][0]
    assert admin.post("/api/definitions", **document).status_code == 204
    assert admin.get("/api/definitions").json() == document


def test_an_import_deletes_nothing(admin: Client) -> None:
    admin.post("/api/definitions", **FROM_RABBITMQ)
    assert admin.post("/api/definitions", vhosts=[{"name": "more"}]).status_code == 204
    assert admin.get("/api/queues/v/q").status_code == 200


def test_a_queue_that_exists_is_passed_over_even_if_it_is_different(admin: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 2)
    assert (
        admin.post("/api/definitions", queues=[{"name": "q", "vhost": "/", "durable": False}]).status_code
        == 204
    )
    queue = node.broker.queue("/", "q")
    assert (queue.definition.durable, queue.ready_count) == (True, 2)


def test_the_predeclared_exchanges_of_a_file_are_passed_over(admin: Client) -> None:
    odd = [{"name": name, "vhost": "/", "type": "fanout"} for name in ("", "amq.topic", "amq.unknown")]
    assert admin.post("/api/definitions", exchanges=odd).status_code == 204
    assert admin.get("/api/exchanges/%2F/amq.topic").json()["type"] == "topic"
    assert admin.get("/api/exchanges/%2F/amq.unknown").status_code == 404


def test_the_definitions_of_a_vhost_fit_another(admin: Client) -> None:
    admin.post("/api/definitions", **FROM_RABBITMQ)
    document = admin.get("/api/definitions/v").json()
    assert not {"users", "vhosts", "permissions"} & document.keys()
    assert all("vhost" not in queue for queue in document["queues"])
    admin.put("/api/vhosts/w")
    assert admin.post("/api/definitions/w", **document).status_code == 204
    assert admin.get("/api/definitions/w").json() == document | {"original_vhost_name": "w"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"users": [{"name": "x"}]}, "users[0]: Object missing required field `tags`"),
        (
            {"queues": [{"name": "ok", "vhost": "/"}, {"name": "x"}]},
            "queues[1]: Object missing required field `vhost`",
        ),
        ({"queues": {"name": "x"}}, "queues: expected a list"),
        ({"queues": ["x"]}, "queues[0]: expected an object"),
        ({"vhosts": [{}]}, "vhosts[0]: a vhost needs a name"),
    ],
)
def test_a_document_that_makes_no_sense_changes_nothing(
    admin: Client, node: FakeNode, document: dict[str, Any], reason: str
) -> None:
    reply = admin.post("/api/definitions", **document)
    assert (reply.status_code, reply.json()["reason"]) == (400, reason)
    assert node.broker.queues == {}


@pytest.mark.parametrize("levels", [101, 2_000, 20_000])
def test_an_entry_that_is_nested_without_end_is_named(admin: Client, node: FakeNode, levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    document = b'{"other":' + deep + b',"global_parameters":[{"name":"p","value":' + deep + b"}]}"
    reply = admin.request("POST", "/api/definitions", content=document)
    assert (reply.status_code, "nested more than 100 levels deep" in reply.json()["reason"]) == (400, True)
    assert not node.broker.definitions.by_kind["global_parameters"]


def test_of_a_document_that_is_refused_half_way_the_first_part_stands(admin: Client, node: FakeNode) -> None:
    reply = admin.post(
        "/api/definitions",
        vhosts=[{"name": "v"}],
        queues=[{"name": "q", "vhost": "v", "arguments": {"x-queue-type": "odd"}}],
    )
    assert (reply.status_code, "x-queue-type" in reply.json()["reason"]) == (400, True)
    assert "v" in node.broker.topologies
    assert node.broker.changes == []


def test_a_refusal_names_the_entity_that_was_declined(admin: Client) -> None:
    policy = {"vhost": "/", "name": "f", "pattern": "", "definition": {"federation-upstream-set": "all"}}
    reply = admin.post("/api/definitions", policies=[policy | {"apply-to": "all", "priority": 0}])
    assert reply.status_code == 400
    assert reply.json()["reason"].startswith("policies '/ f': Validation failed")


def test_bindings_of_what_is_not_there_are_left_out(admin: Client, node: FakeNode) -> None:
    lost = {"source": "amq.fanout", "vhost": "/", "destination": "amq.gen-1", "routing_key": ""}
    kept = {"source": "amq.fanout", "vhost": "/", "destination": "q", "routing_key": ""}
    queue = {"name": "q", "vhost": "/"}
    assert admin.post("/api/definitions", queues=[queue], bindings=[lost, kept]).status_code == 204
    assert [one.key for one in node.broker.route("/", "amq.fanout", "", no_headers)] == [("/", "q")]


def test_a_form_is_not_a_document(admin: Client) -> None:
    reply = admin.request("POST", "/api/definitions", data={"file": "x"})
    assert reply.status_code == 415


def test_a_file_of_any_name_can_be_asked_for(admin: Client) -> None:
    def named(name: str) -> str:
        reply = admin.get(f"/api/definitions?download={name}")
        assert reply.status_code == 200
        return str(reply.headers["content-disposition"])

    assert named("x.json") == 'attachment; filename="x.json"'
    assert named("%E2%82%AC.json") == "attachment; filename=\"?.json\"; filename*=UTF-8''%E2%82%AC.json"

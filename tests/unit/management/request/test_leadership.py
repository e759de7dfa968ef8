"""A follower and a fenced node are read only; what concerns the process alone goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette

from leveret.model.definitions import Queue

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

ON_FOLLOWERS = {
    ("POST", "/api/replication/promote"),
    ("POST", "/api/replication/verify"),
    ("POST", "/api/replication/scrub"),
    ("POST", "/api/operations/log/reopen"),
    ("PUT", "/api/operations/log/level"),
    ("DELETE", "/api/reset"),
    ("DELETE", "/api/reset/{name}"),
    ("DELETE", "/api/auth/attempts/{node}"),
    ("DELETE", "/api/auth/attempts/{node}/source"),
    ("POST", "/api/users/{user}/authenticate"),
    ("POST", "/api/login"),
    ("DELETE", "/api/login"),
    ("POST", "/api/cluster/join"),
}
"""Changes that concern the process alone, or that are none."""


def refused(client: Client, app: Starlette) -> dict[tuple[str, str], str]:
    """What is declined as this node does not lead, among all changes that there are, and why."""
    found = {}
    for method, path in changes(client, app):
        reply = client.request(method, path)
        if reply.status_code == 503 and reply.json()["error"] == "not_leader":
            found[method, path] = reply.json()["reason"]
    return found


def changes(client: Client, app: Starlette) -> set[tuple[str, str]]:
    """Every method that changes something, of every path."""
    return {
        (method, path)
        for route in app.routes
        for path in [str(getattr(route, "path", ""))]
        for method in client.request("OPTIONS", path).headers.get("allow", "").split(", ")
        if method in ("PUT", "POST", "DELETE")
    }


def test_a_follower_takes_no_change_but_those_of_the_process(
    operator: Client, app: Starlette, node: FakeNode
) -> None:
    everything = changes(operator, app)
    assert len(everything) > 60
    node.replication.follow()
    node.replication.on_promoted = node.replication.follow
    declined = refused(operator, app)
    assert everything - set(declined) == ON_FOLLOWERS
    assert set(declined.values()) == {
        "this node is a follower of tcp://10.0.0.1:5679 (leveret@a); changes are made on its leader"
    }


def test_a_leader_is_changed(admin: Client, app: Starlette) -> None:
    assert admin.put("/api/queues/%2F/q").status_code == 201
    assert not refused(admin, app)


def test_nothing_comes_of_a_change_that_is_declined(admin: Client, node: FakeNode) -> None:
    node.replication.follow()
    assert admin.put("/api/queues/%2F/q").status_code == 503
    assert ("/", "q") not in node.broker.queues


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        (None, "in epoch 3, as another node was promoted"),
        (
            {"uri": "tcp://10.0.0.2:5679", "name": ""},
            "in epoch 3 by tcp://10.0.0.2:5679, its leader since then",
        ),
    ],
)
def test_a_fenced_node_is_not_changed_either(
    admin: Client, node: FakeNode, leader: dict[str, str] | None, said: str
) -> None:
    node.replication.fence()
    node.replication.leader = leader
    reply = admin.put("/api/queues/%2F/q")
    assert (reply.status_code, reply.json()["error"]) == (503, "not_leader")
    assert reply.json()["reason"].startswith(f"this node was fenced {said}; ")


def test_a_follower_that_met_no_leader_yet_names_none(admin: Client, node: FakeNode) -> None:
    node.replication.follow("connecting", uri=None, name=None)
    reason = admin.put("/api/queues/%2F/q").json()["reason"]
    assert reason.startswith("this node is a follower of a leader that it has not reached yet; ")


def test_everything_is_read_on_a_follower(admin: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 3)
    node.replication.follow()
    [queue] = admin.get("/api/queues").json()
    assert (queue["name"], queue["messages"]) == ("q", 3)
    assert admin.get("/api/definitions").status_code == 200
    assert admin.get("/api/whoami").json()["name"] == "guest"
    assert admin.request("HEAD", "/api/overview").status_code == 200


def test_the_test_of_publishing_is_no_reading(admin: Client, node: FakeNode) -> None:
    node.replication.follow()
    assert admin.get("/api/aliveness-test/%2F").json()["error"] == "not_leader"
    assert not node.broker.queues


def test_strangers_are_not_told_who_leads(client_as: Callable[..., Client], node: FakeNode) -> None:
    node.replication.follow()
    reply = client_as("guest", "wrong").put("/api/queues/%2F/q")
    assert (reply.status_code, "10.0.0.1" in reply.text) == (401, False)


def test_who_may_not_change_is_told_that_first(node: FakeNode, client_as: Callable[..., Client]) -> None:
    node.replication.follow()
    node.add_user("watcher", "monitoring")
    assert client_as("watcher").put("/api/vhosts/v").status_code == 401


def test_only_the_doors_that_are_open_are_told(admin: Client, node: FakeNode) -> None:
    def protocols() -> set[str]:
        return {each["protocol"] for each in admin.get("/api/overview").json()["listeners"]}

    assert protocols() == {"amqp", "stream", "http"}
    node.replication.follow()
    assert protocols() == {"http"}


def test_a_node_that_cannot_tell_right_credentials_from_wrong_ones_asks_to_try_again(
    node: FakeNode, client_as: Callable[..., Client], operator: Client
) -> None:
    """A new follower has no users before its first join, and a node without its lease may lack the newest."""
    client = client_as("newest")
    assert client.get("/api/whoami").status_code == 401
    node.replication.role = "suspended"
    reply = client.get("/api/whoami")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "has no lease in etcd" in reply.json()["reason"]
    assert client.post("/api/login", username="newest", password="secret").status_code == 503
    assert client_as("guest").get("/api/whoami").status_code == 200
    node.replication.follow()
    assert client.get("/api/whoami").status_code == 401
    node.broker.definitions.by_kind["users"].clear()
    reply = client.get("/api/whoami")
    assert (reply.status_code, reply.json()["error"], "10.0.0.1" in reply.text) == (503, "unavailable", False)
    assert operator.get("/api/whoami").status_code == 200

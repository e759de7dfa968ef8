from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.model.definitions import Queue

if TYPE_CHECKING:
    from ..conftest import Client, FakeNode


def test_a_vhost_is_made_with_tags_and_its_maker_may_use_it(admin: Client, node: FakeNode) -> None:
    assert admin.put("/api/vhosts/v", description="d", tags="standby_replication, x").status_code == 201
    shown = admin.get("/api/vhosts/v").json()
    assert (shown["description"], shown["tags"]) == ("d", ["standby_replication", "x"])
    assert shown["metadata"]["tags"] == ["standby_replication", "x"]
    assert [each["user"] for each in admin.get("/api/vhosts/v/permissions").json()] == ["guest"]


def test_the_operator_gets_no_permissions_as_it_is_no_user(operator: Client, node: FakeNode) -> None:
    operator.put("/api/vhosts/v")
    assert ("v", "operator") not in node.broker.definitions.by_kind["permissions"]


def test_putting_a_vhost_again_changes_only_what_is_named(admin: Client) -> None:
    admin.put("/api/vhosts/v", description="d", tags=["a"])
    assert admin.put("/api/vhosts/v", tags=["b"]).status_code == 204
    shown = admin.get("/api/vhosts/v").json()
    assert (shown["description"], shown["tags"]) == ("d", ["b"])


def test_a_vhost_counts_the_messages_of_its_queues(
    admin: Client, node: FakeNode, tick: Callable[[], None]
) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 3)
    tick()
    assert admin.get("/api/vhosts/%2F").json()["messages_ready"] == 3


def test_a_deleted_vhost_takes_its_queues_along(admin: Client, node: FakeNode) -> None:
    admin.put("/api/vhosts/v")
    admin.put("/api/queues/v/q")
    assert admin.delete("/api/vhosts/v").status_code == 204
    assert ("v", "q") not in node.broker.queues
    assert admin.delete("/api/vhosts/v").status_code == 404
    assert admin.get("/api/vhosts/v").status_code == 404


def test_a_new_vhost_has_the_nodes_default_queue_type_unless_it_names_one(
    admin: Client, node: FakeNode
) -> None:
    node.broker.default_queue_type = "quorum"
    admin.put("/api/vhosts/v")
    admin.put("/api/vhosts/w", default_queue_type="classic")
    admin.request("POST", "/api/definitions", json={"vhosts": [{"name": "x"}]})
    shown = {each["name"]: each["default_queue_type"] for each in admin.get("/api/vhosts").json()}
    assert shown == {"/": "classic", "v": "quorum", "w": "classic", "x": "quorum"}
    admin.put("/api/vhosts/%2F", description="still classic")
    assert admin.get("/api/vhosts/%2F").json()["default_queue_type"] == "classic"

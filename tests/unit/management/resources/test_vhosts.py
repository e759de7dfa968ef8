from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from leveret.management.request.call import CHANGES_AT_ONCE
from leveret.management.resources import vhosts
from leveret.model.definitions import Delete, Queue

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode


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


@pytest.mark.parametrize("path", ["/api/vhosts", "/api/vhosts/v"])
def test_a_vhost_that_is_deleted_while_others_are_asked_breaks_no_answer(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    admin.put("/api/vhosts/v")

    async def sums_of(*_: object) -> dict[tuple[str, ...], list[object]]:
        node.broker.apply(Delete("vhosts", ("v",)))
        return {}

    monkeypatch.setattr(vhosts, "sums_of", sums_of)
    assert admin.get(path).status_code == 200


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


def test_many_queues_of_a_vhost_do_not_go_in_one_flush(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.put("/api/vhosts/v")
    for number in range(3 * CHANGES_AT_ONCE):
        node.broker.declare_queue(Queue(name=f"q{number}", vhost="v"))
    node.broker.changes.clear()
    flushed: list[int] = []
    commit = node.commit

    async def counting() -> None:
        flushed.append(len(node.broker.changes))
        node.broker.deleted.clear()
        await commit()

    monkeypatch.setattr(node, "commit", counting)
    assert admin.delete("/api/vhosts/v").status_code == 204
    assert sum(flushed) > 3 * CHANGES_AT_ONCE
    assert max(flushed) <= CHANGES_AT_ONCE + 10
    assert not node.broker.vhost_queues("v")


def test_many_definitions_are_not_taken_in_one_flush(
    admin: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    commit = node.commit

    async def counting() -> None:
        flushed.append(len(node.broker.changes))
        await commit()

    monkeypatch.setattr(node, "commit", counting)
    queues = [{"name": f"q{number}", "vhost": "/"} for number in range(3 * CHANGES_AT_ONCE)]
    assert admin.post("/api/definitions", queues=queues).status_code == 204
    assert sum(flushed) >= 3 * CHANGES_AT_ONCE
    assert max(flushed) <= CHANGES_AT_ONCE

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def test_permissions_are_set_shown_and_cleared(admin: Client, node: FakeNode) -> None:
    node.add_user("u")
    assert admin.put("/api/permissions/%2F/u", **ALL).status_code == 201
    assert admin.put("/api/permissions/%2F/u", **(ALL | {"read": "^a"})).status_code == 204
    expected = {"user": "u", "vhost": "/", "configure": ".*", "write": ".*", "read": "^a"}
    assert admin.get("/api/permissions/%2F/u").json() == expected
    assert admin.get("/api/users/u/permissions").json() == [expected]
    assert admin.delete("/api/permissions/%2F/u").status_code == 204
    assert admin.get("/api/permissions/%2F/u").status_code == 404


def test_topic_permissions_are_set_shown_and_cleared(admin: Client) -> None:
    body = {"exchange": "e", "write": "^a", "read": "^b"}
    assert admin.put("/api/topic-permissions/%2F/guest", **body).status_code == 201
    assert admin.get("/api/topic-permissions/%2F/guest").json() == [{"user": "guest", "vhost": "/", **body}]
    assert admin.get("/api/vhosts/%2F/topic-permissions").json() == admin.get("/api/topic-permissions").json()
    assert admin.delete("/api/topic-permissions/%2F/guest").status_code == 204
    assert admin.get("/api/topic-permissions/%2F/guest").status_code == 404


def test_one_topic_permission_of_several_is_cleared(admin: Client) -> None:
    for exchange in ("amq.topic", "other"):
        body = {"exchange": exchange, "write": "w", "read": "r"}
        assert admin.put("/api/topic-permissions/%2F/guest", **body).status_code == 201
    assert admin.delete("/api/topic-permissions/%2F/guest/amq.topic").status_code == 204
    assert [each["exchange"] for each in admin.get("/api/topic-permissions").json()] == ["other"]
    reply = admin.delete("/api/topic-permissions/%2F/guest/amq.topic")
    assert (reply.status_code, reply.json()["error"]) == (404, "Object Not Found")

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from leveret.core.broker.access import check_password
from leveret.model.definitions import User

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode


def stored(node: FakeNode, name: str) -> User:
    user = node.broker.definitions.by_kind["users"][(name,)]
    assert isinstance(user, User)
    return user


def test_a_user_is_stored_with_a_salted_hash_only(admin: Client, node: FakeNode) -> None:
    assert admin.put("/api/users/u", password="s3cret", tags="management,x").status_code == 201
    user = stored(node, "u")
    assert check_password(user, "s3cret")
    assert user.tags == ("management", "x")
    assert "s3cret" not in admin.get("/api/users/u").text
    assert admin.put("/api/users/u", password="s3cret", tags=[]).status_code == 204
    assert stored(node, "u").password_hash != user.password_hash


def test_a_hash_from_another_broker_is_kept_as_it_is(admin: Client, node: FakeNode) -> None:
    hashed = "tppsse2//TRaK6Saml5j0PbBOKxegEHDEUYM0IvAFKyc3Ws+"
    assert admin.put("/api/users/u", password_hash=hashed, tags="").status_code == 201
    assert check_password(stored(node, "u"), "p")


def test_a_user_without_a_password_cannot_log_in(admin: Client, node: FakeNode) -> None:
    assert admin.put("/api/users/u", tags="").status_code == 201
    assert not check_password(stored(node, "u"), "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "p"}, "tags"),
        ({"password": "p", "password_hash": "x", "tags": ""}, "both_password_and_password_hash_are_provided"),
        ({"password_hash": "zzz", "tags": ""}, "not base64"),
        ({"password": "p", "tags": "", "hashing_algorithm": "rot13"}, "rabbit_password_hashing_sha256"),
    ],
)
def test_a_user_that_makes_no_sense_is_refused(
    admin: Client, node: FakeNode, body: dict[str, Any], reason: str
) -> None:
    reply = admin.put("/api/users/u", **body)
    assert reply.status_code == 400
    assert reason in reply.json()["reason"]
    assert ("u",) not in node.broker.definitions.by_kind["users"]


def test_users_come_in_pages_where_that_is_asked_for(admin: Client, node: FakeNode) -> None:
    assert isinstance(admin.get("/api/users").json(), list)
    page = admin.get("/api/users?page=1&page_size=1").json()
    assert (page["page"], page["page_size"], len(page["items"])) == (1, 1, 1)
    assert page["total_count"] == len(admin.get("/api/users").json())


def test_users_without_permissions_are_listed(admin: Client, node: FakeNode) -> None:
    node.add_user("u")
    assert [user["name"] for user in admin.get("/api/users/without-permissions").json()] == ["u"]


def test_a_password_can_be_tried(admin: Client, node: FakeNode) -> None:
    node.add_user("u")
    assert admin.post("/api/users/u/authenticate", password="secret").status_code == 204
    reply = admin.post("/api/users/u/authenticate", password="wrong")
    assert (reply.status_code, "invalid credentials" in reply.json()["reason"]) == (400, True)


def put_if(admin: Client, condition: dict[str, str], **body: object) -> httpx.Response:
    return admin.request("PUT", "/api/users/u", json=body, headers=condition)


def test_a_user_is_replaced_on_condition_that_nobody_changed_it_meanwhile(
    admin: Client, node: FakeNode
) -> None:
    node.add_user("u")
    before = admin.get("/api/users/u").headers["etag"]
    assert put_if(admin, {"if-match": before}, password="new", tags="").status_code == 204
    late = put_if(admin, {"if-match": before}, tags="management")
    assert (late.status_code, late.json()["error"]) == (412, "precondition_failed")
    assert check_password(stored(node, "u"), "new")
    now = admin.get("/api/users/u").headers["etag"]
    assert put_if(admin, {"if-match": f"{before}, {now}"}, tags="management").status_code == 204


def test_a_user_who_is_deleted_meanwhile_does_not_come_back(admin: Client, node: FakeNode) -> None:
    node.add_user("u")
    tag = admin.get("/api/users/u").headers["etag"]
    admin.delete("/api/users/u")
    for condition in (tag, "*"):
        assert put_if(admin, {"if-match": condition}, tags="").status_code == 412
    assert ("u",) not in node.broker.definitions.by_kind["users"]


def test_a_user_is_added_on_condition_that_there_is_none(admin: Client, node: FakeNode) -> None:
    new = {"if-none-match": "*"}
    assert put_if(admin, new, password="first", tags="").status_code == 201
    assert put_if(admin, new, password="second", tags="").status_code == 412
    assert check_password(stored(node, "u"), "first")

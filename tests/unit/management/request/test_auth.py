from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

ClientAs = Callable[..., "Client"]


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!!", "Bearer abc", "Basic /w=="])
def test_credentials_that_make_no_sense_are_refused(anonymous: Client, header: str) -> None:
    reply = anonymous.request("GET", "/api/whoami", headers={"authorization": header})
    assert reply.status_code == 401


def test_a_page_that_asks_for_the_password_itself_is_not_challenged(anonymous: Client) -> None:
    wrong = {"authorization": "Basic eDp5", "referer": "http://node/"}
    assert "www-authenticate" not in anonymous.request("GET", "/api/whoami", headers=wrong).headers
    for known in ("authorization", "referer"):
        reply = anonymous.request("GET", "/api/whoami", headers={known: wrong[known]})
        assert "www-authenticate" in reply.headers


def test_a_download_takes_its_credentials_from_the_query_and_nothing_else_does(anonymous: Client) -> None:
    known, wrong = "Z3Vlc3Q6c2VjcmV0", "Z3Vlc3Q6d3Jvbmc%3D"
    assert anonymous.get(f"/api/definitions?auth={known}&download=all.json").status_code == 200
    assert anonymous.get(f"/api/definitions/%2F?auth={known}").status_code == 200
    assert anonymous.get(f"/api/definitions?auth={wrong}").status_code == 401
    assert anonymous.get(f"/api/overview?auth={known}").status_code == 401
    assert anonymous.request("POST", f"/api/definitions?auth={known}", json={}).status_code == 401


def test_guest_is_let_in_from_this_machine_only(client_as: ClientAs) -> None:
    assert client_as("guest").get("/api/whoami").status_code == 200
    assert client_as("guest", address="192.0.2.1").get("/api/whoami").status_code == 401


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/users", "Not administrator user"),
        ("/api/definitions", "Not administrator user"),
        ("/api/global-parameters", "Not administrator user"),
        ("/api/nodes", "Not monitor user"),
        ("/api/tanzu/osr/schema/status", "Not monitor user"),
        ("/api/parameters", "Not policymaker user"),
        ("/api/queues/%2F", "User not authorised to access virtual host"),
    ],
)
def test_a_management_user_without_permissions_sees_little(
    node: FakeNode, client_as: ClientAs, path: str, reason: str
) -> None:
    node.add_user("viewer", "management")
    viewer = client_as("viewer")
    reply = viewer.get(path)
    assert (reply.status_code, reply.json()["reason"]) == (401, reason)
    assert viewer.get("/api/vhosts").json() == []
    assert viewer.get("/api/queues").json() == []


def test_the_operator_needs_no_password_and_may_do_all(operator: Client) -> None:
    assert operator.get("/api/whoami").json() == {"name": "operator", "tags": ["administrator"]}
    assert operator.put("/api/vhosts/new").status_code == 201
    assert operator.put("/api/queues/new/q").status_code == 201


def test_no_header_makes_a_caller_the_operator(anonymous: Client) -> None:
    headers = {"leveret.operator": "true", "x-leveret-operator": "true"}
    assert anonymous.request("GET", "/api/whoami", headers=headers).status_code == 401


ADMINISTRATORS: tuple[tuple[str, str, object], ...] = (
    ("PUT", "/api/users/u", {"password": "p", "tags": ""}),
    ("DELETE", "/api/users/guest", None),
    ("PUT", "/api/permissions/%2F/app", {"configure": "", "write": "", "read": ".*"}),
    ("DELETE", "/api/permissions/%2F/guest", None),
    ("PUT", "/api/topic-permissions/%2F/guest", {"exchange": "", "write": "", "read": ""}),
    ("PUT", "/api/vhosts/new", {}),
    ("DELETE", "/api/vhosts/%2F", None),
    ("PUT", "/api/global-parameters/n", {"value": 1}),
    ("POST", "/api/definitions", {"vhosts": [{"name": "new"}]}),
    ("POST", "/api/replication/promote", {}),
)


@pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring"])
@pytest.mark.parametrize(("method", "path", "body"), ADMINISTRATORS, ids=lambda each: str(each)[:40])
def test_what_only_an_administrator_changes_nobody_else_does(
    node: FakeNode, client_as: ClientAs, tag: str, method: str, path: str, body: object
) -> None:
    node.add_user("app", tag, vhost="/")
    before = {kind: dict(existing) for kind, existing in node.broker.definitions.by_kind.items()}
    reply = client_as("app").request(method, path, json=body)
    assert (reply.status_code, reply.json()["reason"]) == (401, "Not administrator user")
    assert before == node.broker.definitions.by_kind

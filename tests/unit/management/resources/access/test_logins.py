from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode


def test_a_page_gets_what_it_is_to_send_from_now_on(node: FakeNode, anonymous: Client) -> None:
    form = {"username": "guest", "password": "secret"}
    reply = anonymous.request("POST", "/api/login", data=form)
    token = reply.json()["token"]
    assert base64.b64decode(token["value"]).decode() == "guest:secret"
    assert reply.json()["user"] == {"name": "guest", "tags": ["administrator"]}
    assert "set-cookie" not in reply.headers
    headers = {"authorization": f"{token['type']} {token['value']}"}
    assert anonymous.request("GET", "/api/whoami", headers=headers).status_code == 200
    assert anonymous.delete("/api/login").status_code == 204


def test_a_wrong_login_is_refused_without_a_challenge(node: FakeNode, anonymous: Client) -> None:
    node.add_user("app")
    for name, password in {"guest": "wrong", "app": "secret", "nobody": ""}.items():
        reply = anonymous.request("POST", "/api/login", data={"username": name, "password": password})
        assert reply.status_code == 401
        assert "www-authenticate" not in reply.headers

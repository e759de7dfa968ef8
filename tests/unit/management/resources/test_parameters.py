from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

UPSTREAM = {"endpoints": ["a:5672"], "username": "u", "password": "p"}


def test_a_policy_is_set_shown_and_cleared(admin: Client) -> None:
    policy = {
        "pattern": "^q",
        "definition": {"remote-dc-replicate": True},
        "priority": 3,
        "apply-to": "queues",
    }
    assert admin.put("/api/policies/%2F/p", **policy).status_code == 201
    assert admin.put("/api/policies/%2F/p", **policy).status_code == 204
    assert admin.get("/api/policies/%2F").json() == [{"vhost": "/", "name": "p", **policy}]
    assert admin.get("/api/policies").json() == admin.get("/api/policies/%2F").json()
    assert admin.delete("/api/policies/%2F/p").status_code == 204
    assert admin.delete("/api/policies/%2F/p").status_code == 404


def test_a_parameter_is_set_shown_and_cleared(admin: Client) -> None:
    path = "/api/parameters/vhost-limits/%2F/limits"
    assert admin.put(path, value={"max-queues": 1}).status_code == 201
    expected = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1}}
    assert admin.get(path).json() == expected
    for listed in ("/api/parameters", "/api/parameters/vhost-limits", "/api/parameters/vhost-limits/%2F"):
        assert admin.get(listed).json() == [expected]
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404


def test_a_global_parameter_is_set_shown_and_cleared(admin: Client) -> None:
    assert admin.put("/api/global-parameters/n", value=[1, "a"]).status_code == 201
    assert admin.put("/api/global-parameters/n", value=None).status_code == 204
    assert admin.get("/api/global-parameters/n").json() == {"name": "n", "value": None}
    assert admin.delete("/api/global-parameters/n").status_code == 204
    assert admin.get("/api/global-parameters/n").status_code == 404
    assert "`value`" in admin.put("/api/global-parameters/n").json()["reason"]


def test_the_schema_upstream_is_checked_by_who_uses_it(admin: Client, node: FakeNode) -> None:
    admin.put("/api/global-parameters/schema_definition_sync_upstream", value=UPSTREAM)
    assert [msgspec.json.decode(body) for body in node.schema_sync.calls] == [UPSTREAM]


def test_the_standby_upstream_is_checked_and_stored(admin: Client, node: FakeNode) -> None:
    path = "/api/global-parameters/standby_replication_upstream"
    assert admin.put(path, value=UPSTREAM).status_code == 201
    assert admin.get(path).json()["value"] == {**UPSTREAM, "password": "(secret)"}
    assert admin.get(f"{path}?include_secrets=true").json()["value"] == UPSTREAM


@pytest.mark.parametrize("missing", ["endpoints", "username", "password"])
def test_a_standby_upstream_with_a_missing_field_is_refused(admin: Client, missing: str) -> None:
    path = "/api/global-parameters/standby_replication_upstream"
    reply = admin.put(path, value={key: value for key, value in UPSTREAM.items() if key != missing})
    assert (reply.status_code, missing in reply.json()["reason"]) == (400, True)
    assert admin.get(path).status_code == 404


def test_parameters_of_a_vhost_are_shown_to_those_who_may_enter_it(
    admin: Client, node: FakeNode, client_as: Callable[..., Client]
) -> None:
    admin.put("/api/vhosts/other")
    for vhost in ("%2F", "other"):
        assert admin.put(f"/api/parameters/vhost-limits/{vhost}/limits", value={}).status_code == 201
    node.add_user("maker", "policymaker", vhost="/")
    maker = client_as("maker")
    for path in ("/api/parameters", "/api/parameters/vhost-limits"):
        assert [each["vhost"] for each in maker.get(path).json()] == ["/"]
        assert sorted(each["vhost"] for each in admin.get(path).json()) == ["/", "other"]
    assert maker.get("/api/parameters/vhost-limits/other").status_code == 401

"""Paths under a prefix, and pages of other sites."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leveret.management.http.app import build_app, operator_app, public_app
from tests.unit.management.conftest import Client

if TYPE_CHECKING:
    from tests.unit.management.conftest import FakeNode

SITE = "https://admin.example"


def client(node: FakeNode, *, operator: bool = False, **options: Any) -> Client:
    node.config = replace(node.config, management=replace(node.config.management, **options))
    app = build_app(node)
    return Client(operator_app(app)) if operator else Client(public_app(app), ("guest", "secret"))


def test_a_prefix_is_asked_of_those_who_come_over_tcp_only(node: FakeNode) -> None:
    public = client(node, path_prefix="/broker")
    assert public.get("/broker/api/whoami").status_code == 200
    assert public.get("/api/whoami").status_code == 404
    assert public.get("/broker/broker/api/whoami").status_code == 404
    assert client(node, operator=True, path_prefix="/broker").get("/api/whoami").status_code == 200


def test_a_site_that_is_allowed_may_ask_and_change(node: FakeNode) -> None:
    public = client(node, allowed_origins=(SITE,))
    headers = {"origin": SITE}
    assert public.request("PUT", "/api/queues/%2F/q", headers=headers).status_code == 201
    reply = public.request("GET", "/api/whoami", headers=headers)
    assert reply.headers["access-control-allow-origin"] == SITE
    asked = public.request(
        "OPTIONS", "/api/queues/%2F/q", headers=headers | {"access-control-request-method": "PUT"}
    )
    assert (asked.status_code, asked.headers["access-control-max-age"]) == (200, "1800")


def test_other_sites_are_not_told_and_change_nothing(node: FakeNode) -> None:
    public = client(node, allowed_origins=(SITE,))
    headers = {"origin": "https://evil.example"}
    assert "access-control-allow-origin" not in public.request("GET", "/api/whoami", headers=headers).headers
    assert public.request("PUT", "/api/queues/%2F/q", headers=headers).status_code == 403


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "durable",
    "auto_delete",
    "arguments",
    "type",
    "internal",
    "routing_key",
    "properties",
    "payload",
    "payload_encoding",
    "count",
    "ackmode",
    "encoding",
    "truncate",
    "pattern",
    "definition",
    "priority",
    "apply-to",
    "value",
    "users",
    "password",
    "password_hash",
    "tags",
    "limits",
    "description",
    "default_queue_type",
    "tracing",
    "configure",
    "write",
    "read",
    "exchange",
    "queues",
    "bindings",
    "vhosts",
    "policies",
    "name",
    "permissions",
    "parameters",
    "exchanges",
    "action",
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8) | JSON
PATHS = (
    "PUT /api/queues/%2F/q",
    "PUT /api/exchanges/%2F/e",
    "POST /api/bindings/%2F/e/amq.topic/q/held",
    "POST /api/exchanges/%2F/amq.default/publish",
    "POST /api/queues/%2F/held/get",
    "POST /api/queues/%2F/held/actions",
    "PUT /api/policies/%2F/p",
    "PUT /api/operator-policies/%2F/p",
    "PUT /api/parameters/vhost-limits/%2F/limits",
    "PUT /api/global-parameters/g",
    "PUT /api/vhost-limits/%2F/max-queues",
    "PUT /api/user-limits/guest/max-channels",
    "PUT /api/vhosts/v",
    "PUT /api/users/u",
    "POST /api/users/bulk-delete",
    "PUT /api/permissions/%2F/guest",
    "PUT /api/topic-permissions/%2F/guest",
    "PUT /api/cluster-name",
    "POST /api/definitions",
    "POST /api/definitions/%2F",
)


@pytest.mark.hypothesis
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(path=st.sampled_from(PATHS), body=BODIES)
def test_no_body_is_ever_the_servers_fault(node: FakeNode, path: str, body: Any) -> None:
    if ("/", "held") not in node.broker.queues:
        client(node).put("/api/queues/%2F/held")
    method, _, place = path.partition(" ")
    reply = client(node, operator=True).request(method, place, json=body)
    assert reply.status_code < 500, (path, body, reply.text)
    if reply.status_code >= 400:
        assert set(reply.json()) == {"error", "reason"}

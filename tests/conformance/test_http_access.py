"""Who may see and change what over HTTP, by tags and permissions, as RabbitMQ has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import httpx
import pika
import pytest

from leveret.testing.network.ports import wait_until
from tests.conformance.brokers import Broker
from tests.conformance.http_scene import client_of

TAGS: Final = ("", "management", "policymaker", "monitoring", "administrator")
ANY: Final = frozenset(TAGS[1:])
MONITORS: Final = frozenset({"monitoring", "administrator"})
MAKERS: Final = frozenset({"policymaker", "administrator"})
ADMINISTRATORS: Final = frozenset({"administrator"})

READERS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(
        (
            "overview",
            "whoami",
            "vhosts",
            "connections",
            "channels",
            "consumers",
            "vhosts/%2F/connections",
            "exchanges",
            "exchanges/%2F",
            "queues",
            "queues/%2F",
            "bindings",
            "policies",
            "policies/%2F",
            "operator-policies",
            "operator-policies/%2F",
            "cluster-name",
            "extensions",
            "health/checks/alarms",
            "health/checks/virtual-hosts",
            "aliveness-test/%2F",
            "vhost-limits",
            "vhost-limits/%2F",
            "user-limits",
        ),
        ANY,
    ),
    **dict.fromkeys(("nodes", "nodes/$node", "nodes/$node/memory", "auth/attempts/$node"), MONITORS),
    **dict.fromkeys(("parameters", "parameters/vhost-limits", "parameters/vhost-limits/%2F"), MAKERS),
    **dict.fromkeys(
        (
            "vhosts/%2F",
            "vhosts/$hidden",
            "users",
            "users/guest",
            "users/without-permissions",
            "users/guest/permissions",
            "permissions",
            "permissions/%2F/guest",
            "topic-permissions",
            "vhosts/%2F/permissions",
            "vhosts/%2F/topic-permissions",
            "definitions",
            "definitions/%2F",
            "exchanges/$hidden",
            "queues/$hidden",
        ),
        ADMINISTRATORS,
    ),
}

POLICY: Final = {"pattern": "^none", "definition": {"max-length": 5}}
CHANGERS: Final[list[tuple[str, str, Any, frozenset[str]]]] = [
    ("PUT", "policies/%2F/$n", POLICY, MAKERS),
    ("PUT", "operator-policies/%2F/$n", POLICY, ADMINISTRATORS),
    ("PUT", "vhosts/$n", {}, ADMINISTRATORS),
    ("PUT", "users/$n-other", {"password": "x", "tags": ""}, ADMINISTRATORS),
    ("PUT", "permissions/%2F/$n", {"configure": ".*", "write": ".*", "read": ".*"}, ADMINISTRATORS),
    ("PUT", "vhost-limits/%2F/max-queues", {"value": 99999}, ADMINISTRATORS),
    ("PUT", "user-limits/$n/max-channels", {"value": 999}, ADMINISTRATORS),
    ("POST", "definitions", {}, ADMINISTRATORS),
    ("POST", "definitions/%2F", {}, ADMINISTRATORS),
    ("PUT", "cluster-name", {"name": "cn"}, ADMINISTRATORS),
    ("POST", "rebalance/queues", {}, ADMINISTRATORS),
    ("DELETE", "auth/attempts/$node", None, MONITORS),
    ("PUT", "queues/%2F/$n", {}, ANY),
    ("POST", "queues/%2F/$n/actions", {"action": "sync"}, ADMINISTRATORS),
    ("DELETE", "queues/%2F/$n", None, ANY),
    # An administrator may look everywhere, but needs permissions like everybody to change what is in a vhost.
    ("PUT", "queues/$hidden/x", {}, frozenset()),
]


@pytest.fixture(params=TAGS)
def tag(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def user(broker: Broker, http: httpx.Client, name: str, tag: str) -> Iterator[httpx.Client]:
    """The client of a user with the tag, who has all permissions on `/` and none on the vhost `NAME-hidden`."""
    http.put(f"users/{name}", json={"password": "p", "tags": tag})
    http.put(f"permissions/%2F/{name}", json={"configure": ".*", "write": ".*", "read": ".*"})
    http.put(f"vhosts/{name}-hidden", json={})
    with client_of(broker, name, "p") as client:
        yield client
    for path in (f"users/{name}", f"vhosts/{name}-hidden", f"vhosts/{name}", f"users/{name}-other"):
        http.delete(path)


@pytest.fixture
def named(http: httpx.Client, name: str) -> Callable[[str], str]:
    node = http.get("nodes").json()[0]["name"]
    return lambda path: path.replace("$hidden", f"{name}-hidden").replace("$node", node).replace("$n", name)


def test_tags_say_what_is_shown(
    user: httpx.Client, tag: str, named: Callable[[str], str], http: httpx.Client
) -> None:
    for path, readers in READERS.items():
        status = user.get(named(path)).status_code
        assert (path, status) == (path, 200 if tag in readers else 401)


def test_tags_say_what_is_changed(user: httpx.Client, tag: str, named: Callable[[str], str]) -> None:
    for method, path, body, changers in CHANGERS:
        content = {} if body is None else {"json": body}
        status = user.request(method, named(path), **content).status_code
        assert (method, path, status < 300, status == 401) == (
            method,
            path,
            tag in changers,
            tag not in changers,
        )


def test_vhosts_are_listed_for_those_who_may_use_or_monitor_them(
    user: httpx.Client, tag: str, name: str
) -> None:
    if tag:
        listed = [each["name"] for each in user.get("vhosts").json()]
        assert "/" in listed
        assert (f"{name}-hidden" in listed) == (tag in MONITORS)


def test_where_the_doors_are_is_for_those_who_monitor(user: httpx.Client, tag: str) -> None:
    if tag:
        overview = user.get("overview").json()
        assert ("listeners" in overview, "contexts" in overview, "node" in overview) == (tag in MONITORS,) * 3


@pytest.mark.parametrize("credentials", [None, ("guest", "wrong"), ("nobody", "x"), ("guest", "")])
def test_the_unknown_are_asked_who_they_are(
    broker: Broker, http: httpx.Client, credentials: tuple[str, str] | None
) -> None:
    reply = httpx.get(f"{http.base_url}overview", auth=credentials)
    assert (reply.status_code, reply.headers["www-authenticate"]) == (
        401,
        'Basic realm="RabbitMQ Management"',
    )


def test_a_login_is_checked_and_how_one_logs_in_is_told_to_all(http: httpx.Client) -> None:
    base = http.base_url
    assert httpx.post(f"{base}login", data={"username": "guest", "password": "guest"}).status_code == 200
    assert httpx.post(f"{base}login", data={"username": "guest", "password": "no"}).status_code == 401
    assert httpx.get(f"{base}auth").json()["enable_uaa"] is False
    assert httpx.get(f"{base}login", auth=("guest", "guest")).status_code == 405


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("overview/", 200),
        ("queues/%2F/", 200),
        ("exchanges/%2F/amq.direct/", 200),
        ("healthchecks/node/", 200),
        ("overview//", 404),
    ],
)
def test_one_slash_at_the_end_of_a_path_says_nothing(http: httpx.Client, path: str, status: int) -> None:
    assert http.get(path).status_code == status


@pytest.mark.parametrize(
    ("tag", "own", "status"),
    [
        ("monitoring", True, 204),
        ("monitoring", False, 401),
        ("management", True, 204),
        ("administrator", False, 204),
    ],
)
def test_a_connection_is_closed_by_its_user_or_an_administrator(
    broker: Broker, http: httpx.Client, name: str, tag: str, own: bool, status: int
) -> None:
    """Who only monitors sees the connections of others, and leaves them alone."""
    owner = name if own else f"{name}-owner"
    for user in {name, owner}:
        http.put(f"users/{user}", json={"password": "p", "tags": tag if user == name else ""})
        http.put(f"permissions/%2F/{user}", json={"configure": ".*", "write": ".*", "read": ".*"})
    connection = broker.connect(owner, "p")

    def listed() -> list[str]:
        rows = http.get("connections").json()
        return [each["name"] for each in rows if each.get("user") == owner]

    wait_until(lambda: bool(listed()), "the connection in the list", 30)
    path = f"connections/{quote(listed()[0], safe='')}"
    with client_of(broker, name, "p") as client:
        assert client.get(path).status_code == 200
        assert client.delete(path).status_code == status
    with suppress(pika.exceptions.AMQPError):
        connection.process_data_events(0.5)
        connection.close()
    for user in {name, owner}:
        http.delete(f"users/{user}")

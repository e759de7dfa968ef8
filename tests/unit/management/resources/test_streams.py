from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from leveret.session.stream.types import StreamPublisher, Subscription

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode

NAME = "127.0.0.1:5 -> 127.0.0.1:5552"
PATH = "127.0.0.1%3A5%20-%3E%20127.0.0.1%3A5552"


class FakeConnection:
    """A connection of the stream protocol, as far as it is shown."""

    name = NAME
    user = "guest"
    vhost = "/"
    state = "running"
    protocol = "stream"
    mechanism = "PLAIN"
    channels = channel_max = 0
    frame_max_bytes = 1_048_576
    heartbeat_s = 60
    unsent_bytes = 0
    since_ms = 1
    octets_received = 10
    octets_sent = 20
    tls = None
    proxied_by = ""

    def __init__(self) -> None:
        self.peer_properties = {"connection_name": "me"}
        self.publishers = {0: StreamPublisher(0, "ref", "s", to_stream=True)}
        self.subscriptions = {
            3: Subscription("s", 7, 9, whole=False, until=None),
            4: Subscription("s", 0, 1, whole=False, until=None, group="g", active=False),
        }
        self.reasons: list[str] = []

    def offset_lag(self, subscription: Subscription) -> int:
        return 100 - subscription.next_offset

    def cut(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def connection(node: FakeNode) -> FakeConnection:
    existing = FakeConnection()
    streams: Any = node.streams
    streams.connections = (existing,)
    return existing


def test_a_connection_is_among_all_and_among_its_kind(admin: Client, connection: FakeConnection) -> None:
    for path in ("connections", "stream/connections", "stream/connections/%2F", "vhosts/%2F/connections"):
        [shown] = admin.get(f"/api/{path}").json()
        assert (shown["name"], shown["protocol"], shown["user_provided_name"]) == (NAME, "stream", "me")
        assert (shown["recv_oct"], shown["send_oct"], shown["peer_port"]) == (10, 20, 5)
    assert admin.get(f"/api/stream/connections/%2F/{PATH}").json()["name"] == NAME
    assert admin.get("/api/stream/connections/%2F/none").status_code == 404


def test_publishers_are_listed_by_vhost_and_stream(admin: Client, connection: FakeConnection) -> None:
    expected = {
        "connection_details": {
            "name": NAME,
            "peer_host": "127.0.0.1",
            "peer_port": 5,
            "user": "guest",
            "node": "leveret@test",
        },
        "queue": {"name": "s", "vhost": "/"},
        "publisher_id": 0,
        "reference": "ref",
        "published": 0,
        "confirmed": 0,
        "errored": 0,
    }
    for path in ("publishers", "publishers/%2F", "publishers/%2F/s", f"connections/%2F/{PATH}/publishers"):
        assert admin.get(f"/api/stream/{path}").json() == [expected]
    assert admin.get("/api/stream/publishers/%2F/other").json() == []


def test_consumers_are_listed_with_those_of_amqp_too(admin: Client, connection: FakeConnection) -> None:
    for path in ("consumers", "consumers/%2F", f"connections/%2F/{PATH}/consumers"):
        shown = admin.get(f"/api/stream/{path}").json()
        assert [(each["subscription_id"], each["credits"], each["offset"]) for each in shown] == [
            (3, 9, 7),
            (4, 1, 0),
        ]
        assert [(each["offset_lag"], each["consumed"], each["properties"]) for each in shown] == [
            (93, 0, {}),
            (100, 0, {}),
        ]
    tags = [(each["consumer_tag"], each["activity_status"]) for each in admin.get("/api/consumers").json()]
    assert tags == [("stream.subid-3", "up"), ("stream.subid-4", "waiting")]


def test_a_connection_is_closed_for_a_reason(admin: Client, connection: FakeConnection) -> None:
    for path in (f"stream/connections/%2F/{PATH}", f"connections/{PATH}", "connections/username/guest"):
        reply = admin.request("DELETE", f"/api/{path}", headers={"x-reason": path})
        assert reply.status_code == 204
        assert connection.reasons.pop() == path


def test_others_connections_are_for_those_who_monitor(
    node: FakeNode, connection: FakeConnection, client_as: Callable[..., Client]
) -> None:
    node.add_user("other", "management", vhost="/")
    other = client_as("other")
    for path in ("connections", "stream/connections", "stream/publishers", "stream/consumers"):
        assert other.get(f"/api/{path}").json() == []
    assert other.delete(f"/api/connections/{PATH}").status_code == 404


def test_a_connection_of_amqp_1_0_is_shown_counted_and_ended_like_any_other(
    node: FakeNode, admin: Client
) -> None:
    existing = FakeConnection()
    existing.protocol = "AMQP 1-0"
    amqp: Any = node.amqp
    amqp.amqp10_connections = (existing,)
    [shown] = admin.get("/api/connections").json()
    assert (shown["name"], shown["protocol"], shown["auth_mechanism"]) == (NAME, "AMQP 1-0", "PLAIN")
    assert admin.get(f"/api/connections/{PATH}/channels").json() == []
    assert admin.get("/api/overview").json()["object_totals"]["connections"] == 1
    assert admin.get("/api/stream/connections").json() == []
    assert admin.delete(f"/api/connections/{PATH}").status_code == 204
    assert existing.reasons == ["Closed via management plugin"]


def test_what_others_have_open_is_shown_to_monitors_and_closed_by_administrators(
    client_as: Callable[..., Client], node: FakeNode, connection: FakeConnection
) -> None:
    """As RabbitMQ 3.10.8 has it: a monitor could end everybody's connections, and anybody saw all consumers."""
    node.add_user("watcher", "monitoring")
    node.add_user("other", "management", vhost="/")
    watcher, other = client_as("watcher"), client_as("other")
    for path in ("consumers", "consumers/%2F"):
        shown = [len(each.get(f"/api/{path}").json()) for each in (watcher, other)]
        assert shown == [2, 0]
    totals = [each.get("/api/overview").json()["object_totals"] for each in (watcher, other)]
    assert [each["connections"] for each in totals] == [1, 0]
    paths = (f"connections/{PATH}", "connections/username/guest", f"stream/connections/%2F/{PATH}")
    for path in paths:
        assert watcher.delete(f"/api/{path}").status_code == 401
        assert other.delete(f"/api/{path}").status_code in (401, 404)
    assert connection.reasons == []
    connection.user = "other"
    assert [other.delete(f"/api/{path.replace('guest', 'other')}").status_code for path in paths] == [204] * 3
    assert len(connection.reasons) == 3

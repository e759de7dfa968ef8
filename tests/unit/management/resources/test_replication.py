from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from leveret.core.replication.standby_site import RecoveryRequest
from leveret.model.definitions import Put, Vhost
from leveret.model.errors import LeveretError
from leveret.runtime.standby.recovery import RecoveryTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.management.conftest import Client, FakeNode

STANDBY = "/api/replication/standby"


@pytest.fixture
def monitor(client_as: Callable[..., Client], node: FakeNode) -> Client:
    """A client of a user with the tag monitoring."""
    node.add_user("watcher", "monitoring")
    return client_as("watcher")


def lines(text: str) -> list[Any]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


def test_schema_replication_is_switched_by_the_products_paths(admin: Client, node: FakeNode) -> None:
    for method, path in [
        ("PUT", "/api/tanzu/osr/schema/enable/leveret@test"),
        ("DELETE", "/api/tanzu/osr/schema/disable/leveret@test"),
        ("PUT", "/api/tanzu/osr/schema/enable-cluster-wide"),
        ("DELETE", "/api/tanzu/osr/schema/disable-cluster-wide"),
        ("POST", "/api/definitions/sync/enable"),
        ("POST", "/api/definitions/sync/disable/leveret@test"),
        ("POST", "/api/replication/schema/restart"),
    ]:
        assert admin.request(method, path).status_code == 204
    switched = ["enable", "disable"] * 3
    assert node.schema_sync.calls == [*switched, "restart"]


def test_another_node_is_not_found(admin: Client) -> None:
    assert admin.get("/api/tanzu/osr/schema/status/other@node").status_code == 404
    assert admin.request("PUT", "/api/tanzu/osr/schema/enable/other@node").status_code == 404


def test_the_schema_mode_and_user_are_set(admin: Client, node: FakeNode) -> None:
    assert admin.put("/api/replication/schema/mode", operating_mode="downstream").status_code == 204
    assert admin.get("/api/tanzu/osr/schema/status").json()["operating_mode"] == "downstream"
    reply = admin.put("/api/replication/schema/mode", operating_mode="sideways")
    assert (reply.status_code, "sideways" in reply.json()["reason"]) == (400, True)
    assert admin.post("/api/replication/schema/users", name="u", password="p").status_code == 204
    assert node.schema_sync.calls == [("u", "p")]


def test_a_schema_sync_is_asked_for_and_looked_at(admin: Client, node: FakeNode) -> None:
    path = "/api/replication/schema"
    assert admin.post(f"{path}/sync").json()["deletes"] == 2
    assert admin.post(f"{path}/sync", force=True).status_code == 200
    assert node.schema_sync.calls == [("sync", False), ("sync", True)]
    assert admin.post(f"{path}/sync", force=7).status_code == 400
    assert [row["action"] for row in admin.get(f"{path}/diff").json()] == ["change"]
    assert [row["stamp"] for row in admin.get(f"{path}/history").json()] == [7]


def test_the_status_of_a_downstream_has_a_row_a_vhost(admin: Client) -> None:
    for path in ("/api/tanzu/osr/standby/status", "/api/replication/status"):
        [row] = admin.get(path).json()
        assert (row["virtual_host"], row["operating_mode"], row["state"]) == ("v", "downstream", "connected")
        assert (row["upstream_endpoints"], row["upstream_username"]) == (["a:5552"], "replicator")


def test_the_status_of_an_upstream_has_a_row_a_tagged_vhost(admin: Client, node: FakeNode) -> None:
    node.standby.mode = "upstream"
    node.broker.apply(Put(Vhost(name="v", tags=("standby_replication",))))
    rows = admin.get("/api/tanzu/osr/standby/status").json()
    assert rows == [{"virtual_host": "v", "operating_mode": "upstream", "state": "running"}]


def test_the_standby_is_connected_disconnected_and_emptied(admin: Client, node: FakeNode) -> None:
    assert admin.post(f"{STANDBY}/connect").status_code == 204
    assert admin.post(f"{STANDBY}/disconnect").status_code == 204
    assert admin.delete(f"{STANDBY}/data").status_code == 204
    assert node.standby.calls == ["connect", "disconnect", "delete"]


@pytest.mark.parametrize(
    "path", ["available", "summary", "disk-usage", "upstream-metrics", "downstream-metrics", "downstreams"]
)
def test_what_is_there_to_recover_is_shown(admin: Client, path: str) -> None:
    assert len(admin.get(f"{STANDBY}/{path}").json()) == 1


def test_a_count_of_what_there_is_tells_how_far_it_is(admin: Client) -> None:
    counting, last = lines(admin.post(f"{STANDBY}/inspect", json={}).text)
    assert counting == {"progress": {"event": "counting", "messages": 3}}
    assert [row["messages"] for row in last["summary"]] == [3]


def test_an_export_has_the_given_options_alone_and_is_in_the_history(admin: Client, node: FakeNode) -> None:
    exporting, last = lines(
        admin.post(f"{STANDBY}/export", target="/x", queue="q", **{"from": "2026-11-24", "state": ""}).text
    )
    assert exporting == {"progress": {"event": "exporting", "messages": 3}}
    assert last["summary"] == [{"vhost": "v", "queue": "q", "messages": 3, "pending": 1}]
    assert node.standby.archive.exported == ("/x", "parquet", {"queue": "q", "from": "2026-11-24"})
    assert admin.post(f"{STANDBY}/export").status_code == 400


def test_an_export_of_a_name_that_is_nowhere_is_a_slip(admin: Client, node: FakeNode) -> None:
    for named, text in (
        ({"vhost": "w"}, "there is no vhost 'w' to export"),
        ({"queue": "p"}, "there is no queue 'p' to export"),
        ({"vhost": "/", "queue": "q"}, "there is no queue 'q' in vhost '/' to export"),
    ):
        reply = admin.post(f"{STANDBY}/export", target="/x", **named)
        assert (reply.status_code, text in reply.json()["reason"]) == (400, True)
    for named in ({"vhost": "/"}, {"vhost": "v", "queue": "q"}):
        assert admin.post(f"{STANDBY}/export", target="/x", **named).status_code == 200


def test_what_is_kept_for_the_standby_is_deleted_and_told(admin: Client, node: FakeNode) -> None:
    assert admin.post(f"{STANDBY}/delete-outgoing").json() == [{"vhost": "v", "bytes": 7}]
    assert admin.post(f"{STANDBY}/delete-orphaned").json() == [{"vhost": "gone", "bytes": 5}]
    assert admin.delete(f"{STANDBY}/downstreams/eu.2").status_code == 204
    reply = admin.delete(f"{STANDBY}/downstreams/eu.3")
    assert (reply.status_code, "eu.3" in reply.json()["reason"]) == (404, True)


def test_a_promotion_tells_how_it_goes_and_ends_with_its_summary(admin: Client, node: FakeNode) -> None:
    node.standby.progress = [{"event": "planned", "queues": {"q": 2}}, {"event": "published", "messages": 2}]
    reply = admin.post(f"{STANDBY}/promote", all_available=True, exclude_virtual_hosts=["w"])
    assert reply.status_code == 200
    *progress, last = lines(reply.text)
    assert progress == [{"progress": progress} for progress in node.standby.progress]
    assert last == {"summary": node.standby.promotion_summary()}
    assert node.standby.calls == [RecoveryRequest(all_available=True, exclude=["w"])]


def test_a_promotion_of_an_upstream_is_refused(admin: Client, node: FakeNode) -> None:
    node.standby.mode = "upstream"
    reply = admin.post(f"{STANDBY}/promote")
    assert (reply.status_code, reply.json()["reason"]) == (400, "this node is not a downstream")


def test_a_promotion_that_fails_half_way_ends_with_its_error(admin: Client, node: FakeNode) -> None:
    node.standby.progress = [{"event": "started"}]
    node.standby.failure = LeveretError("the disk is full")
    reply = admin.post(f"{STANDBY}/promote")
    assert lines(reply.text)[-1] == {"error": "LeveretError", "reason": "the disk is full"}


def test_a_bug_in_a_promotion_is_answered_too(admin: Client, node: FakeNode) -> None:
    node.standby.failure = ZeroDivisionError("oops")
    assert admin.post(f"{STANDBY}/promote").status_code == 500
    node.standby.progress = [{"event": "started"}]
    assert lines(admin.post(f"{STANDBY}/promote").text)[-1]["error"] == "ZeroDivisionError"


def test_a_promotion_can_be_of_some_queues_and_of_a_moment(admin: Client, node: FakeNode) -> None:
    reply = admin.post(f"{STANDBY}/promote", queues=["b", "a"], as_of="2023-11-14 22:13:20")
    assert reply.status_code == 200
    assert node.standby.calls == [RecoveryRequest(queues=["a", "b"], as_of_ms=1_700_000_000_000)]


@pytest.mark.parametrize(("as_of", "text"), [("yesterday", "the form is"), ("2999-01-01", "in the future")])
def test_a_moment_that_is_none_or_not_past_is_refused(admin: Client, as_of: str, text: str) -> None:
    reply = admin.post(f"{STANDBY}/promote", as_of=as_of)
    assert (reply.status_code, text in reply.json()["reason"]) == (400, True)


def test_with_a_target_nothing_is_promoted(admin: Client, node: FakeNode) -> None:
    to = {"uri": "amqps://r%40x@rabbit.example:5999/eu%2F1?cacertfile=/ca.pem", "password": "s3kRe7"}
    reply = admin.post(f"{STANDBY}/promote", to=to)
    assert lines(reply.text) == [{"summary": node.standby.promotion_summary()}]
    [(wanted, target)] = node.standby.calls
    assert wanted == RecoveryRequest()
    assert target == RecoveryTarget(
        host="rabbit.example",
        port=5999,
        username="r@x",
        password="s3kRe7",
        vhost="eu/1",
        tls=True,
        cacertfile="/ca.pem",
    )
    assert "s3kRe7" not in repr(target)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("http://host", "amqp:// or amqps://"),
        ("amqp://", "amqp:// or amqps://"),
        ("amqp://[host", "is no URI"),
        ("amqp://host:port", "is no URI"),
        ("amqp://user:s3kRe7@host", "has a password in it"),
        ("amqp://user@host?verify=maybe", "verify_peer, verify_none"),
        ("amqp://user@host?heartbeat=1", "'heartbeat' is none of"),
    ],
)
def test_a_target_that_cannot_be_is_refused_without_repeating_what_may_be_secret(
    admin: Client, node: FakeNode, uri: str, text: str
) -> None:
    for path in ("promote", "dry-run"):
        reply = admin.post(f"{STANDBY}/{path}", to={"uri": uri, "password": "s3kRe7"})
        assert reply.status_code == 400
        assert text in reply.json()["reason"]
        assert "s3kRe7" not in reply.text
    assert node.standby.calls == []


def test_a_dry_run_and_a_rehearsal_tell_how_they_go(admin: Client, node: FakeNode) -> None:
    node.standby.progress = [{"event": "started"}]
    for path in ("dry-run", "rehearse"):
        progress, last = lines(admin.post(f"{STANDBY}/{path}", queues=["q"]).text)
        assert progress == {"progress": {"event": "started"}}
        assert last["summary"]["queues"] == []
    wanted = RecoveryRequest(queues=["q"])
    assert node.standby.calls == [(wanted, None), wanted]


def test_what_was_done_is_in_the_history_with_who_began_it(admin: Client, node: FakeNode) -> None:
    admin.post(f"{STANDBY}/dry-run")
    admin.post(f"{STANDBY}/rehearse", queues=["q"])
    admin.post(f"{STANDBY}/promote", to={"uri": "amqp://u@host"}, as_of="2026-11-21T14:00:00Z")
    admin.post(f"{STANDBY}/promote")
    admin.post(f"{STANDBY}/rejoin")
    node.standby.failure = LeveretError("no disk")
    admin.post(f"{STANDBY}/rehearse")
    rows = admin.get("/api/replication/history").json()
    assert [(row["kind"], row["by"], row["error"]) for row in rows] == [
        ("rehearsal", "guest", "no disk"),
        ("rejoin", "guest", ""),
        ("promotion", "guest", ""),
        ("recovery_into", "guest", ""),
        ("rehearsal", "guest", ""),
    ]
    assert [row["result"] for row in rows[1:]] == [
        {"quarantined": 2, "upstream": "b:5552"},
        {"messages": 2, "vhosts": 1},
        {"as_of": "2026-11-21T14:00:00Z", "to": "host:5672", "messages": 2, "vhosts": 1},
        {"queues": ["q"], "compared": 2, "queues_compared": 0},
    ]
    assert admin.get(f"{STANDBY}/details").json()["operations"] == []


def test_what_was_declined_is_not_in_the_history(admin: Client, node: FakeNode) -> None:
    node.standby.mode = "upstream"
    assert admin.post(f"{STANDBY}/promote").status_code == 400
    assert admin.get("/api/replication/history").json() == []


def test_the_archive_tells_its_moments_and_shows_messages(admin: Client, monitor: Client) -> None:
    assert monitor.get(f"{STANDBY}/moments").json() == [
        {"virtual_host": "v", "earliest_ms": 5, "newest_ms": 9}
    ]
    [row] = admin.get(f"{STANDBY}/messages?vhost=v&queue=a%2Fb&from_ms=7&count=3").json()
    assert row == {"vhost": "v", "queue": "a/b", "offset": 7, "payload": "xxx"}
    assert monitor.get(f"{STANDBY}/messages?vhost=v&queue=q").status_code == 401
    for query in ("vhost=v", "vhost=v&queue=q&from_ms=-1", "vhost=v&queue=q&count=many"):
        assert admin.get(f"{STANDBY}/messages?{query}").status_code == 400, query


def test_plots_are_told_to_who_monitors(monitor: Client) -> None:
    found = monitor.get("/api/replication/plots?age_s=600&step_s=5").json()
    assert (found["names"][:3], [node["node"] for node in found["nodes"]]) == (
        ["publish_rate", "deliver_rate", "messages"],
        ["leveret@test"],
    )
    for query in ("age_s=0", "age_s=x", "age_s=604800&step_s=1"):
        assert monitor.get(f"/api/replication/plots?{query}").status_code == 400, query


def test_a_rehearsal_has_no_target(admin: Client, node: FakeNode) -> None:
    assert admin.post(f"{STANDBY}/rehearse", to={"uri": "amqp://host"}).status_code == 400
    assert node.standby.calls == []


def test_an_upstream_that_lost_its_place_comes_back(admin: Client, node: FakeNode) -> None:
    assert admin.post(f"{STANDBY}/rejoin").json()["messages"] == 2
    assert admin.post(f"{STANDBY}/rejoin", set_all_aside=True).json()["messages"] == 2
    assert node.rejoin.calls == [False, True]

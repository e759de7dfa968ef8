from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.model.definitions import Queue
from leveret.runtime.integrity.log_copies import CopyRole, CopyState, LogCopy
from leveret.runtime.logs.log_store import log_name
from tests.unit.management.fake_replication import follower

if TYPE_CHECKING:
    from tests.unit.management.conftest import Client, FakeNode


def test_a_queue_shows_its_counts(admin: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 3)
    shown = admin.get("/api/queues/%2F/q").json()
    assert (shown["messages"], shown["messages_ready"], shown["messages_unacknowledged"]) == (3, 3, 0)
    assert (shown["state"], shown["type"], shown["consumers"], shown["consumer_details"]) == (
        "running",
        "classic",
        0,
        [],
    )


def test_a_stream_shows_how_many_of_the_copies_that_it_asks_for_it_lacks(admin: Client) -> None:
    for name, wanted in (("one", 1), ("three", 3)):
        arguments = {"x-queue-type": "stream", "x-initial-cluster-size": wanted}
        assert admin.put(f"/api/queues/%2F/{name}", durable=True, arguments=arguments).status_code == 201
    shown = {each["name"]: each.get("copies_missing") for each in admin.get("/api/queues").json()}
    assert shown == {"one": None, "three": 2}


def test_a_damaged_queue_is_shown_as_crashed_and_raises_an_alarm(admin: Client, node: FakeNode) -> None:
    queue = node.broker.declare_queue(Queue(name="q", vhost="/"))
    assert admin.get("/api/health/checks/alarms").json() == {"status": "ok"}
    queue.damage = "log q: damaged chunk at byte 7"
    reply = admin.get("/api/health/checks/alarms")
    why = "is down: log q: damaged chunk at byte 7"
    assert (reply.status_code, reply.json()["queues"][0]["reason"]) == (503, why)
    assert admin.get("/api/queues").json()[0]["state"] == "crashed"


def test_a_crashed_queue_is_restarted_by_an_administrator_who_gives_up_what_is_counted(
    admin: Client, node: FakeNode
) -> None:
    path = "/api/queues/%2F/q/restart"
    queue = node.broker.declare_queue(Queue(name="q", vhost="/", durable=True))
    assert "is not crashed" in admin.get(path).json()["reason"]
    queue.damage = "log q: damaged chunk at byte 7"
    node.replication.log_copies = [
        LogCopy(
            "a", CopyRole.LEADER, CopyState.DAMAGED, messages=7, octets=900, first_offset=0, next_offset=9
        ),
        LogCopy("b", CopyRole.FOLLOWER, CopyState.MISSING),
    ]
    shown = admin.get(path).json()
    assert shown["damage"] == queue.damage
    assert [(each["node"], each["state"], each["messages"]) for each in shown["copies"]] == [
        ("a", "damaged", 7),
        ("b", "missing", None),
    ]
    refused = admin.put(path)
    assert refused.status_code == 400
    assert "Given up would be: a has 7 messages; with give_up=true" in refused.json()["reason"]
    assert node.broker.queues["/", "q"] is queue
    assert node.replication.quarantined == []
    assert admin.put(f"{path}?give_up=true").json() == shown
    assert node.replication.quarantined == [log_name(queue)]
    assert node.broker.queue("/", "q").epoch > queue.epoch


def test_the_policy_of_a_queue_is_shown(admin: Client, node: FakeNode) -> None:
    admin.put("/api/queues/%2F/q")
    admin.put("/api/policies/%2F/p", pattern="^q", definition={"remote-dc-replicate": True})
    # A flush does this, a few queues at a time.
    node.broker.refresh_policies()
    shown = admin.get("/api/queues/%2F/q").json()
    assert (shown["policy"], shown["effective_policy_definition"]) == ("p", {"remote-dc-replicate": True})


def test_what_the_loss_of_its_leader_does_to_a_queue_is_shown(admin: Client, node: FakeNode) -> None:
    admin.put("/api/policies/%2F/ha", pattern="^mirrored", definition={"ha-mode": "all"})
    for name, durable in (("mirrored", True), ("mirrored too", False), ("other", False)):
        admin.put(f"/api/queues/%2F/{name}", durable=durable)
    fates = {
        row["name"]: (row["on_leader_loss"], row.get("not_mirrored"))
        for row in admin.get("/api/queues").json()
    }
    assert fates["mirrored"] == ("waits", None)
    assert fates["mirrored too"] == ("deleted", "transient")
    assert fates["other"] == ("deleted", None)
    node.replication.followers = [follower("b", "2")]
    [shown] = [row for row in admin.get("/api/queues").json() if row["name"] == "mirrored"]
    assert shown["on_leader_loss"] == "promoted"


def test_purging_drops_ready_messages(admin: Client, node: FakeNode) -> None:
    queue = node.broker.declare_queue(Queue(name="q", vhost="/"))
    node.add_messages(queue, 3)
    assert admin.delete("/api/queues/%2F/q/contents").status_code == 204
    assert queue.ready_count == 0
    assert admin.delete("/api/queues/%2F/none/contents").status_code == 404


def test_a_queue_is_deleted_on_conditions(admin: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 1)
    reply = admin.delete("/api/queues/%2F/q?if-empty=true")
    assert (reply.status_code, reply.json()["reason"]) == (400, "queue 'q' in vhost '/' not empty")
    assert admin.delete("/api/queues/%2F/q?if-unused=true").status_code == 204
    assert admin.delete("/api/queues/%2F/q").status_code == 404


def test_an_exclusive_queue_belongs_to_its_connection(admin: Client, node: FakeNode) -> None:
    node.broker.declare_queue(Queue(name="mine", vhost="/"), owner=object())
    assert admin.get("/api/queues/%2F/mine").json()["exclusive"] is True
    assert admin.delete("/api/queues/%2F/mine").status_code == 400
    assert admin.delete("/api/queues/%2F/mine/contents").status_code == 400

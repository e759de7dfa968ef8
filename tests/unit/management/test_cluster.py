"""Three nodes of a cluster in one process: any of them shows all, and does what another one has to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from leveret.core.broker.alarms import Watermark
from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.placement import QueuePlacement
from leveret.management.http.app import public_app
from leveret.management.request import call, other_nodes
from leveret.management.resources import messages
from leveret.model.definitions import Policy, Put, Queue
from leveret.runtime.process.clock import clock_ms
from leveret.session.amqp091.connection import AmqpState
from tests.unit.management.conftest import Client
from tests.unit.management.fake_replication import follower
from tests.unit.management.trio import A, B, C, Trio, connect, state

if TYPE_CHECKING:
    from httpx import Response


@pytest.fixture
def trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trio:
    monkeypatch.setattr(other_nodes, "PART_TIMEOUT_S", 0.2)
    return Trio(tmp_path)


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def reason(reply: Response) -> str:
    text: str = reply.json()["reason"]
    return text


# -- queues ---------------------------------------------------------------------------------------


def test_every_node_lists_all_queues_as_their_leaders_know_them(trio: Trio) -> None:
    trio.declare("q1", A, 1)
    trio.declare("q2", B, 2)
    trio.declare("q3", C, 3)
    for asked in (A, B, C):
        rows = trio.get(asked, "/api/queues")
        assert [(row["name"], row["node"], row["messages_ready"]) for row in rows] == [
            ("q1", A, 1),
            ("q2", B, 2),
            ("q3", C, 3),
        ]
    assert trio.get(A, "/api/queues/%2F") == trio.get(B, "/api/queues/%2F")


def test_a_mirrored_queue_tells_where_it_is_by_the_old_names_and_the_new(trio: Trio) -> None:
    everywhere = Policy(name="ha", vhost="/", pattern="^q", definition={"ha-mode": "all"})
    trio.everywhere(Put(everywhere))
    trio.declare(
        "q",
        B,
        messages=100,
        mirrors=(C, A),
        synchronised_mirrors=(C,),
        recoverable_mirrors=(C, A),
        is_mirrored=True,
        state="syncing",
    )
    trio.clusters[B].states["/", "q"] = [
        state(C, "synchronised"),
        state(A, "syncing", progress={"bytes_done": 40, "bytes_total": 100}),
    ]
    row = trio.get(A, "/api/queues/%2F/q")
    assert row["node"] == row["leader"] == B
    assert row["slave_nodes"] == row["mirror_nodes"] == [C, A]
    assert row["synchronised_slave_nodes"] == row["synchronised_mirror_nodes"] == [C]
    assert row["recoverable_slaves"] == row["recoverable_mirrors"] == [C, A]
    assert row["members"] == row["online"] == [B, C, A]
    assert (row["state"], row["sync_messages"]) == ("syncing", 40)
    assert (row["policy"], row["effective_policy_definition"]) == ("ha", {"ha-mode": "all"})
    assert [each["node"] for each in row["mirror_details"]] == [C, A]
    trio.declare("plain", B)
    plain = trio.get(A, "/api/queues/%2F/plain")
    assert plain["recoverable_slaves"] is None
    assert "slave_nodes" not in plain


def test_a_queue_whose_leader_is_gone_is_down_with_what_is_known_of_it(trio: Trio) -> None:
    trio.declare("q1", A)
    trio.declare("q2", B, 2, mirrors=(), recoverable_mirrors=(C,), is_mirrored=True, state="down")
    trio.room.down.add(B)
    rows = trio.get(A, "/api/queues?sort=messages")
    assert [(row["name"], row["state"], row["node"], row.get("messages")) for row in rows] == [
        ("q2", "down", B, None),
        ("q1", "running", A, 0),
    ]
    rows = trio.get(A, "/api/queues")
    assert rows[1]["recoverable_slaves"] == [C]
    assert rows[1]["online"] == []
    assert trio.get(C, "/api/queues/%2F/q2")["state"] == "down"


def test_a_node_that_does_not_answer_in_time_is_named_and_its_queues_shown_as_known(trio: Trio) -> None:
    trio.declare("q1", A, 1)
    trio.declare("q2", B, 2)
    trio.declare("q3", C, 3)
    trio.room.silent.add(B)
    trio.room.lost.add(C)
    reply = trio.at(A).get("/api/queues")
    assert reply.headers["leveret-unreachable"] == f"{B}, {C}"
    assert [(row["name"], row["state"]) for row in reply.json()] == [
        ("q1", "running"),
        ("q2", "running"),
        ("q3", "running"),
    ]
    assert "messages_ready_details" not in reply.json()[1]
    one = trio.at(A).get("/api/queues/%2F/q2")
    assert (one.status_code, one.headers["leveret-unreachable"]) == (200, B)


@pytest.mark.parametrize(("status", "is_named"), [(500, True), (503, True), (404, False)])
def test_a_node_whose_part_fails_is_named_as_well(trio: Trio, status: int, is_named: bool) -> None:
    """Its disk may be damaged; a node that does not know the newest change yet has not failed."""

    async def fail(what: str, about: Any) -> dict[str, Any]:
        return {"status": status, "headers": [], "body": b'{"error": "e", "reason": "r"}'}

    trio.clusters[B].answer_with(fail)
    reply = trio.at(A).get("/api/queues")
    assert (reply.status_code, reply.headers.get("leveret-unreachable")) == (200, B if is_named else None)


def test_a_queue_that_gets_another_leader_while_nodes_are_asked_is_not_left_out(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.declare("q1", B)
    trio.declare("q2", B)
    trio.room.silent.add(B)
    ask = trio.clusters[A].ask

    async def asked(node: str, what: str, about: Any) -> Any:
        answer = await ask(node, what, about)
        # It had not yet taken over when it said what it leads.
        trio.room.placements["/", "q2"] = QueuePlacement(C)
        return answer

    monkeypatch.setattr(trio.clusters[A], "ask", asked)
    assert [(row["name"], row["node"]) for row in trio.get(A, "/api/queues")] == [("q1", B), ("q2", C)]


def test_a_queue_that_nobody_serves_for_a_moment_is_shown_as_known(trio: Trio) -> None:
    for index in range(6):
        trio.declare(f"q{index}", (A, B)[index % 2], messages=1)
    # By the record these are led by C by now, which has not begun; B serves them no more.
    for name in ("q1", "q5"):
        stands = RemoteQueue(trio.nodes[B].broker.queues["/", name].definition, C)
        trio.nodes[B].broker.replace_queue(stands)
        trio.room.placements["/", name] = QueuePlacement(C)
    for asked in (A, B, C):
        rows = trio.get(asked, "/api/queues")
        assert names(rows) == [f"q{index}" for index in range(6)]
        assert [(row["node"], row["state"]) for row in rows if row["name"] in ("q1", "q5")] == [
            (C, "running")
        ] * 2
    assert names(trio.get(A, "/api/queues?page=1&page_size=2")["items"]) == ["q0", "q1"]
    last = trio.get(A, "/api/queues?page=3&page_size=2")
    assert (names(last["items"]), last["total_count"]) == (["q4", "q5"], 6)


def test_pages_of_all_nodes_are_in_one_order(trio: Trio) -> None:
    for index in range(9):
        trio.declare(f"q{index}", (A, B, C)[index % 3], messages=index)
    first = trio.get(B, "/api/queues?page=1&page_size=4")
    assert names(first["items"]) == ["q0", "q1", "q2", "q3"]
    assert {key: first[key] for key in ("filtered_count", "total_count", "page_count", "item_count")} == {
        "filtered_count": 9,
        "total_count": 9,
        "page_count": 3,
        "item_count": 4,
    }
    last = trio.get(C, "/api/queues?page=3&page_size=4")
    assert names(last["items"]) == ["q8"]
    most = trio.get(A, "/api/queues?page=1&page_size=2&sort=messages&sort_reverse=true&columns=name")
    assert most["items"] == [{"name": "q8"}, {"name": "q7"}]
    named = trio.get(A, "/api/queues?page=1&page_size=2&name=q%5B12%5D&use_regex=true")
    assert (names(named["items"]), named["filtered_count"], named["total_count"]) == (["q1", "q2"], 2, 9)
    replication_port = trio.at(A).get("/api/queues?page=4&page_size=4")
    assert reason(replication_port) == "Page out of range, page: 4 page size: 4, len: 9"
    assert trio.at(A).get("/api/queues?page=1&page_size=501").status_code == 400


def test_a_queue_that_moves_while_nodes_are_asked_is_shown_once(trio: Trio) -> None:
    trio.declare("q", A, 1)
    moved = trio.nodes[B].broker
    moved.queues["/", "q"] = make_queue(moved.queues["/", "q"].definition, lambda queue, offset: [])
    rows = trio.get(C, "/api/queues")
    assert names(rows) == ["q"]
    page = trio.get(C, "/api/queues?page=1")
    assert (names(page["items"]), page["total_count"]) == (["q"], 1)


def test_what_is_done_to_a_queue_is_done_by_its_leader_as_the_same_user(trio: Trio) -> None:
    trio.declare("q", B)
    for payload in "abc":
        message = {"routing_key": "q", "properties": {}, "payload": payload, "payload_encoding": "string"}
        assert trio.at(B).post("/api/exchanges/%2F/amq.default/publish", **message).json() == {"routed": True}
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert trio.at(A, "nobody").request("POST", "/api/queues/%2F/q/get", json=body).status_code == 401
    got = trio.at(A).request("POST", "/api/queues/%2F/q/get", json=body)
    assert (got.status_code, got.json()[0]["message_count"]) == (200, 2)
    assert trio.at(A).delete("/api/queues/%2F/q/contents").status_code == 204
    assert trio.get(C, "/api/queues/%2F/q")["messages_ready"] == 0
    assert trio.at(A).delete("/api/queues/%2F/q?if-empty=true").status_code == 204
    assert ("/", "q") not in trio.nodes[B].broker.queues
    # The leader took the pen to delete it, and nobody else did: it would have waited for itself.
    assert [("changing" in trio.clusters[name].calls) for name in (A, B, C)] == [False, True, False]


def test_a_refusal_of_the_leader_comes_back_as_it_is(trio: Trio) -> None:
    trio.declare("q", B, 3)
    refused = trio.at(A).delete("/api/queues/%2F/q?if-empty=true")
    here = trio.at(B).delete("/api/queues/%2F/q?if-empty=true")
    assert (refused.status_code, refused.json()) == (here.status_code, here.json()) == (400, here.json())


def test_a_queue_is_declared_on_the_node_that_the_body_names(trio: Trio) -> None:
    assert trio.at(A).put("/api/queues/%2F/new", node=C, durable=True).status_code == 201
    assert ("/", "new") in trio.nodes[C].broker.queues
    assert ("/", "new") not in trio.nodes[A].broker.queues
    trio.room.down.add(C)
    refused = trio.at(A).put("/api/queues/%2F/other", node=C)
    assert (refused.status_code, reason(refused)) == (400, f"Node {C} could not be contacted")


def test_a_queue_that_is_down_can_be_deleted_and_nothing_else(trio: Trio) -> None:
    trio.declare("q", B, 3, state="down")
    trio.room.down.add(B)
    down = f"home node '{B}' of durable queue 'q' in vhost '/' is down or inaccessible"
    client = trio.at(A)
    assert reason(client.delete("/api/queues/%2F/q/contents")) == down
    assert reason(client.post("/api/queues/%2F/q/actions", action="sync")) == down
    assert (
        reason(client.post("/api/queues/%2F/q/get", count=1, ackmode="ack_requeue_true", encoding="auto"))
        == down
    )
    assert reason(client.delete("/api/queues/%2F/q?if-empty=true")) == down
    assert client.delete("/api/queues/%2F/q").status_code == 204
    assert ("/", "q") not in trio.nodes[A].broker.queues


def test_who_led_when_it_was_asked_and_does_no_more_says_so(trio: Trio) -> None:
    trio.declare("q", B)
    # A still believes that B leads, which knows better.
    trio.nodes[B].broker.queues["/", "q"] = RemoteQueue(Queue(name="q", vhost="/"), C)
    trio.clusters[B].placement = lambda key: QueuePlacement(C)  # type: ignore[method-assign]
    reply = trio.at(A).delete("/api/queues/%2F/q/contents")
    assert (reply.status_code, reason(reply)) == (503, f"queue 'q' in vhost '/' is led by {C} now: try again")


def test_of_a_queue_that_moves_while_it_is_got_from_what_was_got_is_shown(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.declare("q", B)
    message = {"routing_key": "q", "properties": {}, "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert trio.at(B).post("/api/exchanges/%2F/amq.default/publish", **message).json() == {"routed": True}
    node = trio.nodes[B]
    queue = node.broker.queues["/", "q"]

    async def moving(items: Iterable[int]) -> AsyncIterator[int]:
        for number in items:
            if number == 2:
                node.broker.replace_queue(RemoteQueue(queue.definition, C))
            yield number

    monkeypatch.setattr(messages, "in_slices", moving)
    body = {"count": 5, "ackmode": "reject_requeue_false", "encoding": "auto"}
    got = trio.at(A).request("POST", "/api/queues/%2F/q/get", json=body)
    assert (got.status_code, len(got.json())) == (200, 2)
    # They are the next leader's: nothing is settled where the queue was.
    assert (queue.unacked_count, queue.settled.floor) == (2, 0)


def test_the_test_of_aliveness_goes_where_its_queue_was_put(trio: Trio) -> None:
    node = trio.nodes[A]
    commit = node.commit

    async def known_to_all() -> None:
        trio.everywhere(Put(Queue(name="aliveness-test", vhost="/", durable=False)))
        await commit()

    # As with queue_master_locator = random.
    trio.room.placements["/", "aliveness-test"] = QueuePlacement(B)
    node.commit = known_to_all  # type: ignore[method-assign]
    reply = trio.at(A).get("/api/aliveness-test/%2F")
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
    assert trio.asked(A)[-1] == (B, "/api/aliveness-test/%2F")
    assert trio.nodes[B].broker.queues["/", "aliveness-test"].counters.get_no_ack == 1


def test_synchronising_is_the_leaders_and_tells_nobody_of_a_queue_without_mirrors(trio: Trio) -> None:
    trio.declare("q", B, mirrors=(C,), is_mirrored=True)
    trio.declare("plain", B)
    client = trio.at(A)
    for action in ("sync", "cancel_sync"):
        assert client.post("/api/queues/%2F/q/actions", action=action).status_code == 204
        assert client.post("/api/queues/%2F/plain/actions", action=action).status_code == 204
    synced = [each for each in trio.clusters[B].calls if each[0] != "ask"]
    assert synced == [("sync", "/", "q"), ("cancel_sync", "/", "q")]
    assert client.post("/api/queues/%2F/q/actions", action="other").status_code == 400
    # This path, of Leveret's own, says why nothing came of it.
    assert client.request("POST", "/api/cluster/sync/%2F/q").status_code == 202
    refused = client.request("POST", "/api/cluster/sync/%2F/plain")
    assert (refused.status_code, reason(refused)) == (400, "not_mirrored")
    assert client.delete("/api/cluster/sync/%2F/q").json() == {"was_syncing": False}


# -- who is connected -----------------------------------------------------------------------------


def test_connections_channels_and_consumers_of_all_nodes_are_shown_by_any(trio: Trio) -> None:
    trio.declare("q", B)
    connect(trio.nodes[A], "10.0.0.2:7 -> 10.0.0.1:5672")
    connect(trio.nodes[B], "10.0.0.1:9 -> 10.0.0.9:5672")
    connect(
        trio.nodes[B], "10.0.0.3:1 -> 10.0.0.9:5672", commands.Basic.Consume(queue="q", consumer_tag="tag")
    )
    connections = trio.get(C, "/api/connections")
    assert [(row["name"].split(":")[0], row["node"]) for row in connections] == [
        ("10.0.0.1", B),
        ("10.0.0.2", A),
        ("10.0.0.3", B),
    ]
    assert [row["number"] for row in trio.get(C, "/api/channels")] == [1, 1, 1]
    consumers = trio.get(C, "/api/consumers")
    assert [(row["consumer_tag"], row["channel_details"]["node"]) for row in consumers] == [("tag", B)]
    assert trio.get(C, "/api/queues/%2F/q")["consumer_details"] == consumers
    assert trio.get(A, "/api/connections/username/guest") == trio.get(C, "/api/connections/username/guest")
    assert trio.get(C, "/api/overview")["object_totals"] == {
        "channels": 3,
        "connections": 3,
        "consumers": 1,
        "exchanges": 7,
        "queues": 1,
    }
    assert names(trio.get(A, "/api/connections?page=2&page_size=2")["items"]) == [connections[2]["name"]]


def test_a_connection_is_found_and_closed_wherever_it_is(trio: Trio) -> None:
    name = "10.0.0.1:9 -> 10.0.0.9:5672"
    existing = connect(trio.nodes[B], name)
    path = "/api/connections/10.0.0.1%3A9%20-%3E%2010.0.0.9%3A5672"
    assert trio.get(A, path)["node"] == B
    assert len(trio.get(A, f"{path}/channels")) == 1
    channel = "/api/channels/10.0.0.1%3A9%20-%3E%2010.0.0.9%3A5672%20(1)"
    assert trio.get(A, channel)["connection_details"]["name"] == name
    assert trio.at(A, "nobody").delete(path).status_code == 404
    assert trio.at(A).delete(path).status_code == 204
    assert existing.state is not AmqpState.OPEN
    assert trio.at(C).delete("/api/connections/nowhere").status_code == 404


def test_all_connections_of_a_user_are_closed_on_all_nodes(trio: Trio) -> None:
    existing = [connect(trio.nodes[name], f"10.0.0.1:{port} -> x:1") for port, name in enumerate((A, B, C))]
    assert trio.at(A).delete("/api/connections/username/guest").status_code == 204
    assert AmqpState.OPEN not in [each.state for each in existing]


def test_schema_replication_is_switched_at_any_node_and_told_by_the_one_that_follows(trio: Trio) -> None:
    paths = "/api/tanzu/osr/schema"
    for name in (A, B, C):
        trio.nodes[name].schema_sync.follower = B
    # What is decided at one node holds for all (runtime.cluster.sites.schema_decisions).
    assert trio.at(A).delete(f"{paths}/disable-cluster-wide").status_code == 204
    assert trio.at(A).put(f"{paths}/enable/{C}").status_code == 204
    assert trio.at(A).put(f"{paths}/enable/n9").status_code == 404
    assert [trio.nodes[name].schema_sync.calls for name in (A, B, C)] == [["disable", "enable"], [], []]
    assert trio.at(A).post("/api/replication/schema/sync", force=True).status_code == 200
    assert trio.at(C).post("/api/replication/schema/restart").status_code == 204
    assert trio.nodes[B].schema_sync.calls == [("sync", True), "restart"]
    trio.get(A, f"{paths}/status")
    trio.get(A, f"{paths}/status/{C}")
    # Who follows tells how, in the metrics too.
    metrics = [trio.at(name).get("/metrics").text for name in (A, B)]
    assert ["leveret_schema_sync_state{" in text for text in metrics] == [False, True]
    trio.get(C, "/api/replication/schema/history")
    assert trio.asked(A) == [
        (B, "/api/replication/schema/sync"),
        (B, f"{paths}/status"),
        (C, f"{paths}/status/{C}"),
    ]
    assert trio.asked(C) == [(B, "/api/replication/schema/restart"), (B, "/api/replication/schema/history")]
    trio.room.down.add(C)
    gone = trio.at(A).get(f"{paths}/status/{C}")
    assert (gone.status_code, reason(gone)) == (503, f"node '{C}' does not answer")


# -- nodes and totals -----------------------------------------------------------------------------


def test_nodes_are_those_that_run_and_those_that_do_not(trio: Trio) -> None:
    trio.room.down.add(C)
    rows = trio.get(A, "/api/nodes")
    assert [(row["name"], row["running"], "mem_used" in row) for row in rows] == [
        (A, True, True),
        (B, True, True),
        (C, False, False),
    ]
    assert rows[2] == {"name": C, "type": "disc", "running": False, "cluster_links": []}
    assert trio.get(A, f"/api/nodes/{B}")["db_dir"] == str(trio.nodes[B].data_dir)
    assert "memory" in trio.get(A, f"/api/nodes/{B}/memory")
    assert trio.get(A, f"/api/nodes/{C}")["running"] is False
    assert trio.at(A).get(f"/api/nodes/{C}/memory").status_code == 503
    assert trio.at(A).get("/api/nodes/rabbit@d").status_code == 404


def test_a_node_that_cannot_be_reached_runs_and_is_a_partition(trio: Trio) -> None:
    trio.room.lost.add(B)
    rows = {row["name"]: row for row in trio.get(A, "/api/nodes")}
    assert rows[A]["partitions"] == [B]
    assert (rows[B]["running"], "mem_used" in rows[B]) == (True, False)


def test_totals_are_those_of_all_nodes(trio: Trio) -> None:
    trio.declare("q1", A, 1)
    trio.declare("q2", B, 2)
    for app in trio.apps.values():
        list(app.state.rates.tick(clock_ms() + 10_000))
    overview = trio.get(C, "/api/overview")
    assert overview["queue_totals"]["messages"] == 3
    assert overview["queue_totals"]["messages_details"] == {"rate": 0.0}
    assert {each["node"] for each in overview["listeners"]} == {A, B, C}
    assert {each["node"] for each in overview["contexts"]} == {A, B, C}
    assert overview["node"] == C
    (vhost,) = trio.get(C, "/api/vhosts")
    assert vhost["messages"] == 3
    assert vhost["cluster_state"] == {A: "running", B: "running", C: "running"}
    ranged = trio.get(C, "/api/overview?lengths_age=60&lengths_incr=5")
    assert ranged["queue_totals"]["messages_details"]["samples"][0]["sample"] == 3


def test_what_exchanges_count_is_summed_over_the_nodes_of_their_publishers(trio: Trio) -> None:
    for name, count in ((A, 2), (B, 5)):
        trio.nodes[name].broker.topology("/").exchanges["amq.fanout"].counters.publish_in = count
    (shown,) = [row for row in trio.get(C, "/api/exchanges/%2F") if row["name"] == "amq.fanout"]
    assert shown["message_stats"]["publish_in"] == 7
    assert trio.get(A, "/api/exchanges/%2F/amq.fanout")["message_stats"]["publish_in"] == 7


# -- changes --------------------------------------------------------------------------------------


def test_definitions_are_changed_by_who_has_the_pen(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "DEFINITIONS_LOCK_TIMEOUT_S", 0.05)
    assert trio.at(A).put("/api/vhosts/v").status_code == 201
    assert trio.clusters[A].calls == ["changing"]
    assert trio.at(A).get("/api/vhosts").status_code == 200
    assert trio.clusters[A].calls.count("changing") == 1
    trio.room.definitions_lock = B
    refused = trio.at(A).put("/api/vhosts/w")
    late = (
        "definitions cannot be changed now: the definitions lock was not handed over within 0.05 s; its holder is "
        f"{B}"
    )
    assert (refused.status_code, reason(refused)) == (503, late)
    # What defines nothing needs none.
    message = {"routing_key": "x", "properties": {}, "payload": "p", "payload_encoding": "string"}
    published = trio.at(A).post("/api/exchanges/%2F/amq.default/publish", **message)
    assert published.json() == {"routed": False}


@pytest.mark.parametrize("path", ["schema/upstream", "standby/upstream"])
def test_whom_to_follow_is_a_definition_and_set_by_who_has_the_pen(trio: Trio, path: str) -> None:
    upstream = {"endpoints": ["other:5672"], "username": "u", "password": "p"}
    assert trio.at(A).put(f"/api/replication/{path}", **upstream).status_code == 204
    assert trio.clusters[A].calls == ["changing"]


def test_a_change_that_a_node_can_make_no_more_is_answered_at_once(trio: Trio) -> None:
    trio.room.definitions_lock = B
    trio.nodes[A].ended.set()
    refused = trio.at(A).put("/api/vhosts/v")
    late = "this node stopped serving meanwhile: check whether the change was made, and try again"
    assert (refused.status_code, reason(refused)) == (503, late)
    assert trio.at(A).get("/api/vhosts").status_code == 200


def test_the_body_is_read_before_the_pen_is_asked_for(trio: Trio) -> None:
    too_large = b" " * (trio.nodes[A].config.management.body_bytes_max + 1)
    reply = trio.at(A).request("PUT", "/api/vhosts/v", content=too_large)
    assert reply.status_code == 400
    assert trio.clusters[A].calls == []


def test_a_part_is_answered_without_asking_others(trio: Trio) -> None:
    trio.get(A, "/api/queues")
    assert trio.asked(A) == [(B, "/api/queues"), (C, "/api/queues")]
    assert trio.asked(B) == trio.asked(C) == []


def test_nobody_outside_can_claim_to_be_another_node(trio: Trio) -> None:
    anonymous = Client(public_app(trio.apps[A]))
    reply = anonymous.request("GET", "/api/queues", headers={"leveret.passed": "operator"})
    assert reply.status_code == 401


# -- the cluster itself ---------------------------------------------------------------------------


def test_the_cluster_is_looked_at_joined_and_left(trio: Trio) -> None:
    status = trio.get(A, "/api/cluster/node")
    assert (status["state"], status["revision"], len(status["members"])) == ("member", 77, 3)
    assert trio.at(A).post("/api/cluster/join", node=B).json() == {"already_member": True}
    trio.clusters[A].status_state = "forgotten"
    assert trio.at(A).post("/api/cluster/join", node=B).json() == {"already_member": False}
    assert trio.at(A).delete(f"/api/cluster/members/{B}").status_code == 400
    trio.room.down.add(B)
    [row] = trio.at(A).delete(f"/api/cluster/members/{B}").json()
    assert row == {"vhost": "/", "name": "q", "leader": A, "note": "down"}
    assert names(trio.get(A, "/api/nodes")) == [A, C]


def test_leaders_are_spread_over_the_nodes(trio: Trio) -> None:
    rows = trio.at(A).post("/api/cluster/rebalance", kind="classic", queue_pattern="^q").json()
    assert [row["node"] for row in rows] == [A, B, C]
    assert trio.clusters[A].calls == [("rebalance", "classic", ".*", "^q")]
    assert trio.at(A).post("/api/cluster/rebalance", kind="other").status_code == 400


def test_a_node_alone_has_no_cluster_to_work_on(admin: Client) -> None:
    assert admin.get("/api/cluster/node").json()["state"] == "alone"
    for reply in (
        admin.post("/api/cluster/join", node=A),
        admin.delete(f"/api/cluster/members/{A}"),
        admin.post("/api/cluster/rebalance"),
    ):
        assert (reply.status_code, "cluster.etcd.endpoints" in reply.text) == (400, True)
    assert admin.post("/api/rebalance/queues").status_code == 204


# -- health and metrics ---------------------------------------------------------------------------


def test_a_node_is_critical_that_leads_a_mirrored_queue_without_a_synchronised_mirror(trio: Trio) -> None:
    path = "/api/health/checks/node-is-mirror-sync-critical"
    trio.declare("safe", A, mirrors=(B,), synchronised_mirrors=(B,), is_mirrored=True)
    trio.declare("plain", A)
    trio.declare("elsewhere", B, mirrors=(A,), is_mirrored=True)
    assert trio.get(A, path) == {"status": "ok"}
    trio.declare("q", A, mirrors=(B,), is_mirrored=True)
    failed = trio.at(A).get(path)
    assert failed.status_code == 503
    assert failed.json() == {
        "status": "failed",
        "reason": "There are classic mirrored queues without online synchronised mirrors",
        "queues": [
            {"readable_name": "queue 'q' in vhost '/'", "name": "q", "virtual_host": "/", "type": "classic"}
        ],
    }
    assert trio.get(A, "/api/health/checks/node-is-quorum-critical") == {"status": "ok"}


def test_a_node_is_not_safe_to_stop_without_which_a_queue_or_a_follower_lacks_something(trio: Trio) -> None:
    path = "/api/health/checks/node-is-safe-to-stop"
    trio.declare("safe", A, mirrors=(B,), synchronised_mirrors=(B,), is_mirrored=True)
    assert trio.get(A, path) == {"status": "ok"}
    trio.declare("plain", A)
    trio.nodes[A].replication.followers = [follower("f", "1", in_sync=False)]
    failed = trio.at(A).get(path)
    assert failed.status_code == 503
    assert failed.json() == {
        "status": "failed",
        "reason": "Without this node there would be too few copies",
        "dangers": [
            {
                "readable_name": "queue 'plain' in vhost '/'",
                "name": "plain",
                "virtual_host": "/",
                "kind": "queue",
                "lack": f"would be without a home: no policy has it mirrored, and its only copy is at node {A}",
            },
            {
                "readable_name": "follower 'f'",
                "name": "f",
                "virtual_host": None,
                "kind": "follower",
                "lack": "would be without a leader: neither it nor another follower is in sync",
            },
        ],
    }
    assert trio.get(B, path) == {"status": "ok"}


def test_an_alarm_of_any_node_is_one_of_the_cluster(trio: Trio) -> None:
    trio.nodes[B].alarms.set_memory(Watermark(bytes_=1))
    trio.nodes[B].alarms.probe()
    failed = trio.at(A).get("/api/health/checks/alarms")
    assert failed.json()["alarms"] == [{"node": B, "resource": "memory"}]
    assert trio.get(A, "/api/health/checks/local-alarms") == {"status": "ok"}


def test_an_etcd_without_room_is_an_alarm(trio: Trio) -> None:
    """Declares wait then, and no queue gets another leader: nothing else told of it but a line of the log."""
    assert trio.get(A, f"/api/nodes/{A}")["etcd_full_alarm"] is False
    trio.room.is_etcd_full = True
    failed = trio.at(A).get("/api/health/checks/local-alarms")
    assert failed.json()["alarms"] == [{"node": A, "resource": "etcd_room"}]
    assert trio.get(A, f"/api/nodes/{A}")["etcd_full_alarm"] is True


def test_a_queue_that_is_down_or_lacks_messages_is_an_alarm_of_every_node(trio: Trio) -> None:
    trio.declare("q", B)
    trio.nodes[B].broker.queues["/", "q"].damage = "its segment is gone"
    for name in (A, B, C):
        failed = trio.at(name).get("/api/health/checks/alarms")
        assert failed.status_code == 503
        assert [(each["name"], each["reason"]) for each in failed.json()["queues"]] == [
            ("q", "is down: its segment is gone")
        ]
    assert trio.get(A, "/api/health/checks/local-alarms") == {"status": "ok"}
    trio.nodes[B].broker.queues["/", "q"].damage = None
    trio.room.placements["/", "q"] = trio.room.placements["/", "q"]._replace(lost_by=C)
    reason = trio.at(A).get("/api/health/checks/alarms").json()["reason"]
    assert (
        reason
        == f"queue 'q' in vhost '/': was led without all its messages; node {C} may have the missing ones"
    )


def test_a_queue_without_a_leader_is_an_alarm_of_the_cluster(trio: Trio) -> None:
    trio.declare("q", B, recoverable_mirrors=(C,))
    trio.room.down.add(B)
    assert trio.get(A, "/api/health/checks/alarms") == {"status": "ok"}, "a mirror may still take over"
    for name in (A, C):
        queue = trio.nodes[name].broker.queues["/", "q"]
        assert isinstance(queue, RemoteQueue)
        queue.is_down = True
    for name in (A, C):
        failed = trio.at(name).get("/api/health/checks/alarms")
        assert failed.status_code == 503
        [found] = failed.json()["queues"]
        assert found["name"] == "q"
        assert found["reason"] == (
            f"has no leader: node {B} does not run; copies that may lack messages: {C}. Start {B}; if it does not "
            f"come back, use forget_cluster_node {B}"
        )
        queue = trio.nodes[name].broker.queues["/", "q"]
        assert isinstance(queue, RemoteQueue)
        queue.leader = ""
        [found] = trio.at(name).get("/api/health/checks/alarms").json()["queues"]
        assert "no node has recorded where it is" in found["reason"]
        assert trio.get(name, "/api/health/checks/local-alarms") == {"status": "ok"}


def test_a_queue_that_is_nowhere_else_is_named_if_that_is_asked_for(trio: Trio) -> None:
    path = "/api/health/checks/node-is-mirror-sync-critical"
    for name, leader, durable, arguments in (
        ("s", A, True, {"x-queue-type": "stream"}),
        ("t", A, False, {}),
        ("elsewhere", B, False, {}),
    ):
        trio.room.placements["/", name] = QueuePlacement(leader)
        trio.everywhere(Put(Queue(name=name, vhost="/", durable=durable, arguments=arguments)))
    trio.declare("plain", A)
    assert trio.get(A, path) == {"status": "ok"}
    failed = trio.at(A).get(f"{path}?only_copies=true")
    assert [each["name"] for each in failed.json()["queues"]] == ["s", "t"]


def test_metrics_are_of_the_queues_that_a_node_leads(trio: Trio) -> None:
    trio.declare("q", A, 3, mirrors=(B,), synchronised_mirrors=(B,), is_mirrored=True)
    trio.declare("other", B, 5)
    progress = {"bytes_done": 10, "bytes_total": 30}
    trio.clusters[A].states["/", "q"] = [state(B, "syncing", lag_bytes=20, progress=progress)]
    text = trio.at(A).get("/metrics/per-object").text
    assert 'rabbitmq_queue_messages_ready{vhost="/",queue="q"} 3\n' in text
    assert 'queue="other"' not in text
    labels = '{vhost="/",queue="q",node="rabbit@b"}'
    assert f"leveret_mirror_lag_bytes{labels} 20\n" in text
    assert f"leveret_mirror_sync_done_bytes{labels} 10\n" in text
    assert 'leveret_queue_sync_messages{vhost="/",queue="q"} 1\n' in text
    assert 'leveret_queue_synchronised_mirrors{vhost="/",queue="q"} 1\n' in text
    assert "leveret_cluster_members 3\n" in text
    assert "leveret_cluster_has_pen 0\n" in text
    assert "leveret_cluster_lease_seconds 1.5\n" in text
    assert "leveret_mirror_lag_bytes 20\n" in trio.at(A).get("/metrics").text
    chosen = trio.at(A).get("/metrics/detailed?family=queue_mirrors&vhost=/").text
    assert 'leveret_queue_mirrors{vhost="/",queue="q"} 1\n' in chosen


def test_a_node_alone_has_no_metrics_of_a_cluster(admin: Client) -> None:
    assert "cluster_members" not in admin.get("/metrics").text

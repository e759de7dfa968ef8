from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from leveret.model.definitions import Binding, Put, Queue, Vhost
from leveret.model.errors import StorageError
from tests.unit.management.fake_replication import follower

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.management.conftest import Client, FakeNode

OVERVIEW_BOARD = [
    "rabbitmq_build_info",
    "rabbitmq_channels",
    "rabbitmq_channels_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_connections",
    "rabbitmq_connections_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_consumers",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_identity_info",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_max_tcp_sockets",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_resident_memory_limit_bytes",
]
"""Every name in the queries of RabbitMQ's board RabbitMQ-Overview (10991) of 3.13."""


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_totals_and_lags_are_told_without_a_password(anonymous: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name="q", vhost="/")), 3)
    reply = anonymous.get("/metrics")
    found = samples(reply.text)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert found["rabbitmq_queue_messages_ready", ()] == 3
    assert found["rabbitmq_queues", ()] == 1
    assert found["leveret_standby_lag_records", (("vhost", "v"),)] == 7
    assert found["leveret_standby_lag_seconds", (("vhost", "v"),)] == 1.5
    assert found["leveret_standby_upstream_last_heard_seconds", (("vhost", "v"),)] == 40
    assert found["leveret_schema_sync_last_timestamp_seconds", ()] == 1_795_296_925
    assert found["leveret_standby_missing_messages", (("vhost", "v"),)] == 11
    assert found["leveret_standby_last_timestamp_seconds", (("vhost", "v"),)] == 1_795_296_925.432
    assert found["leveret_standby_state", (("state", "connected"), ("vhost", "v"))] == 1
    assert found["leveret_standby_state", (("state", "recover"), ("vhost", "v"))] == 0
    assert found["leveret_schema_sync_state", (("state", "running"),)] == 1
    assert found["leveret_schema_sync_state", (("state", "syncing"),)] == 0
    left = [found[f"leveret_schema_sync_{name}", ()] for name in ("conflicts", "refused")]
    assert (left, found["leveret_schema_sync_changes_applied_total", ()]) == ([2, 1], 70)
    assert found["leveret_standby_upstream_messages", (("queue", "q"), ("vhost", "/"))] == 4


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), StorageError("log damaged")])
def test_a_disk_that_does_not_tell_its_room_leaves_out_no_other_metric(
    anonymous: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(path: Path) -> int:
        raise error

    before = {name for name, _ in samples(anonymous.get("/metrics").text)}
    monkeypatch.setattr("leveret.management.metrics.node.free_disk_bytes", refused)
    reply = anonymous.get("/metrics")
    missing = before - {name for name, _ in samples(reply.text)}
    assert reply.status_code == 200
    assert "rabbitmq_disk_space_available_bytes" in missing
    assert len(missing) == 4, "those of one family"


def test_every_query_of_the_overview_board_finds_its_metrics(anonymous: Client) -> None:
    names = {name for name, _ in samples(anonymous.get("/metrics").text)}
    assert not set(OVERVIEW_BOARD) - names


def test_the_node_and_its_cluster_are_labels_to_join_with(anonymous: Client) -> None:
    found = samples(anonymous.get("/metrics").text)
    labels = (("rabbitmq_cluster", "test"), ("rabbitmq_node", "leveret@test"))
    assert found["rabbitmq_identity_info", labels] == 1


def test_rows_by_queue_are_told_apart(anonymous: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name='q"\n', vhost="/")), 2)
    place = (("queue", 'q"\n'), ("vhost", "/"))
    assert ("rabbitmq_queue_messages_ready", place) not in samples(anonymous.get("/metrics").text)
    found = samples(anonymous.get("/metrics/per-object").text)
    assert found["rabbitmq_queue_messages_ready", place] == 2
    assert ("rabbitmq_queue_messages_ready", ()) not in found
    assert ("rabbitmq_alarms_memory_used_watermark", ()) in found


def test_a_family_of_a_virtual_host_is_told_alone(anonymous: Client, node: FakeNode) -> None:
    node.broker.apply(Put(Vhost(name="other")))
    for vhost in ("/", "other"):
        node.add_messages(node.broker.declare_queue(Queue(name="q", vhost=vhost)), 1)
    found = samples(anonymous.get("/metrics/detailed?family=queue_coarse_metrics&vhost=other").text)
    assert {name for name, _ in found} == {
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
    }
    assert found["rabbitmq_detailed_queue_messages", (("queue", "q"), ("vhost", "other"))] == 1
    assert ("rabbitmq_detailed_queue_messages", (("queue", "q"), ("vhost", "/"))) not in found


def test_the_consumer_count_alone_is_a_family_of_its_own(anonymous: Client, node: FakeNode) -> None:
    node.broker.declare_queue(Queue(name="q", vhost="/"))
    text = anonymous.get("/metrics/detailed?family=queue_consumer_count").text
    assert samples(text)["rabbitmq_detailed_queue_consumers", (("queue", "q"), ("vhost", "/"))] == 0
    both = anonymous.get("/metrics/detailed?family=queue_consumer_count&family=queue_metrics").text
    assert both.count("# TYPE rabbitmq_detailed_queue_consumers ") == 1


def test_exchanges_and_virtual_hosts_are_told_when_asked_for(anonymous: Client, node: FakeNode) -> None:
    node.broker.declare_queue(Queue(name="q", vhost="/"))
    node.broker.apply(Put(Binding(source="amq.fanout", vhost="/", destination="q")))
    path = "/metrics/detailed?family=vhost_status&family=exchange_bindings&family=exchange_names"
    found = samples(anonymous.get(path).text)
    exchange = (("exchange", "amq.fanout"), ("type", "fanout"), ("vhost", "/"))
    assert found["rabbitmq_cluster_exchange_bindings", exchange] == 1
    assert found["rabbitmq_cluster_exchange_name", exchange] == 1
    assert found["rabbitmq_cluster_vhost_status", (("vhost", "/"),)] == 1
    node.replication.role = "suspended"
    assert samples(anonymous.get(path).text)["rabbitmq_cluster_vhost_status", (("vhost", "/"),)] == 0


def test_what_is_asked_for_by_no_known_name_is_not_found(anonymous: Client) -> None:
    reply = anonymous.get("/metrics/nonsense")
    assert (reply.status_code, reply.text) == (404, "Unknown Registry")


def test_counts_of_a_deleted_queue_stay_in_the_sums_of_all(anonymous: Client, node: FakeNode) -> None:
    queue = node.broker.declare_queue(Queue(name="q", vhost="/"))
    queue.counters.deliver += 5
    node.broker.delete_queue(queue)
    found = samples(anonymous.get("/metrics").text)
    labels = (("protocol", "amqp091"), ("queue_type", "rabbit_classic_queue"))
    assert found["rabbitmq_global_messages_delivered_consume_manual_ack_total", labels] == 5
    assert found["rabbitmq_queues_deleted_total", ()] == 1


def test_a_leader_tells_of_each_of_its_followers(anonymous: Client, node: FakeNode) -> None:
    node.replication.followers = [
        follower("b", "2", lag_bytes=100, lag_records=3, lag_s=0.5, sent_bytes=700, acked_bytes=600),
        follower("c", "3", in_sync=False, lag_s=None, compression_ratio=None),
    ]
    found = samples(anonymous.get("/metrics").text)
    b, c = (("follower", "b"),), (("follower", "c"),)
    assert {name: value for (name, labels), value in found.items() if labels == b} == {
        "leveret_follower_lag_bytes": 100,
        "leveret_follower_lag_records": 3,
        "leveret_follower_lag_seconds": 0.5,
        "leveret_follower_in_sync": 1,
        "leveret_follower_sent_bytes_total": 700,
        "leveret_follower_acked_bytes_total": 600,
        "leveret_follower_compression_ratio": 2.5,
    }
    assert found["leveret_follower_in_sync", c] == 0
    assert ("leveret_follower_lag_seconds", c) not in found
    assert ("leveret_replication_lag_seconds", ()) not in found


def test_followers_of_one_name_are_told_apart(anonymous: Client, node: FakeNode) -> None:
    node.replication.followers = [follower("b", "2"), follower("b", "3"), follower("c", "4")]
    found = samples(anonymous.get("/metrics").text)
    labels = {dict(key)["follower"] for name, key in found if name == "leveret_follower_in_sync"}
    assert labels == {"b (2)", "b (3)", "c"}


def test_a_follower_tells_how_far_it_is_behind(anonymous: Client, node: FakeNode) -> None:
    node.replication.follow()
    for path in ("/metrics", "/metrics/per-object"):
        found = samples(anonymous.get(path).text)
        assert found["leveret_replication_role", (("role", "follower"),)] == 1
        assert found["leveret_replication_role", (("role", "leader"),)] == 0
        assert found["leveret_replication_role", (("role", "fenced"),)] == 0
        assert found["leveret_replication_epoch", ()] == 3
        assert found["leveret_replication_lag_seconds", ()] == 1.5
        assert found["leveret_replication_lag_bytes", ()] == 1000
        assert found["leveret_replication_received_bytes_total", ()] == 70_000


def test_a_node_that_passes_clients_on_counts_them(anonymous: Client, node: FakeNode) -> None:
    assert not any(name.startswith("leveret_proxied") for name, _ in samples(anonymous.get("/metrics").text))
    node.replication.proxy = {
        "leaders": [],
        "connections": 3,
        "passed_on": 70,
        "refused": 2,
        "last_refusal": "",
    }
    found = samples(anonymous.get("/metrics").text)
    names = ("proxied_connections", "proxied_connections_total", "proxied_connections_refused_total")
    assert [found[f"leveret_{name}", ()] for name in names] == [3, 70, 2]
    assert found["leveret_connections_from_proxies_total", ()] == 0


def test_what_a_scrub_found_is_told(anonymous: Client) -> None:
    found = samples(anonymous.get("/metrics").text)
    counts = [found[f"leveret_scrub_{name}_total", ()] for name in ("chunks", "damaged", "repaired")]
    assert counts == [40, 2, 1]


@pytest.mark.parametrize(
    "name",
    [
        "rabbitmq_connection_incoming_packets_total",
        "rabbitmq_connection_outgoing_packets_total",
        "rabbitmq_queue_messages_paged_out",
        "rabbitmq_io_reopen_total",
        "rabbitmq_io_seek_total",
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
def test_what_is_not_counted_is_no_metric(anonymous: Client, admin: Client, path: str, name: str) -> None:
    admin.put("/api/queues/%2F/q")
    text = anonymous.get(path).text
    assert "rabbitmq_queues_declared_total" in text
    assert name not in text

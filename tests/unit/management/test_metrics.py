from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from leveret.model.definitions import Queue

if TYPE_CHECKING:
    from .conftest import Client, FakeNode


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
    assert reply.headers["content-type"].startswith("text/plain")
    assert found["rabbitmq_queue_messages_ready", ()] == 3
    assert found["rabbitmq_queues", ()] == 1
    assert found["leveret_standby_lag_records", (("vhost", "v"),)] == 7
    assert found["leveret_standby_lag_seconds", (("vhost", "v"),)] == 1.5
    assert found["leveret_schema_sync_state", (("state", "running"),)] == 1
    assert found["leveret_schema_sync_state", (("state", "syncing"),)] == 0
    assert found["leveret_standby_upstream_messages", (("queue", "q"), ("vhost", "/"))] == 4


def test_rows_by_queue_are_told_apart(anonymous: Client, node: FakeNode) -> None:
    node.add_messages(node.broker.declare_queue(Queue(name='q"\n', vhost="/")), 2)
    place = (("queue", 'q"\n'), ("vhost", "/"))
    assert ("rabbitmq_detailed_queue_messages_ready", place) not in samples(anonymous.get("/metrics").text)
    assert (
        samples(anonymous.get("/metrics/per-object").text)["rabbitmq_detailed_queue_messages_ready", place]
        == 2
    )

"""What a real node tells over HTTP of streams, of what is in memory, of its log; and its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from leveret.model.stream import OffsetSpec, OffsetType
from leveret.pipeline.upstream.stream_connection import StreamConnection
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.stream import commands as stream

COUNT: Final = 50
PROPERTIES: Final = {"name": "reader", "colour": "red"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    folder = tmp_path_factory.mktemp("node")
    with LeveretProcess(config={"log.file": str(folder / "node.log")}, parent_dir=folder) as node:
        yield node


@pytest.fixture(scope="module")
def http(node: LeveretProcess) -> Iterator[httpx.Client]:
    base = f"http://{LOOPBACK}:{node.management_port}/"
    with httpx.Client(base_url=base, auth=("guest", "guest"), timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def connection(node: LeveretProcess) -> Iterator[StreamConnection]:
    """One that published COUNT messages to `s` and reads it, as far as one credit goes, and to its end."""
    made = StreamConnection(
        LOOPBACK, node.stream_port, vhost="/", username="guest", password="guest", timeout_s=30
    )
    made.request(stream.Create(made.next_id(), "s", {}), stream.CreateResponse)
    publisher = stream.DeclarePublisher(made.next_id(), 1, "writer", "s")
    made.request(publisher, stream.DeclarePublisherResponse)
    for first in (1, 1 + COUNT // 2):
        entries = [(number, b"x" * 10) for number in range(first, first + COUNT // 2)]
        made.send(stream.Publish(1, entries, []).encode())
        made.await_command(stream.PublishConfirm)
    begin = OffsetSpec(OffsetType.FIRST)
    subscribe = stream.Subscribe(made.next_id(), 1, "s", begin, 1, PROPERTIES)
    made.request(subscribe, stream.SubscribeResponse)
    yield made
    made.close()


def metric(http: httpx.Client, name: str) -> dict[str, float]:
    """The values of a metric of streams by its other labels."""
    found = re.findall(rf'^{name}{{protocol="stream"(.*)}} (\S+)$', http.get("metrics").text, re.MULTILINE)
    return {labels.lstrip(","): float(value) for labels, value in found}


@pytest.mark.usefixtures("connection")
def test_a_stream_consumer_tells_how_far_it_is(http: httpx.Client) -> None:
    def shown() -> Any:
        return http.get("api/stream/consumers").json()[0]

    wait_until(lambda: shown()["consumed"] == COUNT // 2, "one chunk", 60)
    consumer = shown()
    assert consumer["properties"] == PROPERTIES
    assert (consumer["offset"], consumer["offset_lag"], consumer["credits"]) == (COUNT // 2, COUNT // 2, 0)


@pytest.mark.usefixtures("connection")
def test_a_stream_publisher_tells_what_it_published(http: httpx.Client) -> None:
    publisher = http.get("api/stream/publishers").json()[0]
    assert (publisher["published"], publisher["confirmed"], publisher["errored"]) == (COUNT, COUNT, 0)


@pytest.mark.usefixtures("connection")
def test_streams_are_counted_by_their_protocol(http: httpx.Client) -> None:
    for name, value in (
        ("messages_received_total", COUNT),
        ("messages_received_confirm_total", COUNT),
        ("messages_confirmed_total", COUNT),
        ("publishers", 1),
        ("consumers", 1),
    ):
        assert metric(http, f"rabbitmq_global_{name}") == {"": value}, name
    of_streams = 'queue_type="rabbit_stream_queue"'
    delivered = "rabbitmq_global_messages_delivered_total"
    wait_until(lambda: metric(http, delivered) == {of_streams: COUNT // 2}, "the delivered", 60)
    assert metric(http, "rabbitmq_global_messages_acknowledged_total") == {of_streams: 0}


def test_a_queue_tells_what_of_it_is_in_memory(http: httpx.Client) -> None:
    http.put("api/queues/%2F/q", json={"durable": True}).raise_for_status()
    message = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
    for _ in range(3):
        http.post("api/exchanges/%2F/amq.default/publish", json=message).raise_for_status()

    def shown() -> dict[str, Any]:
        queue: dict[str, Any] = http.get("api/queues/%2F/q").json()
        return queue

    wait_until(lambda: shown()["messages_ram"] == 3, "three messages", 60)
    queue = shown()
    assert (queue["messages_ready_ram"], queue["messages_unacknowledged_ram"]) == (3, 0)
    assert queue["messages_ram"] + queue["messages_paged_out"] == queue["messages"] == 3
    assert queue["message_bytes_ram"] + queue["message_bytes_paged_out"] == queue["message_bytes"]


def test_churn_has_samples_over_the_ranges_that_rabbitmqs_page_asks_for(http: httpx.Client) -> None:
    ranges = {"lengths_age": 60, "lengths_incr": 5, "msg_rates_age": 60, "msg_rates_incr": 5}
    churn = http.get("api/overview", params=ranges).json()["churn_rates"]
    assert churn["connection_created_details"]["samples"]
    assert "samples" not in http.get("api/overview").json()["churn_rates"]["connection_created_details"]


def test_a_node_tells_where_its_log_is(http: httpx.Client) -> None:
    [shown] = http.get("api/nodes").json()
    assert [path for path in shown["log_files"] if path.endswith("/node.log")]


def test_a_node_tells_which_files_its_settings_are_from(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those without a setting too: who changes one wants to know that it is read."""
    folder = tmp_path_factory.mktemp("configured")
    settings = folder / "conf.d"
    settings.mkdir()
    (settings / "20-late.conf").write_text("# nothing yet\n")
    (settings / "10-early.conf").write_text("channel_max = 100\n")
    (settings / "ignored.txt").write_text("no settings\n")
    with LeveretProcess(arguments=["--config", str(settings)], parent_dir=folder) as node:
        [shown] = httpx.get(
            f"http://{LOOPBACK}:{node.management_port}/api/nodes", auth=("guest", "guest")
        ).json()
        status = node.ctl("status").stdout
    expected = [str(settings / "10-early.conf"), str(settings / "20-late.conf")]
    assert [file for file in shown["config_files"] if file.startswith(str(settings))] == expected
    assert all(f" * {file}" in status for file in expected)


def test_there_is_a_page_that_tells_strangers_what_this_is_and_nothing_else(
    node: LeveretProcess, http: httpx.Client
) -> None:
    page = httpx.get(str(http.base_url))
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = re.findall(r'href="([^"]+)"', page.text)
    assert {httpx.get(f"{http.base_url}{link}").status_code for link in links} <= {200, 401}
    wrong = httpx.get(f"{http.base_url}nosuch")
    assert (wrong.status_code, wrong.headers["content-type"]) == (404, "application/json")


def test_behind_a_prefix_the_page_is_there_and_nowhere_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"management.path_prefix": "/broker"}
    with LeveretProcess(config=config, parent_dir=tmp_path_factory.mktemp("prefixed")) as node:
        base = f"http://{LOOPBACK}:{node.management_port}"
        assert httpx.get(f"{base}/broker/").status_code == 200
        assert httpx.get(f"{base}/broker").status_code == 200
        assert httpx.get(f"{base}/").status_code == 404
        assert httpx.get(f"{base}/elsewhere").status_code == 404

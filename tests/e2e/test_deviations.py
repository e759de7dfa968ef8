"""Differences from RabbitMQ of docs/deviations.md that no other test shows, at a real node, by a stock client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess

PATIENCE_S = 30.0
LIMIT = {"disk_free_limit.absolute": "1000000TB", "disk_free_limit.relative": "0.00001"}
"""Of the two limits, one that every disk is below, and one that none is."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    with LeveretProcess(config=LIMIT, parent_dir=tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="module")
def http(node: LeveretProcess) -> Iterator[httpx.Client]:
    base = f"http://{LOOPBACK}:{node.management_port}/api/"
    with httpx.Client(base_url=base, auth=("guest", "guest"), timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def channel(node: LeveretProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def count_of(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def refusal(channel: BlockingChannel, method: str, *arguments: Any, **more: Any) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        getattr(channel, method)(*arguments, **more)
    return closed.value.reply_code, closed.value.reply_text


@pytest.mark.parametrize("condition", ["if_empty", "if_unused"])
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_condition_of_a_deletion_holds_for_every_type_of_queue(
    channel: BlockingChannel, kind: str, condition: str
) -> None:
    name = f"{kind}-{condition}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    channel.basic_publish("", name, b"x")
    if condition == "if_unused":
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda *_: None)
    own = channel.connection.channel()
    code, text = refusal(own, "queue_delete", name, **{condition: True})
    assert (code, name in text) == (406, True)


def test_a_time_to_live_of_a_policy_applies_to_messages_that_are_there(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("old", durable=True)
    channel.basic_publish("", "old", b"x")
    node.ctl("set_policy", "short", "^old$", '{"message-ttl": 1}', "--apply-to", "queues")
    wait_until(lambda: count_of(channel, "old") == 0, "its end", PATIENCE_S)


def test_a_dead_letter_goes_by_its_key_and_cc_and_not_by_bcc(channel: BlockingChannel) -> None:
    channel.exchange_declare("graves", "topic")
    for key in ("key", "cc", "bcc"):
        channel.queue_declare(f"by-{key}")
        channel.queue_bind(f"by-{key}", "graves", key)
    channel.exchange_declare("posts", "topic")
    channel.queue_declare("posted", arguments={"x-dead-letter-exchange": "graves"})
    channel.queue_bind("posted", "posts", "key")
    copies = pika.BasicProperties(headers={"CC": ["cc"], "BCC": ["bcc"]})
    channel.basic_publish("posts", "key", b"x", copies)
    [method, _, _] = channel.basic_get("posted")
    channel.basic_nack(method.delivery_tag, requeue=False)
    wait_until(lambda: count_of(channel, "by-cc") == 1, "the dead letter", PATIENCE_S)
    assert [count_of(channel, f"by-{key}") for key in ("key", "bcc")] == [1, 0]


def test_an_invalid_reply_name_is_that_of_a_missing_queue(channel: BlockingChannel) -> None:
    name = "amq.rabbitmq.reply-to.nonsense"
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", name, b"x", mandatory=True)
    assert refusal(channel, "queue_declare", name, passive=True)[0] == 404


def test_transient_messages_of_a_durable_queue_survive_an_orderly_restart(tmp_path_factory: Any) -> None:
    with LeveretProcess(parent_dir=tmp_path_factory.mktemp("restarted")) as node:
        with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
            connection.channel().queue_declare("kept", durable=True)
            connection.channel().basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=1))
        node.stop()
        node.start()
        with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
            assert count_of(connection.channel(), "kept") == 1


def test_of_two_limits_of_free_disk_the_relative_one_counts(http: httpx.Client) -> None:
    [row] = http.get("nodes").json()
    assert row["disk_free_limit"] < row["disk_free"]
    assert row["disk_free_alarm"] is False


def test_names_that_amqp_cannot_carry_are_refused_over_http(http: httpx.Client) -> None:
    for path in (f"exchanges/%2F/{'x' * 256}", f"vhosts/{'v' * 256}"):
        assert http.put(path, json={}).status_code == HTTPStatus.BAD_REQUEST
    routed = {"properties": {}, "routing_key": "k" * 256, "payload": "x", "payload_encoding": "string"}
    assert http.post("exchanges/%2F/amq.direct/publish", json=routed).status_code == HTTPStatus.BAD_REQUEST


def test_what_is_missing_has_no_binding_and_what_is_erlangs_is_not_there(http: httpx.Client) -> None:
    [row] = http.get("nodes").json()
    assert http.get("queues/%2F/missing/bindings").status_code == HTTPStatus.NOT_FOUND
    assert http.get(f"nodes/{row['name']}/memory/ets").status_code == HTTPStatus.NOT_FOUND
    assert http.get(f"nodes/{row['name']}", params={"binary": "true"}).json()["binary"] == "not_available"


def test_details_of_pairs_are_empty_and_bindings_of_a_queue_are_not(
    http: httpx.Client, channel: BlockingChannel
) -> None:
    channel.queue_declare("shown", durable=True)
    channel.basic_publish("", "shown", b"x")
    shown = http.get("queues/%2F/shown").json()
    assert (shown["deliveries"], shown["incoming"]) == ([], [])
    assert len(http.get("queues/%2F/shown/bindings").json()) == 1


def test_arguments_are_an_object_and_a_pid_is_a_word_that_close_connection_takes(
    node: LeveretProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("argued", durable=True, arguments={"x-max-length": 3})
    rows = json.loads(node.ctl("--formatter", "json", "list_queues", "name", "arguments").stdout)
    assert {"name": "argued", "arguments": {"x-max-length": 3}} in rows
    [pid] = node.ctl("-q", "list_connections", "pid", "--no-table-headers").stdout.splitlines()
    assert " " not in pid
    node.ctl("close_connection", pid, "maintenance")
    with pytest.raises(pika.exceptions.AMQPError):
        channel.queue_declare("argued", passive=True)

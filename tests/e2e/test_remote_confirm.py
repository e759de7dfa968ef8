"""Publishers' confirms that wait for a downstream: stock publishers, and a downstream that reports what it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pika
import pytest
from pika.exceptions import NackError
from rstream import ConfirmationStatus, Producer

from leveret.pipeline.upstream.stream_client import StreamClient, connect
from leveret.testing.applications.applications import channel_of, parameters
from leveret.testing.network.ports import LOOPBACK, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.wire.record import OUTGOING_STREAM

VHOST: Final = "orders"
PATIENCE_S: Final = 60.0
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
LONG_MS: Final = 120_000


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A node with a vhost that is collected."""
    node = LeveretProcess(parent_dir=tmp_path_factory.mktemp("upstream"))
    try:
        node.start()
        node.ctl("add_vhost", VHOST, "--tags", "standby_replication")
        node.ctl("set_permissions", "-p", VHOST, "guest", ".*", ".*", ".*")
        yield node
    finally:
        node.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield pool


class Downstream:
    """A connection that reports as a downstream does, and transfers nothing."""

    def __init__(self, node: LeveretProcess, name: str) -> None:
        self.name = name
        self.client: StreamClient = connect(
            [f"{LOOPBACK}:{node.stream_port}"], vhost=VHOST, username="guest", password="guest"
        )

    def end(self) -> int:
        """How much the upstream serves."""
        return int(self.client.stats(OUTGOING_STREAM)["committed_offset"])

    def report(self, offset: int) -> None:
        """Tell what the manifest holds."""
        self.client.store_offset(self.name, OUTGOING_STREAM, offset)

    def close(self) -> None:
        self.client.close()


def policy(node: LeveretProcess, pattern: str, **keys: Any) -> None:
    definition = {"remote-dc-replicate": True, "remote-dc-confirm": True} | {
        key.replace("_", "-"): value for key, value in keys.items()
    }
    name = pattern.strip("^$")
    node.ctl("set_policy", "-p", VHOST, name, pattern, json.dumps(definition), "--apply-to", "queues")


def publishes(node: LeveretProcess, queue: str, body: bytes = b"m") -> bool:
    """Whether one publish is confirmed; False for a nack."""
    with channel_of(pika.BlockingConnection(parameters(node.amqp_port, VHOST))) as channel:
        try:
            channel.basic_publish("", queue, body, PERSISTENT)
        except NackError:
            return False
        return True


def declare(node: LeveretProcess, queue: str, **arguments: Any) -> None:
    with channel_of(pika.BlockingConnection(parameters(node.amqp_port, VHOST))) as channel:
        channel.queue_declare(queue, durable=True, arguments=arguments or None)


def row(node: LeveretProcess, queue: str) -> dict[str, Any]:
    columns = ("name", "remote_dc_confirm", "remote_dc_confirm_unmet", "remote_dc_confirms_waiting")
    counts = ("remote_dc_confirmed_locally", "remote_dc_refused")
    listed = node.ctl("-q", "--formatter", "json", "list_queues", "-p", VHOST, *columns, *counts).stdout
    [found] = [each for each in json.loads(listed) if each["name"] == queue]
    return dict(found)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_confirm_waits_for_the_manifest_of_a_downstream(
    upstream: LeveretProcess, threads: ThreadPoolExecutor, kind: str
) -> None:
    queue = f"payments-{kind}"
    declare(upstream, queue, **{"x-queue-type": kind})
    policy(upstream, f"^{queue}$", remote_dc_confirm_timeout=LONG_MS)
    downstream = Downstream(upstream, "eu.1")
    try:
        before = downstream.end()
        downstream.report(before)
        wait_until(lambda: row(upstream, queue)["remote_dc_confirm_unmet"] == "", "a downstream", PATIENCE_S)
        confirmed: Future[bool] = threads.submit(publishes, upstream, queue)
        wait_until(lambda: downstream.end() > before, "the message in the outgoing log", PATIENCE_S)
        wait_until(
            lambda: row(upstream, queue)["remote_dc_confirms_waiting"] == 1,
            "a confirm that is held",
            PATIENCE_S,
        )
        assert not confirmed.done()
        downstream.report(downstream.end())
        assert confirmed.result(PATIENCE_S)
        found = row(upstream, queue)
        assert (found["remote_dc_confirm"], found["remote_dc_confirms_waiting"]) == ("any", 0)
        assert (found["remote_dc_confirmed_locally"], found["remote_dc_refused"]) == (0, 0)
    finally:
        downstream.close()


@pytest.mark.parametrize("answer", ["local", "nack"])
def test_without_a_downstream_the_policy_s_answer_holds_from_the_first_message_and_is_an_alarm(
    upstream: LeveretProcess, answer: str
) -> None:
    queue = f"alone-{answer}"
    declare(upstream, queue)
    policy(upstream, f"^{queue}$", remote_dc_confirm_timeout=LONG_MS, remote_dc_confirm_on_timeout=answer)
    is_local = answer == "local"
    assert publishes(upstream, queue) is is_local
    found = row(upstream, queue)
    assert found["remote_dc_confirm_unmet"] == "no downstream is connected"
    assert (found["remote_dc_confirmed_locally"], found["remote_dc_refused"]) == (
        (1, 0) if is_local else (0, 1)
    )
    checked = upstream.ctl("check_alarms", check=False)
    assert checked.returncode != 0
    action = "confirmed by this site alone" if is_local else "nacked"
    assert f"publishes are {action}, not confirmed at a downstream" in checked.stdout + checked.stderr
    assert "remote_dc_confirm_unmet" in upstream.log_text()
    downstream = Downstream(upstream, f"late.{answer}")
    try:
        downstream.report(0)
        wait_until(lambda: row(upstream, queue)["remote_dc_confirm_unmet"] == "", "a downstream", PATIENCE_S)
    finally:
        downstream.close()
    wait_until(lambda: bool(row(upstream, queue)["remote_dc_confirm_unmet"]), "nobody again", PATIENCE_S)
    upstream.ctl("clear_policy", "-p", VHOST, queue)


async def test_a_publisher_of_the_stream_protocol_is_refused_as_any(upstream: LeveretProcess) -> None:
    declare(upstream, "events", **{"x-queue-type": "stream"})
    policy(upstream, "^events$", remote_dc_confirm_timeout=LONG_MS, remote_dc_confirm_on_timeout="nack")
    answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def note(status: ConfirmationStatus) -> None:
        answered.set_result(status.is_confirmed)

    place: dict[str, Any] = {
        "port": upstream.stream_port,
        "vhost": VHOST,
        "username": "guest",
        "password": "guest",
    }
    async with asyncio.timeout(PATIENCE_S), Producer(LOOPBACK, **place) as producer:
        await producer.send("events", b"m", on_publish_confirm=note)
        assert await answered is False
    assert row(upstream, "events")["remote_dc_refused"] == 1

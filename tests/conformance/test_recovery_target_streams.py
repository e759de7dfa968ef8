"""Recovering streams into a broker of any make: each message is there once, in order, as its readers had it."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from leveret.core.queues.head import Head
from leveret.core.queues.messages import alike
from leveret.pipeline.archive.recovery_plan import PlanDirectory
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.target_broker import publish as amqp_publish
from leveret.pipeline.target_broker.connection import AmqpConnection
from leveret.pipeline.target_broker.publish import AmqpClient, progress_path, read_progress
from leveret.pipeline.target_broker.streams import MessageDeclined
from leveret.session.stream.messages import entries_of
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream
from leveret.wire.properties import shortstr
from leveret.wire.stream_entry import pack_entries
from tests.conformance.brokers import Broker
from tests.conformance.killing import killed_after

VHOST = "/"
ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream", "x-max-age": "7D"}
HEADERS = commands.Basic.Properties(
    headers={"n": 7}, delivery_mode=2, message_id="m", content_type="text/plain"
)
PATIENCE_S = 20.0


def simple(body: bytes) -> bytes:
    """What a publisher of the stream protocol sent, in a chunk."""
    return struct.pack(">I", len(body)) + body


def batch(bodies: list[bytes], kind: int = 0) -> bytes:
    """A batch of messages, by `kind` 1 compressed."""
    plain = b"".join(map(simple, bodies))
    packed = gzip.compress(plain) if kind == 1 else plain
    return struct.pack(">BHII", 0x80 | kind << 4, len(bodies), len(plain), len(packed)) + packed


def by_091(body: bytes) -> bytes:
    """What a publisher by AMQP 0-9-1 sent, in a chunk."""
    header = ContentHeader(0, len(body), HEADERS).marshal()
    head = Head(b"", shortstr(b"orders") + shortstr("eu.ä".encode()), header, len(body), True)
    [entry] = entries_of([alike(head, [body])])
    return entry


def mixed(messages: int) -> Iterator[bytes]:
    """Entries of so many messages, whose bodies are their numbers: each third entry a batch of five."""
    number = entry = 0
    while number < messages:
        size = min(5, messages - number) if entry % 3 == 2 else 1
        bodies = [b"%d" % each for each in range(number, number + size)]
        yield batch(bodies, entry % 2) if size > 1 else (by_091 if entry % 2 else simple)(bodies[0])
        number, entry = number + size, entry + 1


def planned(folder: Path, stream: str, entries: list[bytes]) -> PlanDirectory:
    upstream = StandbyUpstream([VHOST])
    for first in range(0, len(entries), 100):
        packed = [pack_entries(entry)[0][4:] for entry in entries[first : first + 100]]
        upstream.publish(VHOST, stream, packed)
    directory = freeze_plan(transfer(upstream, folder), VHOST)
    assert directory is not None
    return directory


@pytest.fixture
def target(broker: Broker, name: str) -> AmqpTarget:
    """With the stream of that name as the standby's node has it."""
    return AmqpTarget(
        host=LOOPBACK,
        port=broker.amqp_port,
        credentials=LoginCredentials(username="guest", password="guest"),
        queues={VHOST: {name: ARGUMENTS}},
    )


def publish(target: AmqpTarget, directory: PlanDirectory, timeout_s: float = 10) -> None:
    totals = directory.load().queues

    def client() -> AmqpClient:
        return AmqpClient(target, VHOST, directory.progress, totals, timeout_s)

    PlanPublisher(directory, client, lambda count: None).publish(sorted(totals))


def taken(channel: Any, stream: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """So many messages from the first on, and that there are no more."""
    channel.basic_qos(prefetch_count=1000)
    found: list[tuple[Any, Any, bytes]] = []
    patient = {"x-stream-offset": "first"}
    for method, properties, body in channel.consume(stream, arguments=patient, inactivity_timeout=PATIENCE_S):
        if method is None:
            break
        found.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_a_stream_is_made_and_its_messages_are_what_readers_by_091_had(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path
) -> None:
    entries = [simple(b"raw"), by_091(b"small"), batch([b"one", b"two"], 1), by_091(b"y" * 300_000)]
    publish(target, planned(tmp_path, name, entries))
    channel.queue_declare(name, durable=True, arguments=ARGUMENTS)
    found = taken(channel, name, 5)
    assert [body for *_, body in found] == [b"raw", b"small", b"one", b"two", b"y" * 300_000]
    method, properties, _ = found[1]
    assert (method.routing_key, properties.message_id, properties.content_type) == ("eu.ä", "m", "text/plain")
    assert (properties.headers["n"], properties.delivery_mode) == (7, 2)
    assert method.exchange.startswith("leveret.recovery.")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.exchange_declare(method.exchange, passive=True)


@pytest.mark.story
@pytest.mark.parametrize(("sent", "again"), [(0, 2), (333, 700), (1499, 1)])
def test_killed_twice_and_run_again_each_message_is_there_once_in_order(
    target: AmqpTarget,
    channel: Any,
    name: str,
    tmp_path: Path,
    sent: int,
    again: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if others publish to the stream, and batches are cut in the middle."""
    monkeypatch.setattr(amqp_publish, "SPAN", 400)
    channel.queue_declare(name, durable=True, arguments=ARGUMENTS)
    channel.confirm_delivery()
    directory = planned(tmp_path, name, list(mixed(3000)))
    for left in (sent, again):
        for _ in range(7):
            channel.basic_publish("", name, b"another's")
        killed_after(left, monkeypatch, lambda: publish(target, directory))
    channel.basic_publish("", name, b"another's")
    publish(target, directory)
    publish(target, directory)
    channel.basic_publish("", name, b"last")
    found = [body for *_, body in taken(channel, name, 3016)]
    assert found.count(b"another's") == 15
    assert found[-1] == b"last"
    numbers = [int(body) for body in found[:-1] if body != b"another's"]
    assert numbers == list(range(3000))
    assert read_progress(progress_path(directory.progress, name)).in_doubt == 0


@pytest.mark.story
def test_a_stream_that_lost_what_was_in_it_gets_all_that_was_not_confirmed_and_that_is_counted(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, name, list(mixed(3000)))
    killed_after(2500, monkeypatch, lambda: publish(target, directory))
    path = progress_path(directory.progress, name)
    confirmed = read_progress(path).messages
    assert 0 < confirmed < 2500
    channel.queue_delete(name)
    publish(target, directory, timeout_s=2)
    channel.queue_declare(name, passive=True)
    found = [int(body) for *_, body in taken(channel, name, 3000 - confirmed)]
    assert found == list(range(confirmed, 3000))
    assert read_progress(path).in_doubt == amqp_publish.WINDOW


def test_a_queue_of_that_name_gets_the_streams_messages(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = AmqpTarget(
        host=target.host, port=target.port, credentials=target.credentials, queues={VHOST: {queue: ARGUMENTS}}
    )
    directory = planned(tmp_path, queue, list(mixed(1500)))
    killed_after(1200, monkeypatch, lambda: publish(made, directory))
    publish(made, directory)
    found = []
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(int(message[2]))
    assert found == list(range(1500))


def test_what_cannot_be_taken_is_said_with_what_to_do(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, name, [simple(b"raw"), struct.pack(">BHII", 0xC0, 2, 99, 3) + b"zzz"])

    def with_arguments(arguments: dict[str, Any]) -> AmqpTarget:
        return AmqpTarget(
            host=target.host,
            port=target.port,
            credentials=target.credentials,
            queues={VHOST: {name: {**ARGUMENTS, **arguments}}},
        )

    with pytest.raises(MessageDeclined, match=r"cannot be made: .*x-overflow.*--queues"):
        publish(with_arguments({"x-overflow": "reject-publish"}), directory)
    with pytest.raises(MessageDeclined, match=r"compressed: zstd.*--queues"):
        publish(target, directory)
    channel.queue_delete(name)
    declare = AmqpConnection.declare_queue

    def ignored(self: AmqpConnection, on: Any, queue: str, arguments: Any = None, **options: Any) -> Any:
        """As of a broker that does not know of types of queues."""
        if arguments:
            channel.queue_declare(queue, durable=True)
            return 0, 0
        return declare(self, on, queue, arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(AmqpConnection, "declare_queue", ignored)
        with pytest.raises(MessageDeclined, match=r"made a queue of .*--queues"):
            publish(target, directory)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)

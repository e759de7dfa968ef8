"""Recovering into a broker of any make: stored messages come out of its queues, each once, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest

from leveret.model.errors import AccessRefused, AuthenticationFailed, LeveretError, NotFound
from leveret.pipeline.archive.recovery_plan import PlanDirectory, QueueOutcome
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.target_broker.compare import ComparisonClient, Differs
from leveret.pipeline.target_broker.connection import AmqpConnection, AmqpConnectionLost
from leveret.pipeline.target_broker.publish import WINDOW, AmqpClient, read_progress
from leveret.pipeline.target_broker.streams import MessageDeclined
from leveret.testing.applications.contents import is_same
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, properties_for, stored_message
from tests.conformance.brokers import Broker
from tests.conformance.killing import killed_after

VHOST = "/"
HEADERS = pika.BasicProperties(headers={"n": 7, "s": "x"}, delivery_mode=2, message_id="m", priority=3)


@pytest.fixture
def target(broker: Broker) -> AmqpTarget:
    return AmqpTarget(
        host=LOOPBACK, port=broker.amqp_port, credentials=LoginCredentials(username="guest", password="guest")
    )


PERSISTENT = b"\x10\x00\x02"


def planned(folder: Path, queue: str, messages: int, properties: bytes | None = None) -> PlanDirectory:
    """A plan of so many messages for one queue, of all sizes and with different properties, or with these."""
    upstream = StandbyUpstream([VHOST])
    for first in range(0, messages, 100):
        bodies = [
            b"%d." % number + b"x" * (number % 7 * 40) for number in range(first, min(first + 100, messages))
        ]
        entries = [stored_message(body, b"orders", b"eu.%d" % len(body), properties) for body in bodies]
        upstream.publish(VHOST, queue, entries)
    directory = freeze_plan(transfer(upstream, folder), VHOST)
    assert directory is not None
    return directory


def publish(
    target: AmqpTarget, directory: PlanDirectory, progress: Callable[[int], None] = lambda count: None
) -> list[QueueOutcome]:
    """Publish all of a plan, as one task would."""
    totals = directory.load().queues

    def client() -> AmqpClient:
        return AmqpClient(target, VHOST, directory.progress, totals, timeout_s=10)

    return PlanPublisher(directory, client, progress).publish(sorted(totals))


def bodies_of(channel: Any, queue: str) -> list[bytes]:
    """Take all that the queue has: by a consumer, which needs no request for each, and then until it is empty."""
    found: list[bytes] = []
    if count := channel.queue_declare(queue, passive=True).method.message_count:
        for _, _, body in channel.consume(queue, auto_ack=True):
            found.append(body)
            if len(found) == count:
                break
        channel.cancel()
    return [*found, *_got(channel, queue)]


def _got(channel: Any, queue: str) -> Iterator[bytes]:
    """One by one, without a consumer, with whose end some queues go."""
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        yield message[2]


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.partition(b".")[0]) for body in bodies]


def in_doubt(directory: PlanDirectory) -> int:
    [progress] = directory.progress.iterdir()
    return read_progress(progress).in_doubt


def test_messages_come_out_as_they_were_stored_but_for_their_exchange(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path
) -> None:
    upstream = StandbyUpstream([VHOST])
    large = b"y" * 300_000
    for body in (b"", b"small", large):
        upstream.publish(VHOST, queue, [stored_message(body, b"orders", b"eu.\xc3\xa4")])
    directory = freeze_plan(transfer(upstream, tmp_path), VHOST)
    assert directory is not None
    [outcome] = publish(target, directory)
    assert outcome.messages == 3
    for body in (b"", b"small", large):
        method, properties, found = channel.basic_get(queue, auto_ack=True)
        assert (method.routing_key, found) == ("eu.ä", body)
        assert is_same(properties_for(body), vars(properties))
    exchange = method.exchange
    assert exchange.startswith("leveret.recovery.")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.exchange_declare(exchange, passive=True)


@pytest.mark.parametrize(
    "sent", [700, *(pytest.param(sent, marks=pytest.mark.story) for sent in (0, 1, 1499))]
)
def test_killed_on_the_way_and_run_again_each_message_is_there_once_in_order(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.basic_publish("", queue, b"held before")
    directory = planned(tmp_path, queue, 1500)
    killed_after(sent, monkeypatch, lambda: publish(target, directory))
    [outcome] = publish(target, directory)
    assert outcome.messages == 1500
    publish(target, directory)
    held, *found = bodies_of(channel, queue)
    assert held == b"held before"
    assert numbers(found) == list(range(1500))
    assert in_doubt(directory) == 0


@pytest.mark.story
def test_a_queue_that_is_consumed_from_meanwhile_loses_nothing_and_what_may_be_double_is_counted(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, queue, 1500)
    killed_after(1200, monkeypatch, lambda: publish(target, directory), closes=False)
    taken = numbers(bodies_of(channel, queue))
    publish(target, directory)
    found = taken + numbers(bodies_of(channel, queue))
    assert sorted(set(found)) == list(range(1500))
    assert len(found) - 1500 <= in_doubt(directory) <= WINDOW


@pytest.mark.story
@pytest.mark.parametrize("sent", [0, 1200])
@pytest.mark.parametrize("held", ["published meanwhile", "unacked before"])
def test_what_others_put_into_the_queue_meanwhile_is_not_taken_for_what_arrived(
    target: AmqpTarget,
    connection: Any,
    channel: Any,
    queue: str,
    tmp_path: Path,
    sent: int,
    held: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = planned(tmp_path, queue, 1500)
    channel.confirm_delivery()
    others = [b"another's"] * 300
    consuming = connection.channel()
    if held == "unacked before":
        for body in others:
            channel.basic_publish("", queue, body)
        for _ in others:
            assert consuming.basic_get(queue)[0] is not None
    killed_after(sent, monkeypatch, lambda: publish(target, directory))
    if held == "unacked before":
        consuming.close()
    else:
        for body in others:
            channel.basic_publish("", queue, body)
    publish(target, directory)
    found = bodies_of(channel, queue)
    assert [body for body in found if body in others] == others
    assert numbers([body for body in found if body not in others]) == list(range(1500))
    assert in_doubt(directory) == 0


@pytest.mark.story
def test_of_what_others_took_one_by_one_nothing_is_lost_and_what_may_be_double_is_counted(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, queue, 1500)
    killed_after(1200, monkeypatch, lambda: publish(target, directory), closes=False)
    taken = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    killed_after(100, monkeypatch, lambda: publish(target, directory))
    publish(target, directory)
    found = numbers(taken + bodies_of(channel, queue))
    assert sorted(set(found)) == list(range(1500))
    assert 0 < len(found) - 1500 <= in_doubt(directory) <= WINDOW


def test_a_quorum_queue_is_not_looked_at_and_what_may_be_double_is_counted(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this limit the broker would drop each message that goes back twice."""
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
    directory = planned(tmp_path, name, 1500)
    for sent in (700, 700, 100):
        killed_after(sent, monkeypatch, lambda: publish(target, directory))
        channel.basic_publish("", name, b"another's")
    publish(target, directory)
    found = numbers([body for body in bodies_of(channel, name) if body != b"another's"])
    assert sorted(set(found)) == list(range(1500))
    assert len(found) - 1500 <= in_doubt(directory)


def test_a_queue_that_goes_with_its_last_consumer_is_made_so_and_outlives_being_looked_at(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, name, 1500, PERSISTENT)
    arguments = {"x-max-priority": 5}
    made = msgspec.structs.replace(target, queues={VHOST: {name: arguments}}, auto_delete={VHOST: [name]})
    killed_after(700, monkeypatch, lambda: publish(made, directory))
    publish(made, directory)
    channel.queue_declare(name, durable=True, auto_delete=True, arguments=arguments)
    assert numbers([*_got(channel, name)]) == list(range(1500))
    assert in_doubt(directory) == 0


def test_a_queue_with_messages_of_several_priorities_loses_nothing_and_what_may_be_double_is_counted(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order is not that of the plan, so what arrived unconfirmed is not found."""
    channel.queue_declare(name, durable=True, arguments={"x-max-priority": 5})
    directory = planned(tmp_path, name, 1500)
    killed_after(700, monkeypatch, lambda: publish(target, directory))
    publish(target, directory)
    found = numbers([*_got(channel, name)])
    assert sorted(set(found)) == list(range(1500))
    assert len(found) - 1500 <= in_doubt(directory) <= WINDOW


@pytest.mark.story
def test_two_publishers_of_one_queue_do_not_publish_together(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = planned(tmp_path, queue, 4000)
    is_under_way, failed = threading.Event(), []
    send = AmqpConnection.publish

    def telling(self: AmqpConnection, *message: Any) -> None:
        is_under_way.set()
        send(self, *message)

    monkeypatch.setattr(AmqpConnection, "publish", telling)

    def first() -> None:
        try:
            publish(target, directory)
        except LeveretError as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    is_under_way.wait(20)
    publish(target, directory)
    thread.join(20)
    assert failed == []
    assert numbers(bodies_of(channel, queue)) == list(range(4000))


def test_a_queue_that_is_not_there_is_made_with_its_arguments_or_told(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path
) -> None:
    directory = planned(tmp_path, name, 5)
    with pytest.raises(NotFound, match="no queue"):
        publish(target, directory)
    arguments = {"x-queue-mode": "lazy", "x-max-length": 3}
    made = AmqpTarget(
        host=target.host, port=target.port, credentials=target.credentials, queues={VHOST: {name: arguments}}
    )
    publish(made, directory)
    channel.queue_declare(name, durable=True, arguments=arguments)
    assert numbers(bodies_of(channel, name)) == [2, 3, 4]


def test_a_broker_that_takes_no_more_is_not_taken_for_one_that_did(
    target: AmqpTarget, channel: Any, name: str, tmp_path: Path
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    directory = planned(tmp_path, name, 5)
    with pytest.raises(MessageDeclined, match="x-overflow"):
        publish(target, directory)
    assert numbers(bodies_of(channel, name)) == [0, 1, 2]


def test_credentials_vhosts_and_permissions_are_the_brokers_to_refuse(
    broker: Broker, target: AmqpTarget, queue: str, name: str, tmp_path: Path
) -> None:
    directory = planned(tmp_path, queue, 5)
    broker.add_user(name, "secret")

    def as_user(password: str, **changes: Any) -> AmqpTarget:
        who = LoginCredentials(username=name, password=password)
        return AmqpTarget(host=target.host, port=target.port, credentials=who, **changes)

    with pytest.raises(AuthenticationFailed, match=name) as caught:
        publish(as_user("guessed"), directory)
    assert "guessed" not in str(caught.value)
    with pytest.raises(AccessRefused):
        publish(as_user("secret"), directory)
    with pytest.raises(AccessRefused, match="nowhere"):
        publish(as_user("secret", vhost="nowhere"), directory)
    broker.set_permissions(name, "/", configure="^$")
    with pytest.raises(AccessRefused, match=r"leveret\.recovery"):
        publish(as_user("secret"), directory)


def test_what_is_recovered_is_compared_message_by_message(
    target: AmqpTarget, channel: Any, queue: str, tmp_path: Path
) -> None:
    directory = planned(tmp_path, queue, 1200)
    publish(target, directory)

    def compare(messages: int) -> None:
        def client() -> ComparisonClient:
            return ComparisonClient(target, VHOST, {queue: messages}, timeout_s=10)

        PlanPublisher(directory, client, lambda count: None).publish([queue])

    with pytest.raises(Differs, match="1200 messages, the archive 1199"):
        compare(1199)
    with pytest.raises(Differs, match="message 1 is not as it is in the archive"):
        compare(1200)


def test_nobody_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    directory = planned(tmp_path, "q", 5)
    nowhere = AmqpTarget(host=LOOPBACK, port=1, credentials=LoginCredentials(username="u", password="p"))
    with pytest.raises(AmqpConnectionLost, match=r"127\.0\.0\.1:1 cannot be reached.*goes on from there"):
        AmqpClient(nowhere, VHOST, directory.progress, {}, timeout_s=0.1)

"""A bug that one queue, or one client, meets: it is down, and other queues, clients and the node go on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import body, commands, header

from leveret.core.broker.policies import EffectivePolicy
from leveret.core.broker.policy_effects import refresh_queue
from leveret.core.broker.topology import ExchangeState, Topology
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.model import definitions as d
from leveret.runtime.logs.dead_letters import DeadLetterPublisher
from leveret.runtime.logs.queue_store import QueueStore
from leveret.runtime.logs.stream_store import StreamStore
from leveret.session.amqp091.channel import Channel
from leveret.session.amqp091.connection import ClientConnection
from tests.unit.runtime.collecting.site import Site
from tests.unit.runtime.logs.test_engine import Client

TRANSIENT = header.ContentHeader(body_size=3, properties=commands.Basic.Properties(delivery_mode=1))

Break = Callable[[pytest.MonkeyPatch], None]


def in_step(owner: type, name: str) -> Break:
    """A step of the flush raises an error, as a bug would, after it has done its work for the queue `bad`."""

    def put_in(patch: pytest.MonkeyPatch) -> None:
        works = getattr(owner, name)

        def fails(*arguments: object) -> object:
            done = works(*arguments)
            if any(isinstance(each, Queue) and each.key[1] == "bad" for each in arguments):
                raise struct.error("'H' format requires 0 <= number <= 65535")
            return done

        patch.setattr(owner, name, fails)

    return put_in


@pytest.mark.parametrize(
    ("arguments", "put_in"),
    [
        pytest.param({}, in_step(QueueStore, "append_messages"), id="in the append"),
        pytest.param({}, in_step(Queue, "dispatch"), id="in the dispatch"),
        pytest.param({}, in_step(DeadLetterPublisher, "publish"), id="in dead-lettering"),
        pytest.param({}, in_step(QueueStore, "append_settlements"), id="in the append of settlements"),
        pytest.param(
            {"x-queue-type": "stream"}, in_step(StreamStore, "append_messages"), id="in a stream's append"
        ),
        pytest.param({"x-queue-type": "stream"}, in_step(Stream, "dispatch"), id="in a stream's dispatch"),
    ],
)
async def test_a_bug_takes_down_the_queue_that_meets_it_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], put_in: Break
) -> None:
    site = await Site.started(directory)
    publisher, transient, consumer, other = (Client(site) for _ in range(4))
    publisher.send(
        commands.Queue.Declare(queue="bad", durable=True, arguments=arguments),
        commands.Queue.Declare(queue="good", durable=True),
    )
    consumer.send(commands.Basic.Qos(prefetch_count=9))
    for queue in ("bad", "good"):
        publisher.publish(queue)
    await site.settle()
    for queue in ("bad", "good"):
        consumer.send(commands.Basic.Consume(queue=queue, consumer_tag=queue))
    await site.settle()
    publisher.replies.clear()
    consumer.replies.clear()
    with monkeypatch.context() as patch:
        put_in(patch)
        publisher.publish("bad")
        transient.send(commands.Basic.Publish(routing_key="bad"), TRANSIENT, body.ContentBody(b"abc"))
        other.publish("good")
        await site.settle()
    assert not site.node.failed.is_set()
    bad, good = (site.node.broker.queues["/", name] for name in ("bad", "good"))
    assert "an unexpected error, error: 'H' format requires" in str(bad.damage)
    assert good.damage is None
    assert publisher.names() == transient.names() == ["Basic.Nack"]
    assert other.names() == ["Basic.Ack"]
    assert "Basic.Deliver" in consumer.names()
    publisher.replies.clear()
    consumer.send(commands.Basic.Ack(delivery_tag=0, multiple=True))
    for queue in ("good", "bad"):
        publisher.publish(queue)
        await site.settle()
    assert publisher.names() == ["Basic.Ack", "Basic.Nack"]
    assert not site.node.failed.is_set()

    await site.kill()
    await site.start()
    reread = site.node.broker.queues["/", "bad"]
    assert reread.damage is None
    assert reread.message_count >= 1
    assert site.node.broker.queues["/", "good"].message_count == 1


async def test_a_policy_that_meets_a_bug_takes_down_its_queue_and_nothing_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = await Site.started(directory)
    client = Client(site)
    client.send(*(commands.Queue.Declare(queue=name, durable=True) for name in ("bad", "good")))
    client.send(commands.Exchange.Declare(exchange="bad", durable=True))
    await site.settle()
    works_for_queues, works_for_exchanges = refresh_queue, ExchangeState.apply_policies

    def refresh(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
        if queue.key[1] == "bad":
            raise KeyError("a key that no policy has")
        return works_for_queues(topology, queue, tagged=tagged)

    def apply_policies(self: ExchangeState, applied: EffectivePolicy) -> None:
        if self.definition.name == "bad":
            raise KeyError("a key that no policy has")
        works_for_exchanges(self, applied)

    with monkeypatch.context() as patch:
        patch.setattr("leveret.core.broker.broker.refresh_queue", refresh)
        patch.setattr(ExchangeState, "apply_policies", apply_policies)
        policy = d.Policy(name="p", vhost="/", pattern=".*", definition={"max-length": 5}, apply_to="all")
        site.node.broker.apply(d.Put(policy))
        site.node.engine.touch()
        await site.settle()
    bad, good = (site.node.broker.queues["/", name] for name in ("bad", "good"))
    assert "a key that no policy has" in str(bad.damage)
    assert (good.damage, good.settings.max_length) == (None, 5)
    assert "policy_failed vhost=/ name=bad" in caplog.text
    assert not site.node.failed.is_set()


@pytest.mark.parametrize("step", ["confirm", "take_output"])
async def test_a_bug_at_a_clients_confirm_ends_that_client_and_keeps_the_other_promises(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = await Site.started(directory)
    bad, good = Client(site), Client(site)
    ended: list[Client] = []
    for client in (bad, good):
        monkeypatch.setattr(client, "end", lambda client=client: ended.append(client))
        client.send(commands.Queue.Declare(queue="q", durable=True))
    await site.settle()
    good.replies.clear()
    owner: type = Channel if step == "confirm" else ClientConnection
    works = getattr(owner, step)

    def fails(self: Any, *given: Any, **named: Any) -> Any:
        if bad.session in (self, getattr(self, "connection", None)):
            raise struct.error("'H' format requires 0 <= number <= 65535")
        return works(self, *given, **named)

    monkeypatch.setattr(owner, step, fails)
    for client in (bad, good):
        client.publish("q")
    await site.settle()
    assert set(map(id, ended)) == {id(bad)}
    assert good.names() == ["Basic.Ack"]
    assert site.node.broker.queues["/", "q"].message_count == 2
    assert not site.node.failed.is_set()
    assert "client_failed" in caplog.text

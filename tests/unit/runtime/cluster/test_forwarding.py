"""Two nodes over real sockets, files and links; clients of one use the queues that the other leads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from leveret.config import load
from leveret.core.queues.confirms import ConfirmBatch
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import Presence
from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.model.reasons import Reason
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.membership.links import MemberLinks, RequestLinks
from leveret.runtime.cluster.membership.listener import ClusterListener
from leveret.runtime.link.credentials import NodeCredentials
from leveret.runtime.link.peer import LinkPeer, Receiver
from leveret.runtime.logs import engine
from leveret.runtime.logs.ports import Part
from leveret.runtime.node.node import Node
from leveret.session.amqp091.connection import ClientConnection
from leveret.session.forwarding.leader_server import ForwardedChannelConsumer
from leveret.session.forwarding.remote_ports import RemotePorts
from leveret.session.link_handshake import ProvenFollower
from leveret.testing.applications.applications import channel_of, parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.network.waiting import until
from leveret.wire.link import LinkError
from tests.unit.memory import scratch
from tests.unit.runtime.cluster.nodes import SECRET, SETTINGS

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LEADER = "rabbit@leader"


class Site:
    """A node with an AMQP port, a door and relays; where queues are led is told by a dict (ports.ReplicationPort)."""

    def __init__(self, name: str, directory: Path, leaders: dict[str, str]) -> None:
        options = {"listeners.tcp": "none", "stream.listeners.tcp": "none", "nodename": name}
        self.name = name
        self.node = Node(load(None, options), directory)
        short = name.partition("@")[2]
        own = NodeCredentials(SECRET, f"id-{short}", name, f"run-{short}")
        self.run_id = own.run_id
        self.links = MemberLinks(SETTINGS, own)
        self.forwarding = Forwarding(name, self.node, self.links.dial, own.run_id)
        self.listener = ClusterListener(
            SETTINGS, own, {"member": RequestLinks(self._answer).accept, "relay": self.forwarding.accept}
        )
        self.node.broker.make_queue = partial(self._make_queue, leaders)
        self.node.log_store.forwarding = self.forwarding
        self.node.amqp_host.leaders = self.forwarding.leaders
        self.node.engine.replication_port = self

    def _make_queue(
        self, leaders: dict[str, str], definition: d.Queue, read: Reader, exclusive: bool
    ) -> Queue:
        leader = leaders.get(definition.name, self.name)
        return make_queue(definition, read) if leader == self.name else RemoteQueue(definition, leader)

    async def _answer(self, node: str, what: str, about: Any) -> dict[str, Any]:
        raise AssertionError("nobody asks")

    async def start(self) -> None:
        await self.node.start()
        await self.node.amqp.start(LOOPBACK, 0)
        await self.listener.start()

    def presence(self) -> Presence:
        return Presence(self.run_id, str(self.listener.uri), "", 0, "")

    async def stop(self) -> None:
        self.links.stop()
        await self.listener.stop()
        await self.forwarding.stop()
        await self.node.stop()

    @property
    def port(self) -> int:
        return self.node.amqp.addresses[-1].port

    def queue(self, name: str) -> Queue:
        return self.node.broker.queues["/", name]

    # -- ports.ReplicationPort ------------------------------------------------------------------------

    def concerns(self, queue: object) -> bool:
        return isinstance(queue, RemoteQueue | RemotePorts)

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        self.forwarding.leaders.when_batch_confirmed(batch, part())

    def when_taken(self, queues: Iterable[Queue], part: Part) -> None:
        pass

    def when_decided(
        self,
        queue: Queue,
        since: int,
        place: int,
        then: Callable[[list[tuple[int, int]]], None],
        *,
        until_taken: bool,
    ) -> None:
        assert isinstance(queue, RemoteQueue)
        self.forwarding.leaders.when_decided(queue, since, place, then, until_taken=until_taken)

    def is_overloaded(self) -> bool:
        return self.forwarding.is_overloaded()

    def when_relieved(self, callback: Callable[[], None]) -> None:
        self.forwarding.when_relieved(callback)

    def taken_down(self, queue: Queue) -> None:
        raise AssertionError(f"{queue.key} is damaged")

    def flushed(self, queue: Queue) -> None:
        pass

    def share(self, changes: list[d.Change], known: Callable[[], None]) -> None:
        known()


@asynccontextmanager
async def sites(*queues: d.Queue) -> AsyncIterator[tuple[Site, Site]]:
    """A node with clients, and one that leads these queues."""
    with scratch() as directory:
        leaders = {queue.name: LEADER for queue in queues}
        here = Site("rabbit@here", directory / "here", leaders)
        there = Site(LEADER, directory / "there", leaders)
        for site in (here, there):
            await site.start()
            for queue in queues:
                site.node.broker.apply(d.Put(queue))
            await site.node.commit()
        here.links.know({site.name: site.presence() for site in (here, there)})
        try:
            yield here, there
        finally:
            await here.stop()
            await there.stop()


def channel(site: Site) -> AbstractContextManager[BlockingChannel]:
    return channel_of(pika.BlockingConnection(parameters(site.port, "/")), confirms=False)


def publish(channel: BlockingChannel, bodies: Iterable[bytes], queue: str = "q") -> None:
    """In confirm mode: each is confirmed when this returns."""
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


QUEUE = d.Queue(vhost="/", name="q", epoch=1)


async def test_what_is_published_and_consumed_at_another_node_is_on_the_leaders_disk_and_off_it() -> None:
    async with sites(QUEUE) as (here, there):
        bodies = [b"%d" % number * 50 for number in range(300)]
        assert await asyncio.to_thread(_publish_and_consume, here, bodies) == bodies
        queue = there.queue("q")
        await until(lambda: queue.message_count == 0)
        assert (queue.next_offset >= len(bodies), len(queue.consumers)) == (True, 0)
        assert queue.sequences.logged == {b"run-here": len(bodies)}
        assert not list((here.node.data_dir / "queues").glob("*"))


def _publish_and_consume(site: Site, bodies: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    with channel(site) as client:
        client.confirm_delivery()
        publish(client, bodies)
        assert client.queue_declare("q", passive=True).method.message_count == len(bodies)
        client.basic_qos(prefetch_count=20)
        for method, _, body in client.consume("q", inactivity_timeout=30):
            assert method is not None, f"only {len(found)} came"
            found.append(body)
            client.basic_ack(method.delivery_tag)
            if len(found) == len(bodies):
                break
        client.cancel()
    return found


async def test_no_error_of_one_link_ends_the_way_to_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the loop that keeps the link, publishers would wait for as long as the node runs."""
    async with sites(QUEUE) as (here, there):
        dial, tries = here.forwarding._dial_link, 0

        async def failing(*args: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise UnicodeError("label too long")
            return await dial(*args, **options)

        monkeypatch.setattr(here.forwarding, "_dial_link", failing)
        bodies = [b"%d" % number for number in range(3)]
        assert await asyncio.to_thread(_publish_and_consume, here, bodies) == bodies
        assert tries == 2
        assert there.queue("q").sequences.logged == {b"run-here": len(bodies)}


async def test_a_leader_that_ends_each_link_at_once_is_dialled_again_after_a_pause() -> None:
    async with sites(QUEUE) as (here, there):
        accepted_s: list[float] = []

        def refuse(peer: LinkPeer, caller: ProvenFollower) -> Receiver:
            accepted_s.append(asyncio.get_running_loop().time())
            raise LinkError("no")

        there.listener.handlers = {"relay": refuse}

        def publish_one() -> None:
            with channel(here) as client:
                client.basic_publish("", "q", b"x")

        await asyncio.to_thread(publish_one)
        await until(lambda: len(accepted_s) >= 5)
        assert accepted_s[4] - accepted_s[0] >= 4 * 0.04


@pytest.mark.parametrize("count", [80, pytest.param(400, marks=pytest.mark.story)])
@pytest.mark.long
async def test_links_that_end_while_messages_are_published_lose_and_double_nothing(count: int) -> None:
    async with sites(QUEUE) as (here, there):
        bodies = [b"%06d" % number for number in range(count)]
        stop = threading.Event()
        publishing = asyncio.create_task(asyncio.to_thread(_publish_all, here, bodies, stop))
        cuts = 0
        try:
            while not publishing.done():
                await asyncio.sleep(0.02)
                for link in list(there.forwarding.accepted):
                    link.peer.abort()
                    cuts += 1
        finally:
            stop.set()
            await publishing
        assert cuts
        await there.node.commit()
        assert [body for run in _all_runs(there) for body in run] == bodies


def _publish_all(site: Site, bodies: list[bytes], stop: threading.Event) -> None:
    with channel(site) as client:
        client.confirm_delivery()
        for body in bodies:
            if stop.is_set():
                return
            publish(client, [body])


def _all_runs(site: Site) -> list[list[bytes]]:
    queue = site.queue("q")
    found: list[list[bytes]] = []
    at = 0
    while at < queue.next_offset:
        for run in site.node.log_store.read(queue, at):
            found.append(run.bodies)
            at = run.end
    return found


async def test_a_node_that_leads_the_queue_by_now_has_what_its_own_clients_published_meanwhile() -> None:
    async with sites(QUEUE) as (here, there):
        bodies = [b"%06d" % number for number in range(50)]
        await there.listener.stop()
        for link in list(there.forwarding.accepted):
            link.peer.abort()
        stop = threading.Event()
        publishing = asyncio.create_task(asyncio.to_thread(_publish_all, here, bodies, stop))
        await until(lambda: here.forwarding.leaders.kept.size_bytes)
        led = make_queue(QUEUE, here.node.log_store.read)
        before = here.node.broker.replace_queue(led)
        here.forwarding.led_here(before, led)
        await publishing
        assert [body for run in _all_runs(here) for body in run] == bodies
        assert (led.sequences.logged, here.forwarding.leaders.kept.size_bytes) == ({b"run-here": 1}, 0)


@pytest.mark.parametrize("size", [0, 1, 200_000, 3_000_000])
async def test_bodies_of_any_size_go_both_ways(size: int) -> None:
    async with sites(QUEUE) as (here, there):
        assert await asyncio.to_thread(_there_and_back, here, b"x" * size) == b"x" * size
        assert there.queue("q").unacked_count == 0


def _there_and_back(site: Site, body: bytes) -> bytes:
    with channel(site) as client:
        client.confirm_delivery()
        publish(client, [body])
        _, _, found = client.basic_get("q", auto_ack=True)
        assert found is not None
        publish(client, [body])
        for _, _, found in client.consume("q", auto_ack=True):
            client.cancel()
            return bytes(found)
    raise AssertionError("nothing came")


async def test_dead_letters_wait_for_the_leader_of_the_queue_they_go_to() -> None:
    """They are settled where they died only when they are durable there."""
    dead = d.Queue(
        vhost="/",
        name="here",
        epoch=2,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 0},
    )
    async with sites(QUEUE) as (here, there):
        for site in (here, there):
            site.node.broker.apply(d.Put(dead))
        await asyncio.to_thread(_publish_to, here, "here")
        await until(lambda: there.queue("q").message_count == 1)
        await until(lambda: here.queue("here").message_count == 0)


@pytest.mark.parametrize("refusal", ["full", "disk", "unmet"])
async def test_a_dead_letter_that_one_of_two_targets_refuses_is_not_published_again_to_the_other(
    monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """What a full target refuses is dropped, as at one node; what a disk refuses comes later; each comes once."""
    monkeypatch.setattr(engine, "RETRY_MS", 50)
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"} if refusal == "full" else {}
    targets = [
        d.Queue(vhost="/", name="x", epoch=1, arguments=arguments),
        d.Queue(vhost="/", name="y", epoch=2),
    ]
    dead = {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 0}
    bindings = [d.Binding(vhost="/", source="amq.fanout", destination=name) for name in "xy"]
    async with sites(*targets) as (here, there):
        for site in (here, there):
            site.node.broker.apply(d.Put(d.Queue(vhost="/", name="here", epoch=3, arguments=dead)))
            for binding in bindings:
                site.node.broker.apply(d.Put(binding))
        if refusal == "full":
            await asyncio.to_thread(_publish_to, there, "x")
        if refusal == "disk":
            append, refusals = there.node.log_store.append_messages, iter(range(2))

            def append_messages(queue: Queue) -> None:
                if queue.key[1] == "x" and queue.gathered and next(refusals, None) is not None:
                    queue.gathered.take()
                    queue.sequences.take_numbered()
                    raise StorageError("no room")
                append(queue)

            monkeypatch.setattr(there.node.log_store, "append_messages", append_messages)
        if refusal == "unmet":
            there.node.engine.confirm_ports = [NoOtherSite()]
        for _ in range(3):
            await asyncio.to_thread(_publish_to, here, "here")
        await until(lambda: here.queue("here").message_count == 0)
        await asyncio.sleep(0.2)
        assert [there.queue(name).message_count for name in "xy"] == [1 if refusal == "full" else 3, 3]


async def test_a_letter_that_is_kept_goes_to_a_full_queue_of_another_leader_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "RETRY_MS", 50)
    small = {"x-max-length": 1, "x-overflow": "reject-publish"}
    targets = [
        d.Queue(vhost="/", name="x", epoch=1, arguments=small),
        d.Queue(vhost="/", name="y", epoch=2),
    ]
    dead = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "amq.fanout",
        "x-message-ttl": 0,
    }
    bindings = [d.Binding(vhost="/", source="amq.fanout", destination=name) for name in "xy"]
    async with sites(*targets) as (here, there):
        for site in (here, there):
            site.node.broker.apply(d.Put(d.Queue(vhost="/", name="here", epoch=3, arguments=dead)))
            for binding in bindings:
                site.node.broker.apply(d.Put(binding))
        for _ in range(3):
            await asyncio.to_thread(_publish_to, here, "here")
        await until(lambda: here.queue("here").dead_lettering.count == 2)
        await asyncio.sleep(0.2)
        assert [there.queue(name).message_count for name in "xy"] == [1, 3]
        for left in (1, 0, 0):
            there.queue("x").drop_ready(Reason.PURGED)
            there.node.broker.dirty[there.queue("x")] = None
            there.node.engine.touch()
            await until(lambda left=left: here.queue("here").dead_lettering.count == left)  # type: ignore[misc]
        assert there.queue("x").published_total == 3, "each came once"
        assert there.queue("y").published_total == 3


class NoOtherSite:
    """A policy has confirms wait for another site, and none is there."""

    def concerns(self, queue: object) -> bool:
        return True

    def when_kept(self, batch: ConfirmBatch, part: Part) -> None:
        batch.unmet = "no other site"
        part()(False)


def _publish_to(site: Site, queue: str) -> None:
    with channel(site) as client:
        client.confirm_delivery()
        publish(client, [b"x"], queue)


async def test_a_commit_whose_settlements_the_disk_of_another_node_refuses_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one at a queue that is led here does; and one that the disk takes again is answered with commit-ok."""

    def refuse(queue: Queue) -> None:
        if queue.settling:
            raise StorageError("no space left on device")

    async with sites(QUEUE) as (here, there):
        await asyncio.to_thread(_publish_to, here, "q")
        await until(lambda: there.queue("q").message_count == 1)
        with monkeypatch.context() as broken:
            broken.setattr(there.node.engine._queues, "append_settlements", refuse)
            with pytest.raises(ConnectionClosedByBroker) as caught:
                await asyncio.to_thread(_acknowledge_in_a_transaction, here)
        assert caught.value.reply_code == 506
        assert (
            f"node '{LEADER}' did not keep the settlements: its disk refused them" in caught.value.reply_text
        )
        await asyncio.to_thread(_publish_to, here, "q")
        await asyncio.to_thread(_acknowledge_in_a_transaction, here)
        await until(lambda: there.queue("q").unacked_count == 0)


def _acknowledge_in_a_transaction(site: Site) -> None:
    with channel(site) as client:
        client.tx_select()
        method, _, _ = client.basic_get("q")
        assert method is not None
        client.basic_ack(method.delivery_tag)
        client.tx_commit()


@pytest.mark.parametrize("way", ["fanout", "commit"])
async def test_what_reaches_very_many_queues_of_two_nodes_is_confirmed_when_all_have_it(way: str) -> None:
    names = [f"q{number}" for number in range(150)]
    queues = [d.Queue(vhost="/", name=name, epoch=epoch) for epoch, name in enumerate(names, 1)]
    own = [d.Queue(vhost="/", name=f"own{number}", epoch=200 + number) for number in range(10)]
    async with sites(*queues) as (here, there):
        for entity in own:
            here.node.broker.apply(d.Put(entity))
        for name in [*names, *(each.name for each in own)]:
            here.node.broker.apply(
                d.Put(d.Binding(vhost="/", source="amq.fanout", destination_type="queue", destination=name))
            )
        await here.node.commit()
        await asyncio.to_thread(_publish_widely, here, way, names)
        assert {there.queue(name).message_count for name in names} == {1}
        assert {here.queue(each.name).message_count for each in own} == {int(way == "fanout")}


def _publish_widely(site: Site, way: str, names: list[str]) -> None:
    with channel(site) as client:
        if way == "fanout":
            client.confirm_delivery()
            client.basic_publish("amq.fanout", "", b"x", PERSISTENT, mandatory=True)
            return
        client.tx_select()
        for name in names:
            client.basic_publish("", name, b"x", PERSISTENT)
        client.tx_commit()


async def test_a_clients_consumer_is_known_to_the_leader_as_the_clients() -> None:
    async with sites(QUEUE) as (here, there):

        def consume() -> None:
            with channel(here) as client:
                client.basic_consume("q", lambda *_: None, consumer_tag="mine")
                [consumer] = there.queue("q").consumers
                assert isinstance(consumer, ForwardedChannelConsumer)
                assert consumer.client is not None
                [connection] = here.node.broker.connections
                assert isinstance(connection, ClientConnection)
                assert consumer.client == ("mine", connection.peer, 1, "guest", "rabbit@here")

        await asyncio.to_thread(consume)
        assert not there.node.broker.connections
        await until(lambda: not len(there.queue("q").consumers))


async def test_a_stream_is_read_and_written_at_another_node() -> None:
    stream = d.Queue(vhost="/", name="s", epoch=3, arguments={"x-queue-type": "stream"})
    async with sites(stream) as (here, there):
        bodies = [b"%d" % number for number in range(150)]
        assert await asyncio.to_thread(_through_stream, here, bodies) == bodies[50:]
        assert there.queue("s").message_count == len(bodies)


def _through_stream(site: Site, bodies: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    with channel(site) as client:
        client.confirm_delivery()
        publish(client, bodies, "s")
        client.basic_qos(prefetch_count=10)
        for method, properties, body in client.consume(
            "s", arguments={"x-stream-offset": 50}, inactivity_timeout=30
        ):
            assert method is not None, f"only {len(found)} came"
            assert properties.headers["x-stream-offset"] == 50 + len(found)
            found.append(body)
            client.basic_ack(method.delivery_tag)
            if len(found) == len(bodies) - 50:
                break
        with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as refused:
            client.basic_get("s")
        assert refused.value.reply_code == 540
    return found


async def test_a_bug_in_a_request_does_not_end_the_ticks_of_all_links(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = list[int]()

    def fail(now_ms: int) -> bool:
        ticks.append(now_ms)
        raise ZeroDivisionError

    async with sites(QUEUE) as (here, _there):
        await asyncio.to_thread(_publish_to, here, "q")
        monkeypatch.setattr(here.forwarding.leaders, "tick", fail)
        await until(lambda: len(ticks) > 1, "the ticks go on")
    assert "forwarding_failed action=retry" in caplog.text

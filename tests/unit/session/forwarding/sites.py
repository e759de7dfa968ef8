"""Nodes without sockets, disk or clock whose clients use each other's queues over relays, as slowly as a test likes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from pamqp import base, commands

from leveret.core.queues.backlog.offsets import OffsetSet
from leveret.core.queues.confirms import ConfirmBatch, ConfirmingChannel
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.queue_types import make_queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model import definitions as d
from leveret.runtime.logs.queue_store import sequences_in
from leveret.session.amqp091.connection import AmqpState
from leveret.session.forwarding.leader_client import LeaderClient
from leveret.session.forwarding.leader_server import ForwardedConnection
from leveret.session.forwarding.leaders import RemoteLeaders
from tests.unit.session.amqp091.fakes import FakeNode, connect, decode, frame


class Link:
    """A relay between two nodes, and the octets that are on their way."""

    def __init__(self, asker: RelayNode, leader: RelayNode, leader_client: LeaderClient) -> None:
        self.asker, self.leader, self.leader_client = asker, leader, leader_client
        self.serving = ForwardedConnection(
            leader, node=asker.node_name, now_ms=0, serving=leader.forwarded.serving
        )
        self.to_leader = self.to_asker = b""
        asker.forwarded.connected(leader_client)

    def carry(self, most: int | None = None) -> bool:
        """Let octets arrive, `most` in each direction; tell whether there were any."""
        self.to_leader += b"".join(self.leader_client.take_output())
        self.to_asker += b"".join(self.serving.take_output())
        there, self.to_leader = self.to_leader[:most], self.to_leader[len(self.to_leader[:most]) :]
        back, self.to_asker = self.to_asker[:most], self.to_asker[len(self.to_asker[:most]) :]
        if self.serving.is_throttled:
            self.serving.resume()
        if there:
            self.serving.receive(there, 0)
        if back:
            self.leader_client.receive(back)
        return bool(there or back)

    def cut(self) -> None:
        """What is on its way is lost, and both ends learn of it."""
        self.serving.lost()
        self.serving.take_output()
        self.asker.forwarded.lost(self.leader_client)


class RelayNode(FakeNode):
    """A node of a cluster. Its flush also sends, and confirms, what is led elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.node_name = name
        self.refuses_settlements = False
        self.refuses_messages = False
        self.stored_parts = 0
        self.keeps_alone = False
        self.held: list[tuple[ConfirmingChannel, ConfirmBatch]] | None = None
        self._refused: set[Queue] = set()
        self.forwarded = RemoteLeaders(name, self.broker, self.outbox, f"{name}-1".encode(), self._dial)
        self.leaders = self.forwarded
        self.broker.make_queue = self._make_queue
        self.leader_of: dict[str, str] = {}
        self.dialled: list[LeaderClient] = []
        self.clients: list[Client] = []
        self.batches: dict[tuple[str, ...], list[StreamBatch]] = {}
        self._inside: list[tuple[LeaderClient, ForwardedConnection]] = []

    def _make_queue(self, definition: d.Queue, read: Reader, exclusive: bool) -> Queue:
        leader = self.leader_of.get(definition.name, self.node_name)
        return make_queue(definition, read) if leader == self.node_name else RemoteQueue(definition, leader)

    def _dial(self, leader_client: LeaderClient) -> None:
        if leader_client.leader != self.node_name:
            self.dialled.append(leader_client)
            return
        serving = ForwardedConnection(self, node=self.node_name, now_ms=0, serving=self.forwarded.serving)
        self._inside.append((leader_client, serving))

        def push() -> None:
            serving.receive(b"".join(leader_client.take_output()), 0)

        leader_client.push = push
        leader_client.up()

    def remote_queue(self, name: str) -> RemoteQueue:
        queue = self.queue(name)
        assert isinstance(queue, RemoteQueue)
        return queue

    def append_now(self, queue: Queue) -> None:
        if isinstance(queue, RemoteQueue):
            self.forwarded.append_messages(queue)
            return
        if isinstance(queue, Stream):
            batches, queue.incoming = queue.incoming, []
            self.batches.setdefault(queue.key, []).extend(batches)
            queue.sequences.note_logged(queue.sequences.unlogged)
            queue.sequences.take_numbered()
            for batch in batches:
                batch.done(None)
            return
        numbered = queue.sequences.take_numbered()
        if self.refuses_messages and queue.gathered:
            # The disk may take the first chunks of a flush.
            first = queue.gathered.take()[: self.stored_parts]
            self._refused.add(queue)
            for part in first:
                queue.gathered.add(part)
            numbers = sequences_in(numbered, 0, sum(map(len, first)), is_last=False)
        else:
            numbers = {each.reference: each.sequence for each in numbered}
        super().append_now(queue)
        queue.sequences.note_logged(numbers)

    def turn(self) -> None:
        """What the engine does at the end of a turn, for all who are connected."""
        for client in self.clients:
            if client.is_woken:
                client.is_woken = False
                client.session.go_on(0)
        self.flush()
        serving = [*self.forwarded.serving]
        for session in [*serving, *(client.session for client in self.clients)]:
            confirming, session.confirming = session.confirming, {}
            for channel in confirming:
                for batch in channel.close_batches():
                    self.promise(channel, batch)
        self._refused.clear()
        for leader_client, inside in self._inside:
            inside.receive(b"".join(leader_client.take_output()), 0)
            leader_client.receive(b"".join(inside.take_output()))
        for client in self.clients:
            if client.session.is_paused or client.session.is_throttled:
                client.session.resume()
            client.replies += decode(b"".join(client.session.take_output()))

    def release(self) -> None:
        """The mirrors have what was held."""
        held, self.held = self.held or [], None
        for channel, batch in held:
            channel.confirm(batch, ok=True)

    def waits_for_nodes(self, queues: Iterable[object]) -> bool:
        return any(isinstance(queue, RemoteQueue) for queue in queues)

    def promise(self, channel: ConfirmingChannel, batch: ConfirmBatch) -> None:
        is_refused = not self._refused.isdisjoint(batch.queues)
        if batch.refused or is_refused or (batch.settles and self.refuses_settlements):
            channel.confirm(batch, ok=False)
        elif self.keeps_alone:
            batch.unmet = "no other site has it"
            channel.confirm(batch, ok=False)
        elif self.held is not None:
            self.held.append((channel, batch))
        elif not self.forwarded.when_batch_confirmed(batch, partial(channel.confirm, batch)):
            channel.confirm(batch, ok=True)


class Client:
    """A client of a node, with one channel, and what it was told."""

    def __init__(self, node: RelayNode, *channels: int) -> None:
        self.node = node
        self.session = connect(node, *(channels or (1,)))
        self.session.wake = self._wake
        self.is_woken = False
        self.replies: list[tuple[int, Any]] = []
        node.clients.append(self)

    def _wake(self) -> None:
        self.is_woken = True

    def send(self, *frames: base.Frame | bytes, channel: int = 1) -> None:
        octets = [each if isinstance(each, bytes) else frame(each, channel) for each in frames]
        self.session.receive(b"".join(octets), 0)

    def told(self, kind: type, channel: int = 1) -> list[Any]:
        """All replies of a kind so far."""
        return [each for number, each in self.replies if number == channel and isinstance(each, kind)]

    @property
    def bodies(self) -> list[bytes]:
        """Of everything that was delivered or got, in order."""
        return [each for _, each in self.replies if isinstance(each, bytes)]

    def leave(self) -> None:
        self.session.lost()
        assert self.session.state is AmqpState.CLOSED
        self.node.clients.remove(self)


class Cluster:
    """Some nodes, and the links between them."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: RelayNode(name) for name in names}
        for name, node in self.nodes.items():
            node.forwarded.replies.runs = partial(self._is_another, name)
        self.links: list[Link] = []
        self._epoch = 0

    @classmethod
    def with_queue(cls, *names: str) -> Cluster:
        """Such a cluster in which `b` leads the queue `q`."""
        cluster = cls(*names)
        cluster.declare("q", "b")
        return cluster

    def _is_another(self, me: str, name: str) -> bool:
        return name != me and name in self.nodes

    def __getitem__(self, name: str) -> RelayNode:
        return self.nodes[name]

    def declare(self, name: str, leader: str, **properties: Any) -> None:
        """A queue that all nodes know."""
        self._epoch += 1
        definition = d.Queue(vhost="/", name=name, epoch=self._epoch, **properties)
        for node in self.nodes.values():
            node.leader_of[name] = leader
            node.broker.apply(d.Put(definition))

    def delete(self, name: str) -> None:
        """What the leader has deleted is known by the others now."""
        for node in self.nodes.values():
            held = node.broker.queues.get(("/", name))
            if held is not None:
                node.broker.apply(d.Delete("queues", ("/", name)))
                node.forwarded.ceased(held)

    def connect(self) -> None:
        """Make all links that are wanted."""
        for node in self.nodes.values():
            dialled, node.dialled = node.dialled, []
            for leader_client in dialled:
                self.links.append(Link(node, self.nodes[leader_client.leader], leader_client))

    def cut(self, link: Link) -> None:
        """A link ends; it is dialled again if it is wanted."""
        self.links.remove(link)
        link.cut()
        if link.asker.forwarded.wants(link.leader_client):
            link.asker.dialled.append(link.leader_client)
        else:
            link.asker.forwarded.discard(link.leader_client)

    def settle(self) -> None:
        """Go on until nothing more happens."""
        for _ in range(5_000):
            self.connect()
            for node in self.nodes.values():
                node.forwarded.tick(0)
                node.turn()
            carried = [link.carry() for link in self.links]
            woken = [client for node in self.nodes.values() for client in node.clients if client.is_woken]
            dialled = [each for node in self.nodes.values() for each in node.dialled]
            if not (any(carried) or woken or dialled or any(n.broker.dirty for n in self.nodes.values())):
                return
        raise AssertionError("it goes on for ever")

    def move(self, name: str, leader: str, *, crash: bool = False) -> None:
        """Another node, which has a copy, leads the queue; the one before has handed over, or has crashed."""
        key = ("/", name)
        before = next(n for n in self.nodes.values() if not n.broker.queues[key].is_remote)
        if crash:
            for link in [each for each in self.links if before in (each.leader, each.asker)]:
                self.cut(link)
        self.lead_on(name, leader, before, self.step_down(name))

    def step_down(self, name: str) -> Queue:
        """The leader serves the queue no more: the first half of a move; return the queue as it was led."""
        key = ("/", name)
        before = next(n for n in self.nodes.values() if not n.broker.queues[key].is_remote)
        old = before.broker.queues[key]
        before.flush()
        stands = RemoteQueue(old.definition, before.node_name)
        before.broker.replace_queue(stands)
        before.forwarded.waits(old, stands)
        return old

    def lead_on(self, name: str, leader: str, before: RelayNode, old: Queue) -> None:
        """Another node leads a queue that `before` led as `old`: the second half of a move."""
        key = ("/", name)
        after = self.nodes[leader]
        led = make_queue(old.definition, after.read)
        after.logs[led] = list(before.logs.get(old, []))
        settled = OffsetSet()
        for at, record in enumerate(after.logs[led]):
            if record is None or at in old.settled:
                settled.add(at, at + 1)
        after.batches[key] = list(before.batches.get(key, []))
        led.restore(0, len(after.logs[led]), settled)
        led.sequences.logged = dict(old.sequences.logged)
        replaced = after.broker.replace_queue(led)
        after.forwarded.led_here(replaced, led)
        after.broker.dirty[led] = None
        for node in self.nodes.values():
            queue = node.broker.queues[key]
            if isinstance(queue, RemoteQueue):
                node.forwarded.led_by(queue, leader)


def methods(client: Client) -> list[str]:
    """The names of what a client was told, without content."""
    return [each.name for _, each in client.replies if isinstance(each, base.Frame)]


CONFIRM = commands.Confirm.Select()

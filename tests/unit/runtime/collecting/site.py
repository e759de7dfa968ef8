"""A real node without doors, in this process: what a test publishes, settles, kills and starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from leveret.config import Config, load
from leveret.core.queues.head import Head, make_head
from leveret.core.queues.messages import alike
from leveret.core.queues.queue import Queue
from leveret.core.replication.cluster import ClusterKeys, ClusterState, CollectedChanged, Event
from leveret.core.replication.election import PutKey, StoreTransaction
from leveret.model import definitions as d
from leveret.runtime.cluster.sites.collected_queues import CollectedQueues
from leveret.runtime.collecting.by_reference import is_naming, whole
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.runtime.node.node import Node
from leveret.storage.tree import Tree
from leveret.testing.network.waiting import until
from leveret.wire.chunk import Attribute, Chunk, ChunkType, decode_chunk, decode_trailer, split_entries
from leveret.wire.record import content_header, decode_message, decode_settlements
from tests.endings import at_end
from tests.unit.memory import scratch

SEGMENT_BYTES = 400
BODY_BYTES = 8
_SIZE_BYTES = 4
HEAD = make_head(b"e", b"k", content_header(b"\x10\x00\x02", BODY_BYTES))
TAGGED = d.Vhost(name="v", tags=("standby_replication",))
POLICY = d.Policy(vhost="v", name="p", pattern="^q", definition={"remote-dc-replicate": True})
PATIENCE_S = 60.0


def play(scenario: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Run a story in a data directory of its own."""
    with scratch() as directory:
        asyncio.run(scenario(directory))


def head_of(size: int) -> Head:
    return make_head(b"e", b"k", content_header(b"\x10\x00\x02", size))


@cache
def settings(listeners: str, durability: str) -> Config:
    """Of a node of tests; to read them takes longer than all else of its start."""
    config = load(
        None,
        {"listeners.tcp.1" if ":" in listeners else "listeners.tcp": listeners}
        | {"stream.listeners.tcp": "none", "durability": durability, "disk_reserve": "0"},
    )
    return replace(config, storage=replace(config.storage, segment_bytes_max=SEGMENT_BYTES))


class FakeMember:
    """The only member of a cluster: the incarnations of its queues are in etcd, and no mirror is waited for."""

    def __init__(self) -> None:
        self.state = ClusterState(ClusterKeys.under("/leveret/"))
        self.store: Any = self
        self._collector: Collector

    def collects(self, collector: Collector) -> None:
        """The node's run begins."""
        self._collector = collector
        member: Any = self
        port: Any = SimpleNamespace(when_taken=lambda queues, part: part()(True))
        collector.enter_cluster(port, CollectedQueues(member, {}))

    async def transact(self, transaction: StoreTransaction) -> int:
        await asyncio.sleep(0)
        revision = self.state.revision + 1
        for write in transaction.writes:
            event = Event(write.key, write.value if isinstance(write, PutKey) else None, revision)
            for change in self.state.apply([event], revision):
                assert isinstance(change, CollectedChanged)
                self._collector.incarnation_changed(change.epoch)
        return revision


class Site:
    """A node and its data directory; every method leaves everything durable. It is killed at the end of its test."""

    def __init__(self, directory: Path, durability: str = "fsync") -> None:
        self.directory = directory
        self.published = 0
        self._entries: dict[bytes, bytes] = {}
        """By body, the stored messages that `publish` published."""
        self.epoch = 1
        self._durability = durability
        self._is_alive = False
        self.member: FakeMember | None = None
        """Of a node of a cluster, from its next start on."""
        self.node: Node
        at_end(self._end)

    @classmethod
    async def started(cls, directory: Path, listeners: str = "none", durability: str = "fsync") -> Site:
        site = cls(directory, durability)
        await site.start(listeners)
        return site

    async def start(self, listeners: str = "none") -> None:
        """With an AMQP listener if there is to be one."""
        config = settings(listeners, self._durability)
        self.node = Node(config, self.directory, tree=Tree(self.directory, epoch=self.epoch))
        if self.member is not None:
            self.member.collects(self.node.collector)
        await self.node.start()
        self._is_alive = True
        if self.member is not None:
            for queue in self.node.broker.led_queues():
                self.node.collector.led(queue)
        await self.settle()

    async def stop(self) -> None:
        """End in order."""
        self._is_alive = False
        await self.node.stop()

    async def _end(self) -> None:
        if self._is_alive:
            await self.kill()

    async def kill(self) -> None:
        """End as kill -9 would: nothing is flushed, the kernel keeps what was written."""
        self._is_alive = False
        node = self.node
        for task in (*node._tasks, *node.collector._catching_up.values()):
            task.cancel()
        await asyncio.sleep(0)
        node.engine.stop()
        node.commits.close()
        node.collector._sync.close()
        for log in node.collector.logs.values():
            log.log.close()
        node._queues.close()
        node._definitions._log.close()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def settle(self) -> None:
        """Flush, wait for the disk, and for collections to be complete."""
        await self.node.commit()
        while tasks := list(self.node.collector._catching_up.values()):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        await self.node.commits.all_durable()

    async def apply(self, *changes: d.Change) -> None:
        for change in changes:
            self.node.broker.apply(change)
        await self.settle()

    def queue(self, name: str = "q") -> Queue:
        return self.node.broker.queues["v", name]

    async def publish_often(self, times: int, count: int, name: str = "q") -> None:
        """Publish so many messages as often as that: each time they are a chunk of their own."""
        for _ in range(times):
            await self.publish(count, name)

    async def publish(self, count: int, name: str = "q") -> list[bytes]:
        """Publish messages of one size that differ in body, exchange and key; return their bodies."""
        bodies = [b"%08d" % (self.published + n) for n in range(count)]
        for number, body in enumerate(bodies, self.published):
            route = b"%c" % (97 + number % 26), b"%c" % (97 + number // 26 % 26)
            head = make_head(*route, content_header(b"\x10\x00\x02", BODY_BYTES))
            self._entries[body] = head.entry[_SIZE_BYTES:] + body
            self.queue(name).gathered.add(alike(head, [body]))
        self.published += count
        await self.touched(name)
        return bodies

    def _checked(self, entry: bytes) -> bytes:
        """The body of a stored message, which has to be as it was published.

        Dead letters are not, and tests that do not call `publish` publish with `HEAD`.
        """
        body = decode_message(entry).body
        if b"x-death" not in entry and not entry.startswith(HEAD.entry[_SIZE_BYTES:]):
            assert self._entries.get(body, entry) == entry, f"{body!r} has {entry!r}"
        return body

    async def touched(self, name: str = "q") -> None:
        self.node.broker.dirty[self.queue(name)] = None
        await self.settle()

    async def ack(self, count: int, name: str = "q") -> None:
        """Take and settle that many of the oldest ready messages."""
        queue = self.queue(name)
        while count > 0 and queue.ready_count:
            runs, _ = queue.take(count)
            for run in runs:
                queue.settle(run.first, len(run.bodies))
                count -= len(run.bodies)
        await self.touched(name)

    def contents(self, name: str = "q") -> list[bytes]:
        """Bodies of all messages that the queue holds, in order."""
        queue = self.queue(name)
        bodies: list[bytes] = []
        for first, end in queue.settled.gaps(0, queue.next_offset):
            at = first
            while at < end:
                for run in self.node._queues.read(queue, at):
                    entries = split_entries(run.taken().entries())
                    bodies += [self._checked(entry) for entry in entries[: max(0, end - run.first)]]
                    at = run.end
        return bodies

    def replicated(self) -> dict[str, list[bytes]]:
        """What a standby that read the outgoing log would recover: bodies by queue."""
        outgoing = self.node.collector.logs["v"]
        messages: dict[tuple[bytes, int], dict[int, bytes]] = {}
        settled: dict[tuple[bytes, int], set[int]] = {}
        for chunk in collected_chunks(outgoing):
            incarnation, offset = origin(chunk.trailer)
            if chunk.header.type == ChunkType.TRACKING:
                for _, first, count in decode_settlements(split_entries(chunk.data)[0]):
                    settled.setdefault(incarnation, set()).update(range(first, first + count))
                continue
            for at, entry in enumerate(split_entries(chunk.data), offset):
                body = self._checked(entry)
                assert messages.setdefault(incarnation, {}).setdefault(at, body) == body, (
                    "one identity, two messages"
                )
        left: dict[str, list[bytes]] = {}
        for incarnation, held in sorted(messages.items(), key=lambda item: item[0]):
            bodies = [body for at, body in sorted(held.items()) if at not in settled.get(incarnation, set())]
            if bodies:
                left.setdefault(incarnation[0].decode(), []).extend(bodies)
        return left


async def replicating(directory: Path, *names: str, durability: str = "fsync") -> Site:
    """A site whose queues of these names are replicated."""
    site = Site(directory, durability)
    await site.start()
    queues = [d.Put(d.Queue(name=name, vhost="v")) for name in names]
    await site.apply(d.Put(TAGGED), *queues, d.Put(POLICY))
    return site


async def served(site: Site) -> OutgoingLog:
    """The outgoing log, once all of it is served."""
    log = site.node.collector.logs["v"]
    await until(lambda: log.committed_offset == log.log.next_offset)
    return log


def collected_chunks(outgoing: OutgoingLog) -> list[Chunk]:
    """All that is in the log, checked, also what is not served yet; data that is only named, too."""
    return [
        decode_chunk(whole(header, octets, outgoing._queues) if is_naming(header) else octets)
        for header, octets in outgoing.log.read_raw(0, 1 << 30)
    ]


def origin(trailer: bytes | memoryview) -> tuple[tuple[bytes, int], int]:
    """((queue, life), offset in the queue's log) that an outgoing chunk was copied from."""
    attributes = {kind: (name, value) for kind, name, value in decode_trailer(trailer)}
    return attributes[Attribute.QUEUE_EPOCH], attributes[Attribute.QUEUE_OFFSET][1]

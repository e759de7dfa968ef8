"""A node that leads logs and one that mirrors them, over real sockets and files, without a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leveret.runtime.cluster.replication_port import ClusterBarrier
from leveret.runtime.link.heartbeat import LinkHeartbeat
from leveret.runtime.link.peer import LinkPeer
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.runtime.mirroring.sources import MirrorSources
from leveret.runtime.process.clock import clock_ms
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.testing.applications.compare import Comparison, compare
from leveret.testing.network.waiting import until
from leveret.wire.chunk import Attribute, ChunkType, encode_attribute, encode_entry, encode_trailer
from leveret.wire.link import LinkError, Type
from tests.endings import at_end

SEGMENT_BYTES = 4096
KNOWN = (b"mirror", b"a", b"b", b"c")
NAMES = tuple(f"queues/{each:016x}" for each in range(1, 5))


def fail(error: BaseException) -> None:
    pytest.fail(str(error))


class Refused:
    """A receiver before there is another one: nothing is due."""

    def received(self, kind: Type, payload: memoryview) -> None:
        pytest.fail(f"{kind.name} came before anybody listened")

    def ended(self, error: Exception | None) -> None:
        """Whoever takes the link over sees it."""


class Node:
    """One node: its tree, what it leads and what it mirrors. It stops with its test.

    Attributes:
        states: what was told of mirrors, in order.
        port: where mirrors connect; `via` says for each leader which port leads there.
    """

    def __init__(self, directory: Path, name: str = "", *, epoch: int = 1, **limits: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.name = name or directory.name
        self.tree = Tree(directory, epoch=epoch)
        self.commits = GroupCommit(fsync=True, on_failure=fail)
        self.states: list[tuple[str, str, MirrorState]] = []
        self.marked: set[str] = set()
        self.begun_anew: list[str] = []
        self.on_state: Callable[[str, str, MirrorState], None] = lambda name, node, state: None
        now_ms = limits.pop("clock_ms", clock_ms)
        self.sources = MirrorSources(self.tree, self.commits, now_ms, self._state, self, **limits)
        self.commits.replication_barrier = ClusterBarrier(lambda: True, self.sources.cut)
        self.copies = MirrorCopies(
            self.tree, self.commits, directory, self._dial, node=self.name, logs=self, clock_ms=clock_ms
        )
        self.via: dict[str, int] = {}
        self.port = 0
        self._server: asyncio.Server | None = None
        self._accepted: list[LinkPeer] = []
        self._has_ended = False
        at_end(self._end)

    # -- log_table.LogTable -------------------------------------------------------------------

    def key_of(self, name: str) -> tuple[str, str]:
        return "/", name

    def is_led(self, name: str) -> bool:
        return name in self.sources.led

    def has_log(self, name: str) -> bool:
        return name in self.marked

    def record_existence(self, name: str) -> None:
        self.marked.add(name)

    def begins_anew(self, name: str) -> None:
        pass

    def copy_again(self, name: str) -> None:
        self.begun_anew.append(name)

    def begin_segment(self, name: str) -> int:
        log = self.log(name)
        log.roll()
        offset = log.next_offset
        log.append(ChunkType.TRACKING, 1, 1, encode_entry(b""), clock_ms(), epochs_of(log))
        self.commits.appended(log)
        return offset

    # -- sources.OnState ----------------------------------------------------------------------

    def _state(self, name: str, node: str, state: MirrorState) -> None:
        self.states.append((name, node, state))
        self.on_state(name, node, state)

    # -- links --------------------------------------------------------------------------------

    async def listen(self) -> int:
        """Accept mirrors; who they are they say first, in place of a handshake."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: LinkPeer(on_connected=self._connected), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    def _connected(self, peer: LinkPeer) -> None:
        node = self

        class Door:
            def received(self, kind: Type, payload: memoryview) -> None:
                name = bytes(payload)
                if kind is not Type.HELLO or name not in KNOWN:
                    raise LinkError(f"{kind.name} {name!r} is not due")
                peer.is_trusted = True
                peer.receiver = node.sources.accept(peer, name.decode())
                LinkHeartbeat(peer)

            def ended(self, error: Exception | None) -> None:
                """It never said who it was."""

        peer.receiver = Door()
        self._accepted.append(peer)

    async def _dial(self, node: str, kind: str) -> LinkPeer:
        assert kind == "mirror"
        peer = LinkPeer()
        peer.receiver = Refused()
        await asyncio.get_running_loop().create_connection(lambda: peer, "127.0.0.1", self.via[node])
        peer.is_trusted = True
        octets = self.name.encode()
        peer.write((len(octets) + 1).to_bytes(4, "big") + bytes((Type.HELLO,)) + octets)
        LinkHeartbeat(peer)
        return peer

    def cut_links(self) -> None:
        for peer in self._accepted:
            if not peer.is_closed:
                peer.abort()

    async def _end(self) -> None:
        if not self._has_ended:
            await self.stop()

    async def stop(self) -> None:
        self._has_ended = True
        await self.copies.close()
        self.sources.close()
        self.cut_links()
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)
        await self.commits.all_durable()
        self.commits.close()
        self.tree.close()

    # -- logs ---------------------------------------------------------------------------------

    def log(self, name: str) -> Log:
        log = self.tree.log(self.tree.path_of(name), segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open(with_messages=False)

    def lead(self, *names: str, **terms: Any) -> None:
        for name in names:
            if name not in self.tree.logs and self.tree.path_of(name).exists():
                self.log(name)
            self.sources.lead(name, **terms)

    def append(self, name: str, size: int = 100, count: int = 1) -> int:
        """Append a chunk and begin a round; the log's end."""
        data = encode_entry(b"m" * size) * count
        log = self.log(name)
        log.append(ChunkType.USER, count, count, data, clock_ms(), epochs_of(log))
        self.commits.appended(log)
        self.commits.begin()
        return log.next_offset

    def fill(self, name: str, size_bytes: int) -> None:
        """Append so much, in chunks of some kilobytes, on segments of `SEGMENT_BYTES`."""
        while name not in self.tree.logs or self.tree.logs[name].size_bytes < size_bytes:
            self.append(name, size=1000, count=4)

    def change(self, dice: random.Random, name: str) -> None:
        """Anything that happens to the log of a queue."""
        log = self.log(name)
        match dice.choices(["append", "drop", "delivered"], [30, 4, 3])[0]:
            case "append":
                self.append(name, dice.choice([0, 3, 100, 900]), dice.randint(1, 5))
            case "drop":
                log.drop_before(dice.randint(log.first_offset, log.next_offset))
            case "delivered":
                self.sources.delivered(name, dice.randint(log.first_offset, log.next_offset))
        self.commits.begin()

    def promise(self, describe: list[int], *names: str) -> int:
        """Promise what was appended last; `describe` gets its number when it is kept."""
        number = len(describe) + self.promised
        self.promised += 1
        self.sources.when_acked(names, lambda ok: describe.append(number) if ok else None)
        self.commits.begin()
        return number

    promised = 0

    def state(self, name: str, node: str) -> MirrorState:
        return self.sources.state(name, node)

    def is_live(self, node: str, *names: str) -> bool:
        """Whether a mirror has everything of these logs, on disk."""
        rows = [row for name in names for row in self.sources.rows(name) if row["node"] == node]
        return len(rows) == len(names) and all(
            row["state"] == "live" and row["lag_records"] == 0 for row in rows
        )


def epochs_of(log: Log) -> bytes:
    """The trailer that a queue's next chunk has: at a segment's begin it names the ends of earlier epochs."""
    if not log.starts_segment or not log.next_offset:
        return b""
    ends = log.ends_before_begin()
    for header, _ in reversed(log.headers_before(log.next_offset, 10_000)):
        ends[header.epoch] = header.next_offset
    ends.pop(log.epoch, None)
    return encode_trailer(
        *(encode_attribute(Attribute.EPOCH_END, epoch.to_bytes(8), end) for epoch, end in ends.items())
    )


def compared(leader: Node, mirror: Node) -> Comparison:
    return compare(leader.directory, mirror.directory)


async def compared_when_stopped(leader: Node, mirror: Node) -> Comparison:
    await mirror.stop()
    await leader.stop()
    return compared(leader, mirror)


async def pair(directory: Path, *, led: str | None = None, **limits: Any) -> tuple[Node, Node]:
    """Two nodes, `leader` listening; the mirror connects straight to it. Mirrors of `led` synchronise by themselves."""
    leader, mirror = Node(directory / "leader", **limits), Node(directory / "mirror")
    mirror.via["leader"] = await leader.listen()
    if led is not None:
        leader.lead(led, automatic=True)
    return leader, mirror


async def mirrored(leader: Node, mirror: Node, *names: str) -> None:
    """The mirror copies these logs, until it has all of them on disk."""
    for name in names:
        mirror.copies.mirror(name, leader.name)
    await until(lambda: leader.is_live(mirror.name, *names), f"{mirror.name} live at {leader.name}")

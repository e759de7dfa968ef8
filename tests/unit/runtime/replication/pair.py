"""A leader's tree and a follower's in this process, and an Inspection of each that asks the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leveret.model.errors import Corrupt, LeveretError
from leveret.runtime.integrity.inspection import Inspection
from leveret.runtime.integrity.peers import InspectedPeer
from leveret.runtime.link.questions import Unanswered
from leveret.storage.log import Log
from leveret.storage.tree import ChangeReceiver, Tree
from leveret.wire.chunk import Header
from leveret.wire.link import Answer, Octets, Question
from tests.unit.storage.logs import SEGMENT_BYTES, append
from tests.unit.storage.places import TRAILER

Ask = Callable[[str, dict[str, Any]], None]


class Copying(ChangeReceiver):
    """storage.tree.ChangeReceiver: makes the same changes in another tree, as long as it is connected."""

    def __init__(self, tree: Tree) -> None:
        self.is_connected = True
        self._tree = tree

    def log(self, name: str, first_offset: int = 0) -> Log:
        log = self._tree.log(self._tree.path_of(name), segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open(first_offset=first_offset)

    def appended(self, name: str, segment: int, header: Header, octets: list[Octets]) -> None:
        if self.is_connected:
            self.log(name, segment).append_raw(header, b"".join(octets), segment)

    def dropped(self, name: str, first_offset: int) -> None:
        if self.is_connected:
            self.log(name).sync()
            self.log(name).drop_before(first_offset)

    def deleted(self, name: str) -> None:
        if self.is_connected and name in self._tree.logs:
            self.log(name).delete()

    def begun(self, name: str, offset: int) -> None:
        pytest.fail(f"{name} began anew at {offset}")

    def truncated(self, name: str, offset: int) -> None:
        pytest.fail(f"{name} was cut at {offset}")

    def prepended(self, name: str, until: int) -> None:
        pytest.fail(f"{name} began at {until}")

    def replaced(self, name: str, octets: bytes | None) -> None:
        if self.is_connected and octets is not None:
            path = self._tree.path_of(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._tree.file(path).replace(octets)


class OtherSide:
    """A side whose answers come from an Inspection of this process, encoded as on a link."""

    def __init__(self, of: PairedNode, state: Callable[[], str], *, is_leader: bool) -> None:
        self.node_id = of.node_id
        self.name = of.name
        self.is_leader = is_leader
        self.is_connected = True
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.before: Ask = lambda what, about: None
        self._of = of
        self._state = state

    @property
    def state(self) -> str:
        return self._state()

    async def ask(self, what: str, about: dict[str, str | int | bool]) -> dict[str, Any]:
        self.asked.append((what, about))
        self.before(what, about)
        if not self.is_connected:
            raise Unanswered("the replication link ended")
        question = msgspec.msgpack.decode(msgspec.msgpack.encode(Question(1, what, about)), type=Question)
        try:
            found = await asyncio.to_thread(self._of.inspection.answer, question.what, dict(question.about))
        except LeveretError as error:
            raise Unanswered(str(error)) from None
        return dict(msgspec.msgpack.decode(msgspec.msgpack.encode(Answer(1, "", found)), type=Answer).found)


class PairedNode:
    """One of the two."""

    def __init__(self, directory: Path, name: str, state: str, interval_ms: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.name = name
        self.node_id = f"id-of-{name}"
        self.state = state
        self.tree = Tree(directory, epoch=4)
        self.peers: list[InspectedPeer] = []
        self.down: set[tuple[str, str]] = set()
        self.now_ms = 1_000_000
        self.interval_ms = interval_ms
        self.inspection = self.inspect()

    def inspect(self) -> Inspection:
        return Inspection(self.directory, self, clock_ms=lambda: self.now_ms, interval_ms=self.interval_ms)

    def queue_of(self, log: str) -> tuple[str, str] | None:
        return ("/", log[7:]) if log.startswith("queues/") else None

    def is_down(self, vhost: str, queue: str) -> bool:
        return (vhost, queue) in self.down

    def copy_damaged(self, log: Log, error: Corrupt) -> bool:
        return False

    def log(self, name: str) -> Log:
        log = self.tree.log(self.directory / name, segment_bytes_max=SEGMENT_BYTES)
        return log if log.is_open else log.open()

    def reopen(self) -> dict[str, Exception]:
        """As a restart does; what could not be opened."""
        self.tree.close()
        self.tree = Tree(self.directory, epoch=4)
        return dict(self.tree.open_all())


class Pair:
    """Both; the follower is in step from the begin."""

    def __init__(self, directory: Path) -> None:
        self.leader = PairedNode(directory / "one", "one", "leader")
        self.follower = PairedNode(directory / "two", "two", "streaming")
        self.copying = Copying(self.follower.tree)
        self.leader.tree.receivers.append(self.copying)
        self.to_leader = OtherSide(self.leader, lambda: self.follower.state, is_leader=True)
        self.to_follower = OtherSide(self.follower, lambda: self.follower.state, is_leader=False)
        self.leader.peers = [self.to_follower]
        self.follower.peers = [self.to_leader]
        self.nodes = {"one": self.leader, "two": self.follower}

    def fill(self, name: str, chunks: int = 8, size: int = 90) -> Log:
        """Append chunks with trailers, two of which make a segment; both peers have them on disk."""
        log = self.leader.log(name)
        for _ in range(chunks):
            append(log, size, 2, TRAILER)
        self.sync()
        return log

    def sync(self) -> None:
        for node in self.nodes.values():
            for log in node.tree.logs.values():
                log.sync()

    def close(self) -> None:
        for node in self.nodes.values():
            node.inspection.stop()
            node.tree.close()

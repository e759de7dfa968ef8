"""A queue store with one queue, and a clock that a test moves on; nothing of it runs by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from leveret.core.queues.messages import alike
from leveret.core.queues.queue_types import make_queue
from leveret.model.definitions import Queue as QueueDefinition
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.queue_store import QueueStore
from leveret.storage.log import SEGMENT_BYTES_MAX
from leveret.storage.tree import Tree
from tests.unit.runtime.collecting.site import head_of

BODY: Final = b"." * 16_384
LOOK_MS: Final = 1_000


class Store:
    """See the module; what is to be called once messages are safe is called by `sync`."""

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = True,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.durable = durable
        self.segment_bytes_max = segment_bytes_max
        self.arguments = arguments or {}
        self.now_ms = 0
        self.failed: list[BaseException] = []
        self.open()

    def open(self) -> None:
        self.commit = GroupCommit(fsync=True, on_failure=self.failed.append)
        self.tree = Tree(self.directory, epoch=5)
        self.store = QueueStore(self.tree, self.commit, lambda: self.now_ms, self.segment_bytes_max)
        self.safe: list[Callable[[], None]] = []
        self.store.when_safe = lambda queue, then: self.safe.append(then)
        definition = QueueDefinition(
            name="q", vhost="v", durable=self.durable, epoch=7, arguments=self.arguments
        )
        self.queue = make_queue(definition, self.store.read)
        self.store.recover(self.queue)

    def restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.store.close()
        self.commit.close()

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.queue.gathered.add(alike(head_of(len(BODY)), [BODY]))
            self.store.append_messages(self.queue)

    def consume(self, count: int) -> None:
        while count:
            runs, _ = self.queue.take(count)
            for run in runs:
                self.queue.settle(run.first, len(run.bodies))
                count -= len(run.bodies)
        self.store.append_settlements(self.queue)

    def pass_through(self, count: int) -> None:
        """Publish and consume so many messages, and sync."""
        self.publish(count)
        self.consume(count)
        self.sync()

    def sync(self) -> None:
        if self.durable:
            self.store.log(self.queue).sync()
        safe, self.safe = self.safe, []
        for then in safe:
            then()

    def look_often(self, times: int) -> None:
        for _ in range(times):
            self.look()

    def look(self) -> None:
        """What the node does each second, and the flush and the sync that follow."""
        self.now_ms += LOOK_MS
        for queue in self.store.reclaiming.look(self.now_ms):
            self.store.append_settlements(queue)
        while self.store.reclaiming.relocating.unfinished:
            self.store.append_settlements(self.queue)
        self.sync()

    @property
    def on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*.segment*"))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.rglob("*.segment*"))

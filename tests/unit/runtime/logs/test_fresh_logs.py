"""Power lost while the first messages of queues make their logs: no queue is down, nothing confirmed is gone.

The disk of these tests is adversarial: a name that no fsync of its directory covered may be there or not, each by
itself, and of a file no more than its last fdatasync, or syncfs of all, is certain. The seed of each story is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leveret.core.queues.messages import alike
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model import definitions as d
from leveret.runtime.node import node
from leveret.storage import sync
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import HEAD, Site, scratch

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 3},
    "stream": {"x-queue-type": "stream"},
}
STEPS = ("mkdir", "open", "pwritev", "rename", "fsync", "fdatasync")


class PowerDisk:
    """Sees what becomes durable below a directory, and what a loss of power may leave there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.lock = threading.RLock()
        self.names: dict[int, dict[str, int]] = {}
        self.sizes: dict[int, int] = {}
        self.on_step: Callable[[str], None] = lambda what: None
        self.synced: list[Path] = []
        self.syncs_of_all = 0
        for each in (root, *(path for path in root.rglob("*"))):
            with suppress(FileNotFoundError):
                self._synced(each.stat(), each)
        for what in STEPS:
            self._watch(monkeypatch, os, what)
        self._watch(monkeypatch, sync, "syncfs")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, where: ModuleType, what: str) -> None:
        original = getattr(where, what)

        def watched(*given: Any, **named: Any) -> Any:
            with self.lock:
                done = original(*given, **named)
                if what in ("fsync", "fdatasync"):
                    path = Path(os.readlink(f"/proc/self/fd/{given[0]}"))
                    if path.is_relative_to(self.root):
                        self._synced(os.fstat(given[0]), path)
                        self.synced.append(path)
                elif what == "syncfs":
                    self.syncs_of_all += 1
                    for path in (self.root, *self.root.rglob("*")):
                        self._synced(path.stat(), path)
                self.on_step(what)
                return done

        monkeypatch.setattr(where, what, watched)

    def _synced(self, found: os.stat_result, path: Path) -> None:
        if stat.S_ISDIR(found.st_mode):
            if path.exists():
                self.names[found.st_ino] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            self.sizes[found.st_ino] = found.st_size

    def lose_power(self, to: Path, chance: random.Random) -> None:
        """Copy what is left."""
        self._leave(self.root, to, chance)

    def _leave(self, directory: Path, to: Path, chance: random.Random) -> None:
        to.mkdir()
        now = {each.name: each.inode() for each in os.scandir(directory)}
        before = self.names.get(directory.stat().st_ino, {})
        durable = {inode: name for name, inode in before.items()}
        for name, inode in now.items():
            path = directory / name
            if before.get(name) != inode:
                old = durable.get(inode)
                if old is None and chance.random() < 0.5:
                    continue  # A name that is new, and on no disk yet.
                if old is not None and chance.random() < 0.5:
                    name = old
            if path.is_dir():
                self._leave(path, to / name, chance)
            elif path.is_file():
                # The disk reserve is made by a thread of its own, by steps that are not watched.
                with suppress(FileNotFoundError):
                    self._leave_file(path, to / name, self.sizes.get(inode, 0), chance)

    def _leave_file(self, path: Path, to: Path, certain: int, chance: random.Random) -> None:
        shutil.copyfile(path, to)
        size = to.stat().st_size
        os.truncate(to, chance.randint(min(certain, size), size))
        shutil.copymode(path, to)


async def publish(site: Site, names: list[str], confirmed: set[str]) -> None:
    """One message to each queue, all in one flush; its name is confirmed when a publisher would be told."""
    for name in names:
        queue = site.queue(name)
        if isinstance(queue, Stream):
            batch = StreamBatch(b"", range(1, 2), [b"\0\0\0\3raw"], 1, None)
            queue.publish(batch)
        else:
            queue.gather(alike(HEAD, [b"%08d" % len(name)]))
        site.node.broker.dirty[queue] = None
    site.node.engine.flush()
    site.node.commits.when_confirmable(lambda: confirmed.update(names))
    await site.settle()


async def check(place: Path, names: list[str], confirmed: set[str], told: str) -> None:
    after = Site(place)
    await after.start()
    try:
        for name in names:
            queue = after.queue(name)
            assert queue.damage is None, (told, name, queue.damage)
            if name in confirmed:
                assert queue.next_offset >= 1, (told, name, "confirmed, and gone")
    finally:
        await after.kill()


@pytest.mark.parametrize("together", [False, True], ids=["fdatasync", "syncfs"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_power_lost_at_any_step_of_a_fresh_log_takes_no_queue_down(
    monkeypatch: pytest.MonkeyPatch, kind: str, count: int, durability: str, *, together: bool
) -> None:
    monkeypatch.setattr(node, "file_system_of", sync.FileSystem if together else lambda directory: None)
    monkeypatch.setattr(sync, "TOGETHER_MIN", 1)
    monkeypatch.setattr(sync, "DIRTY_BYTES_MAX", 1 << 60)
    seed = int(os.environ.get("SEED", "16"))
    print("seed", seed)
    chance = random.Random(f"{seed}{kind}{count}")
    names = [f"q{number}" for number in range(count)]
    left: list[tuple[Path, set[str], str]] = []

    async def story(directory: Path) -> None:
        site = Site(directory / "data", durability)
        await site.start()
        queues = [d.Put(d.Queue(name=name, vhost="v", arguments=KINDS[kind])) for name in names]
        await site.apply(d.Put(d.Vhost(name="v")), *queues)
        os.sync()
        confirmed: set[str] = set()
        with monkeypatch.context() as patch:
            disk = PowerDisk(directory / "data", patch)
            steps = 0

            def lost(what: str) -> None:
                nonlocal steps
                steps += 1
                for again in range(3):
                    if count == 1 or chance.random() < 0.1:
                        place = directory / f"left{steps}.{again}"
                        disk.on_step = lambda what: None
                        disk.lose_power(place, chance)
                        disk.on_step = lost
                        promised = confirmed if durability == "fsync" else set()
                        left.append((place, set(promised), f"seed {seed} step {steps} {what}"))

            disk.on_step = lost
            await publish(site, names, confirmed)
            await publish(site, names, confirmed)
            definitions = site.node._definitions
            epochs = [site.queue(name).epoch for name in names]
            await until(lambda: all(map(definitions.has_log, epochs)))
            await site.settle()
            disk.on_step = lambda what: None
            assert bool(disk.syncs_of_all) == together
        assert confirmed == set(names)
        await site.kill()
        assert len(left) > 3
        for place, promised, told in left:
            await check(place, names, promised, told)

    with scratch() as directory:
        asyncio.run(story(directory))

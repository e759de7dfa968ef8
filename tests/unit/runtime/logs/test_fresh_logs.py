"""Power lost while the first messages of queues make their logs: no queue is down, nothing confirmed is gone.

The disk of these tests is adversarial, see leveret.testing.simulation.machine.disk. The seed of each story is printed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leveret.core.queues.messages import alike
from leveret.core.queues.stream import Stream, StreamBatch
from leveret.model import definitions as d
from leveret.runtime.node import node
from leveret.storage import dirty_memory, sync
from leveret.testing.network.waiting import until
from leveret.testing.simulation.machine.disk import SimulatedDisk
from tests.unit.runtime.collecting.site import HEAD, Site

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 3},
    "stream": {"x-queue-type": "stream"},
}
STEPS = ("mkdir", "open", "pwritev", "rename", "fsync", "fdatasync")


class ObservedSyncs:
    """Takes the place of the kernel's queue (storage.kernel_syncs): syncs at once, and tells of it later."""

    def __init__(self) -> None:
        self.readable_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended: list[tuple[int, OSError | None]] = []

    def begin(self, descriptors: list[int], number: int) -> int:
        sync.sync_descriptors(descriptors)
        self._ended += [(number, None)] * len(descriptors)
        os.eventfd_write(self.readable_fd, 1)
        return len(descriptors)

    def ended(self) -> list[tuple[int, OSError | None]]:
        os.eventfd_read(self.readable_fd)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        os.close(self.readable_fd)


def stepped(patch: pytest.MonkeyPatch, disk: SimulatedDisk, on_step: Callable[[str], None]) -> None:
    """Have `on_step` be called behind each step, before any other thread takes one; it may take steps itself."""
    is_within = False

    def watch(where: ModuleType, what: str) -> None:
        original = getattr(where, what)

        def watched(*given: Any, **named: Any) -> Any:
            nonlocal is_within
            with disk.lock:
                done = original(*given, **named)
                if not is_within:
                    is_within = True
                    on_step(what)
                    is_within = False
                return done

        patch.setattr(where, what, watched)

    for what in STEPS:
        watch(os, what)
    watch(sync, "syncfs")


async def publish(site: Site, names: list[str], confirmed: set[str]) -> None:
    """One message to each queue, all in one flush; its name is confirmed when a publisher would be told."""
    for name in names:
        queue = site.queue(name)
        if isinstance(queue, Stream):
            batch = StreamBatch(b"", range(1, 2), [b"\0\0\0\3raw"], 1, None)
            queue.publish(batch)
        else:
            queue.gathered.add(alike(HEAD, [b"%08d" % len(name)]))
        site.node.broker.dirty[queue] = None
    site.node.engine.flush()
    site.node.commits.when_confirmable(lambda: confirmed.update(names))
    await site.settle()


async def check(place: Path, names: list[str], confirmed: set[str], told: str) -> None:
    after = await Site.started(place)
    try:
        for name in names:
            queue = after.queue(name)
            assert queue.damage is None, (told, name, queue.damage)
            if name in confirmed:
                assert queue.next_offset >= 1, (told, name, "confirmed, and gone")
    finally:
        await after.kill()


def ways() -> list[Any]:
    """Each kind of queue with each way to sync: those whose logs are made as those of others are stories."""
    as_classic = pytest.mark.story
    return [
        pytest.param(
            kind, way, marks=as_classic if way != "threads" and kind in ("quorum", "priority") else ()
        )
        for kind in KINDS
        for way in ("threads", "kernel", "syncfs")
    ]


@pytest.mark.parametrize("durability", ["fsync", pytest.param("os", marks=pytest.mark.story)])
@pytest.mark.long
@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize(("kind", "way"), ways())
async def test_power_lost_at_any_step_of_a_fresh_log_takes_no_queue_down(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str, count: int, durability: str, way: str
) -> None:
    monkeypatch.setattr(node, "file_system_of", sync.FileSystem if way == "syncfs" else lambda _: None)
    monkeypatch.setattr(node, "open_kernel_syncs", ObservedSyncs if way == "kernel" else lambda: None)
    monkeypatch.setattr(sync, "TOGETHER_MIN", 1)
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", 1 << 60)
    seed = int(os.environ.get("SEED", "16"))
    print("seed", seed)
    chance = random.Random(f"{seed}{kind}{count}")
    names = [f"q{number}" for number in range(count)]
    left: list[tuple[Path, set[str], str]] = []

    site = await Site.started(directory / "data", durability=durability)
    queues = [d.Put(d.Queue(name=name, vhost="v", arguments=KINDS[kind])) for name in names]
    await site.apply(d.Put(d.Vhost(name="v")), *queues)
    os.sync()
    confirmed: set[str] = set()
    with monkeypatch.context() as patch, SimulatedDisk(directory) as disk:
        steps: list[str] = []

        def lost(what: str) -> None:
            steps.append(what)
            for again in range(3):
                if count == 1 or chance.random() < 0.1:
                    place = directory / f"left{len(steps)}.{again}"
                    disk.power_lost(directory / "data", place, chance, in_order=False)
                    promised = confirmed if durability == "fsync" else set()
                    left.append((place, set(promised), f"seed {seed} step {len(steps)} {what}"))

        stepped(patch, disk, lost)
        await publish(site, names, confirmed)
        await publish(site, names, confirmed)
        definitions = site.node._definitions
        epochs = [site.queue(name).epoch for name in names]
        await until(lambda: all(map(definitions.has_log, epochs)))
        await site.settle()
        assert ("syncfs" in steps) == (way == "syncfs")
    assert confirmed == set(names)
    await site.kill()
    assert len(left) > 3
    for place, promised, told in left:
        await check(place, names, promised, told)

"""The loop hears of each sync of the kernel once, and knows which were not begun."""

from __future__ import annotations

import os
from pathlib import Path

from leveret.runtime.logs.loop_syncs import LoopSyncs
from leveret.storage.kernel_syncs import KernelSyncs
from leveret.testing.network.waiting import until


async def test_the_loop_hears_of_each_sync(disk_path: Path) -> None:
    syncs, ended = LoopSyncs(KernelSyncs()), list[tuple[str, BaseException | None]]()
    descriptors = [os.open(disk_path / str(each), os.O_CREAT | os.O_RDWR) for each in range(3)]
    assert syncs.begin(descriptors, lambda error: ended.append(("three", error))) == 3
    assert syncs.begin(descriptors[:1], lambda error: ended.append(("one", error))) == 1
    assert not ended
    await until(lambda: len(ended) == 4)
    assert sorted(name for name, _ in ended) == ["one", "three", "three", "three"]
    assert {error for _, error in ended} == {None}
    syncs.close()
    for fd in descriptors:
        os.close(fd)


async def test_what_the_kernel_refuses_is_left_to_others(disk_path: Path) -> None:
    """A refusal while others run keeps the queue for their ends; after that it is closed."""
    syncs, ended = LoopSyncs(KernelSyncs()), list[BaseException | None]()
    fd, pipe = os.open(disk_path / "x", os.O_CREAT | os.O_RDWR), os.pipe()
    assert syncs.begin([fd], ended.append) == 1
    assert syncs.begin([pipe[1]], ended.append) == 0
    await until(lambda: len(ended) == 1)
    assert syncs.begin([pipe[1]], ended.append) == 0
    assert syncs.begin([fd], ended.append) == 0
    assert LoopSyncs(None).begin([fd], ended.append) == 0
    assert ended == [None]
    syncs.close()
    for each in (fd, *pipe):
        os.close(each)

"""The kernel's own syncs: each is told once, with its error; what it does not take is left to threads."""

from __future__ import annotations

import errno
import os
import platform
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.storage import kernel_syncs
from leveret.storage.kernel_syncs import AT_ONCE_MAX, KernelSyncs, open_kernel_syncs
from leveret.storage.sync import DirectoryDescriptor


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    made = KernelSyncs()
    yield made
    made.close()


def all_ended(syncs: KernelSyncs, count: int) -> list[tuple[int, OSError | None]]:
    """The results of so many syncs."""
    found: list[tuple[int, OSError | None]] = []
    readable = select.poll()
    readable.register(syncs.readable_fd, select.POLLIN)
    while len(found) < count:
        assert readable.poll(60_000)
        found += syncs.ended()
    return found


def test_files_and_directories_are_synced_and_may_be_closed_meanwhile(
    syncs: KernelSyncs, disk_path: Path
) -> None:
    descriptors = [os.open(disk_path / str(each), os.O_CREAT | os.O_RDWR) for each in range(3)]
    descriptors.append(DirectoryDescriptor(os.open(disk_path, os.O_RDONLY | os.O_DIRECTORY)))
    for fd in descriptors[:3]:
        os.pwrite(fd, b"x" * 5000, 0)
    assert syncs.begin(descriptors[:1], 7) == 1
    assert syncs.begin(descriptors[1:], 8) == 3
    for fd in descriptors:
        os.close(fd)
    assert sorted(all_ended(syncs, 4), key=lambda each: each[0]) == [
        (7, None),
        (8, None),
        (8, None),
        (8, None),
    ]
    assert syncs.ended() == []


def test_the_kernel_takes_so_many_at_a_time(syncs: KernelSyncs, disk_path: Path) -> None:
    fd = os.open(disk_path / "x", os.O_CREAT | os.O_RDWR)
    assert syncs.begin([fd] * (AT_ONCE_MAX + 5), 1) == AT_ONCE_MAX
    assert syncs.begin([fd], 2) == 0
    assert len(all_ended(syncs, AT_ONCE_MAX)) == AT_ONCE_MAX
    assert syncs.begin([fd] * 5, 3) == 5
    assert all_ended(syncs, 5) == [(3, None)] * 5
    os.close(fd)


def test_a_file_without_a_sync_is_refused_at_once_behind_those_that_are_taken(
    syncs: KernelSyncs, disk_path: Path
) -> None:
    fd, pipe = os.open(disk_path / "x", os.O_CREAT | os.O_RDWR), os.pipe()
    assert syncs.begin([fd, pipe[1]], 1) == 1
    assert all_ended(syncs, 1) == [(1, None)]
    with pytest.raises(OSError, match="Invalid argument"):
        syncs.begin([pipe[1]], 2)
    for each in (fd, *pipe):
        os.close(each)


def test_a_machine_without_them_syncs_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert open_kernel_syncs() is None
    monkeypatch.undo()
    monkeypatch.setattr(kernel_syncs, "AT_ONCE_MAX", 1 << 30)
    assert open_kernel_syncs() is None


def test_closing_waits_for_what_has_begun(disk_path: Path) -> None:
    made = KernelSyncs()
    fd = os.open(disk_path / "x", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x" * 100_000, 0)
    made.begin([fd], 1)
    made.close()
    os.close(fd)


@pytest.mark.parametrize("refused", ["its queue", "its descriptor"])
def test_what_is_refused_half_way_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """A queue whose descriptor was refused stayed with the kernel, which has few for all processes."""
    calls: list[tuple[object, ...]] = []

    def refuse(*given: object) -> int:
        calls.append(given)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if refused == "its queue":
        monkeypatch.setattr(KernelSyncs, "_check", refuse)
    else:
        monkeypatch.setattr(os, "eventfd", refuse)
        monkeypatch.setattr(KernelSyncs, "_check", lambda *_: pytest.fail("the queue was opened"))
    before = os.listdir("/proc/self/fd")
    assert open_kernel_syncs() is None
    assert len(calls) == 1
    assert os.listdir("/proc/self/fd") == before

"""One syncfs is as good as an fdatasync of each file, and where it may not be, each file is synced."""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.storage import dirty_memory, sync
from leveret.storage.kernel_syncs import KernelSyncs
from leveret.storage.sync import (
    FileSystem,
    close_descriptors,
    file_system_of,
    kernel_version,
    syncfs,
    type_of_mount,
)
from tests.mounts import mount, private_mounts

MOUNTS = r"""
21 26 0:20 / /proc rw,nosuid shared:12 - proc proc rw
26 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 26 254:1 / /var/lib rw - xfs /dev/vdb rw
31 26 0:30 / /var/lib/my\040data rw master:3 - tmpfs none rw
32 26 254:2 / /var/lib/my\040data rw - btrfs /dev/vdc rw
"""


class Disk:
    """Notes each sync; a syncfs, or the fdatasync of a file, fails if a test says so."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.failing: set[str] = set()
        self.directory = directory
        self._fdatasync, self._fsync = os.fdatasync, os.fsync
        monkeypatch.setattr(os, "fdatasync", lambda fd: self._sync(fd))
        monkeypatch.setattr(os, "fsync", lambda fd: self._sync(fd))
        monkeypatch.setattr(sync, "syncfs", lambda fd: self._step("syncfs"))

    def _sync(self, fd: int) -> None:
        self._step(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

    def _step(self, what: str) -> None:
        self.steps.append(what)
        if what in self.failing:
            raise OSError(errno.EIO, "refused")

    def files(self, *names: str) -> list[int]:
        return [os.open(self.directory / name, os.O_CREAT | os.O_RDWR) for name in names]


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk, as there is a second file system then, and one that has more to sync than memory."""
    return disk_path


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[FileSystem]:
    found = FileSystem(tmp_path)
    yield found
    found.close()


def check_closed(descriptors: list[int]) -> None:
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_all_files_are_durable_by_one_syncfs(disk: Disk, whole: FileSystem) -> None:
    whole.sync(descriptors := disk.files("a", "b", "c"))
    assert disk.steps == ["syncfs"]
    close_descriptors(descriptors)


def test_a_journal_that_failed_while_syncfs_did_not_look_is_told(
    disk: Disk, whole: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that learns so of its failed journal refuses the second change of the two at the latest."""
    looks: list[object] = []

    def utime(path: object) -> None:
        looks.append(path)
        if len(looks) > 1:
            raise OSError(errno.EROFS, "refused")

    monkeypatch.setattr(os, "utime", utime)
    disk.failing = {"sync.probe"}
    with pytest.raises(OSError, match="refused"):
        whole.sync(descriptors := disk.files("a", "b"))
    assert len(looks) == 2
    close_descriptors(descriptors)


def test_an_error_of_another_programs_file_is_nobodys_here(
    disk: Disk, whole: FileSystem, tmp_path: Path
) -> None:
    """The journal takes what is written now, so what was written before was not lost with it."""
    disk.failing = {"syncfs"}
    whole.sync(descriptors := disk.files("a", "b"))
    assert disk.steps == ["syncfs", "sync.probe", tmp_path.name, "a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    close_descriptors(descriptors)


@pytest.mark.parametrize("failing", ["sync.probe", "b"])
def test_an_error_of_the_journal_or_of_one_of_these_files_is_told(
    disk: Disk, whole: FileSystem, failing: str
) -> None:
    disk.failing = {"syncfs", failing}
    with pytest.raises(OSError, match="refused"):
        whole.sync(descriptors := disk.files("a", "b", "c"))
    close_descriptors(descriptors)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second file system")
def test_files_of_another_disk_are_synced_each(
    disk: Disk, whole: FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", 1 << 60)
    other = Path("/dev/shm") / f"leveret-{os.getpid()}"
    descriptors = [*disk.files(*map(str, range(sync.TOGETHER_MIN))), os.open(other, os.O_CREAT | os.O_RDWR)]
    try:
        assert os.fstat(descriptors[-1]).st_dev != tmp_path.stat().st_dev
        assert whole.is_better_for(descriptors[:-1])
        assert not whole.is_better_for(descriptors)
    finally:
        close_descriptors(descriptors)
        other.unlink()


def test_few_files_and_much_that_is_dirty_are_synced_each(
    disk: Disk, whole: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = disk.files(*map(str, range(sync.TOGETHER_MIN)))
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", 1 << 60)
    assert not whole.is_better_for(descriptors[1:])
    assert whole.is_better_for(descriptors)
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", -1)
    assert not whole.is_better_for(descriptors)
    close_descriptors(descriptors)


def test_what_is_dirty_is_written_back_by_a_descriptor_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells an error to each descriptor once: a round must not miss what nobody was told."""
    synced: list[int] = []
    monkeypatch.setattr(sync, "syncfs", synced.append)
    monkeypatch.setattr(dirty_memory, "DIRTY_BYTES_MAX", -1)
    whole = FileSystem(tmp_path)
    descriptors = [os.open(tmp_path / str(each), os.O_CREAT) for each in range(sync.TOGETHER_MIN)]
    assert not whole.is_better_for(descriptors)
    assert whole.begin_write_back()
    whole.write_back(None)
    whole.sync(descriptors)
    close_descriptors(descriptors)
    assert len(set(synced)) == 2
    whole.close()
    check_closed(synced)


def test_only_the_given_descriptors_are_closed(disk: Disk) -> None:
    descriptors = disk.files(*map(str, range(9)))
    kept = [descriptors.pop(4), descriptors.pop(1)]
    close_descriptors(list(reversed(descriptors)))
    check_closed(descriptors)
    for fd in kept:
        os.fstat(fd)
    close_descriptors(kept)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4"),
        ("/var/library", "ext4"),
        ("/var/lib", "xfs"),
        ("/var/lib/leveret/data", "xfs"),
        ("/var/lib/my data/x", "btrfs"),
        ("/proc/self", "proc"),
    ],
)
def test_the_innermost_and_last_mount_counts(path: str, expected: str) -> None:
    assert type_of_mount(MOUNTS.strip(), path) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [("6.1.0-13-amd64", (6, 1)), ("5.17", (5, 17)), ("4.4.0-gvisor", (4, 4)), ("unknown", (0, 0))],
)
def test_a_release_of_the_kernel(release: str, expected: tuple[int, int]) -> None:
    assert kernel_version(release) == expected


def test_an_older_kernel_tells_no_error_so_each_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sync, "TYPES", {type_of_mount(Path("/proc/self/mountinfo").read_text(), str(tmp_path))}
    )
    monkeypatch.setattr(sync, "KERNEL_MIN", (1, 0))
    found = file_system_of(tmp_path)
    assert found is not None
    found.close()
    monkeypatch.setattr(sync, "KERNEL_MIN", (99, 0))
    assert file_system_of(tmp_path) is None
    monkeypatch.setattr(sync, "KERNEL_MIN", (1, 0))
    monkeypatch.setattr(sync, "TYPES", {"zfs"})
    assert file_system_of(tmp_path) is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 on a device that refuses what it has no room for, though the file system believes in more."""
    room, place = tmp_path / "room", tmp_path / "mount"
    room.mkdir()
    place.mkdir()
    image = room / "image"
    with private_mounts():
        mount("-t", "tmpfs", "-o", "size=24M", "none", str(room))
        for command in (
            ["truncate", "-s", "256M", str(image)],
            ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", str(image)],
        ):
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip(f"this machine refuses {command[0]}")
        mount("-o", "loop", str(image), str(place))
        yield place


def sync_by_kernel(syncs: KernelSyncs, descriptors: list[int]) -> None:
    """Sync with the kernel's queue; raise the first error."""
    waiting, ended = descriptors, list[OSError | None]()
    readable = select.poll()
    readable.register(syncs.readable_fd, select.POLLIN)
    while len(ended) < len(descriptors):
        waiting = waiting[syncs.begin(waiting, 0) :]
        readable.poll(60_000)
        ended += [error for _, error in syncs.ended()]
    for error in filter(None, ended):
        raise error


@pytest.mark.process
@pytest.mark.parametrize("way", ["syncfs", "by the kernel"])
@pytest.mark.parametrize("writes", ["data", "many small files"])
def test_a_disk_that_fails_keeps_nothing_that_was_said_to_be_durable(
    small_disk: Path, writes: str, way: str
) -> None:
    """A real device: what was synced before it failed is there when it is read anew, and the failure is told."""
    whole, syncs = FileSystem(small_disk), KernelSyncs()
    durable: list[str] = []
    failed = False
    try:
        for number in range(400):
            size, count = (1 << 18, 4) if writes == "data" else (6000, 40)
            names = [f"{number}.{each}" for each in range(count)]
            descriptors = [os.open(small_disk / name, os.O_CREAT | os.O_RDWR) for name in names]
            for fd, name in zip(descriptors, names, strict=True):
                os.pwrite(fd, name.encode() * (size // len(name)), 0)
            try:
                if way == "syncfs":
                    whole.sync(descriptors)
                else:
                    sync_by_kernel(syncs, descriptors)
            finally:
                close_descriptors(descriptors)
            durable += names
    except OSError:
        failed = True
    finally:
        whole.close()
        syncs.close()
    assert failed
    # The page cache is not asked: the device is read anew, after the recovery of its journal, with room for that.
    room = small_disk.parent / "room"
    for command in (
        ["umount", str(small_disk)],
        ["mount", "-o", "remount,size=512M", str(room)],
        ["mount", "-o", "loop", str(room / "image"), str(small_disk)],
    ):
        subprocess.run(command, check=True)
    for name in durable:
        size = 1 << 18 if writes == "data" else 6000
        assert (small_disk / name).read_bytes() == name.encode() * (size // len(name)), name


def test_the_system_call_itself(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    syncfs(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncfs(fd)

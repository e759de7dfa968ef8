"""Disks of a size: writes of every kind fail when they are full, in part where a part fits."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leveret.storage.disk import free_disk_bytes
from leveret.storage.reserve import Reserve, is_full
from leveret.testing.simulation.machine.full_disk import LimitedDisks


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[LimitedDisks]:
    with LimitedDisks() as disks:
        yield disks


def open_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


WRITES: list[Callable[[int], object]] = [
    lambda file: os.write(file, bytes(100)),
    lambda file: os.pwrite(file, bytes(100), 0),
    lambda file: os.pwritev(file, [bytes(60), bytes(40)], 0),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_fits_in_part_is_done_in_part_and_the_next_one_fails(
    disks: LimitedDisks, tmp_path: Path, write: Callable[[int], object]
) -> None:
    file = open_file(tmp_path / "a")
    disks.limit(tmp_path, 30)
    assert write(file) == 30
    os.lseek(file, 0, os.SEEK_END)
    with pytest.raises(OSError, match="No space left") as full:
        os.pwritev(file, [bytes(1)], 30)
    assert is_full(full.value)
    # What has its room already can be written again.
    assert os.pwrite(file, b"again", 0) == 5
    disks.limit(tmp_path, None)
    assert os.write(file, bytes(10)) == 10
    os.close(file)


def test_other_disks_and_pipes_have_room(disks: LimitedDisks, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full2").mkdir()
    disks.fill(tmp_path / "full")
    (tmp_path / "full2/a").write_bytes(b"1")
    reading, writing = os.pipe()
    assert os.write(writing, b"1") == 1
    os.close(reading)
    os.close(writing)


def test_a_file_that_is_written_through_a_buffer_fails_when_that_is_flushed(
    disks: LimitedDisks, tmp_path: Path
) -> None:
    disks.fill(tmp_path, 3)
    file = (tmp_path / "a").open("wb")
    file.write(b"12345")
    with pytest.raises(OSError, match="No space left"):
        file.flush()
    disks.limit(tmp_path, None)
    file.close()
    assert (tmp_path / "a").read_bytes() == b"12345"


def test_room_that_is_set_aside_and_a_directory_need_room(disks: LimitedDisks, tmp_path: Path) -> None:
    disks.limit(tmp_path, 5000)
    assert not Reserve(tmp_path, 6000).take()
    assert free_disk_bytes(tmp_path) in range(5000)
    reserve = Reserve(tmp_path, 3000)
    assert reserve.take()
    with pytest.raises(OSError, match="No space left") as full:
        (tmp_path / "log").mkdir()
    assert full.value.errno == errno.ENOSPC
    assert reserve.give_up(free_disk_bytes(tmp_path))
    (tmp_path / "log").mkdir()

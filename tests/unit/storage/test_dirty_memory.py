"""storage.dirty_memory: what is dirty elsewhere does not count, what is dirty here is written back for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from leveret.storage import dirty_memory
from leveret.storage.dirty_memory import DIRTY_BYTES_MAX, DirtyMemory, dirty_bytes

MEBIBYTE = 1 << 20


class Machine:
    """The kernel's figures, and a clock that a syncfs lets go on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = directory / "meminfo"
        self.now_s = 100.0
        self.dirty(0)
        monkeypatch.setattr(dirty_memory, "_MEMORY", str(self._file))
        monkeypatch.setattr(dirty_memory, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.memory = DirtyMemory()

    def dirty(self, size: int) -> None:
        self._file.write_bytes(b"MemTotal:  100 kB\nDirty: %12d kB\nWriteback:  0 kB\n" % (size // 1024))

    def written_back(self, *, left: int, took_s: float = 0.01) -> None:
        def sync() -> None:
            self.now_s += took_s
            self.dirty(left)

        self.memory.write_back(sync)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.memory.close()


def test_dirty_is_what_waits_and_what_is_being_written() -> None:
    memory = b"MemTotal:  100 kB\nDirty:          12 kB\nWriteback:     30 kB\nWritebackTmp:  7 kB\n"
    assert dirty_bytes(memory) == 42 * 1024
    assert dirty_bytes(Path("/proc/meminfo").read_bytes()) >= 0


def test_a_write_back_begins_only_where_much_is_dirty(machine: Machine) -> None:
    assert not machine.memory.begin_write_back()
    machine.dirty(DIRTY_BYTES_MAX)
    assert machine.memory.is_little()
    assert not machine.memory.begin_write_back()
    machine.dirty(DIRTY_BYTES_MAX + 1024)
    assert not machine.memory.is_little()
    assert machine.memory.begin_write_back()
    machine.written_back(left=MEBIBYTE)
    assert machine.memory.is_little()
    assert not machine.memory.begin_write_back()


def test_what_a_short_sync_left_is_elsewhere_until_it_is_written(machine: Machine) -> None:
    machine.dirty(200 * MEBIBYTE)
    assert not machine.memory.is_little()
    assert machine.memory.begin_write_back()
    machine.written_back(left=150 * MEBIBYTE)
    machine.dirty(150 * MEBIBYTE + DIRTY_BYTES_MAX)
    assert machine.memory.is_little()
    machine.dirty(151 * MEBIBYTE + DIRTY_BYTES_MAX)
    assert not machine.memory.is_little()
    # The other file system was written: what is dirty now may all be here.
    machine.dirty(10 * MEBIBYTE)
    assert machine.memory.is_little()
    machine.dirty(11 * MEBIBYTE + DIRTY_BYTES_MAX)
    assert not machine.memory.is_little()


def test_what_a_long_sync_left_may_be_here(machine: Machine) -> None:
    machine.dirty(200 * MEBIBYTE)
    assert not machine.memory.is_little()
    assert machine.memory.begin_write_back()
    machine.written_back(left=150 * MEBIBYTE, took_s=1.0)
    assert not machine.memory.is_little()


def test_write_backs_take_a_tenth_of_the_time_and_are_one_at_a_time(machine: Machine) -> None:
    machine.dirty(200 * MEBIBYTE)
    assert not machine.memory.is_little()
    assert machine.memory.begin_write_back()
    assert not machine.memory.is_little()
    assert not machine.memory.begin_write_back()
    machine.written_back(left=200 * MEBIBYTE, took_s=2.0)
    machine.now_s += 17.9
    assert not machine.memory.is_little()
    assert not machine.memory.begin_write_back()
    machine.now_s += 0.2
    assert machine.memory.begin_write_back()


def test_a_write_back_that_fails_is_tried_again_and_teaches_nothing(machine: Machine) -> None:
    def refuse() -> None:
        raise OSError("refused")

    machine.dirty(200 * MEBIBYTE)
    assert not machine.memory.is_little()
    assert machine.memory.begin_write_back()
    with pytest.raises(OSError, match="refused"):
        machine.memory.write_back(refuse)
    assert not machine.memory.is_little()
    assert not machine.memory.begin_write_back()
    machine.now_s += dirty_memory.WRITE_BACK_EVERY_S
    assert machine.memory.begin_write_back()

"""The room on the disk that the node holds for itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.storage.reserve import FILE, Reserve
from leveret.storage.state_file import StateFile

SIZE = 1 << 20


def test_it_is_made_when_twice_its_size_is_free(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, SIZE)
    assert (reserve.free_for_all(2 * SIZE - 1), reserve.free_for_all(2 * SIZE)) == (0, SIZE)
    assert not reserve.is_wanted(2 * SIZE - 1)
    assert not reserve.is_wanted(None)
    assert reserve.is_wanted(2 * SIZE)
    assert reserve.take()
    assert (tmp_path / FILE).stat().st_blocks * 512 >= SIZE
    assert reserve.free_for_all(SIZE) == SIZE
    assert not reserve.is_wanted(10 * SIZE)


def test_it_is_given_up_when_less_than_it_is_free(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, SIZE)
    assert not reserve.give_up(0)
    assert reserve.take()
    assert not reserve.give_up(SIZE)
    assert not reserve.give_up(None)
    assert reserve.give_up(SIZE - 1)
    assert list(tmp_path.iterdir()) == []


def test_no_reserve_takes_nothing(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 0)
    assert not reserve.is_wanted(10 * SIZE)
    assert reserve.free_for_all(1) == 1


def test_a_file_system_without_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not Reserve(tmp_path, SIZE).take()
    assert list(tmp_path.iterdir()) == []


def test_a_state_file_that_stays_as_it_is_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path / "state.json")
    file.save({"a": 1})
    real = os.open

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    file.save({"a": 1})
    with pytest.raises(StorageError, match="make room on its disk"):
        file.save({"a": 2})
    assert file.load() == {"a": 1}

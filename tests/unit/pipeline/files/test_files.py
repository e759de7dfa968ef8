"""Files on this machine: what has its name is on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.files.files import keep, sync_directory, write_durably, written_beside


def test_a_disk_that_became_read_only_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match="cannot be written"):
        write_durably(tmp_path / "kept", b"abc")


def test_octets_are_on_disk_before_they_have_their_name_and_the_name_is_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, steps = tmp_path / "kept", list[str]()
    sync, sync_all = os.fdatasync, os.fsync

    def noted(descriptor: int) -> None:
        steps.append(f"octets, {'named' if place.exists() else 'not named'}")
        sync(descriptor)

    def noted_all(descriptor: int) -> None:
        steps.append(f"directory, {'named' if place.exists() else 'not named'}")
        sync_all(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    monkeypatch.setattr(os, "fsync", noted_all)
    with written_beside(tmp_path) as beside:
        beside.write_bytes(b"abc")
        assert keep(beside, place) == 3
    sync_directory(tmp_path)
    assert steps == ["octets, not named", "directory, named"]
    place.unlink()
    steps.clear()
    write_durably(place, b"abc")
    assert steps == ["octets, not named", "directory, named"]
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("kept", b"abc")]

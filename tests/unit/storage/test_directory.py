"""Directories of which a disk refuses one: none is left, for one that is there counts as durable."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leveret.storage import directory
from leveret.storage.directory import make_directory


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("refused", ["b", "c"])
def test_a_directory_that_the_disk_refuses_leaves_none_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, durable: bool, refused: str
) -> None:
    """A log that was made in one that had been left did not sync its name."""
    mkdir = os.mkdir

    def refuse(path: Path, mode: int) -> None:
        if Path(path).name == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, mode)

    path = tmp_path / "a" / "b" / "c"
    with monkeypatch.context() as patch:
        patch.setattr("os.mkdir", refuse)
        with pytest.raises(OSError, match="No space"):
            make_directory(path, durable=durable)
    assert list(tmp_path.iterdir()) == []
    assert make_directory(path, durable=durable) == [path.parent, path.parent.parent, tmp_path]


def test_a_directory_whose_name_cannot_be_synced_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(directory, "sync_directory", refuse)
    with pytest.raises(OSError, match="Input/output"):
        make_directory(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []

"""storage.removed: the caller never waits for blocks of large files, and nothing stays for ever."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leveret.storage import removed as removed_module
from leveret.storage.removed import AT_ONCE_BYTES_MAX, DIRECTORY, RemovedFiles
from leveret.storage.tree import Tree
from leveret.wire.chunk import ChunkType

LARGE = b"x" * (AT_ONCE_BYTES_MAX + 1)


def made(path: Path, octets: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(octets)
    return path


@pytest.fixture
def left() -> list[Path]:
    """What is to be freed."""
    return []


@pytest.fixture
def removed(tmp_path: Path, left: list[Path]) -> RemovedFiles:
    files = RemovedFiles(tmp_path)
    files.free = left.append
    return files


def test_a_large_file_and_a_directory_are_gone_from_their_place_at_once_and_freed_later(
    tmp_path: Path, removed: RemovedFiles, left: list[Path]
) -> None:
    large, small = made(tmp_path / "log" / "large", LARGE), made(tmp_path / "log" / "small", b"x")
    directory = made(tmp_path / "staged" / "0" / "segment", b"y").parent.parent
    for path in (large, small, directory, tmp_path / "never"):
        removed.remove(path)
        assert not path.exists()
    assert [path.parent.name for path in left] == [DIRECTORY] * 2, "a small file is freed in place"
    assert left[0].read_bytes() == LARGE
    assert (left[1] / "0" / "segment").read_bytes() == b"y"


def test_the_files_of_a_log_that_is_deleted_or_drops_segments_are_freed_later(
    tmp_path: Path, left: list[Path]
) -> None:
    tree = Tree(tmp_path)
    tree.removed.free = left.append
    log = tree.log(tmp_path / "queues" / "q", segment_bytes_max=len(LARGE)).open()
    for number in range(4):
        log.append(ChunkType.USER, 1, number, LARGE, 0)
        log.sync()
    segments = len(list(log.directory.glob("*.segment")))
    log.drop_before(3)
    assert len(list(log.directory.glob("*.segment"))) == segments - len(left) < segments
    assert all(path.stat().st_size > AT_ONCE_BYTES_MAX for path in left)
    log.delete()
    assert not log.directory.exists()
    assert segments == len(left) - 1 + len(list(left[-1].glob("*.segment")))


@pytest.mark.parametrize("files", [0, 3, 20])
def test_the_deletion_of_a_log_is_one_renaming_however_many_files_it_has(
    tmp_path: Path, left: list[Path], monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Each file that is unlinked, and each directory that is removed, may wait milliseconds for the disk."""
    tree = Tree(tmp_path)
    tree.removed.free = left.append
    log = tree.log(tmp_path / "queues" / "q", segment_bytes_max=1).open()
    for number in range(files):
        log.append(ChunkType.USER, 1, number, b"x", 0)
        log.sync()
    calls: list[str] = []
    for name in ("unlink", "rmdir", "rename", "fsync", "ftruncate"):
        monkeypatch.setattr(os, name, partial(_counted, calls, getattr(os, name), name))
    log.delete()
    assert calls == ["rename"]
    assert not log.directory.exists()


def _counted(calls: list[str], call: Callable[..., None], name: str, *given: Any, **named: Any) -> None:
    calls.append(name)
    call(*given, **named)


def test_the_next_start_frees_what_a_crash_left(
    tmp_path: Path, removed: RemovedFiles, left: list[Path]
) -> None:
    removed.remove(made(tmp_path / "a", LARGE))
    removed.remove(made(tmp_path / "b" / "c", b"x").parent)
    RemovedFiles(tmp_path).free_left()
    assert not any(path.exists() for path in left)
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_where_a_file_cannot_be_renamed_it_is_removed_in_place(
    tmp_path: Path, removed: RemovedFiles, left: list[Path]
) -> None:
    """The disk has no room for a directory, or the file is on another disk."""
    made(tmp_path / DIRECTORY, b"no directory")
    large, directory = made(tmp_path / "a", LARGE), made(tmp_path / "b" / "c", b"x").parent
    removed.remove(large)
    removed.remove(directory)
    assert (large.exists(), directory.exists(), left) == (False, False, [])


def test_what_a_former_process_of_the_same_number_left_has_its_place(tmp_path: Path) -> None:
    """Otherwise what is removed after a restart in a container would be freed in the event loop."""
    left: list[Path] = []
    for run in range(2):
        spec = importlib.util.spec_from_file_location(f"run_{run}", removed_module.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        files = module.RemovedFiles(tmp_path)
        files.free = left.append
        files.remove(made(tmp_path / "log" / f"{run}", b"octets").parent)
    assert len({*left}) == 2
    assert [len(list(path.iterdir())) for path in left] == [1, 1]

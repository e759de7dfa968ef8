"""A state file: whole or as before, and for the owner's eyes only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.storage.state_file import StateFile


def test_what_was_saved_last_is_loaded(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    state.save({"mode": "downstream", "n": 1})
    state.save({"mode": "upstream"})
    assert StateFile(tmp_path / "state.json").load() == {"mode": "upstream"}


def test_a_file_that_never_was_is_empty(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "state.json").load() == {}


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    state.save({})
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o600


def test_what_a_crash_left_half_written_beside_it_does_no_harm(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    state.save({"a": 1})
    (tmp_path / "state.json.new").write_bytes(b'{"a":')
    assert state.load() == {"a": 1}
    state.save({"a": 2})
    assert state.load() == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("octets", [b"", b'{"a":', b"[]", b"\xff", b'{"a": "\xff"}'])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(octets)
    with pytest.raises(StorageError, match=r"state\.json: .*repair the file"):
        StateFile(path).load()


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none/state\.json: cannot be written"):
        StateFile(tmp_path / "none" / "state.json").save({})

"""A state file: whole or as before, and for the owner's eyes only."""

from __future__ import annotations

import itertools
import stat
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from leveret.model.errors import StorageError
from leveret.storage.state_file import CHECKSUM, StateFile, with_checksum
from leveret.testing.simulation.machine.full_disk import LimitedDisks


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


def test_one_altered_bit_anywhere_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """One bit of a name made a promoted site a downstream again, and one of a number emptied a queue (2026-11-30)."""
    saved = {
        "operating_mode": "upstream",
        "counts": {"6": 1, "17": 1 << 60},
        "share": 0.1,
        "names": ["ä", None],
    }
    state = StateFile(tmp_path / "state.json")
    state.save(saved)
    whole = state.path.read_bytes()
    for at, bit in itertools.product(range(len(whole)), range(8)):
        altered = bytearray(whole)
        altered[at] ^= 1 << bit
        state.path.write_bytes(altered)
        with suppress(StorageError):
            found = state.load()
            # The bit was in the name of the checksum, or in white space.
            assert {name: found[name] for name in saved} == saved


def test_an_operator_may_write_a_file_without_its_checksum_and_is_told_of_that_of_another_content(
    tmp_path: Path,
) -> None:
    state = StateFile(tmp_path / "state.json")
    state.path.write_text('{"reserved": 5}')
    assert state.load() == {"reserved": 5}
    state.save({"reserved": 5})
    state.path.write_text(state.path.read_text().replace("5", "6", 1))
    with pytest.raises(StorageError, match=r'state\.json: it was altered: .*remove its field "crc32"'):
        state.load()


@pytest.mark.parametrize("saved", [{}, {"a": 1}])
def test_an_encoded_object_gets_a_checksum_as_well(tmp_path: Path, saved: dict[str, int]) -> None:
    state = StateFile(tmp_path / "state.json")
    state.replace(with_checksum(msgspec.json.encode(saved)))
    assert CHECKSUM.encode() in state.path.read_bytes()
    assert state.load() == saved


def test_a_prepared_object_replaces_the_file_also_on_a_disk_that_is_full_by_then(tmp_path: Path) -> None:
    told = list[bytes | None]()
    state = StateFile(tmp_path / "state.json", lambda path, octets: told.append(octets))
    state.save({"a": 1})
    with LimitedDisks() as disks:
        with state.prepared({"a": 2}) as replace:
            disks.fill(tmp_path)
            assert state.load() == {"a": 1}
            replace()
        assert state.load() == {"a": 2}
        with (
            pytest.raises(StorageError, match="make room"),
            state.prepared({"a": "much longer than before"}),
        ):
            raise AssertionError("a full disk takes it")
    assert state.load() == {"a": 2}
    assert len(told) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_prepared_object_that_is_not_wanted_leaves_nothing_behind(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    state.save({"a": 1})
    with pytest.raises(KeyError), state.prepared({"a": 2}):
        raise KeyError
    assert state.load() == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]

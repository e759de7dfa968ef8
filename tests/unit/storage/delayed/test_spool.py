"""The spool of an older delayed follower is read as it was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.delayed.spool import JOINED, JOINING, AppliedPosition, Spool
from leveret.wire.chunk import ChunkType, encode_entry
from leveret.wire.link import ChangeKind
from tests.unit.storage.delayed.old_spool import OldEntry, OldSpool


def filled(directory: Path, frames: int = 40) -> None:
    old = OldSpool(directory)
    for frame in range(frames):
        old.append([OldEntry(ChangeKind.DROP, "a", number) for number in range(2)], 1000 + frame)
    old.close()


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    dice = random.Random(7)
    kinds = [*(kind for kind in ChangeKind if kind is not ChangeKind.NAME), JOINING, JOINED]
    frames = [
        [
            OldEntry(dice.choice(kinds), "é" * dice.randint(0, 300), dice.getrandbits(64), dice.randbytes(9))
            for _ in range(dice.randint(1, 6))
        ]
        for _ in range(50)
    ]
    old = OldSpool(tmp_path)
    for number, entries in enumerate(frames):
        old.append(entries, number)
    old.close()
    spool = Spool(tmp_path)
    assert spool.exists
    spool.open()
    found = [(each.at_ms, [tuple(entry) for entry in each.entries]) for each in spool.waiting()]
    assert found == [(number, [tuple(entry) for entry in entries]) for number, entries in enumerate(frames)]
    spool.close()


def test_what_was_applied_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path)
    spool = Spool(tmp_path)
    spool.open()
    spool.save(AppliedPosition(61, 1030))
    spool.close()
    spool = Spool(tmp_path)
    spool.open()
    first, *rest = spool.waiting()
    assert (first.first, len(first.entries), first.at_ms) == (61, 1, 1030)
    assert sum(len(each.entries) for each in rest) == 18
    assert spool.has_waiting
    spool.remove()
    assert not spool.exists


def test_of_a_removal_that_was_broken_off_nothing_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    spool = Spool(tmp_path)
    spool.open()

    def broken(path: Path) -> None:
        raise OSError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", broken)
        with pytest.raises(StorageError, match="no more"):
            spool.remove()
    spool = Spool(tmp_path)
    spool.open()
    assert not spool.has_waiting
    spool.remove()
    assert not spool.exists


def test_damage_is_told(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    [path] = (tmp_path / "delayed").glob("*.segment")
    octets = path.read_bytes()
    path.write_bytes(octets[:100] + bytes((octets[100] ^ 1,)) + octets[101:])
    with pytest.raises(Corrupt):
        Spool(tmp_path).open()


def test_a_log_of_something_else_is_no_spool(tmp_path: Path) -> None:
    old = OldSpool(tmp_path)
    old.log.append(ChunkType.USER, 1, 1, encode_entry(b"a message"), 1)
    old.close()
    spool = Spool(tmp_path)
    spool.open()
    with pytest.raises(Corrupt, match="holds no changes of a leader"):
        list(spool.waiting())
    spool.close()


def test_a_damaged_note_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "delayed" / "applied.json").write_text('{"applied": "all"}')
    with pytest.raises(StorageError, match=r"applied\.json"):
        Spool(tmp_path).open()

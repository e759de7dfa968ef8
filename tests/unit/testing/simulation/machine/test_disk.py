"""The simulated disk: what a loss of power may leave, and must; a full disk is test_full_disk's."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from leveret.storage import sync
from leveret.storage.directory import make_directory, sync_directory
from leveret.storage.state_file import StateFile
from leveret.testing.simulation.machine.disk import SimulatedDisk
from leveret.testing.simulation.machine.disk_entries import PAGE_BYTES, content_after_loss
from tests.unit.memory import scratch

LOSSES: Final = 150

Tree = dict[str, bytes | None]


@pytest.fixture
def data() -> Iterator[Path]:
    with scratch() as folder:
        (folder / "data").mkdir()
        yield folder / "data"


@pytest.fixture
def disk(data: Path) -> Iterator[SimulatedDisk]:
    with SimulatedDisk(data.parent) as disk:
        yield disk


def tree(directory: Path) -> Tree:
    """Each file's content, and None for each directory, by its path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def left(disk: SimulatedDisk, data: Path, seed: int = 1, *, in_order: bool = False) -> list[Tree]:
    """What many losses of power leave, each state once."""
    found: list[Tree] = []
    chance = random.Random(seed)
    for number in range(LOSSES):
        place = data.parent / f"left{number}"
        disk.power_lost(data, place, chance, in_order=in_order)
        state = tree(place)
        if state not in found:
            found.append(state)
        disk.remove(place)
    return found


def write(path: Path, octets: bytes, *, is_synced: bool = False, name_too: bool = False) -> None:
    with path.open("wb") as file:
        file.write(octets)
        file.flush()
        if is_synced:
            os.fsync(file.fileno())
    if name_too:
        sync_directory(path.parent)


def same(found: list[Tree], *expected: Tree) -> bool:
    return len(found) == len(expected) and all(each in found for each in expected)


def test_what_was_there_before_is_durable(data: Path) -> None:
    write(data / "a", b"1")
    with SimulatedDisk(data.parent) as disk:
        assert left(disk, data) == [{"a": b"1"}]


def test_a_new_name_may_be_lost_until_its_directory_is_synced(disk: SimulatedDisk, data: Path) -> None:
    write(data / "a", b"1", is_synced=True)
    assert same(left(disk, data), {}, {"a": b"1"})
    sync_directory(data)
    assert left(disk, data) == [{"a": b"1"}]


def test_content_that_was_not_synced_is_there_in_part_behind_a_durable_name(
    disk: SimulatedDisk, data: Path
) -> None:
    write(data / "a", b"123", name_too=True)
    parts: list[bytes | None] = [b"", b"1", b"12", b"123", b"\0", b"\0\0", b"\0\0\0"]
    assert same(left(disk, data), *[{"a": each} for each in parts])
    write(data / "a", b"123", is_synced=True)
    with (data / "a").open("ab") as file:
        file.write(b"4")
    assert same(left(disk, data), {"a": b"123"}, {"a": b"1234"}, {"a": b"123\0"})


def test_a_rename_is_kept_or_not_and_never_half(disk: SimulatedDisk, data: Path) -> None:
    write(data / "state", b"old", is_synced=True)
    write(data / "state.new", b"new", is_synced=True, name_too=True)
    (data / "state.new").rename(data / "state")
    assert same(left(disk, data), {"state": b"old", "state.new": b"new"}, {"state": b"new"})
    sync_directory(data)
    assert left(disk, data) == [{"state": b"new"}]


def test_a_name_that_was_never_synced_may_be_lost_with_both_its_forms(
    disk: SimulatedDisk, data: Path
) -> None:
    write(data / "a.new", b"1", is_synced=True)
    (data / "a.new").rename(data / "a.segment")
    (data / "a.segment").rename(data / "a.sealed")
    assert same(left(disk, data), {}, {"a.new": b"1"}, {"a.segment": b"1"}, {"a.sealed": b"1"})


def test_a_disk_with_a_journal_keeps_the_changes_of_a_directory_in_their_order(
    disk: SimulatedDisk, data: Path
) -> None:
    for name in ("log", "other"):
        make_directory(data / name)
    for name in ("a", "b"):
        (data / "log" / name).touch()
    (data / "other/c").touch()
    logs: list[Tree] = [
        {"log": None, "other": None},
        {"log": None, "log/a": b"", "other": None},
        {"log": None, "log/a": b"", "log/b": b"", "other": None},
    ]
    assert same(left(disk, data, in_order=True), *logs, *[{**each, "other/c": b""} for each in logs])
    assert {"log": None, "log/b": b"", "other": None} in left(disk, data)


def test_a_rename_into_another_directory_is_durable_with_either(disk: SimulatedDisk, data: Path) -> None:
    make_directory(data / "from")
    make_directory(data / "to")
    for name in ("a", "b"):
        write(data / "from" / name, b"1", is_synced=True, name_too=True)
    (data / "from/a").rename(data / "to/a")
    sync_directory(data / "to")
    (data / "from/b").rename(data / "to/b")
    sync_directory(data / "from")
    assert left(disk, data) == [{"from": None, "to": None, "to/a": b"1", "to/b": b"1"}]


def test_a_removed_file_comes_back_as_it_was_synced_until_its_directory_is(
    disk: SimulatedDisk, data: Path
) -> None:
    write(data / "a", b"1", is_synced=True, name_too=True)
    (data / "a").unlink()
    assert same(left(disk, data), {}, {"a": b"1"})
    write(data / "a", b"other", is_synced=True)
    assert same(left(disk, data), {}, {"a": b"1"}, {"a": b"other"})
    sync_directory(data)
    assert left(disk, data) == [{"a": b"other"}]


def test_a_removed_directory_comes_back_with_any_of_its_files(disk: SimulatedDisk, data: Path) -> None:
    make_directory(data / "log")
    for name in ("a", "b"):
        write(data / "log" / name, b"1", is_synced=True, name_too=True)
    shutil.rmtree(data / "log")
    found = left(disk, data)
    assert {} in found
    assert {"log": None} in found
    assert {"log": None, "log/a": b"1"} in found
    assert {"log": None, "log/a": b"1", "log/b": b"1"} in found
    sync_directory(data)
    assert left(disk, data) == [{}]


def test_a_file_that_was_synced_is_lost_with_a_directory_that_was_not(
    disk: SimulatedDisk, data: Path
) -> None:
    (data / "log").mkdir()
    write(data / "log/a", b"1", is_synced=True, name_too=True)
    assert same(left(disk, data), {}, {"log": None, "log/a": b"1"})


def test_hard_links_are_two_names_of_one_file(disk: SimulatedDisk, data: Path) -> None:
    write(data / "a", b"1", is_synced=True, name_too=True)
    os.link(data / "a", data / "b")
    (data / "a").unlink()
    assert same(left(disk, data), {"a": b"1"}, {"a": b"1", "b": b"1"}, {"b": b"1"}, {})
    sync_directory(data)
    os.link(data / "b", data / "c")
    sync_directory(data)
    disk.power_lost(data, data.parent / "after", random.Random(1))
    assert (data.parent / "after/b").samefile(data.parent / "after/c")


def test_a_state_file_is_the_old_or_the_new_one_at_each_step(
    disk: SimulatedDisk, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product's own order of write, sync, rename and sync, cut at each of them."""
    old, new = {"is": "old"}, {"is": "new"}
    state = StateFile(data / "state")
    state.save(old)
    steps = 0
    chance = random.Random(1)

    def step(call: Callable[..., None]) -> Callable[..., None]:
        def called(*given: object) -> None:
            nonlocal steps
            steps += 1
            for number in range(20):
                place = data.parent / f"{steps}.{number}"
                disk.power_lost(data, place, chance)
                assert StateFile(place / "state").load() in (old, new)
            call(*given)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", step(os.fsync))
        patch.setattr(os, "rename", step(os.rename))
        state.save(new)
    assert steps == 3
    assert left(disk, data) == [{"state": (data / "state").read_bytes()}]


def test_a_syncfs_makes_all_below_its_directory_durable_and_nothing_else(
    disk: SimulatedDisk, data: Path
) -> None:
    other = data.parent / "other"
    make_directory(other)
    for directory in (data, other):
        (directory / "log").mkdir()
        write(directory / "log/a", b"1")
    system = sync.FileSystem(data)
    try:
        system.sync([])
    finally:
        system.close()
    assert left(disk, data) == [{"log": None, "log/a": b"1"}]
    assert {} in left(disk, other)


def test_a_copy_is_as_durable_as_what_was_copied(disk: SimulatedDisk, data: Path) -> None:
    write(data / "gone", b"1", is_synced=True, name_too=True)
    (data / "gone").unlink()
    write(data / "a", b"1", is_synced=True)
    expected = left(disk, data)
    assert len(expected) == 4
    for number in range(2):
        disk.copy(data, data.parent / f"copy{number}")
        data = data.parent / f"copy{number}"
        assert tree(data) == {"a": b"1"}
        assert same(left(disk, data), *expected)
    sync_directory(data)
    assert left(disk, data) == [{"a": b"1"}]
    assert same(left(disk, data.parent / "copy0"), *expected)


def test_after_a_loss_what_is_left_is_durable(disk: SimulatedDisk, data: Path) -> None:
    write(data / "a", b"1" * 3 * PAGE_BYTES, name_too=True)
    after = data.parent / "after"
    disk.power_lost(data, after, random.Random(1))
    assert left(disk, after) == [tree(after)]


def test_a_torn_file_has_what_was_synced_and_of_the_rest_pages_or_zeros() -> None:
    chance = random.Random(1)
    synced = b"s" * (PAGE_BYTES + 10)
    now = synced + b"n" * 3 * PAGE_BYTES
    found = {content_after_loss(synced, now, chance) for _ in range(2000)}
    assert {synced, now} < found
    holes = 0
    for octets in found:
        assert octets.startswith(synced)
        assert len(octets) <= len(now)
        for page in range(0, len(octets), PAGE_BYTES):
            piece = octets[page : page + PAGE_BYTES]
            assert set(piece) <= set(b"sn") or set(piece) <= set(b"s\0")
            holes += not any(piece)
    assert holes


def test_a_loss_repeats_with_its_seed(disk: SimulatedDisk, data: Path) -> None:
    for number in range(20):
        write(data / f"{number}", random.Random(number).randbytes(2 * PAGE_BYTES), is_synced=number % 2 == 0)
    sync_directory(data)
    for number in range(10):
        (data / f"{number}").rename(data / f"r{number}")
    states = []
    for number, seed in enumerate((1, 1, 2)):
        disk.power_lost(data, data.parent / f"once{number}", random.Random(seed))
        states.append(tree(data.parent / f"once{number}"))
    assert states[0] == states[1] != states[2]


def test_a_bit_that_flips_at_rest_is_durable(disk: SimulatedDisk, data: Path) -> None:
    write(data / "a", bytes(10), is_synced=True, name_too=True)
    write(data / "kept", bytes(1000), is_synced=True, name_too=True)
    path, place = disk.flip_bit(data, random.Random(1), lambda path: path.name == "a") or (None, 0)
    assert path == data / "a"
    octets = path.read_bytes()
    assert octets[:place] + octets[place + 1 :] == bytes(9)
    assert octets[place].bit_count() == 1
    assert left(disk, data) == [{"a": octets, "kept": bytes(1000)}]
    assert disk.flip_bit(data, random.Random(1), lambda path: False) is None

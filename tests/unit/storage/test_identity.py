"""Segments name their log and what is before them, and a log says where it begins: a start and a scrub compare."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import Corrupt
from leveret.storage.begin import begin_of
from leveret.storage.inspection.scrub import Scrub
from leveret.storage.log import Log
from leveret.wire.chunk import (
    Attribute,
    Chunk,
    Header,
    decode_trailer,
    encode_attribute,
    encode_trailer,
    log_of_trailer,
    verify,
    with_log,
)
from tests.unit.storage.logs import SIZES, append, append_often, contents, make, scratch

NAME = "queues/0000000000000007"


def named(directory: Path, name: str = NAME) -> Log:
    return make(directory, name=name)


def filled(directory: Path, sizes: list[int], name: str = NAME) -> Log:
    log = named(directory, name).open()
    for size in sizes:
        append(log, size, 2)
    log.sync()
    return log


def found_by_scrub(directory: Path, name: str = NAME) -> list[str]:
    return [damage.what for damage in Scrub(directory, None, name=name)]


def found_at_start(directory: Path, *, with_messages: bool) -> str:
    try:
        named(directory).open(with_messages=with_messages).close()
    except Corrupt as error:
        return str(error)
    return ""


def sealed(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


@given(SIZES, st.integers(0, 30), st.booleans())
def test_a_log_that_was_appended_to_and_dropped_from_is_its_own(
    sizes: list[int], drop_before: int, restarts: bool
) -> None:
    with scratch() as directory:
        log = named(directory).open()
        for at, size in enumerate(sizes):
            append(log, size, 2)
            if restarts and at % 3 == 2:
                log.close()
                log = named(directory).open()
        log.sync()
        log.drop_before(drop_before)
        assert begin_of(directory) == log.first_offset
        held = contents(log)
        log.close()
        assert found_by_scrub(directory) == []
        again = named(directory).open()
        assert contents(again) == held
        again.close()


def test_every_first_chunk_names_the_log_and_the_chunk_before_it(tmp_path: Path) -> None:
    log = filled(tmp_path, [90] * 6)
    said = [log_of_trailer(chunk.trailer) for chunk in log.read(0, 1 << 20, check=True)]
    names = [each[0] for each in said if each]
    assert names == [NAME] * len(sealed(tmp_path))
    seals = [each[1] for each in said if each]
    assert seals[0] == 0
    assert len(set(seals)) == len(seals)


@pytest.mark.parametrize("with_messages", [True, False])
@pytest.mark.parametrize("drops", [0, 4])
def test_an_oldest_segment_that_is_gone_is_missed(tmp_path: Path, drops: int, with_messages: bool) -> None:
    log = filled(tmp_path, [90] * 12)
    log.drop_before(drops)
    first = log.first_offset
    log.close()
    gone, left = sealed(tmp_path)[:2]
    gone.unlink()
    missing = f"offsets {first} to {int(left.name[:20]) - 1} are missing"
    assert missing in found_at_start(tmp_path, with_messages=with_messages)
    assert found_by_scrub(tmp_path) == [
        f"the log is to begin at offset {first}: segments in front of this one were removed"
    ]


@pytest.mark.parametrize("with_messages", [True, False])
@pytest.mark.parametrize("index", [0, 1, -1])
def test_a_segment_of_another_log_is_told(tmp_path: Path, index: int, with_messages: bool) -> None:
    filled(tmp_path / "one", [90] * 6).close()
    filled(tmp_path / "two", [90] * 6, "queues/0000000000000008").close()
    shutil.copy(sealed(tmp_path / "two")[index], sealed(tmp_path / "one")[index])
    fault = f"this segment belongs to log queues/0000000000000008, and is in the directory of log {NAME}"
    assert fault in found_at_start(tmp_path / "one", with_messages=with_messages)
    assert fault in found_by_scrub(tmp_path / "one")


def test_a_segment_that_follows_another_chunk_is_told(tmp_path: Path) -> None:
    filled(tmp_path / "one", [90] * 6).close()
    # As many records, other octets.
    filled(tmp_path / "two", [80, 100, *[90] * 4]).close()
    shutil.copy(sealed(tmp_path / "two")[1], sealed(tmp_path / "one")[1])
    assert "this segment does not follow chunk 2" in found_at_start(tmp_path / "one", with_messages=True)
    assert "this segment does not follow chunk 2, which is before it" in found_by_scrub(tmp_path / "one")


def test_a_crash_between_the_new_begin_and_the_drop_leaves_a_log_that_opens(tmp_path: Path) -> None:
    log = filled(tmp_path, [90] * 12)
    shutil.copytree(tmp_path, tmp_path.with_name("before"))
    log.drop_before(8)
    begin = log.first_offset
    log.close()
    before = tmp_path.with_name("before")
    (before / f"{0:020d}.begin").rename(before / f"{begin:020d}.begin")
    crashed = named(before).open()
    assert (crashed.first_offset, begin_of(before)) == (0, 0)
    crashed.close()


def test_a_log_that_begins_later_says_so_from_its_first_chunk_on(tmp_path: Path) -> None:
    log = named(tmp_path).open(first_offset=40)
    append(log, 90)
    log.close()
    assert begin_of(tmp_path) == 40
    assert named(tmp_path).open().first_offset == 40


def test_a_log_from_before_there_were_names_is_taken_as_it_is(tmp_path: Path) -> None:
    old = make(tmp_path).open()
    for _ in range(6):
        append(old, 90)
    old.sync()
    old.drop_before(2)
    old.close()
    assert begin_of(tmp_path) is None
    log = named(tmp_path).open()
    assert begin_of(tmp_path) == log.first_offset == 2
    append_often(log, 3, 90)
    held = contents(log)
    log.close()
    assert contents(named(tmp_path).open()) == held
    assert found_by_scrub(tmp_path) == []


def test_a_file_that_somebody_removed_is_not_made_anew(tmp_path: Path) -> None:
    log = filled(tmp_path, [20])
    log.close()
    (path,) = sealed(tmp_path)
    path.unlink()
    with pytest.raises(Corrupt, match="removed, moved or exchanged"):
        append(log, 20)
    assert not sealed(tmp_path)


def test_what_was_synced_into_a_file_that_is_gone_is_not_reported_as_synced(tmp_path: Path) -> None:
    log = filled(tmp_path, [20])
    append(log, 20)
    synced = log.synced_offset
    (path,) = sealed(tmp_path)
    path.unlink()
    with pytest.raises(Corrupt, match="removed, moved or exchanged"):
        log.sync()
    assert log.synced_offset == synced


@given(st.binary(max_size=8), st.integers(0, (1 << 64) - 1))
def test_a_trailer_keeps_what_else_it_says(name: bytes, value: int) -> None:
    plain = encode_trailer(encode_attribute(Attribute.SEQUENCE, name, value))
    for trailer in (b"", plain):
        more = with_log(trailer, NAME, 9)
        assert list(decode_trailer(more)) == [(Attribute.LOG, NAME.encode(), 9), *decode_trailer(trailer)]
        verify(Chunk(Header(0, 0, 0, 0, 0, 0, 0, 0, len(more)), b"", more))

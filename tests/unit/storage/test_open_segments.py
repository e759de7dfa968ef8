"""The bound on open segments: it holds, nothing is read from another file, and nothing unsynced is closed unheard."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.log import Log
from leveret.storage.open_segments import OpenSegments, OutOfDescriptors
from leveret.storage.segment import Segment
from leveret.storage.sync import sync_and_close
from leveret.wire.chunk import ChunkType

SEGMENT_BYTES = 300


def logs_in(folder: Path, count: int, open_segments: OpenSegments) -> list[Log]:
    return [
        Log(
            folder / str(number), epoch=1, segment_bytes_max=SEGMENT_BYTES, open_segments=open_segments
        ).open()
        for number in range(count)
    ]


def append(log: Log, body: bytes) -> None:
    log.append(ChunkType.USER, 1, 1, body, 0)


def bodies(log: Log) -> list[bytes]:
    return [bytes(chunk.data) for chunk in log.read(0, 2**30, check=True)]


@pytest.mark.parametrize("count_max", [1, 2, 5])
def test_many_logs_that_are_written_and_read_in_any_order_keep_to_the_bound(
    tmp_path: Path, count_max: int
) -> None:
    chance = random.Random(count_max)
    held = OpenSegments(count_max)
    logs = logs_in(tmp_path, 7, held)
    expected: list[list[bytes]] = [[] for _ in logs]
    for step in range(400):
        number = chance.randrange(len(logs))
        log = logs[number]
        match chance.randrange(6):
            case 0:
                assert bodies(log) == expected[number]
            case 1:
                log.sync()
            case 2 if expected[number]:
                dropped = log.first_offset
                log.drop_before(chance.randrange(log.next_offset + 1))
                del expected[number][: log.first_offset - dropped]
            case _:
                body = f"{number}:{step}".encode() * 4
                append(log, body)
                expected[number].append(body)
        opened = sum(segment.has_fd for each in logs for segment in each._segments)
        assert opened == len(held) <= count_max
    for number, log in enumerate(logs):
        log.close()
        again = Log(log.directory, epoch=1).open()
        assert bodies(again) == expected[number]
    assert len(held) == 0


def test_readers_of_many_logs_at_once_each_read_their_own(tmp_path: Path) -> None:
    held = OpenSegments(2)
    logs = logs_in(tmp_path, 5, held)
    for number, log in enumerate(logs):
        for step in range(20):
            append(log, f"{number}:{step}".encode().ljust(100))
    readers = [log.read(0, 2**30, check=True) for log in logs]
    for step in range(20):
        for number, reader in enumerate(readers):
            assert bytes(next(reader).data).split() == [f"{number}:{step}".encode()]
    assert len(held) <= 2


def test_a_segment_that_is_not_synced_is_closed_after_an_fdatasync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = logs_in(tmp_path, 2, OpenSegments(1))
    append(first, b"x")
    file = os.fstat(first._segments[0].fd()).st_ino
    synced: list[int] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    append(second, b"y")
    assert synced == [file]
    assert first.synced_offset == 0
    sync_and_close(first.unsynced())
    first.synced()
    assert first.synced_offset == 1


def test_what_that_fdatasync_finds_wrong_is_never_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another descriptor of the file would hear of nothing, and what is lost would be promised."""
    first, second = logs_in(tmp_path, 2, OpenSegments(1))
    append(first, b"x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda fd: fail(errno.EIO))
        append(second, b"y")
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be synced") as refused:
            first.unsynced()
        assert not isinstance(refused.value, OutOfDescriptors)
    second.sync()
    assert second.synced_offset == 1


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_clean_segments_go_before_those_that_an_fdatasync_is_due_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, dirty, third = logs_in(tmp_path, 3, OpenSegments(2))
    append(clean, b"x")
    clean.sync()
    append(dirty, b"y")
    assert bodies(clean) == [b"x"]
    monkeypatch.setattr(os, "fdatasync", lambda fd: pytest.fail("nothing needs a sync"))
    append(third, b"z")
    assert (clean.has_descriptors, dirty.has_descriptors) == (False, True)


def test_when_the_system_has_no_descriptor_others_are_closed_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = OpenSegments()
    logs = logs_in(tmp_path, 5, held)
    for log in logs[:4]:
        append(log, b"x")
        log.sync()
    real = os.open

    def scarce(path: Path, flags: int, mode: int = 0o777) -> int:
        if len(held) >= 4:
            fail(errno.EMFILE)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    append(logs[4], b"y")
    assert bodies(logs[4]) == [b"y"]
    assert all(bodies(log) == [b"x"] for log in logs[:4])


def test_that_there_is_no_descriptor_is_told_from_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = logs_in(tmp_path, 1, OpenSegments())
    append(log, b"x")
    monkeypatch.setattr(os, "dup", lambda fd: fail(errno.EMFILE))
    with pytest.raises(OutOfDescriptors):
        log.unsynced()
    monkeypatch.undo()
    log.sync()
    assert log.synced_offset == 1


def test_a_log_that_cannot_be_opened_keeps_no_descriptor_and_is_not_open(tmp_path: Path) -> None:
    """A damaged log is tried again every few seconds: each try kept a descriptor, until the node had none left."""
    (log,) = logs_in(tmp_path, 1, OpenSegments())
    append(log, b"x")
    append(log, b"y")
    log.sync()
    log.close()
    segment = next(log.directory.glob("*.segment"))
    octets = bytearray(segment.read_bytes())
    octets[3] ^= 0xFF
    segment.write_bytes(bytes(octets) * 2)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        damaged = Log(log.directory, epoch=1)
        with pytest.raises(Corrupt):
            damaged.open()
        assert not damaged.is_open
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_log_that_cannot_be_opened_for_want_of_a_descriptor_is_not_damaged(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = logs_in(tmp_path, 1, OpenSegments())
    append(log, b"x")
    log.sync()
    log.close()
    again = Log(log.directory, epoch=1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *args, **more: fail(number))
        with pytest.raises(StorageError, match="cannot be opened") as refused:
            again.open()
    assert type(refused.value) is (StorageError if number == errno.EIO else OutOfDescriptors)
    assert bodies(again.open()) == [b"x"]
    again.close()


class Owner:
    """The owner of segments that are all due; counts how often the bound asks."""

    def __init__(self) -> None:
        self.asked = 0

    def is_due(self, segment: Segment) -> bool:
        self.asked += 1
        return True

    def sync_and_close(self, segment: Segment) -> None:
        segment.close()


def test_a_segment_opened_at_the_bound_does_not_cost_a_look_at_all_that_are_open(tmp_path: Path) -> None:
    held, owner, count_max = OpenSegments(640), Owner(), 640
    for number in range(count_max):
        held.open(owner, Segment(tmp_path, number))
    owner.asked = 0
    for number in range(count_max, 2 * count_max):
        held.open(owner, Segment(tmp_path, number))
        assert len(held) <= count_max
    # Each one looked at each that was open, twice: 819,200 questions for 640 segments.
    assert owner.asked <= 160 * count_max
    held.close_all_but(0)

"""What waits at a delayed follower: it comes back as it was, and what is applied goes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from isal.isal_zlib import crc32

from leveret.model.errors import Corrupt, StorageError
from leveret.storage.quarantine.quarantine import Quarantine
from leveret.storage.quarantine.report import chunks_of, reports
from leveret.storage.spool import JOINED, JOINING, Note, Spool, SpoolEntry, Waiting
from leveret.wire.chunk import ChunkType, Header, encode_entry, encode_header
from leveret.wire.link import ChangeKind

QUEUE = "queues/0000000000000001"


def chunk(first: int, records: int = 1, epoch: int = 1) -> bytes:
    data = encode_entry(b"%d of epoch %d" % (first, epoch)) * records
    header = Header(ChunkType.USER, records, records, 1, epoch, first, crc32(data), len(data), 0)
    return encode_header(*header) + data


def append_of(first: int, epoch: int = 1, previous: int = -1) -> SpoolEntry:
    return SpoolEntry(ChangeKind.APPEND, QUEUE, 0, chunk(first, epoch=epoch), previous)


def opened(directory: Path) -> tuple[Spool, list[Waiting]]:
    spool, waiting = Spool(directory, segment_bytes_max=1000), list[Waiting]()
    spool.open(waiting.append)
    return spool, waiting


def filled(directory: Path, frames: int = 40) -> Spool:
    spool, _ = opened(directory)
    for frame in range(frames):
        spool.append([append_of(2 * frame), append_of(2 * frame + 1)], 1000 + frame)
    spool.log.sync()
    return spool


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    dice = random.Random(7)
    kinds = [*(kind for kind in ChangeKind if kind is not ChangeKind.NAME), JOINING, JOINED]
    frames = [
        [
            SpoolEntry(
                dice.choice(kinds),
                "é" * dice.randint(0, 300),
                dice.getrandbits(64),
                dice.randbytes(9),
                previous,
            )
            for previous in range(-1, dice.randint(0, 5))
        ]
        for _ in range(50)
    ]
    spool, _ = opened(tmp_path)
    for number, entries in enumerate(frames):
        spool.append(entries, number)
    spool.log.sync()
    spool.close()
    spool, waiting = opened(tmp_path)
    assert [(each.at_ms, each.entries) for each in waiting] == list(enumerate(frames))
    assert list(spool.all_from(0)) == waiting
    every = [entry for entries in frames for entry in entries]
    for offset in dice.sample(range(len(every)), 30):
        assert spool.entry_at(offset) == every[offset]
    spool.close()


def test_what_is_applied_goes_a_segment_at_a_time(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    spool.save(Note(61, 1030))
    assert 0 < spool.log.first_offset <= 61
    spool.close()
    spool, waiting = opened(tmp_path)
    assert (waiting[0].first, len(waiting[0].entries), waiting[0].at_ms) == (61, 1, 1030)
    assert (spool.end, sum(len(each.entries) for each in waiting), spool.note.at_ms) == (80, 19, 1030)
    spool.close()


def test_after_a_power_cut_that_took_what_was_applied_it_goes_on_behind_that(tmp_path: Path) -> None:
    spool = filled(tmp_path, 2)
    spool.save(Note(9, 1))
    spool.close()
    spool, waiting = opened(tmp_path)
    assert (spool.end, waiting) == (9, [])
    spool.append([append_of(4)], 5)
    spool.log.sync()
    spool.close()
    spool, waiting = opened(tmp_path)
    assert [(each.first, each.at_ms) for each in waiting] == [(9, 5)]
    spool.close()


def test_of_a_removal_that_was_broken_off_nothing_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = filled(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(
            Spool, "_unlink", lambda spool: next(iter(spool.directory.glob("*.segment"))).unlink()
        )
        patched.setattr("shutil.rmtree", lambda directory: None)
        spool.remove()
    spool, waiting = opened(tmp_path)
    assert (spool.exists, waiting) == (True, [])
    spool.remove()
    assert not spool.exists


def test_a_torn_end_is_cut_off_and_damage_before_it_is_told(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    spool.close()
    [path] = (tmp_path / "delayed").glob("*.segment")
    octets = path.read_bytes()
    path.write_bytes(octets[:-3])
    spool, waiting = opened(tmp_path)
    assert (spool.end, len(waiting)) == (4, 2)
    spool.close()
    path.write_bytes(octets[:100] + bytes((octets[100] ^ 1,)) + octets[101:])
    with pytest.raises(Corrupt):
        opened(tmp_path)


def test_a_log_of_something_else_is_no_spool(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    spool.log.append(ChunkType.USER, 1, 1, encode_entry(b"a message"), 1)
    spool.log.sync()
    with pytest.raises(Corrupt, match="holds no changes of a leader"):
        spool.read(0)
    spool.close()


def test_a_damaged_note_is_told(tmp_path: Path) -> None:
    spool = filled(tmp_path)
    spool.save(Note(3, 1))
    spool.close()
    (tmp_path / "delayed" / "applied.json").write_text('{"applied": "all"}')
    with pytest.raises(StorageError, match=r"applied\.json"):
        opened(tmp_path)


def quarantine(data_dir: Path, logs_dir: Path) -> Quarantine:
    return Quarantine(
        data_dir,
        at_ms=1_700_000_000_000,
        from_epoch=1,
        to_epoch=3,
        node_id="n",
        leader_id="n",
        leader_uri="",
        name_of={QUEUE: ("/", "q")}.get,
        logs_dir=logs_dir,
    )


def test_what_is_set_aside_can_be_read_as_any_divergent_log(tmp_path: Path) -> None:
    """Its leader was replaced while it waited: offset 2 is there twice."""
    spool, _ = opened(tmp_path)
    spool.append([append_of(0), append_of(1)], 1)
    spool.append(
        [
            append_of(2),
            SpoolEntry(ChangeKind.DROP, QUEUE, 1),
            SpoolEntry(ChangeKind.FILE, "standby.json", 0, b"{}"),
        ],
        2,
    )
    spool.append([SpoolEntry(ChangeKind.CUT, QUEUE, 2), append_of(2, epoch=2), append_of(3, epoch=2)], 3)
    spool.log.sync()

    found = spool.quarantine(1, partial(quarantine, tmp_path))
    assert found is not None
    kept = [
        (log.queue, [bytes(each.data) for each in chunks_of(tmp_path, report.id, log, ChunkType.USER)])  # type: ignore[union-attr]
        for report in reports(tmp_path)
        for log in report.logs
    ]
    bodies = [b"1 of epoch 1", b"2 of epoch 1", b"2 of epoch 2", b"3 of epoch 2"]
    assert kept == [("q", [*map(encode_entry, bodies[:2])]), ("q", [*map(encode_entry, bodies[2:])])]
    assert all(report.is_finished for report in reports(tmp_path))
    spool.remove()
    assert len(reports(tmp_path)) == 2


def test_where_no_chunk_waits_nothing_is_set_aside(tmp_path: Path) -> None:
    spool, _ = opened(tmp_path)
    spool.append([SpoolEntry(ChangeKind.DROP, QUEUE, 1)], 1)
    assert spool.quarantine(0, partial(quarantine, tmp_path)) is None
    assert not (tmp_path / "divergent").exists()
    spool.close()

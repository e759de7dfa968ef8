"""runtime.cluster.stream_replicas: a copy of a stream as its readers see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.core.queues.stream import first_wanted
from leveret.model.errors import LedElsewhere
from leveret.model.stream import OffsetSpec, OffsetType
from leveret.runtime.cluster.stream_replicas import ReplicaLog
from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType, Header, encode_entry

GONE = LedElsewhere("it has another leader")


def append(log: Log, kind: int = ChunkType.USER, records: int = 3) -> Header:
    data = b"".join([encode_entry(b"m")] * records)
    return log.append(kind, records, records, data, 1000)


def test_a_replica_serves_what_is_committed_and_no_more(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", epoch=1).open()
    append(log)
    replica = ReplicaLog(log, 0, ended=GONE)
    calls: list[int] = []
    replica.on_commit(lambda: calls.append(replica.committed_offset))
    assert (replica.committed_offset, replica.last_chunk_id, replica.read(0, 1000)) == (0, -1, [])
    replica.delivered(3)
    assert (replica.committed_offset, replica.last_chunk_id, len(replica.read(0, 1000))) == (3, 0, 1)
    # The leader may have committed more than has come here yet.
    replica.delivered(9)
    replica.appended(append(log))
    assert (replica.committed_offset, replica.last_chunk_id) == (6, 3)
    replica.appended(append(log))
    replica.appended(append(log))
    assert (replica.committed_offset, replica.last_chunk_id) == (9, 6)
    replica.appended(append(log, ChunkType.TRACKING, 1))
    # It has more here than the leader has committed.
    replica.delivered(12)
    assert (replica.committed_offset, replica.last_chunk_id, len(replica.read(9, 1000))) == (12, 9, 1)
    replica.delivered(13)
    assert (replica.committed_offset, replica.last_chunk_id) == (13, 9)
    assert calls == [3, 6, 9, 12, 13]
    replica.end()
    with pytest.raises(LedElsewhere):
        replica.read(0, 1000)
    log.close()


def test_a_replica_that_is_opened_late_begins_with_what_is_known_to_be_committed(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", epoch=1).open()
    for _ in range(4):
        append(log)
    replica = ReplicaLog(log, 6, ended=GONE)
    assert (replica.committed_offset, replica.last_chunk_id, replica.last_appended_id) == (6, 3, 9)
    log.close()


@pytest.mark.parametrize(("asked", "begins"), [(2, 2), (6, 6), (7, 7), (500, 500)])
def test_a_reader_at_a_replica_waits_for_an_offset_that_has_not_come_here_yet(
    tmp_path: Path, asked: int, begins: int
) -> None:
    """The replica may only be late, and at the next one, or the leader, the reader would go back."""
    log = Log(tmp_path / "log", epoch=1).open()
    for _ in range(2):
        append(log)
    replica = ReplicaLog(log, 6, ended=GONE)
    assert first_wanted(replica, OffsetSpec(OffsetType.OFFSET, asked)) == begins
    log.close()

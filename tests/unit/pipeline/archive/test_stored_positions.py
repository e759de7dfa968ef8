"""The stored positions of a stream that moved between nodes of an upstream cluster, each of which has its own log."""

from __future__ import annotations

from pathlib import Path

from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.stored_positions import stored_positions_at
from leveret.testing.sites.standby_upstream import FakeOutgoingLog, stored_message
from leveret.wire.chunk import Attribute, ChunkType
from leveret.wire.log_name import log_name

A, B = "a@x#11111111", "b@x#22222222"


class Leader:
    """What one node collects of stream st, with publisher p and reader r, and of a queue."""

    def __init__(self, label: str, manifest: Manifest) -> None:
        self._label = label
        self._manifest = manifest
        self._log = FakeOutgoingLog()
        self._chunks: list[bytes] = []

    def entry(self, offset: int, at_ms: int, *, last_id: int, read: int, epoch: int = 7) -> None:
        positions = [(Attribute.SEQUENCE, b"p", last_id), (Attribute.OFFSET, b"r", read)]
        bodies = [stored_message(b"m")]
        self._chunks.append(
            self._log.append_copy("st", epoch, offset, bodies, ChunkType.USER, at_ms, "stream", positions)
        )

    def other_queue(self, at_ms: int) -> None:
        self._chunks.append(self._log.append_copy("q", 9, 0, [stored_message(b"m")], ChunkType.USER, at_ms))

    def store(self) -> None:
        file = store_range(self._manifest.data_dir, "v", self._chunks, node=self._label, is_of_cluster=True)
        assert file is not None
        self._manifest.append([file])
        self._chunks.clear()


def positions(data_dir: Path, as_of_ms: int | None = None) -> tuple[dict[bytes, int], dict[bytes, int]]:
    [found] = stored_positions_at(Manifest(data_dir), "v", as_of_ms).values()
    return dict(found.sequences), dict(found.offsets)


def test_the_later_leaders_positions_count_whichever_file_is_the_later_one(tmp_path: Path) -> None:
    """The reader goes back by itself, too: what it stored last counts, not the highest offset."""
    manifest = Manifest(tmp_path)
    a, b = Leader(A, manifest), Leader(B, manifest)
    for offset in range(6):
        a.entry(offset, 1000 + offset, last_id=offset, read=offset)
    for offset in range(4, 10):
        b.entry(offset, 1000 + offset, last_id=offset, read=9 - offset)
    a.other_queue(2000)
    a.store()
    b.store()
    assert [file.node for file in manifest.files_of("v")] == [B, A]
    assert positions(tmp_path) == ({b"p": 9}, {b"r": 0})
    assert positions(tmp_path, as_of_ms=1003) == ({b"p": 3}, {b"r": 3})


def test_a_compaction_of_the_former_leaders_log_brings_no_position_back(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    a, b = Leader(A, manifest), Leader(B, manifest)
    a.entry(0, 1000, last_id=0, read=0)
    a.store()
    for offset in range(10):
        b.entry(offset, 2000 + offset, last_id=offset, read=offset)
    b.store()
    a.other_queue(3000)
    a.store()
    before = positions(tmp_path)
    files = manifest.files_of_log(log_name("v", A))
    manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
    assert positions(tmp_path) == before == ({b"p": 9}, {b"r": 9})


def test_a_stream_that_was_declared_again_begins_anew_at_its_low_offsets(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    a, b = Leader(A, manifest), Leader(B, manifest)
    a.entry(500, 1000, last_id=500, read=400)
    a.other_queue(3000)
    a.store()
    b.entry(0, 2000, last_id=1, read=0, epoch=8)
    b.store()
    assert positions(tmp_path) == ({b"p": 1}, {b"r": 0})

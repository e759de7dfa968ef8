from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from leveret.pipeline.archive import store as module
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.sweep import delete_orphans
from leveret.pipeline.archive.tables import read_table
from leveret.pipeline.files import files
from leveret.pipeline.files.files import Place, matching, name_in, opened, vhost_directory
from leveret.pipeline.files.objects import ObjectPath
from leveret.testing.sites.standby_upstream import StandbyUpstream, outgoing_chunk, stored_message
from leveret.wire.chunk import ChunkError, ChunkType


@pytest.fixture
def upstream() -> StandbyUpstream:
    upstream = StandbyUpstream()
    for turn in range(6):
        upstream.publish("/", "q", [stored_message(b"body%d" % (turn * 10 + i)) for i in range(10)])
        upstream.settle("/", f"q{turn % 2}", [(turn, 2)])
    return upstream


def test_a_range_becomes_a_table_and_a_sidecar(data_dir: Place, upstream: StandbyUpstream) -> None:
    chunks = upstream.logs["/"].read(0, 1 << 30)
    file = store_range(data_dir, "/", chunks)
    assert file is not None
    assert (file.first, file.next, file.records) == (0, 66, 66)
    assert file.path == "data/vhost-%2F/00000000000000000000-00000000000000000066.parquet"
    rows = pq.read_table(opened(data_dir / file.path), partitioning=None).to_pylist()
    bodies = [row["body"] for row in rows if row["kind"] == 0]
    assert bodies == [b"body%d" % i for i in range(60)]
    settled = [row for row in read_table(data_dir / file.settlements).to_pylist() if row["reason"] == 0]
    ranges = {(row["queue"], row["first"], row["count"]) for row in settled}
    assert ranges == {(f"q{first % 2}", first, 2) for first in range(6)}, "by time"
    assert file.bytes == sum(len((data_dir / name).read_bytes()) for name in (file.path, file.settlements))


def test_vhosts_have_directories_that_differ_and_that_any_file_system_takes() -> None:
    # The third is called as the digest of the second is.
    long = "ж" * 42
    names = ["", ".", long, vhost_directory(long).removeprefix("vhost-"), long + "ж", "a" * 249, "a" * 250]
    made = [vhost_directory(name) for name in names]
    assert len(set(made)) == len(names)
    assert max(map(len, made)) <= 255
    assert made[5] == "vhost-" + names[5], "what was stored before is found"


def test_a_vhost_is_stored_however_long_its_name_is(data_dir: Place) -> None:
    vhost = "ж" * 42
    upstream = StandbyUpstream([vhost])
    upstream.publish(vhost, "q", [stored_message(b"x")])
    file = store_range(data_dir, vhost, upstream.logs[vhost].read(0, 1 << 30))
    assert file is not None
    manifest = Manifest(data_dir)
    assert manifest.append([file]) == manifest.files() == [file]
    assert delete_orphans(manifest) == 0


def test_many_runs_make_one_file(
    data_dir: Place, upstream: StandbyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = upstream.logs["/"].read(0, 1 << 30)
    whole = store_range(data_dir / "whole", "/", chunks)
    monkeypatch.setattr(module, "RUN_BYTES_MAX", 300)
    pieces = store_range(data_dir / "pieces", "/", chunks)
    assert whole is not None
    assert pieces is not None
    tables = [
        pq.read_table(opened(data_dir / name / file.path), partitioning=None).to_pylist()
        for name, file in (("whole", whole), ("pieces", pieces))
    ]
    assert tables[0] == tables[1]
    assert whole.queues == pieces.queues


def test_what_comes_in_blocks_of_memory_is_stored_like_what_comes_piece_by_piece(
    data_dir: Place, upstream: StandbyUpstream
) -> None:
    chunks = upstream.logs["/"].read(0, 1 << 30)
    blocks = [np.frombuffer(b"".join(chunks[at : at + 3]), np.uint8) for at in range(0, len(chunks), 3)]
    views = []
    for block, at in zip(blocks, range(0, len(chunks), 3), strict=True):
        rest = block.data
        for chunk in chunks[at : at + 3]:
            views.append(rest[: len(chunk)])
            rest = rest[len(chunk) :]
    pieces = store_range(data_dir / "pieces", "/", chunks)
    in_blocks = store_range(data_dir / "blocks", "/", views)
    assert pieces is not None
    assert in_blocks is not None
    file = pq.ParquetFile(opened(data_dir / "blocks" / in_blocks.path))
    assert file.num_row_groups == len(blocks), "each decoded where it lies"
    expected = pq.ParquetFile(opened(data_dir / "pieces" / pieces.path))
    assert file.read().to_pylist() == expected.read().to_pylist()
    assert in_blocks.queues == pieces.queues


def test_storing_again_is_the_same_file(data_dir: Place, upstream: StandbyUpstream) -> None:
    chunks = upstream.logs["/"].read(0, 1 << 30)
    first = store_range(data_dir, "/", chunks)
    assert store_range(data_dir, "/", chunks) == first
    assert len(matching(data_dir, "data/*/*")) == 2


def test_nothing_to_store_leaves_nothing(tmp_path: Path) -> None:
    assert store_range(tmp_path, "/", []) is None
    assert not list(tmp_path.glob("**/*.parquet"))


def test_damage_leaves_no_file(tmp_path: Path) -> None:
    good = outgoing_chunk(0, "q", 1, 0, [stored_message(b"a")], ChunkType.USER, 1)
    with pytest.raises(ChunkError):
        store_range(tmp_path, "/", [good, good])
    assert not [path for path in tmp_path.glob("data/**/*") if path.is_file()]


def test_orphans_are_deleted_and_the_rest_is_kept(
    data_dir: Place, upstream: StandbyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = upstream.logs["/"].read(0, 1 << 30)
    kept, orphan = store_range(data_dir, "/", chunks[:4]), store_range(data_dir, "/", chunks[4:])
    assert kept is not None
    assert orphan is not None
    torn = data_dir / "data" / "vhost-%2F" / "123-abc.tmp"
    torn.write_bytes(b"")
    manifest = Manifest(data_dir)
    manifest.append([kept])
    if isinstance(data_dir, ObjectPath):
        assert delete_orphans(manifest) == 0, "another machine may be about to record them"
        monkeypatch.setattr(files, "ORPHAN_AGE_S", -3600.0)
    assert delete_orphans(manifest) == 3
    left = {name_in(data_dir, path) for path in matching(data_dir, "data/*/*")}
    assert left == {kept.path, kept.settlements}

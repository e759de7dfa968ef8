from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive.browse import archived_messages
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from leveret.wire.log_name import log_name
from tests.unit.pipeline.archive.test_logs_of_nodes import A, B, Node


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three files of vhost `/`: of queue q five messages each, with one of each turn settled, and one of queue p."""
    upstream = StandbyUpstream(["/"])
    for turn in range(3):
        bodies = [stored_message(b"%d-%d" % (turn, at), b"ex", b"\xff") for at in range(5)]
        upstream.publish("/", "q", bodies)
        upstream.publish("/", "p", [stored_message(b"other", b"", b"p")])
        upstream.settle("/", "q", [(turn, 1)])
    manifest = Manifest(tmp_path)
    [log] = upstream.logs.values()
    for chunk in log.read(0, 1 << 30):
        file = store_range(tmp_path, "/", [chunk])
        assert file is not None
        manifest.append([file])
    return tmp_path


def look(data_dir: Path, queue: str = "q", **changes: Any) -> list[dict[str, Any]]:
    wanted: dict[str, Any] = {"from_ms": 0, "count": 100, "body_bytes_max": 100} | changes
    return archived_messages(data_dir, "/", queue, **wanted)


def bodies(rows: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(row["body"]) for row in rows]


def test_messages_of_a_queue_come_in_their_order_and_say_whether_they_are_settled(data_dir: Path) -> None:
    rows = look(data_dir)
    assert bodies(rows) == [b"%d-%d" % (turn, at) for turn in range(3) for at in range(5)]
    assert [row["offset"] for row in rows if row["settled"]] == [0, 1, 2]
    assert base64.b64decode(rows[0]["routing_key"]) == b"\xff"
    assert bodies(look(data_dir, "p")) == [b"other"] * 3
    assert look(data_dir, "never") == []


def test_they_come_from_a_moment_on_and_no_more_than_were_asked_for(data_dir: Path) -> None:
    moments = sorted({row["timestamp_ms"] for row in look(data_dir)})
    assert len(moments) == 3
    assert bodies(look(data_dir, from_ms=moments[1], count=7)) == [
        *(b"1-%d" % at for at in range(5)), b"2-0", b"2-1",
    ]  # fmt: skip
    assert look(data_dir, from_ms=moments[-1] + 1) == []


@pytest.mark.parametrize("count", [3, 7, 9])
def test_what_was_collected_twice_is_in_nobodys_place(tmp_path: Path, count: int) -> None:
    upstream = StandbyUpstream(["/"])
    upstream.publish("/", "q", [stored_message(b"%d" % at) for at in range(5)])
    upstream.copy_again("/", "q", 5)
    upstream.publish("/", "q", [stored_message(b"%d" % at) for at in range(5, 9)])
    [log] = upstream.logs.values()
    file = store_range(tmp_path, "/", log.read(0, 1 << 30))
    assert file is not None
    Manifest(tmp_path).append([file])
    assert file.records == 14
    assert bodies(look(tmp_path, count=count)) == [b"%d" % at for at in range(count)]


def test_what_a_compacted_file_settles_in_another_nodes_log_is_settled(tmp_path: Path) -> None:
    """Node B led before; node A has copied the queue, settled two messages, and its log was compacted."""
    manifest, a, b = Manifest(tmp_path), Node(A, tmp_path), Node(B, tmp_path)
    b.messages(0, range(4))
    b.store(manifest)
    a.messages(0, range(4))
    a.settle(4, (0, 2))
    a.store(manifest)
    files = manifest.files_of_log(log_name("v", A))
    manifest.append([compact(tmp_path, files)], removed=[file.path for file in files])
    rows = archived_messages(tmp_path, "v", "q", from_ms=0, count=10, body_bytes_max=10)
    assert {row["offset"] for row in rows if row["settled"]} == {0, 1}
    assert {row["offset"] for row in rows if not row["settled"]} == {2, 3}


def test_a_large_body_is_cut_and_its_size_is_told(data_dir: Path) -> None:
    [row] = look(data_dir, count=1, body_bytes_max=2)
    assert (base64.b64decode(row["body"]), row["body_bytes"]) == (b"0-", 3)


def test_a_file_that_is_gone_is_named(data_dir: Path) -> None:
    gone = data_dir / Manifest(data_dir).files()[0].path
    gone.unlink()
    with pytest.raises(StorageError, match=gone.name):
        look(data_dir)

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.inspect import count_messages
from leveret.pipeline.look import look
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.store import store_range
from leveret.testing.standby_upstream import StandbyUpstream, stored_message


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    upstream = StandbyUpstream(["/", "b"])
    for turn in range(3):
        upstream.publish("/", "q", [stored_message(b"x", b"ex", b"k%d" % (turn % 2))] * 5)
        upstream.settle("/", "q", [(turn, 1)])
    upstream.publish("b", "p", [stored_message(b"y", b"", b"\xff")])
    manifest = Manifest(tmp_path)
    for vhost, log in upstream.logs.items():
        for chunk in log.read(0, 1 << 30):
            file = store_range(tmp_path, vhost, [chunk])
            assert file is not None
            manifest.append([file])
    return tmp_path


def test_looking_counts_by_queue_and_by_vhost(data_dir: Path) -> None:
    found = look(data_dir)
    base = 1_700_000_000_000
    assert found["queues"] == [
        {"queue": "q", "vhost": "/", "timestamp": base + 5, "messages": 15, "settled": 3},
        {"queue": "p", "vhost": "b", "timestamp": base + 6, "messages": 1, "settled": 0},
    ]
    assert [(row["vhost"], row["files"], row["records"], row["transferred"]) for row in found["vhosts"]] == [
        ("/", 6, 18, 18),
        ("b", 1, 1, 1),
    ]
    assert all(row["bytes"] > 0 for row in found["vhosts"])


def test_looking_at_nothing_finds_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "none") == {"queues": [], "vhosts": []}
    assert count_messages(tmp_path / "none") == []


def test_inspection_counts_messages_by_exchange_and_routing_key(data_dir: Path) -> None:
    rows = [tuple(row.values()) for row in count_messages(data_dir)]
    assert rows == [("/", "ex", "k0", 10), ("/", "ex", "k1", 5), ("b", "", "\ufffd", 1)]


def test_inspection_names_a_damaged_file(data_dir: Path) -> None:
    (data_dir / Manifest(data_dir).files()[0].path).write_bytes(b"")
    with pytest.raises(StorageError, match="parquet"):
        count_messages(data_dir)

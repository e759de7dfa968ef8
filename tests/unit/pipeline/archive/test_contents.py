from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive.contents import contents
from leveret.pipeline.archive.identities import UpstreamIdentities
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.files.files import locked
from leveret.pipeline.recovery.forget import forget_vhosts
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message


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


def test_it_is_counted_by_queue_and_by_vhost(data_dir: Path) -> None:
    found = contents(data_dir)
    base = 1_700_000_000_000
    assert found["queues"] == [
        {"queue": "q", "vhost": "/", "timestamp": base + 5, "oldest_ms": base, "messages": 15, "settled": 3},
        {
            "queue": "p",
            "vhost": "b",
            "timestamp": base + 6,
            "oldest_ms": base + 6,
            "messages": 1,
            "settled": 0,
        },
    ]
    assert [(row["vhost"], row["files"], row["records"], row["transferred"]) for row in found["vhosts"]] == [
        ("/", 6, 18, 18),
        ("b", 1, 1, 1),
    ]
    assert all(row["bytes"] > 0 and row["known_from_ms"] == 0 for row in found["vhosts"])
    assert [(row["newest_ms"], row["logs"]) for row in found["vhosts"]] == [
        (base + 5, {"/": [0, 0, 18]}),
        (base + 6, {"b": [0, 0, 1]}),
    ]
    UpstreamIdentities(data_dir).note_begin("b", 7, is_whole=False)
    assert [row["known_from_ms"] for row in contents(data_dir)["vhosts"]] == [0, 7]


def test_an_empty_place_has_nothing(tmp_path: Path) -> None:
    assert contents(tmp_path / "none") == {"queues": [], "vhosts": [], "terms": {}}


def test_forgetting_a_vhost_deletes_its_files_and_no_others(data_dir: Path) -> None:
    before = {row["vhost"]: row["bytes"] for row in contents(data_dir)["vhosts"]}
    assert forget_vhosts(data_dir, data_dir, ["/", "never"]) == [{"vhost": "/", "bytes": before["/"]}]
    assert [row["vhost"] for row in contents(data_dir)["vhosts"]] == ["b"]
    assert [path.name for path in (data_dir / "data").iterdir()] == ["vhost-b"]
    assert [row["messages"] for row in contents(data_dir)["queues"]] == [1]
    assert forget_vhosts(data_dir / "none", data_dir / "none", ["/"]) == []


def test_nothing_is_forgotten_while_it_is_transferred(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.pipeline.recovery.forget._LOCK_TIMEOUT_S", 0.0)
    with (
        locked(data_dir / "transfer.lock", 1, "transferring"),
        pytest.raises(StorageError, match="another process is transferring"),
    ):
        forget_vhosts(data_dir, data_dir, ["/"])
    assert len(contents(data_dir)["vhosts"]) == 2


def test_without_queues_the_vhosts_are_the_same(data_dir: Path) -> None:
    assert contents(data_dir, with_queues=False) == contents(data_dir) | {"queues": []}

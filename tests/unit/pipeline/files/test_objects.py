"""Names in a store: a server that speaks S3, and an HDFS, both real."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leveret.pipeline.files import object_store as object_store_module
from leveret.pipeline.files import objects as module
from leveret.pipeline.files.files import opened
from leveret.pipeline.files.objects import ObjectPath, StoreFailed
from leveret.testing.servers.hdfs import Hdfs

if TYPE_CHECKING:
    from leveret.testing.servers.object_store import ObjectStore


@pytest.fixture
def root(any_store: ObjectStore | Hdfs) -> ObjectPath:
    return ObjectPath(any_store.new_place() + "/ä")


def test_what_is_put_somewhere_is_there_alone_and_whole(root: ObjectPath) -> None:
    name = root / "data" / "vhost-%2F" / "1-2.parquet"
    assert not name.exists()
    with pytest.raises(FileNotFoundError, match=r"vhost-%2F/1-2\.parquet"):
        name.read_bytes()
    name.write_bytes(b"first")
    name.write_bytes(b"second")
    assert name.read_bytes() == b"second"
    assert (name.exists(), root.exists(), (root / "data").exists()) == (True, True, True)
    assert not (root / "dat").exists(), "a directory is named in whole"
    assert (name.name, str(name.relative_to(root))) == ("1-2.parquet", "data/vhost-%2F/1-2.parquet")
    assert name.with_suffix(".settled").name == "1-2.settled"
    assert pickle.loads(pickle.dumps(name)).read_bytes() == b"second"
    name.unlink()
    assert not root.exists()


def test_names_below_are_found_as_in_directories(root: ObjectPath) -> None:
    for name in ("plans/v1/b/plan.json", "plans/v1/b/runs/1", "plans/v1/a/plan.json", "plans/x", "other/v/c"):
        (root / name).write_bytes(b"")
    assert [each.key for each in (root / "plans").glob("*/*")] == ["plans/v1/a", "plans/v1/b"]
    assert [each.key for each in (root / "plans").iterdir()] == ["plans/v1", "plans/x"]
    assert [each.key for each in root.rglob("plan.json")] == ["plans/v1/a/plan.json", "plans/v1/b/plan.json"]
    assert [each.key for each in (root / "plans" / "v1").listed_after("b/plan.json")] == ["plans/v1/b/runs/1"]
    (root / "plans").delete_tree()
    assert [each.key for each in root.glob("*/*/*")] == ["other/v/c"]
    assert not root.older_than(3600)
    assert len(root.older_than(-3600)) == 1


def test_of_all_who_create_one_succeeds(root: ObjectPath) -> None:
    name = root / "entry"
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda number: name.create(b"%d" % number), range(24)))
    assert sum(created) == 1
    assert name.read_bytes() == b"%d" % created.index(True)


def test_what_is_moved_is_where_it_belongs_and_nowhere_else(root: ObjectPath) -> None:
    for name in ("data/v/1", "data/v/2", "data/w/1", "database/1"):
        (root / name).write_bytes(name.encode())
    (root / "data").move(root / "former" / "5" / "data")
    (root / "database" / "1").move(root / "former" / "5" / "file")
    (root / "nothing").move(root / "former" / "5" / "nothing")
    found = {
        each.key: each.read_bytes()
        for depth in range(1, 6)
        for each in root.glob("/".join("*" * depth))
        if not any(True for _ in each.iterdir())
    }
    assert found == {
        "former/5/data/v/1": b"data/v/1",
        "former/5/data/v/2": b"data/v/2",
        "former/5/data/w/1": b"data/w/1",
        "former/5/file": b"database/1",
    }
    assert not (root / "data").exists()


def test_an_object_above_what_a_store_copies_at_once_is_moved_in_parts(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_module, "COPIED_BYTES_MAX", 1000)
    monkeypatch.setattr(object_store_module, "_PIECE_BYTES", 7 * 2**20 // 3)
    monkeypatch.setattr(object_store_module, "_PART_BYTES", 6 * 2**20)
    root = ObjectPath(object_store.new_place())
    octets = os.urandom(13 * 2**20 + 1)
    (root / "data" / "1").write_bytes(octets)
    begin = len(object_store.requests)
    (root / "data").move(root / "former" / "5")
    assert (root / "former" / "5" / "1").read_bytes() == octets
    assert not (root / "data").exists()
    puts = [path for method, path in object_store.requests[begin:] if method == "PUT"]
    assert len(puts) == 3, "a copy in one request is refused above 5 GB"


@pytest.mark.parametrize("whole_bytes_max", [0, 1 << 20])
def test_large_objects_are_read_here_and_there(
    root: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_bytes_max: int
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES_MAX", whole_bytes_max)
    octets = os.urandom(300_000)
    (tmp_path / "file").write_bytes(octets)
    name = root / "large"
    name.upload(tmp_path / "file")
    with opened(name) as source:
        assert source.size() == len(octets)
        source.seek(200_000)
        assert source.read(10) == octets[200_000:200_010]
        assert source.read() == octets[200_010:]
        assert source.read(1) == b""
        source.seek(5)
        assert source.read(5) == octets[5:10]


def test_a_store_that_is_down_is_said_in_a_sentence_without_secrets(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ObjectPath(object_store.new_place())
    monkeypatch.setattr(object_store_module, "_RETRIES", {"max_retries": 0})
    monkeypatch.setattr(object_store, "is_down", True)
    with pytest.raises(StoreFailed) as caught:
        (root / "x").write_bytes(b"")
    text = str(caught.value)
    assert str(root) in text
    assert "503" in text
    assert "\n" not in text
    assert "secret" not in text


def test_a_bucket_that_is_not_there_is_told_from_an_empty_one(object_store: ObjectStore) -> None:
    with pytest.raises(OSError, match="nobodys"):
        (ObjectPath("s3://nobodys-bucket") / "x").write_bytes(b"")

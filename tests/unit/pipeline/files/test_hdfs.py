"""What an archive in an HDFS has beyond what all stores have (`test_objects`): a namenode and a datanode, real ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client, FileWriter

from leveret.pipeline.files import hdfs as module
from leveret.pipeline.files.hdfs import WRITING, HdfsStore
from leveret.pipeline.files.objects import ObjectPath, StoreFailed
from leveret.testing.network.ports import free_port
from leveret.testing.servers.hdfs import Hdfs

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

DIES = """
import os, sys
from leveret.pipeline.files import hdfs
hdfs._finish = lambda writer, _: (writer.hsync(), print("written", flush=True), os.kill(os.getpid(), 9))
hdfs.HdfsStore(sys.argv[1]).create("entry", b"half")
"""


def files(root: str) -> dict[str, Any]:
    """All that is there, by its path below, seen past the archive's own eyes."""
    host, _, path = root.removeprefix("hdfs://").partition("/")
    found = Client(f"hdfs://{host}").list_status(f"/{path}", recursive=True)
    return {each.path.removeprefix(f"/{path}/"): each for each in found if not each.isdir}


def test_what_a_killed_writer_left_is_no_object_and_is_swept_away_later(hdfs: Hdfs) -> None:
    root = hdfs.new_place()
    died = subprocess.run([sys.executable, "-c", DIES, root], capture_output=True, check=False)
    assert (died.returncode, died.stdout) == (-9, b"written\n"), died.stderr
    [left] = files(root)
    assert left.startswith(f"{WRITING}/")
    place = ObjectPath(root)
    assert not place.exists()
    assert (place / "entry").create(b"whole"), "it is in nobody's way"
    assert [each.key for each in place.glob("*")] == ["entry"]
    place.sweep(3600)
    assert len(files(root)) == 2, "it may be a slow one's"
    place.sweep(-3600)
    assert list(files(root)) == ["entry"]
    assert (place / "entry").read_bytes() == b"whole"


def test_an_entry_that_was_renamed_without_an_answer_is_there_once(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Client.rename

    def twice(self: Client, path: str, to: str, overwrite: bool = False) -> None:
        rename(self, path, to, overwrite)
        rename(self, path, to, overwrite)

    root = hdfs.new_place()
    HdfsStore(root).put("first", b"")
    monkeypatch.setattr(Client, "rename", twice)
    assert not HdfsStore(root).create("entry", b"mine"), "the content tells whose it is"
    assert ObjectPath(root, "entry").read_bytes() == b"mine"
    HdfsStore(root).put("first", b"mine")
    assert sorted(files(root)) == ["entry", "first"]


def test_a_silent_namenode_is_given_up_and_asked_again_later(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ObjectPath(hdfs.new_place()) / "x"
    place.write_bytes(b"1")
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.5)
    with hdfs.silent_namenode(), pytest.raises(StoreFailed, match="no answer from HDFS"):
        place.read_bytes()
    monkeypatch.undo()
    assert place.read_bytes() == b"1"


def test_a_namenode_that_is_down_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTINGS", {"dfs.client.failover.max.attempts": "0"})
    place = ObjectPath(f"hdfs://127.0.0.1:{free_port()}/archive")
    with pytest.raises(StoreFailed, match=r"/archive: Connection refused \(os error 111\)$"):
        place.exists()


def test_files_are_for_their_user_alone(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    root = hdfs.new_place()
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    HdfsStore(root).put("data/x", b"1")
    [file] = files(root).values()
    assert (file.owner, file.permission) == ("ann", 0o600)
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    with pytest.raises(OSError, match=r"^AccessControlException: Permission denied: user=bob[^\n]*$"):
        HdfsStore(root).read("data/x", None)


def test_directories_and_empty_files_are_told_from_objects(hdfs: Hdfs) -> None:
    place = ObjectPath(hdfs.new_place())
    (place / "data" / "x").write_bytes(b"")
    assert (place / "data" / "x").read_bytes() == b""
    with pytest.raises(FileNotFoundError):
        (place / "data").read_bytes()
    (place / "data" / "x").unlink()
    with pytest.raises(FileNotFoundError):
        (place / "data" / "x").unlink()
    assert not (place / "data").exists()
    (place / "other" / "y").write_bytes(b"1")
    (place / "other").move(place / "data")
    assert (place / "data" / "y").read_bytes() == b"1", "a directory without files is in nobody's way"


def test_a_large_file_is_written_in_pieces_and_replaced_whole(
    hdfs: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
    octets = bytes(range(256)) * 20
    (tmp_path / "file").write_bytes(octets)
    place = ObjectPath(hdfs.new_place()) / "x"
    place.write_bytes(b"before")
    place.upload(tmp_path / "file")
    assert place.read_bytes() == octets


def test_a_name_service_and_the_default_are_hadoops_own(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    place = hdfs.new_place()
    HdfsStore(place).put("x", b"1")
    path = place.removeprefix(hdfs.url)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.configuration))
    assert HdfsStore(f"hdfs://tests{path}").read("x", None) == b"1"
    assert HdfsStore(f"hdfs://{path}").read("x", None) == b"1"
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(OSError, match="defaultFS"):
        HdfsStore(f"hdfs://{path}").read("x", None)


def test_a_name_that_is_no_services_is_a_machines_with_hadoops_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def client(url: str | None, settings: dict[str, str]) -> Client:
        asked.append(url)
        return Client(url, settings)

    monkeypatch.setattr(module, "_SETTINGS", {"dfs.client.failover.max.attempts": "0"})
    monkeypatch.setattr(module, "Client", client)
    with pytest.raises(OSError):  # noqa: PT011 # whatever is, or is not, at that port of this machine
        HdfsStore("hdfs://127.0.0.1/archive").read("x", None)
    assert asked == ["hdfs://127.0.0.1", "hdfs://127.0.0.1:8020"]


def test_a_file_is_on_the_datanodes_disks_before_it_is_closed_and_renamed(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noted(kind: type, name: str) -> None:
        call = getattr(kind, name)

        def step(self: Any, *arguments: Any, **options: Any) -> Any:
            steps.append(name)
            return call(self, *arguments, **options)

        monkeypatch.setattr(kind, name, step)

    for name in ("write", "hsync", "close"):
        noted(FileWriter, name)
    noted(Client, "rename")
    store = HdfsStore(hdfs.new_place())
    store.put("first", b"1")
    assert list(dict.fromkeys(steps)) == ["write", "hsync", "close", "rename"]
    steps.clear()
    assert store.create("entry", b"1")
    assert list(dict.fromkeys(steps)) == ["write", "hsync", "close", "rename"]

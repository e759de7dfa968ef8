"""A step of a transfer, a compaction or a recovery is over when all that it has written is on disk, with its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.pipeline.archive import manifest_storage
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.ownership import identify
from leveret.pipeline.files.files import move, sync_directory, write_durably
from leveret.testing.sites.standby_archive import freeze_plan
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.recovery.test_unsettled import QUEUES, VHOST, Standby


class Disk:
    """What a loss of power would leave of a tree: the octets of files and the names in directories that were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._octets: dict[int, int] = {}
        self._names: dict[Path, set[str]] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            sync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir():
                self._names[path] = set(os.listdir(path))
            else:
                found = os.fstat(descriptor)
                self._octets[found.st_ino] = found.st_size

        return noted

    def lacks(self, root: Path) -> list[str]:
        """What is in a tree and would not be there; locks may go."""
        there = [path for path in root.rglob("*") if "lock" not in path.name]
        return [
            path.name
            for path in there
            if path.name not in self._names.get(path.parent, ())
            or (path.is_file() and self._octets.get(path.stat().st_ino) != path.stat().st_size)
        ]


def test_whatever_a_step_has_written_is_on_disk_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    upstream, standby = StandbyUpstream(), Standby(tmp_path / "archive", chunks_per_file=2)
    for number in range(4):
        for queue in QUEUES:
            upstream.publish(VHOST, queue, [stored_message(b"%d" % number)] * 3)
            upstream.settle(VHOST, queue, [(number * 3, 1)])

    def compacted() -> StoredFile:
        files = standby.manifest.files()[:3]
        file = compact(standby.data_dir, files)
        assert not disk.lacks(tmp_path), "before the manifest names it"
        standby.manifest.append([file], removed=[each.path for each in files])
        return file

    standby.transfer(upstream)
    assert not disk.lacks(tmp_path)
    compacted()
    assert not disk.lacks(tmp_path)
    directory = freeze_plan(standby.manifest, VHOST)
    assert directory is not None
    assert not disk.lacks(tmp_path)
    standby.publish(directory)
    assert not disk.lacks(tmp_path)


def test_what_a_killed_writer_left_of_a_manifest_is_on_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, standby = StandbyUpstream(), Standby(tmp_path / "archive", chunks_per_file=2)
    upstream.publish(VHOST, QUEUES[0], [stored_message(b"a")])
    standby.transfer(upstream)
    disk, logs = Disk(monkeypatch), next((tmp_path / "archive").rglob("*.log")).parent
    assert disk.lacks(logs)
    standby.manifest.check()
    assert not disk.lacks(logs)


def test_what_is_moved_is_on_disk_at_its_new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    write_durably(tmp_path / "a", b"content")
    move(tmp_path / "a", tmp_path / "below" / "b")
    assert not disk.lacks(tmp_path / "below")


def test_the_mark_of_an_archive_is_on_disk_when_its_cluster_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    identify(tmp_path / "archive", "c1", "")
    assert not disk.lacks(tmp_path / "archive")


def test_a_torn_line_is_gone_from_the_disk_before_another_log_of_the_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind another log such a line would be damage."""
    disk, archive = Disk(monkeypatch), tmp_path / "archive"
    upstream, standby = StandbyUpstream(), Standby(archive)
    upstream.publish(VHOST, QUEUES[0], [stored_message(b"a")])
    standby.transfer(upstream)
    [log] = archive.rglob("*.log")
    with log.open("ab") as file:
        file.write(b"pages that never came: \0\0\n")
        file.flush()
        os.fdatasync(file.fileno())
    monkeypatch.setattr(manifest_storage, "LOG_BYTES_MAX", -10_000)

    def sync(directory: Path) -> None:
        assert log.name not in disk.lacks(directory)
        sync_directory(directory)

    monkeypatch.setattr(manifest_storage, "sync_directory", sync)
    upstream.publish(VHOST, QUEUES[0], [stored_message(b"b")])
    standby.transfer(upstream)
    assert not log.exists()
    assert not disk.lacks(archive)


def test_logs_of_a_manifest_go_one_after_the_other_and_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that a killed writer began is a sequel of the one before it, and nothing without it."""
    archive = tmp_path / "archive"
    upstream, standby = StandbyUpstream(), Standby(archive)

    def transfer() -> None:
        upstream.publish(VHOST, QUEUES[0], [stored_message(b"a")])
        standby.transfer(upstream)

    transfer()
    [oldest] = archive.rglob("*.log")
    (oldest.parent / f"{2:020}.log").write_bytes(b"{")
    standby.manifest = Manifest(archive)
    transfer()
    assert len(list(archive.rglob("*.log"))) == 2
    whole = Manifest(archive).next_by_log
    monkeypatch.setattr(manifest_storage, "LOG_BYTES_MAX", -10_000)
    left: list[list[str]] = []

    def sync(directory: Path) -> None:
        left.append(sorted(log.name[18:20] for log in directory.glob("*.log")))
        assert whole.items() <= Manifest(archive).next_by_log.items()
        sync_directory(directory)

    monkeypatch.setattr(manifest_storage, "sync_directory", sync)
    transfer()
    assert left == [["01", "02", "03"], ["01", "03"], ["03"]], (
        "each is gone for good before the next one goes"
    )

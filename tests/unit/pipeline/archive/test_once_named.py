"""A manifest that is older than its files: what only a newer one names is not deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.once_named import once_named, title_of_lost
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.archive.sweep import delete_orphans
from leveret.testing.sites.standby_archive import transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message

VHOST = "a"


class OldCopy:
    """An archive of four files, of two chunks each, and a copy of its manifest from when it had two of them."""

    def __init__(self, folder: Path) -> None:
        self.data_dir, self.copy = folder / "archive", folder / "copy"
        self.upstream = StandbyUpstream([VHOST, "b"])
        self.publish(4)
        self.transfer()
        shutil.copytree(self.data_dir, self.copy)
        self.publish(4)
        self.transfer()

    def publish(self, chunks: int) -> None:
        for _ in range(chunks):
            self.upstream.publish(VHOST, "q", [stored_message(b"m")] * 3)

    def transfer(self) -> Manifest:
        return transfer(self.upstream, self.data_dir, chunks_per_file=2)

    def compact(self) -> None:
        manifest = Manifest(self.data_dir)
        files = manifest.files()[:2]
        manifest.append([compact(self.data_dir, files)], removed=[file.path for file in files])
        assert delete_orphans(manifest) == len(files)

    def restore(self) -> Manifest:
        """The manifest is the old one again."""
        shutil.rmtree(self.data_dir / "manifest")
        shutil.copytree(self.copy / "manifest", self.data_dir / "manifest")
        return Manifest(self.data_dir)

    @property
    def names(self) -> list[str]:
        return sorted(place.name for place in self.data_dir.glob("data/*/*"))


@pytest.fixture
def archive(tmp_path: Path) -> OldCopy:
    return OldCopy(tmp_path)


def test_files_of_lost_entries_stay_until_their_records_are_named_again(archive: OldCopy) -> None:
    before = archive.names
    manifest = archive.restore()
    assert delete_orphans(manifest) == 0
    assert archive.names == before
    lost = once_named(manifest)
    assert [place.name for place in lost] == before[2:]
    assert "ends at entry 2, of " in title_of_lost(manifest, lost)
    assert f"does not name 2 files that it named once, such as {lost[-1]}: it is an older copy" in (
        title_of_lost(manifest, lost)
    )
    again = transfer(archive.upstream, archive.data_dir, chunks_per_file=3)
    assert once_named(again) == []
    assert delete_orphans(again) == 2
    assert len(archive.names) == 4


def test_what_a_compaction_made_stays_while_what_it_was_made_from_is_missing(archive: OldCopy) -> None:
    archive.compact()
    merged, *later = archive.names
    manifest = archive.restore()
    assert delete_orphans(manifest) == 0
    assert [place.name for place in once_named(manifest)] == [merged, *later]
    # With the files of the copy it is one that was replaced.
    shutil.copytree(archive.copy / "data", archive.data_dir / "data", dirs_exist_ok=True)
    assert [place.name for place in once_named(manifest)] == later
    assert delete_orphans(manifest) == 1


def test_files_that_no_entry_named_are_deleted(archive: OldCopy) -> None:
    archive.publish(2)
    log = archive.upstream.logs[VHOST]
    file = store_range(archive.data_dir, VHOST, log.read(24, 1 << 40))
    assert file is not None
    manifest = Manifest(archive.data_dir)
    assert once_named(manifest) == []
    assert delete_orphans(manifest) == 1


def test_files_of_a_vhost_that_was_forgotten_are_deleted(archive: OldCopy) -> None:
    before = archive.names
    manifest = Manifest(archive.data_dir)
    manifest.forget([VHOST])
    assert once_named(manifest) == []
    assert delete_orphans(manifest) == len(before)


def test_without_a_manifest_all_its_files_stay(archive: OldCopy) -> None:
    shutil.rmtree(archive.data_dir / "manifest")
    manifest = Manifest(archive.data_dir)
    assert delete_orphans(manifest) == 0
    assert len(once_named(manifest)) == 4
    assert "is empty" in title_of_lost(manifest, once_named(manifest))
    assert len(once_named(archive.restore(), lambda vhost: vhost != VHOST)) == 0

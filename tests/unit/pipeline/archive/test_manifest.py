from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.pipeline.archive import manifest as manifest_module
from leveret.pipeline.archive import manifest_storage as module
from leveret.pipeline.archive.manifest import Manifest, QueuePart, StoredFile, TransferGap, VhostForgotten
from leveret.pipeline.archive.manifest_storage import FileManifestLog, ManifestDamaged, delete_manifest
from leveret.pipeline.files.files import Place, make_directory, sync_directory
from leveret.wire import log_name as names


def stored(data_dir: Place, first: int, after: int, vhost: str = "/", settled: bool = False) -> StoredFile:
    """A file with nothing in it, put where the manifest looks for it."""
    path = f"data/{vhost.strip('/')}-{first}-{after}.parquet"
    names = [path, path + ".settled"] if settled else [path]
    for name in names:
        make_directory((data_dir / name).parent)
        (data_dir / name).write_bytes(b"")
    return StoredFile(
        vhost=vhost,
        path=path,
        settlements=names[1] if settled else "",
        first=first,
        next=after,
        records=after - first,
        bytes=10,
        min_ms=1,
        max_ms=2,
        queues=[QueuePart("q", 1, messages=after - first, ranges=[(first, after - first)])],
    )


def test_what_is_appended_is_there_for_every_reader(data_dir: Place) -> None:
    writer, reader = Manifest(data_dir), Manifest(data_dir)
    first, second = stored(data_dir, 5, 10), stored(data_dir, 10, 20)
    assert writer.append([first]) == [first]
    reader.refresh()
    assert reader.files() == [first]
    writer.append([second])
    reader.refresh()
    assert reader.files() == Manifest(data_dir).files() == [first, second]
    assert reader.next_by_log == {"/": 20}
    assert reader.number == 2


def test_the_first_file_may_begin_anywhere(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    manifest.append([stored(data_dir, 700, 701)])
    assert manifest.next_by_log == {"/": 701}


def test_a_repeated_range_is_left_out(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    files = [stored(data_dir, 0, 10), stored(data_dir, 10, 20)]
    manifest.append(files)
    assert manifest.append(files) == []
    assert manifest.number == 1
    assert manifest.append([files[1], stored(data_dir, 20, 21)])[0].first == 20


@pytest.mark.parametrize(("first", "after"), [(11, 20), (9, 20), (5, 11)])
def test_a_gap_is_an_error_with_its_bounds_and_keeps_what_came_before(
    data_dir: Place, first: int, after: int
) -> None:
    manifest = Manifest(data_dir)
    manifest.append([stored(data_dir, 0, 5)])
    with pytest.raises(TransferGap) as caught:
        manifest.append([stored(data_dir, 5, 10), stored(data_dir, first, after, settled=True)])
    assert (caught.value.have, caught.value.offered) == (10, first)
    assert Manifest(data_dir).next_by_log == {"/": 10}


def test_a_gap_of_one_vhost_does_not_cost_another_what_came(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    cut, behind, whole = (
        stored(data_dir, 0, 10, "a"),
        stored(data_dir, 20, 40, "a"),
        stored(data_dir, 0, 40, "b"),
    )
    after = stored(data_dir, 40, 50, "a")
    with pytest.raises(TransferGap, match="vhost 'a': transferred up to offset 10"):
        manifest.append([whole, after, behind, cut])
    assert Manifest(data_dir).files() == [cut, whole]
    assert manifest.next_by_log == {"a": 10, "b": 40}


def test_two_writers_record_a_range_once(data_dir: Place) -> None:
    one, other = Manifest(data_dir), Manifest(data_dir)
    file = stored(data_dir, 0, 10)
    assert one.append([file]) == [file]
    assert other.append([file]) == []
    assert other.append([stored(data_dir, 10, 12)])
    assert one.append([stored(data_dir, 12, 13)])
    assert Manifest(data_dir).next_by_log == {"/": 13}


def test_a_file_that_was_swept_away_is_not_recorded(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    file = stored(data_dir, 0, 10)
    (data_dir / file.path).unlink()
    with pytest.raises(StorageError, match="is gone"):
        manifest.append([file])
    assert Manifest(data_dir).number == 0


@given(st.data())
def test_cut_at_any_byte_it_is_a_prefix_and_goes_on(
    new_path: Callable[[], Path], data: st.DataObject
) -> None:
    tmp_path = new_path()
    manifest = Manifest(tmp_path)
    for number in range(3):
        manifest.append([stored(tmp_path, number * 10, number * 10 + 10)])
    log = next((tmp_path / "manifest").glob("*.log"))
    octets = log.read_bytes()
    ends = [0, *(i + 1 for i, octet in enumerate(octets) if octet == 0x0A)]
    cut = data.draw(st.integers(0, len(octets)))
    log.write_bytes(octets[:cut])
    whole = sum(end <= cut for end in ends) - 1
    reopened = Manifest(tmp_path)
    assert reopened.entries == manifest.entries[:whole]
    assert log.read_bytes() == octets[:cut], "a reader changes nothing"
    reopened.append([stored(tmp_path, number * 10, number * 10 + 10) for number in range(whole, 4)])
    assert Manifest(tmp_path).next_by_log == {"/": 40}


@given(st.data())
def test_a_damaged_line_is_named_unless_it_is_the_torn_last_one(
    new_path: Callable[[], Path], data: st.DataObject
) -> None:
    tmp_path = new_path()
    manifest = Manifest(tmp_path)
    for number in range(3):
        manifest.append([stored(tmp_path, number * 10, number * 10 + 10)])
    log = next((tmp_path / "manifest").glob("*.log"))
    octets = bytearray(log.read_bytes())
    second = octets.index(b"\n", octets.index(b"\n") + 1)
    at = data.draw(st.integers(0, second - 1))
    octets[at] ^= 1 << data.draw(st.integers(0, 7))
    log.write_bytes(octets)
    with pytest.raises(ManifestDamaged, match="byte"):
        Manifest(tmp_path)


def known(manifest: Manifest) -> tuple[object, ...]:
    """What a manifest says."""
    return manifest.number, manifest.files(), manifest.next_by_log, manifest.forgotten_by_vhost


def logs_of(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "manifest").glob("*.log"))


def compact(manifest: Manifest, data_dir: Path) -> None:
    """Put one file in the place of all but the newest."""
    *old, _ = manifest.files()
    if old:
        manifest.append([stored(data_dir, old[0].first, old[-1].next)], removed=[file.path for file in old])


def test_a_long_log_gives_way_to_what_it_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 3000)
    manifest, reader, behind = Manifest(tmp_path), Manifest(tmp_path), Manifest(tmp_path)
    manifest.append([stored(tmp_path, 0, 5, "gone")])
    manifest.forget(["gone"])
    sizes = []
    for number in range(200):
        manifest.append([stored(tmp_path, number, number + 1)])
        if number % 10 == 9:
            compact(manifest, tmp_path)
        reader.refresh()
        assert known(reader) == known(manifest)
        sizes.append(sum(log.stat().st_size for log in logs_of(tmp_path)))
    behind.refresh()
    assert known(behind) == known(Manifest(tmp_path)) == known(manifest)
    assert manifest.number > 200
    assert len(logs_of(tmp_path)) == 1
    assert max(sizes) < 15_000
    assert len(manifest.entries) < 50
    assert manifest.added_since(1) is None
    assert manifest.added_since(manifest.number) == []
    assert manifest.added_since(manifest.number - 1) == manifest.entries[-1].added
    assert list(manifest.ever_added("/", 2)) == [], "what was seen by then is not known apart any more"
    ranges = [part.ranges for file in manifest.ever_added("/", manifest.number) for part in file.queues]
    assert {n for some in ranges for first, count in some for n in range(first, first + count)} == set(
        range(200)
    )


@pytest.mark.parametrize("is_long", [False, True])
def test_a_disk_that_refuses_a_new_log_is_taken_for_no_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 2000)
    manifest, count = Manifest(tmp_path), 0
    log = manifest._log
    assert isinstance(log, FileManifestLog)
    while is_long and log._log_bytes <= 2000 + 2 * log._first_line_bytes:
        manifest.append([stored(tmp_path, count, count + 1)])
        count += 1
    next_file, open_ = stored(tmp_path, count, count + 1), Path.open

    def open_if_there(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "ab" and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return open_(path, mode, **options)

    with monkeypatch.context() as full:
        full.setattr(Path, "open", open_if_there)
        with pytest.raises(OSError, match="No space left"):
            manifest.append([next_file])
    assert manifest.append([next_file]) == [next_file]
    assert known(Manifest(tmp_path)) == known(manifest)
    assert manifest.next_by_log == {"/": count + 1}


@given(st.data())
def test_a_log_that_gives_way_loses_nothing_wherever_it_is_cut_short(
    new_path: Callable[[], Path], data: st.DataObject
) -> None:
    class Killed(BaseException):
        """The process ends."""

    left = 100

    def sync(directory: Path) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        sync_directory(directory)

    data_dir = new_path()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOG_BYTES_MAX", 2000)
        behind, manifest = Manifest(data_dir), Manifest(data_dir)
        count = 0
        while count == 0 or logs_of(data_dir)[0].stat().st_size <= 2500:
            manifest.append([stored(data_dir, count, count + 1)])
            count += 1
        patch.setattr(module, "sync_directory", sync)
        left = data.draw(st.integers(0, 2), "directories synced before it is killed")
        with suppress(Killed):
            manifest.append([stored(data_dir, count, count + 1)])
        left = 100
        if len(logs_of(data_dir)) > 1:
            newest = logs_of(data_dir)[-1]
            octets = newest.read_bytes()
            newest.write_bytes(octets[: data.draw(st.integers(0, len(octets)), "octets that were written")])
        again = Manifest(data_dir)
        end = again.next_by_log["/"]
        assert end in (count, count + 1)
        again.append([stored(data_dir, end, end + 7)])
        behind.refresh()
        assert known(behind) == known(Manifest(data_dir)) == known(again)
        assert again.next_by_log == {"/": end + 7}
        assert [file.first for file in again.files()] == list(range(end + 1))


def test_removing_and_adding_replaces(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    small = [stored(data_dir, 0, 10), stored(data_dir, 10, 20)]
    manifest.append(small)
    large = stored(data_dir, 0, 20)
    manifest.append([large], removed=[file.path for file in small])
    assert Manifest(data_dir).files() == [large]
    assert list(Manifest(data_dir).ever_added("/", 1)) == small
    assert manifest.next_by_log == {"/": 20}


def test_vhosts_are_independent(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    manifest.append([stored(data_dir, 0, 10), stored(data_dir, 90, 95, vhost="b")])
    manifest.append([stored(data_dir, 95, 99, vhost="b")])
    assert manifest.next_by_log == {"/": 10, "b": 99}


def test_files_are_put_in_order_once_and_not_for_each_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion of many vhosts asks for the files of each, several times."""
    manifest = Manifest(tmp_path)
    vhosts = [f"v{number:02}" for number in range(20)]
    manifest.append([stored(tmp_path, 0, 10, vhost) for vhost in reversed(vhosts)])
    looked_at: list[str] = []
    log_name = names.log_name

    def noted(vhost: str, label: str) -> str:
        looked_at.append(vhost)
        return log_name(vhost, label)

    monkeypatch.setattr(manifest_module, "log_name", noted)
    for vhost in vhosts:
        assert [file.vhost for file in manifest.files_of(vhost)] == [vhost]
        assert manifest.last_chunk(vhost) == (0, 0)
    assert [file.vhost for file in manifest.files()] == vhosts
    assert len(looked_at) == len(vhosts)
    manifest.append([stored(tmp_path, 10, 20, vhosts[3])])
    assert [file.first for file in manifest.files_of(vhosts[3])] == [0, 10]
    manifest.forget([vhosts[3]])
    assert manifest.files_of(vhosts[3]) == []


def test_a_vhost_that_was_forgotten_never_was_there(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    kept = stored(data_dir, 0, 5, "kept")
    gone = stored(data_dir, 0, 10, "gone", settled=True)
    manifest.append([kept, gone])
    assert manifest.forget(["gone", "never"]) == [gone]
    assert manifest.forget(["gone"]) == []
    for reader in (manifest, Manifest(data_dir)):
        assert reader.files() == [kept]
        assert reader.next_by_log == {"kept": 5}
        assert list(reader.ever_added("gone", reader.number)) == []
    assert manifest.forgotten_by_vhost == Manifest(data_dir).forgotten_by_vhost == {"gone": 2}
    anew = stored(data_dir, 3, 4, "gone")
    assert manifest.append([anew]) == [anew], "it begins where the other log does"
    assert list(manifest.ever_added("gone", manifest.number)) == [anew]


def test_a_writer_that_began_before_a_vhost_was_forgotten_records_nothing_of_it(data_dir: Place) -> None:
    first, late = stored(data_dir, 0, 5), stored(data_dir, 5, 9)
    stale = Manifest(data_dir)
    stale.append([first])
    assert Manifest(data_dir).forget(["/"]) == [first]
    with pytest.raises(VhostForgotten, match=r"vhost '/': its data was deleted by entry 2 .* at entry 0"):
        stale.append([late])
    with pytest.raises(VhostForgotten):
        stale.append([late], removed=[first.path])
    with pytest.raises(VhostForgotten, match="begun at entry 1"):
        Manifest(data_dir).append([late], begun=1)
    assert Manifest(data_dir).next_by_log == {}
    other = stored(data_dir, 0, 1, "other")
    assert stale.append([other]) == [other]
    assert stale.append([late], begun=2) == [late], "who began since"


def test_a_writer_that_began_before_all_was_deleted_records_nothing(data_dir: Place) -> None:
    Manifest(data_dir).append([stored(data_dir, 0, 5)])
    delete_manifest(data_dir / "manifest")
    with pytest.raises(StorageError, match="was deleted after its entry 1"):
        Manifest(data_dir).append([stored(data_dir, 5, 9)], begun=1)
    assert Manifest(data_dir).number == 0


@contextmanager
def room_for(octets: int) -> Iterator[None]:
    """Files of this process grow no further than that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_for_which_there_was_no_room_does_not_count(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.append([stored(tmp_path, 0, 10)])
    [log] = (tmp_path / "manifest").glob("*.log")
    size = log.stat().st_size
    with room_for(size + 50), pytest.raises(OSError, match="No space left"):
        manifest.append([stored(tmp_path, 10, 20)])
    assert log.stat().st_size == size
    assert manifest.next_by_log == Manifest(tmp_path).next_by_log == {"/": 10}
    manifest.append([stored(tmp_path, 10, 30)])
    assert Manifest(tmp_path).next_by_log == {"/": 30}


def test_a_line_that_was_not_synced_is_read_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    manifest = Manifest(tmp_path)
    manifest.append([stored(tmp_path, 0, 10)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="Input/output"):
            manifest.append([stored(tmp_path, 10, 20)])
    assert Manifest(tmp_path).next_by_log == {"/": 10}


def test_what_a_killed_writer_left_is_synced_before_the_upstream_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Manifest(tmp_path).append([stored(tmp_path, 0, 10)])
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fdatasync", sync)
    Manifest(tmp_path).check()
    [log] = (tmp_path / "manifest").glob("*.log")
    assert synced == [log.stat().st_ino]


def test_a_last_line_that_was_altered_is_damage_and_one_whose_pages_never_came_is_not(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    for first in (0, 10):
        manifest.append([stored(tmp_path, first, first + 10)])
    [log] = (tmp_path / "manifest").glob("*.log")
    whole = log.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    log.write_bytes(whole[: last + 20] + bytes(len(whole) - last - 21) + b"\n")
    assert Manifest(tmp_path).next_by_log == {"/": 10}
    log.write_bytes(whole[: last + 20] + bytes([whole[last + 20] ^ 1]) + whole[last + 21 :])
    with pytest.raises(ManifestDamaged):
        Manifest(tmp_path)

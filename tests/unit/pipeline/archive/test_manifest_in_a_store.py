"""The manifest as objects in a store, one that speaks S3 or an HDFS: each entry is written once, whoever writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive import manifest_storage as module
from leveret.pipeline.archive.manifest import Manifest, TransferGap
from leveret.pipeline.archive.manifest_storage import ManifestDamaged
from leveret.pipeline.files.objects import ObjectPath
from leveret.testing.servers.hdfs import Hdfs
from tests.unit.pipeline.archive.test_manifest import stored
from tests.unit.pipeline.conftest import MemoryStores

if TYPE_CHECKING:
    from leveret.testing.servers.object_store import ObjectStore


@pytest.fixture
def place(memory_store: MemoryStores) -> ObjectPath:
    return memory_store.new_place()


STORE = pytest.param("object_store", marks=pytest.mark.process)
HDFS = pytest.param("hdfs", marks=[pytest.mark.process, pytest.mark.story, pytest.mark.xdist_group("spark")])


@pytest.fixture(params=[STORE, HDFS])
def any_place(request: pytest.FixtureRequest) -> ObjectPath:
    store: ObjectStore | Hdfs = request.getfixturevalue(request.param)
    return ObjectPath(store.new_place())


@pytest.fixture(params=["memory", HDFS])
def long_place(request: pytest.FixtureRequest) -> ObjectPath:
    """For hundreds of requests: the server that speaks S3 takes ten milliseconds for each."""
    if request.param == "memory":
        stores: MemoryStores = request.getfixturevalue("memory_store")
        return stores.new_place()
    return ObjectPath(request.getfixturevalue("hdfs").new_place())


def filled(place: ObjectPath, count: int) -> Manifest:
    manifest = Manifest(place)
    for number in range(count):
        manifest.append([stored(place, number, number + 1)])
    return manifest


def names(place: ObjectPath, kind: str) -> list[int]:
    return [int(each.name.partition(".")[0]) for each in (place / "manifest" / kind).iterdir()]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after thousands of entries comes after a few."""
    monkeypatch.setattr(module, "FOLD_ENTRIES", 4)
    monkeypatch.setattr(module, "BEGIN_ENTRIES", 8)


@pytest.fixture
def hasty(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes a day later, or after an hour without news, comes at once; clocks of others may be ahead."""
    monkeypatch.setattr(module, "FOLDED_KEPT_S", -3600.0)
    monkeypatch.setattr(module, "BEHIND_S", -1.0)


@pytest.mark.parametrize("begins", [False, True])
def test_many_writers_at_once_record_every_file_once_and_all_see_the_same(
    any_place: ObjectPath, begins: bool, request: pytest.FixtureRequest
) -> None:
    if begins:
        request.getfixturevalue("short")
    place, count = any_place, 12
    writers = [Manifest(place) for _ in range(6)]
    for number in range(count):
        stored(place, number, number + 1)

    def write(writer: Manifest) -> list[int]:
        mine = []
        while (have := writer.next_by_log.get("/", 0)) < count:
            try:
                mine += [file.first for file in writer.append([stored(place, have, have + 1)])]
            except TransferGap:
                writer.refresh()
        return mine

    with ThreadPoolExecutor(len(writers)) as threads:
        recorded = list(threads.map(write, writers))
    assert sorted(first for mine in recorded for first in mine) == list(range(count))
    for writer in writers:
        writer.refresh()
        assert writer.entries == Manifest(place).entries
    assert [file.first for file in Manifest(place).files()] == list(range(count))
    assert (Manifest(place).entries[0].state is not None) is begins


def test_an_answer_that_was_lost_is_not_taken_for_another_writer(
    any_place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ObjectPath.create
    # As when the store did it, its answer did not arrive, and it is asked again.
    monkeypatch.setattr(ObjectPath, "create", lambda self, octets: create(self, octets) and False)
    manifest = filled(any_place, 2)
    assert manifest.number == 2
    assert [file.first for file in Manifest(any_place).files()] == [0, 1]


def test_a_second_writer_is_noticed_and_what_the_first_wrote_stays(any_place: ObjectPath) -> None:
    one, other = Manifest(any_place), Manifest(any_place)
    file = stored(any_place, 0, 10)
    assert one.append([file]) == [file]
    assert other.append([file]) == []
    assert other.append([stored(any_place, 10, 12)])
    with pytest.raises(TransferGap):
        one.append([stored(any_place, 13, 14)])
    assert Manifest(any_place).next_by_log == {"/": 12}


def test_a_store_that_keeps_what_is_there_is_accepted(any_place: ObjectPath) -> None:
    Manifest(any_place).check()
    assert not any_place.exists(), "nothing is left of the attempt"


def test_entries_are_folded_into_logs_that_say_the_same(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_ENTRIES", 4)
    late = filled(place, 1)
    writer = Manifest(place)
    for number in range(1, 10):
        writer.append([stored(place, number, number + 1)])
    assert (names(place, "logs"), names(place, "entries")) == ([1, 5], list(range(1, 11)))
    assert Manifest(place).entries == writer.entries
    monkeypatch.setattr(module, "FOLDED_KEPT_S", -3600.0)
    for number in range(10, 12):
        writer.append([stored(place, number, number + 1)])
    assert (names(place, "logs"), names(place, "entries")) == ([1, 5, 9], [])
    writer.append([stored(place, 12, 13)])
    late.refresh()
    assert late.entries == Manifest(place).entries == writer.entries, (
        "one that was left behind reads the logs"
    )
    assert late.append([stored(place, 13, 14)])
    writer.refresh()
    assert writer.number == 14


def test_logs_of_a_writer_that_died_before_it_folded_are_written_by_the_next(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = filled(place, 5)
    monkeypatch.setattr(module, "FOLD_ENTRIES", 4)
    for number in range(5, 8):
        manifest.append([stored(place, number, number + 1)])
    assert names(place, "logs") == [1, 5]
    assert Manifest(place).entries == manifest.entries


@pytest.mark.parametrize("kind", ["gone", "torn", "another"])
def test_an_entry_that_is_not_as_it_was_is_named(place: ObjectPath, kind: str) -> None:
    filled(place, 3)
    entry = place / "manifest" / "entries" / f"{2:020}.entry"
    if kind == "gone":
        entry.unlink()
    elif kind == "torn":
        entry.write_bytes(entry.read_bytes()[:-5])
    else:
        entry.write_bytes((entry.parent / f"{1:020}.entry").read_bytes())
    with pytest.raises(ManifestDamaged, match="where entry 2 should be"):
        Manifest(place)


def test_a_store_that_overwrites_what_is_to_be_created_is_refused(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ObjectPath(object_store.new_bucket())
    manifest = Manifest(place)
    monkeypatch.setattr(object_store, "knows_conditions", False)
    with pytest.raises(StorageError, match="If-None-Match"):
        manifest.check()
    assert not place.exists(), "nothing is left of the attempt"


def test_looking_for_news_costs_two_requests(object_store: ObjectStore) -> None:
    manifest = filled(ObjectPath(object_store.new_bucket()), 3)
    before = len(object_store.requests)
    manifest.refresh()
    assert len(object_store.requests) - before == 2


def test_what_has_grown_long_begins_anew_and_what_was_before_goes(
    long_place: ObjectPath, hasty: None
) -> None:
    place = long_place
    late, late_writer = filled(place, 1), Manifest(place)
    writer = Manifest(place)
    for number in range(1, 40):
        writer.append([stored(place, number, number + 1)], [f"{number - 1}.parquet"])
    begin = writer.entries[0]
    assert begin.state is not None
    assert (begin.number, writer.number) == (41, 45), "forty appended, and five begins"
    assert [names(place, kind) for kind in ("begins", "logs", "entries")] == [[41], [41], [45]]
    fresh = Manifest(place)
    late.refresh()
    for each in (fresh, late):
        assert (each.entries, each.files()) == (writer.entries, writer.files())
        assert each.next_by_log == writer.next_by_log == {"/": 40}
    assert late_writer.append([stored(place, 40, 41)]), "who knew less than there is now, writes behind it"
    writer.refresh()
    assert writer.entries == late_writer.entries == Manifest(place).entries


def test_a_begin_that_its_writer_did_not_live_to_tell_of_is_told_of_by_the_next(
    place: ObjectPath, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = filled(place, 8)

    def killed(log: module.ObjectLog, number: int) -> None:
        raise KeyboardInterrupt(number)

    with monkeypatch.context() as patch:
        patch.setattr(module.ObjectLog, "_say_begin", killed)
        with pytest.raises(KeyboardInterrupt):
            manifest.append([stored(place, 8, 9)])
    successor = Manifest(place)
    assert (successor.number, names(place, "begins")) == (9, [])
    assert successor.entries[0].state is not None
    for number in range(8, 11):
        assert successor.append([stored(place, number, number + 1)])
    assert [names(place, kind) for kind in ("begins", "logs", "entries")] == [[9], [9], []]
    assert Manifest(place).entries == successor.entries
    assert [file.first for file in Manifest(place).files()] == list(range(11))


def test_a_begin_whose_entry_is_not_there_is_named(
    place: ObjectPath, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = filled(place, 3)
    for number in range(3, 9):
        Manifest(place).append([stored(place, number, number + 1)])
    for name in ("entries", "logs"):
        for each in (place / "manifest" / name).iterdir():
            each.unlink()
    monkeypatch.setattr(module, "BEHIND_S", -1.0)
    for _ in range(2):
        with pytest.raises(ManifestDamaged, match=r"begins/0*9\.begin, which names a missing entry"):
            late.append([stored(place, 3, 4)])
    with pytest.raises(ManifestDamaged, match=r"begins/0*9\.begin, which names a missing entry"):
        Manifest(place)
    assert names(place, "entries") == []


@pytest.mark.parametrize("count", [3, 8, 9, 14, 23])
def test_a_deletion_that_is_cut_short_leaves_all_of_it_or_what_cannot_be_read(
    place: ObjectPath, count: int, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled(place, count).entries
    objects, unlink, deleted = set(place.glob("manifest/*/*")), ObjectPath.unlink, set[ObjectPath]()

    def examined(path: ObjectPath, missing_ok: bool = False) -> None:
        # A deletion that is cut short here leaves the objects as they are now.
        with suppress(ManifestDamaged):
            assert Manifest(place).entries in (whole, [])
        assert set(place.glob("manifest/*/*")) == objects - deleted, "reading changed what is left"
        unlink(path, missing_ok)
        deleted.add(path)

    monkeypatch.setattr(ObjectPath, "unlink", examined)
    module.delete_manifest(place / "manifest")
    assert deleted >= objects
    assert not Manifest(place).entries

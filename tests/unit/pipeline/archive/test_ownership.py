"""An archive that the nodes of a cluster share: one writer a vhost, and nothing of a node that was only paused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive import manifest_storage
from leveret.pipeline.archive.contents import unfinished_plans
from leveret.pipeline.archive.manifest import Manifest, Superseded
from leveret.pipeline.archive.ownership import MARK, claim, identify
from leveret.pipeline.archive.recovery_plan import PlanDirectory, RecoveryPlan, delete_unfrozen, pinned
from leveret.pipeline.archive.sweep import delete_orphans, delete_unread, sweep
from leveret.pipeline.files.files import Place, make_directory
from leveret.pipeline.jobs.job import SCRATCH, LoginCredentials, RecoverJob
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.recovery.driver import RecoveryRun
from leveret.pipeline.transfer.compaction import Compaction
from tests.unit.pipeline.archive.test_manifest import stored


def frozen(data_dir: Place, vhost: str = "/", term: int = 0, file: str = "") -> PlanDirectory:
    directory = PlanDirectory.new(data_dir, vhost, term=term)
    directory.freeze(
        RecoveryPlan(
            plan_id=directory.path.name, vhost=vhost, number=1, files=[file] if file else [], parts=[]
        )
    )
    return directory


def test_what_a_paused_owner_brings_is_refused_and_the_next_one_goes_on_where_the_archive_stands(
    data_dir: Place,
) -> None:
    paused = Manifest(data_dir)
    claim(paused, {"/": 1})
    paused.append([stored(data_dir, 0, 10)], terms={"/": 1})
    owner = Manifest(data_dir)
    claim(owner, {"/": 2})
    assert owner.next_by_log == {"/": 10}
    with pytest.raises(
        Superseded, match=r"vhost '/' belongs to another node by now \(term 2, .* has term 1\)"
    ):
        paused.append([stored(data_dir, 10, 20)], terms={"/": 1})
    with pytest.raises(Superseded):
        claim(paused, {"/": 1})
    owner.append([stored(data_dir, 10, 15)], terms={"/": 2})
    assert Manifest(data_dir).next_by_log == {"/": 15}


def test_owners_of_different_vhosts_write_at_the_same_time(data_dir: Place) -> None:
    first, second = Manifest(data_dir), Manifest(data_dir)
    claim(first, {"a": 1})
    claim(second, {"b": 7})
    for turn in range(3):
        first.append([stored(data_dir, turn, turn + 1, "a")], terms={"a": 1})
        second.append([stored(data_dir, turn, turn + 1, "b")], terms={"b": 7})
    assert Manifest(data_dir).next_by_log == {"a": 3, "b": 3}
    with pytest.raises(Superseded):
        second.append([stored(data_dir, 3, 4, "a")], terms={"b": 7})


def test_a_claim_that_stands_writes_nothing(data_dir: Place) -> None:
    manifest = Manifest(data_dir)
    claim(manifest, {"/": 3})
    claim(manifest, {"/": 3})
    assert manifest.number == 1
    assert manifest.entries[0].format == 3


def test_a_node_alone_does_not_write_to_the_archive_of_a_cluster(data_dir: Place) -> None:
    alone = Manifest(data_dir)
    alone.append([stored(data_dir, 0, 10)])
    claim(Manifest(data_dir), {"/": 1})
    with pytest.raises(Superseded, match="a cluster writes this archive"):
        alone.append([stored(data_dir, 10, 20)])


def test_a_compaction_by_a_paused_owner_changes_nothing(data_dir: Place) -> None:
    paused = Manifest(data_dir)
    before = [stored(data_dir, 0, 10), stored(data_dir, 10, 20)]
    paused.append(before)
    claim(Manifest(data_dir), {"/": 2})
    with pytest.raises(Superseded):
        paused.append([stored(data_dir, 0, 20)], removed=[file.path for file in before], terms={"/": 1})
    assert Manifest(data_dir).files() == before


def test_claims_and_named_plans_outlive_the_entries_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_storage, "LOG_BYTES_MAX", 1)
    manifest = Manifest(tmp_path)
    claim(manifest, {"/": 4})
    manifest.name_plans({"p": "/"}, {"/": 4})
    for turn in range(4):
        manifest.append([stored(tmp_path, turn, turn + 1)], terms={"/": 4})
    again = Manifest(tmp_path)
    assert again.entries[0].state is not None
    assert (again.terms, again.named_plans) == ({"/": 4}, {"p"})


def test_a_plan_that_a_paused_owner_freezes_too_late_does_not_count(data_dir: Place) -> None:
    """The next owner made another plan of the same messages: both would double them."""
    paused, owner = Manifest(data_dir), Manifest(data_dir)
    claim(paused, {"/": 1})
    claim(owner, {"/": 2})
    mine = frozen(data_dir)
    owner.name_plans({mine.path.name: "/"}, {"/": 2})
    late = frozen(data_dir)
    with pytest.raises(Superseded):
        paused.name_plans({late.path.name: "/"}, {"/": 1})
    assert [row["plan_id"] for row in unfinished_plans(data_dir)] == [mine.path.name]


def test_a_plan_that_nobody_carries_out_keeps_no_files(data_dir: Place, tmp_path: Path) -> None:
    """A promotion was killed between the two steps, or its node was only paused; a later owner's plan is not ours."""
    manifest = Manifest(data_dir)
    claim(manifest, {"/": 2})
    manifest.append([stored(data_dir, 0, 10)], terms={"/": 2})
    named = frozen(data_dir, term=2, file="named")
    manifest.name_plans({named.path.name: "/"}, {"/": 2})
    for term in (1, 2, 3):
        frozen(data_dir, term=term, file=f"of term {term}")
    nobody = LoginCredentials(username="", password="")
    job = RecoverJob(
        data_dir=str(data_dir), work_dir=str(tmp_path), endpoint="", credentials=nobody, terms={"/": 2}
    )
    with Inbox() as inbox:
        left = RecoveryRun(job, cast(Any, None), inbox)._left()
    assert [each.path.name for each in left] == [named.path.name]
    assert pinned(data_dir) == {"named", "of term 3"}


def test_a_plan_that_was_named_before_the_owner_was_lost_is_the_next_owners_to_finish(
    data_dir: Place,
) -> None:
    lost = Manifest(data_dir)
    claim(lost, {"/": 1})
    begun = frozen(data_dir)
    lost.name_plans({begun.path.name: "/"}, {"/": 1})
    claim(Manifest(data_dir), {"/": 2})
    assert [row["plan_id"] for row in unfinished_plans(data_dir)] == [begun.path.name]


def test_a_plan_from_before_the_archive_was_shared_goes_on(data_dir: Place) -> None:
    begun = frozen(data_dir)
    claim(Manifest(data_dir), {"/": 1})
    assert [row["plan_id"] for row in unfinished_plans(data_dir)] == [begun.path.name]


def test_an_owner_sweeps_files_and_rehearsals_of_its_own_vhosts_only(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    places = [tmp_path / "data" / f"vhost-{vhost}" / "00-01.parquet" for vhost in "ab"] + [
        tmp_path / SCRATCH / "r" / f"vhost-{vhost}" / "plan" for vhost in "ab"
    ]
    for place in places:
        make_directory(place.parent)
        place.write_bytes(b"")
    sweep(manifest, tmp_path / "work", {"a": 1})
    assert [place.exists() for place in places] == [False, True, False, True]


def test_an_owner_that_was_paused_sweeps_nothing_that_the_next_one_is_about_to_record(
    data_dir: Place,
) -> None:
    paused = Manifest(data_dir)
    claim(paused, {"/": 1})
    claim(Manifest(data_dir), {"/": 2})
    coming = stored(data_dir, 0, 10)
    with pytest.raises(Superseded):
        delete_orphans(paused, terms={"/": 1})
    assert (data_dir / coming.path).exists()


def test_an_owner_that_was_paused_deletes_no_file_that_the_next_one_wrote_under_the_name_of_an_old_one(
    data_dir: Place, tmp_path: Path
) -> None:
    """The operator deleted the vhost's data meanwhile, so the logs began anew."""
    manifest = Manifest(data_dir)
    claim(manifest, {"/": 1})
    claim(Manifest(data_dir), {"/": 2})
    coming, rehearsal = (
        data_dir / stored(data_dir, 0, 10).path,
        PlanDirectory.new(data_dir, "/", f"{SCRATCH}/r"),
    )
    rehearsal.freeze(RecoveryPlan(plan_id="p", vhost="/", number=1, files=[], parts=[]))
    assert delete_unread(Manifest(data_dir), tmp_path, [coming], {"/": 1}) == [coming]
    assert coming.exists()
    assert rehearsal.is_frozen
    assert delete_unread(Manifest(data_dir), tmp_path, [coming], {"/": 2}) == []
    assert not coming.exists()
    assert not rehearsal.is_frozen


def test_an_owner_that_was_another_ones_meanwhile_leaves_what_it_replaced_before_to_its_sweep(
    data_dir: Place, tmp_path: Path
) -> None:
    compaction, manifest = Compaction(cast(Any, None)), Manifest(data_dir)
    claim(manifest, {"/": 3})
    coming = data_dir / stored(data_dir, 0, 10).path
    compaction._delete_garbage(manifest, tmp_path, {"/": 1})
    compaction._garbage = [coming]
    compaction._delete_garbage(manifest, tmp_path, {"/": 3})
    assert coming.exists()
    assert compaction._garbage == []


def test_an_owner_that_was_paused_leaves_the_plans_of_later_owners_alone(tmp_path: Path) -> None:
    begun = [PlanDirectory.new(tmp_path, "/", term=term) for term in (1, 2)]
    begun.append(PlanDirectory.new(tmp_path, "other", term=1))
    delete_unfrozen(tmp_path, terms={"/": 1})
    assert [each.path.exists() for each in begun] == [False, True, True]


def test_the_first_look_gives_an_archive_its_id_and_all_nodes_find_the_same(data_dir: Place) -> None:
    first = identify(data_dir / "new", "cluster", "")
    assert first == identify(data_dir / "new", "cluster", "") == identify(data_dir / "new", "cluster", first)


def test_different_archives_where_one_is_meant_are_told(data_dir: Place) -> None:
    first, second = data_dir / "x", data_dir / "y"
    shared = identify(first, "cluster", "")
    with pytest.raises(
        StorageError, match=f"has no {MARK}, so it is not the archive {shared} that the other nodes"
    ):
        identify(second, "cluster", shared)
    identify(second, "cluster", "")
    with pytest.raises(StorageError, match="data_dir names different places"):
        identify(second, "cluster", shared)


def test_an_archive_that_another_site_writes_is_told(data_dir: Place) -> None:
    identify(data_dir, "one", "")
    with pytest.raises(
        StorageError, match=r"is the archive of another cluster \(its id is one, and this one's is two"
    ):
        identify(data_dir, "two", "")

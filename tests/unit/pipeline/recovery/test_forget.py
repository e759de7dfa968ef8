"""Deleting what was transferred: killed anywhere, nothing comes back twice, and nothing that comes anew is hidden."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from leveret.model.errors import StorageError
from leveret.pipeline.archive import sweep as sweeping
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.manifest_storage import ManifestDamaged
from leveret.pipeline.archive.recovery_plan import PlanDirectory, pinned
from leveret.pipeline.archive.sweep import RECOVERY_LOCK, sweep
from leveret.pipeline.files import files
from leveret.pipeline.files.files import Place, locked, matching, name_in
from leveret.pipeline.files.objects import ObjectPath
from leveret.pipeline.jobs.job import AmqpTarget, LoginCredentials, RecoverJob
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.recovery import forget
from leveret.pipeline.recovery.driver import RecoveryRun
from leveret.pipeline.recovery.forget import delete_all, forget_vhosts
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.transfer.compaction import Compaction
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.conftest import MemoryStores
from tests.unit.pipeline.recovery.test_unsettled import VHOST, FakeBroker, Standby

pytestmark = pytest.mark.process

NOBODY = LoginCredentials(username="", password="")
TARGET = AmqpTarget(host="localhost", port=1, credentials=NOBODY)
EXPORTS = f"exports/{TARGET.digest_of(VHOST)}"
CHANGES = {"os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree", "open"}
"""What Python tells its audit hooks before it changes files; of those opened, the written ones."""


def upstream_with(*bodies: bytes, vhosts: tuple[str, ...] = (VHOST,)) -> StandbyUpstream:
    upstream = StandbyUpstream(vhosts)
    for vhost in vhosts:
        for body in bodies:
            upstream.publish(vhost, "a", [stored_message(body)])
    return upstream


def used_archive(data_dir: Place) -> None:
    """An archive from which was promoted, with a recovery into another broker that was interrupted."""
    standby = Standby(data_dir, chunks_per_file=4)
    standby.transfer(upstream_with(*(b"old%d" % number for number in range(4))))
    assert freeze_plan(standby.manifest, VHOST, plans=EXPORTS) is not None
    assert standby.promote() == 4


def assert_begins_anew(data_dir: Place, work: Path) -> None:
    """Another upstream, whose queues and offsets have the same names, comes back whole, and once."""
    upstream = upstream_with(*(b"new%d" % number for number in range(6)))
    standby = Standby(data_dir, chunks_per_file=4)
    standby.transfer(upstream)
    assert left_of_exports(data_dir, work) == []
    sweep(standby.manifest, work)
    assert not pinned(data_dir)
    if isinstance(data_dir, Path):
        named = {data_dir / name for file in standby.manifest.files() for name in file.names}
        assert set(matching(data_dir, "data/*/*")) == named
    assert standby.promote() == 6
    assert standby.promote() == 0
    assert standby.broker.queues == {"a": upstream.unsettled(VHOST, "a")}


def left_of_exports(data_dir: Place, work: Path) -> list[PlanDirectory]:
    """What the next recovery into the other broker would go on with."""
    job = RecoverJob(data_dir=str(data_dir), work_dir=str(work), endpoint="", credentials=NOBODY, to=TARGET)
    with Inbox() as inbox:
        return RecoveryRun(job, cast(ParentChannel, None), inbox)._left()


def killed(work: Callable[[], object], step: int) -> bool:
    """Do it in a child that is killed in front of its so-many-th change of a file; false: it ended before that."""
    child = os.fork()
    if not child:
        left = [step]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            is_change = event in CHANGES and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR))
            left[0] -= is_change
            if left[0] < 0:
                os._exit(9)

        sys.addaudithook(hook)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


def kill_in_front_of_deletion(patch: pytest.MonkeyPatch, step: int) -> None:
    """Of objects in a store."""
    left, unlink = [step], ObjectPath.unlink

    def counted(self: ObjectPath, missing_ok: bool = False) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        unlink(self, missing_ok)

    patch.setattr(ObjectPath, "unlink", counted)


def test_a_new_upstream_of_a_vhost_that_was_forgotten_comes_back_whole(
    data_dir: Place, tmp_path: Path
) -> None:
    used_archive(data_dir)
    [damaged] = matching(data_dir, f"{EXPORTS}/*/*/plan.json")
    damaged.write_bytes(b"torn")
    [row] = forget_vhosts(data_dir, tmp_path, [VHOST])
    assert row["vhost"] == VHOST
    assert matching(data_dir, "plans/*/*") == matching(data_dir, "exports/*/*/*") == []
    assert_begins_anew(data_dir, tmp_path)


def test_forgetting_killed_anywhere_hides_nothing_of_a_new_upstream(tmp_path: Path) -> None:
    used_archive(tmp_path / "used")
    step, is_over = 0, False
    while not is_over:
        place = tmp_path / f"{step}"
        shutil.copytree(tmp_path / "used", place)
        is_over = not killed(lambda place=place: forget_vhosts(place, place, [VHOST]), step)  # type: ignore[misc]
        if Manifest(place).next_by_log:
            assert not is_over
            forget_vhosts(place, place, [VHOST])
        assert_begins_anew(place, place)
        step += 1
    assert step > 10


def test_deleting_all_killed_anywhere_brings_nothing_back_twice(tmp_path: Path) -> None:
    used_archive(tmp_path / "used")
    step, is_over = 0, False
    while not is_over:
        place = tmp_path / f"{step}"
        shutil.copytree(tmp_path / "used", place)
        is_over = not killed(lambda place=place: delete_all(place, place), step)  # type: ignore[misc]
        if not assert_nothing_twice(place):
            delete_all(place, place)
        assert_begins_anew(place, place)
        step += 1
    assert step > 10


def test_deleting_all_of_an_archive_in_a_store_killed_anywhere_brings_nothing_back_twice(
    memory_store: MemoryStores, tmp_path: Path
) -> None:
    step, is_over = 0, False
    while not is_over:
        place = memory_store.new_place()
        used_archive(place)
        with pytest.MonkeyPatch.context() as patch:
            kill_in_front_of_deletion(patch, step)
            try:
                delete_all(place, tmp_path)
                is_over = True
            except Killed:
                pass
        assert_nothing_twice(place)
        step += 1
    assert step > 6
    assert_begins_anew(place, tmp_path)


def assert_nothing_twice(place: Place) -> bool:
    """What is left of an archive that was to be deleted says that it is damaged, or brings back nothing.

    Whether something else can be transferred into it already.
    """
    try:
        manifest = Manifest(place)
    except ManifestDamaged:
        return False
    assert all((place / file.path).exists() for file in manifest.files())
    assert Standby(place).promote() == 0
    return not manifest.next_by_log


def test_all_is_deleted_whatever_the_manifest_is_like(tmp_path: Path) -> None:
    used_archive(tmp_path)
    [log] = (tmp_path / "manifest").glob("*.log")
    log.write_bytes(b"altered\n" + log.read_bytes())
    with pytest.raises(ManifestDamaged):
        Manifest(tmp_path)
    delete_all(tmp_path, tmp_path)
    assert_begins_anew(tmp_path, tmp_path)


def compacted(standby: Standby, vhost: str) -> list[StoredFile]:
    """Files of a vhost, in whose place is one now."""
    files = [file for file in standby.manifest.files() if file.vhost == vhost]
    standby.manifest.append([compact(standby.data_dir, files)], removed=[file.path for file in files])
    return files


def test_forgetting_a_vhost_leaves_what_an_interrupted_recovery_of_another_needs(
    data_dir: Place, tmp_path: Path
) -> None:
    upstream = upstream_with(b"0", b"1", b"2", vhosts=(VHOST, "b"))
    standby = Standby(data_dir, 1)
    standby.transfer(upstream)
    plan = freeze_plan(standby.manifest, VHOST, plans=EXPORTS)
    assert plan is not None
    files = compacted(standby, VHOST)
    assert [row["vhost"] for row in forget_vhosts(data_dir, tmp_path, ["b"])] == ["b"]
    assert matching(data_dir, "data/vhost-b/*") == []
    broker = FakeBroker()
    PlanPublisher(plan, broker.connect, lambda count: None).publish(["a"])
    assert broker.queues == {"a": upstream.unsettled(VHOST, "a")}
    assert all((data_dir / file.path).exists() for file in files)


@pytest.mark.parametrize(
    "work", [lambda place: forget_vhosts(place, place, [VHOST]), lambda place: delete_all(place, place)]
)
def test_nothing_is_deleted_under_the_hands_of_a_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], object]
) -> None:
    monkeypatch.setattr("leveret.pipeline.recovery.forget._LOCK_TIMEOUT_S", 0.0)
    used_archive(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with (
        locked(tmp_path / RECOVERY_LOCK, 1, "recovering"),
        pytest.raises(StorageError, match=r"recovery\.lock: another process is recovering"),
    ):
        work(tmp_path)
    assert set(before) <= set(tmp_path.rglob("*"))
    assert Manifest(tmp_path).next_by_log


def rehearsed(data_dir: Place) -> tuple[Standby, PlanDirectory, list[Place]]:
    """What a rehearsal that was ended leaves, and files that were compacted meanwhile."""
    standby = Standby(data_dir, 1)
    standby.transfer(upstream_with(b"0", b"1", b"2"))
    plan = freeze_plan(standby.manifest, VHOST, plans="rehearsals/abc")
    assert plan is not None
    return standby, plan, [data_dir / file.path for file in compacted(standby, VHOST)]


def test_a_rehearsal_that_was_ended_pins_nothing(data_dir: Place, tmp_path: Path) -> None:
    standby, plan, files = rehearsed(data_dir)
    compaction = Compaction(cast(Any, None))
    compaction._garbage = list(files)
    compaction._delete_garbage(standby.manifest, tmp_path, None)
    assert not any(place.exists() for place in [*files, plan.path])
    assert compaction._garbage == []


def test_a_rehearsal_that_was_ended_keeps_no_file_when_the_transfer_begins(tmp_path: Path) -> None:
    standby, plan, files = rehearsed(tmp_path)
    sweep(standby.manifest, tmp_path)
    assert not any(place.exists() for place in [*files, plan.path])
    assert all((tmp_path / file.path).exists() for file in standby.manifest.files())


def test_a_rehearsal_that_goes_on_keeps_all_it_may_read(data_dir: Place, tmp_path: Path) -> None:
    standby, plan, files = rehearsed(data_dir)
    compaction = Compaction(cast(Any, None))
    compaction._garbage = list(files)
    with locked(tmp_path / RECOVERY_LOCK, 1, "recovering"):
        compaction._delete_garbage(standby.manifest, tmp_path, None)
        sweep(standby.manifest, tmp_path)
        assert all(place.exists() for place in [*files, plan.path])
    assert compaction._garbage == files


def test_no_recovery_begins_between_a_look_at_the_plans_and_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby, _, files = rehearsed(tmp_path)
    looked = []

    def look(data_dir: Place) -> set[str]:
        with (
            pytest.raises(StorageError, match="another process is recovering"),
            locked(tmp_path / RECOVERY_LOCK, 0, "recovering"),
        ):
            pass
        looked.append(data_dir)
        return {name_in(data_dir, place) for place in files}

    monkeypatch.setattr(sweeping, "pinned", look)
    sweep(standby.manifest, tmp_path)
    assert sweeping.delete_unread(standby.manifest, tmp_path, files) == files
    assert looked == [tmp_path, tmp_path]
    assert all(place.exists() for place in files)


def test_what_a_process_that_was_ended_records_late_is_refused(data_dir: Place, tmp_path: Path) -> None:
    """Also one that opens the manifest only then, as Spark's worker for the commit may."""
    # Half a second of imports.
    from leveret.pipeline.archive.manifest import VhostForgotten
    from leveret.pipeline.archive.store import store_range
    from leveret.pipeline.jobs.job import TransferJob
    from leveret.pipeline.transfer.sink import Stored, StoreWriter
    from leveret.pipeline.transfer.source import TransferOptions

    upstream = upstream_with(b"0", b"1", vhosts=(VHOST, "b"))
    chunks = upstream.logs[VHOST].read(0, 1 << 30)
    first = store_range(data_dir, VHOST, chunks[:1])
    assert first is not None
    manifest = Manifest(data_dir)
    manifest.append([first])
    job = TransferJob(
        data_dir=str(data_dir),
        work_dir=str(tmp_path),
        reference="",
        endpoints=[],
        vhosts=[VHOST],
        credentials=NOBODY,
    )
    forget_vhosts(data_dir, tmp_path, [VHOST])
    late = store_range(data_dir, VHOST, chunks[1:])
    other = store_range(data_dir, "b", upstream.logs["b"].read(0, 1 << 30))
    assert late is not None
    assert other is not None
    with Inbox() as inbox:
        writer = StoreWriter(TransferOptions(job=job, inbox=inbox.address, cores=1, begun=manifest.number))
        with pytest.raises(VhostForgotten, match=r"vhost '/': its data was deleted by entry 2"):
            writer.commit([Stored([late], [])], 0)
        assert Manifest(data_dir).next_by_log == {}
        writer.commit([Stored([other], [])], 0)
        begun = TransferOptions(job=job, inbox=inbox.address, cores=1, begun=Manifest(data_dir).number)
        StoreWriter(begun).commit([Stored([late], [])], 0)
    assert Manifest(data_dir).next_by_log == {VHOST: late.next, "b": other.next}
    assert transfer(upstream, data_dir).next_by_log == {VHOST: late.next, "b": other.next}


def test_a_setting_aside_that_is_cut_short_recovers_nothing_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[None] = []

    def mortal(place: Place, target: Place) -> None:
        files.move(place, target)
        left.pop()
        if not left:
            raise Killed

    for steps in range(1, 7):
        left[:], place = [None] * steps, tmp_path / str(steps)
        standby = Standby(place, chunks_per_file=4)
        standby.transfer(upstream_with(b"1", b"2", b"3", b"4", b"5"))
        assert standby.promote() == 5
        with monkeypatch.context() as patch:
            patch.setattr(forget, "move", mortal)
            with pytest.raises(Killed):
                forget.retire(place, place, 5)
        promoted = tmp_path / f"promoted-{steps}"
        shutil.copytree(place, promoted)
        with suppress(StorageError):
            plan = freeze_plan(Manifest(promoted), VHOST)
            assert plan is None or not plan.load().queues
        sweep(Manifest(place), place)
        forget.retire(place, place, 6)
        assert Manifest(place).files() == []
        kept = place / "former"
        [manifest] = [found for at in "56" if (found := Manifest(kept / at)).files()]
        wanted = {name for file in manifest.files() for name in file.names}
        assert {str(path.relative_to(kept))[2:] for path in kept.glob("?/data/*/*")} == wanted

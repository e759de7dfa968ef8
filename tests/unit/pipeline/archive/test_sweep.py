"""Deleting what the manifest let go of: an interrupted recovery keeps its own files, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.archive.recovery_plan import PlanDirectory, PlanOutcome, pinned
from leveret.pipeline.archive.sweep import RECOVERY_LOCK, delete_unread, sweep
from leveret.pipeline.files import files as files_module
from leveret.pipeline.files.files import Place, locked, matching, name_in
from leveret.pipeline.recovery.publish import PlanPublisher
from leveret.pipeline.transfer.compaction import Compaction
from leveret.testing.sites.standby_archive import freeze_plan, transfer
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.memory import scratch
from tests.unit.pipeline.recovery.test_unsettled import VHOST, FakeBroker, Lost, play, steps

EXPORTS = "exports/0123456789abcdef"


class Archive:
    """An archive that is transferred into and compacted all the time, and recovered from into another broker."""

    def __init__(self, data_dir: Place, work: Path, chunks_per_file: int = 2) -> None:
        self.data_dir = data_dir
        self.work = work
        self.broker = FakeBroker()
        self._chunks_per_file = chunks_per_file
        self._compaction = Compaction(cast(Any, None))

    def transfer(self, upstream: StandbyUpstream) -> None:
        transfer(upstream, self.data_dir, chunks_per_file=self._chunks_per_file)

    def compact(self) -> None:
        """What a turn does: files that were replaced before go, and all that there are now become one."""
        manifest = Manifest(self.data_dir)
        self._compaction._delete_garbage(manifest, self.work, None)
        files = manifest.files()
        if not all(file.history_from_ms for file in files):
            self._compaction._replace(manifest, files, compact(self.data_dir, files), None)

    def sweep(self) -> None:
        """What a transfer does that begins."""
        sweep(Manifest(self.data_dir), self.work)

    def plan(self) -> PlanDirectory | None:
        return freeze_plan(Manifest(self.data_dir), VHOST, plans=EXPORTS)

    def publish(self, directory: PlanDirectory) -> None:
        plan = directory.load()
        publisher = PlanPublisher(directory, self.broker.connect, lambda count: None)
        queues = publisher.publish(sorted(plan.queues)) if plan.queues else []
        directory.finish(
            PlanOutcome(plan_id=plan.plan_id, vhost=VHOST, number=plan.number, finished_ms=1, queues=queues)
        )

    @property
    def present(self) -> set[str]:
        """The names of the files that are there."""
        return {name_in(self.data_dir, place) for place in matching(self.data_dir, "data/*/*")}

    @property
    def named(self) -> set[str]:
        """Those that the manifest names."""
        return {name for file in Manifest(self.data_dir).files() for name in file.names}


@pytest.fixture
def archive(data_dir: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(files_module, "ORPHAN_AGE_S", -3600.0)
    return Archive(data_dir, tmp_path)


def add_traffic(upstream: StandbyUpstream, count: int = 4) -> None:
    """So many messages come and are settled, but for one."""
    for _ in range(count):
        first = (
            upstream.incarnations[VHOST, "a"][-1].next_offset if (VHOST, "a") in upstream.incarnations else 0
        )
        upstream.publish(VHOST, "a", [stored_message(b"%d" % number) for number in range(first, first + 3)])
        upstream.settle(VHOST, "a", [(first + 1, 2)])


def test_an_abandoned_plan_keeps_its_own_files_and_no_others(archive: Archive) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    first = archive.named
    directory = archive.plan()
    assert directory is not None
    wanted = upstream.unsettled(VHOST, "a")
    mine = set(directory.files)
    assert mine < first, "their sidecars are not needed any more"
    for turn in range(4):
        upstream.settle(VHOST, "a", [(4 * turn, 1)])
        add_traffic(upstream)
        archive.transfer(upstream)
        archive.compact()
        archive.compact()
        assert archive.present == archive.named | mine
        archive.sweep()
        assert archive.present == archive.named | mine
    assert not mine & archive.named
    archive.publish(directory)
    assert archive.broker.queues == {"a": wanted}
    archive.compact()
    assert archive.present == archive.named, "nobody needs them now"


def test_a_transfer_that_begins_deletes_what_a_plan_needed_that_is_carried_out(archive: Archive) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    directory = archive.plan()
    assert directory is not None
    archive.compact()
    archive.sweep()
    assert archive.present == archive.named | set(directory.files)
    archive.publish(directory)
    archive.sweep()
    assert archive.present == archive.named


def test_plans_of_several_targets_keep_the_files_of_each(archive: Archive) -> None:
    upstream = StandbyUpstream()
    kept: set[str] = set()
    for plans in ("plans", EXPORTS):
        add_traffic(upstream)
        archive.transfer(upstream)
        directory = freeze_plan(Manifest(archive.data_dir), VHOST, plans=plans)
        assert directory is not None
        kept |= set(directory.files)
        archive.compact()
    add_traffic(upstream)
    archive.transfer(upstream)
    archive.compact()
    archive.compact()
    archive.sweep()
    assert pinned(archive.data_dir) == kept
    assert archive.present == archive.named | kept


def test_while_nobody_knows_what_a_plan_needs_all_stays(archive: Archive) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    directory = archive.plan()
    assert directory is not None
    before = archive.present
    place = directory.path / "plan.json"
    octets = place.read_bytes()
    place.write_bytes(octets[:-9] + octets[-8:])
    archive.compact()
    archive.compact()
    archive.sweep()
    assert archive.present == archive.named | before
    place.write_bytes(octets)
    archive.compact()
    assert archive.present == archive.named | set(directory.files)


def test_a_plan_that_keeps_all_files_because_it_cannot_be_read_is_in_the_log_once(
    archive: Archive, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    directory = archive.plan()
    assert directory is not None
    (directory.path / "plan.json").write_bytes(b"")
    for _ in range(3):
        archive.sweep()
    [line] = caplog.messages
    assert line.startswith(f"archive_not_swept error={directory.path / 'plan.json'}: ")


def test_a_file_that_the_manifest_names_again_stays(archive: Archive) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    named = [archive.data_dir / name for name in archive.named]
    assert delete_unread(Manifest(archive.data_dir), archive.work, named) == []
    assert archive.present == archive.named


def test_while_a_recovery_is_under_way_all_stays_whatever_its_plan_is_to_be(archive: Archive) -> None:
    upstream = StandbyUpstream()
    add_traffic(upstream)
    archive.transfer(upstream)
    abandoned = archive.plan()
    assert abandoned is not None
    before = archive.present
    PlanDirectory.new(archive.data_dir, VHOST, EXPORTS)
    with locked(archive.work / RECOVERY_LOCK, 1, "recovering"):
        archive.compact()
        archive.compact()
        archive.sweep()
        assert archive.present == archive.named | before
    archive.compact()
    assert archive.present == archive.named | set(abandoned.files), (
        "one that was never complete needs nothing"
    )


@given(
    before=steps,
    after=steps,
    chunks_per_file=st.integers(1, 3),
    published=st.integers(0, 8),
    turns=st.integers(1, 3),
)
@settings(max_examples=25)
def test_a_recovery_goes_on_and_the_next_follows_as_if_nothing_had_been_deleted(
    before: list[Any], after: list[Any], chunks_per_file: int, published: int, turns: int
) -> None:
    with scratch() as directory:
        upstream = StandbyUpstream()
        play(upstream, before)
        archives = [
            Archive(directory / name, directory / name, chunks_per_file) for name in ("kept", "swept")
        ]
        left = [interrupted(archive, upstream, published) for archive in archives]
        play(upstream, after, base=1000)
        for archive in archives:
            archive.transfer(upstream)
        for _ in range(turns):
            archives[1].compact()
            archives[1].sweep()
        for archive, plan in zip(archives, left, strict=True):
            if plan is not None:
                archive.publish(plan)
            following = archive.plan()
            if following is not None:
                archive.publish(following)
        assert archives[0].broker.queues == archives[1].broker.queues
        archives[1].sweep()
        assert archives[1].present == archives[1].named


def interrupted(archive: Archive, upstream: StandbyUpstream, published: int) -> PlanDirectory | None:
    """The plan of a recovery that ended after so many messages; None if it had nothing to do, or was done by then."""
    archive.transfer(upstream)
    directory = archive.plan()
    if directory is None:
        return None
    archive.broker.goes_away_after = published
    try:
        archive.publish(directory)
    except Lost:
        return directory
    finally:
        archive.broker.goes_away_after = None
    return None

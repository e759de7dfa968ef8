"""A dry run that counts by statistics says what the plan of a recovery has, and reads only the files that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import StorageError
from leveret.pipeline.archive.compact import compact
from leveret.pipeline.archive.recovery_plan import QueueOutcome, RunPart, read_order
from leveret.pipeline.jobs.job import EVERYTHING, LoginCredentials, RecoverJob, Selection
from leveret.pipeline.recovery.counting import FoundRange, count_unsettled, read_unsettled, unsettled_parts
from leveret.pipeline.recovery.dry_run import estimates, is_counted
from leveret.pipeline.recovery.publish import queue_outcome
from leveret.pipeline.recovery.unsettled import not_to_recover
from leveret.testing.sites.standby_upstream import StandbyUpstream, stored_message
from tests.unit.pipeline.recovery.test_unsettled import VHOST, Standby, play, steps


def counted(standby: Standby, selection: Selection = EVERYTHING) -> tuple[list[QueueOutcome], list[int]]:
    """The outcomes by statistics, and the numbers of the files that were read, in order."""
    files = standby.manifest.files_of(VHOST)
    masks = not_to_recover(standby.manifest, VHOST, selection)
    opened: list[int] = []

    def read(numbers: list[int]) -> Iterator[FoundRange]:
        opened.extend(numbers)
        for number in numbers:
            yield from read_unsettled(standby.data_dir, files[number], number, masks, selection)

    found = count_unsettled(files, unsettled_parts(files, masks, selection), masks, selection, read)
    return sorted(found, key=lambda outcome: outcome.queue), opened


def planned(standby: Standby, selection: Selection = EVERYTHING) -> list[QueueOutcome]:
    """The outcomes by the messages that a plan names."""
    directory = standby.plan(selection)
    if directory is None:
        return []
    by_queue: dict[str, list[RunPart]] = {}
    for part in directory.load().parts:
        by_queue.setdefault(part.queue, []).append(part)
    found = [queue_outcome(queue, read_order(directory.runs, by_queue[queue])) for queue in sorted(by_queue)]
    standby.publish(directory)
    return found


def compacted(standby: Standby, count: int) -> None:
    """Compact the first files."""
    files = standby.manifest.files_of(VHOST)[:count]
    if len(files) > 1:
        made = compact(standby.data_dir, files)
        standby.manifest.append([made], [file.path for file in files])


@given(
    before=steps,
    after=steps,
    chunks_per_file=st.integers(1, 6),
    recovers=st.booleans(),
    compacts=st.integers(0, 5),
)
@settings(max_examples=30)
def test_statistics_say_what_a_plan_has(
    before: list[Any],
    after: list[Any],
    chunks_per_file: int,
    recovers: bool,
    compacts: int,
    new_path: Callable[[], Path],
) -> None:
    upstream = StandbyUpstream()
    play(upstream, before)
    standby = Standby(new_path(), chunks_per_file)
    standby.transfer(upstream)
    if recovers:
        standby.promote(queues=["a"])
    play(upstream, after, base=1000)
    standby.transfer(upstream)
    compacted(standby, compacts)
    found, opened = counted(standby)
    assert len(opened) == len(set(opened)), "each file at most once"
    assert found == planned(standby)
    assert counted(standby) == ([], []), "all is recovered"


@given(before=steps, after=steps, chunks_per_file=st.integers(1, 6), recovers=st.booleans())
@settings(max_examples=30)
def test_statistics_say_what_a_plan_of_a_moment_has(
    before: list[Any], after: list[Any], chunks_per_file: int, recovers: bool, new_path: Callable[[], Path]
) -> None:
    upstream = StandbyUpstream()
    play(upstream, before)
    moment = Selection(as_of_ms=upstream.now_ms - 1)
    play(upstream, after, base=1000)
    standby = Standby(new_path(), chunks_per_file)
    standby.transfer(upstream)
    if recovers:
        standby.promote(queues=["a"])
    assert counted(standby, moment)[0] == planned(standby, moment)


def of_runs(data_dir: Path, runs: int) -> Standby:
    """Files of one run each: ten messages, of which the last one is not settled."""
    upstream, standby = StandbyUpstream(), Standby(data_dir, chunks_per_file=2)
    for run in range(runs):
        upstream.publish(VHOST, "a", [stored_message(b"%d" % run)] * 10)
        upstream.settle(VHOST, "a", [(run * 11, 9)])
    standby.transfer(upstream)
    return standby


def test_the_first_and_the_last_file_of_a_queue_are_read_and_no_other(tmp_path: Path) -> None:
    standby = of_runs(tmp_path, 40)
    [outcome], opened = counted(standby)
    assert (outcome.messages, opened) == (40, [0, 39])


def test_of_a_moment_the_file_that_it_cuts_is_read_and_the_ends_of_the_whole_ones(tmp_path: Path) -> None:
    standby = of_runs(tmp_path, 40)
    files = standby.manifest.files_of(VHOST)
    [outcome], opened = counted(standby, Selection(as_of_ms=files[20].min_ms))
    assert outcome.messages == 20 + 10, "nothing of the last run was settled"
    assert opened == [0, 19, 20]


def job_of(standby: Standby, **wanted: Any) -> RecoverJob:
    credentials = LoginCredentials(username="", password="")
    data_dir = str(standby.data_dir)
    return RecoverJob(data_dir=data_dir, endpoint="", credentials=credentials, dry_run=True, **wanted)


def test_a_missing_file_of_messages_is_an_error_though_it_is_not_read(tmp_path: Path) -> None:
    standby = of_runs(tmp_path, 5)
    files = standby.manifest.files_of(VHOST)
    [(plan, outcome)] = estimates(
        standby.manifest,
        job_of(standby),
        [VHOST],
        lambda tasks, work: map(work, tasks),
        lambda vhost, queues: [],
    )
    assert plan.queues == outcome.totals == {"a": 5}
    (tmp_path / files[2].path).unlink()
    with pytest.raises(StorageError, match=rf"{files[2].path}: it is missing; restore"):
        list(
            estimates(
                standby.manifest,
                job_of(standby),
                [VHOST],
                lambda tasks, work: map(work, tasks),
                lambda vhost, queues: [],
            )
        )


def test_a_dry_run_that_depends_on_messages_themselves_does_not_count_by_statistics(tmp_path: Path) -> None:
    standby = of_runs(tmp_path, 1)
    assert is_counted(job_of(standby, as_of_ms=1))
    assert not is_counted(job_of(standby, all_available=True))
    assert not is_counted(job_of(standby, start_from_scratch=True))

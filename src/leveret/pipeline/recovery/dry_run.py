"""A dry run by the manifest's statistics: the outcomes that a recovery would have, mostly without a look at messages.

Few files are read (`counting`), by this process if they are small, and by Spark's tasks otherwise. Each file that a
recovery would open has to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.recovery_plan import PlanOutcome, RecoveryPlan
from leveret.pipeline.archive.settled_offsets import Masks
from leveret.pipeline.archive.stored_positions import StoredPositions
from leveret.pipeline.archive.tables import RESTORE
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import RecoverJob, Selection
from leveret.pipeline.recovery.counting import (
    FoundRange,
    count_unsettled,
    files_of,
    read_unsettled,
    unsettled_parts,
)
from leveret.pipeline.recovery.outcomes import outcome_of
from leveret.pipeline.recovery.unsettled import not_to_recover

RECORDS_READ_HERE_MAX: Final = 5_000_000
"""To start Spark takes longer than to read the keys of so many records."""
_THREADS: Final = 8


class ReadTask(NamedTuple):
    """Files of one vhost to read, with their numbers."""

    files: list[tuple[int, StoredFile]]


RunTasks = Callable[[list[ReadTask], Callable[[ReadTask], list[FoundRange]]], Iterable[list[FoundRange]]]
"""Runs the function for each task elsewhere, and returns the results."""


def is_counted(job: RecoverJob) -> bool:
    """Whether a dry run counts by statistics; the other selections depend on the messages themselves."""
    return job.dry_run and not job.all_available and not job.start_from_scratch


def estimates(
    manifest: Manifest,
    job: RecoverJob,
    vhosts: Iterable[str],
    run: RunTasks,
    stored_positions: Callable[[str, set[str]], list[StoredPositions]],
) -> Iterator[tuple[RecoveryPlan, PlanOutcome]]:
    """Yield, for each vhost with unsettled messages, the plan of a recovery, without files, and its outcome.

    Raises:
        PreconditionFailed: the wanted moment is before the known history.
        StorageError: a file is missing, or cannot be read.
    """
    for vhost in vhosts:
        selection = job.selection
        masks = not_to_recover(manifest, vhost, selection, job.plans_of(vhost))
        files = manifest.files_of(vhost)
        parts = unsettled_parts(files, masks, selection)
        _check_there(manifest.data_dir, files_of(files, parts))
        reader = _Reader(manifest.data_dir, files, masks, selection, run)
        queues = count_unsettled(files, parts, masks, selection, reader.read)
        if not queues:
            continue
        plan = RecoveryPlan(
            plan_id="",
            vhost=vhost,
            number=manifest.number,
            selection=selection,
            files=[],
            parts=[],
            messages={queue.queue: queue.messages for queue in queues},
            stored_positions=stored_positions(vhost, {queue.queue for queue in queues}),
        )
        yield plan, outcome_of(plan, queues)


class _Reader:
    """Reads files, here or elsewhere by their size."""

    def __init__(
        self, data_dir: Place, files: list[StoredFile], masks: Masks, selection: Selection, run: RunTasks
    ) -> None:
        self._files, self._run = files, run

        def work(task: ReadTask) -> list[FoundRange]:
            return [
                found
                for number, file in task.files
                for found in read_unsettled(data_dir, file, number, masks, selection)
            ]

        self._work = work

    def read(self, numbers: list[int]) -> Iterator[FoundRange]:
        """The unsettled messages in files of these numbers."""
        tasks = [ReadTask([(number, self._files[number])]) for number in numbers]
        if sum(self._files[number].records for number in numbers) > RECORDS_READ_HERE_MAX:
            for found in self._run(tasks, self._work):
                yield from found
            return
        with ThreadPoolExecutor(_THREADS, "keys") as threads:
            for found in threads.map(self._work, tasks):
                yield from found


def _check_there(data_dir: Place, files: list[StoredFile]) -> None:
    """Check that files exist."""
    paths = [data_dir / file.path for file in files]
    with ThreadPoolExecutor(_THREADS, "files") as threads:
        for path, is_there in zip(paths, threads.map(_exists, paths), strict=True):
            if not is_there:
                raise StorageError(f"{path}: it is missing; {RESTORE}")


def _exists(path: Any) -> bool:
    return bool(path.exists())

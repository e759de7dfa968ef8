"""Runs a piece of work on each task's ranges of the table; tasks return small results, not rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark.sql import SparkSession

from leveret.model.errors import StorageError
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.spark.numbered_tasks import run_numbered
from leveret.pipeline.table.plan import FileRange, ranges_by_task

_POLL_S: Final = 0.1


def run_tasks(
    spark: SparkSession, ranges: list[FileRange], work: Callable[[int, list[FileRange]], Any]
) -> list[Any]:
    """The result of `work` for each task, which gets the task's number and its ranges; results go through msgpack.

    Raises:
        StorageError: a file cannot be read or written.
        SparkFailed: anything else.
    """
    tasks = ranges_by_task(ranges)

    def attempt(task: int) -> tuple[Any, str]:
        try:
            return work(task, tasks[task]), ""
        except StorageError as error:
            # Another try would read, or write, the same.
            return None, str(error)

    found = run_numbered(spark, len(tasks), attempt, tuple[Any, str])
    for _, trouble in found:
        if trouble:
            raise StorageError(trouble)
    return [result for result, _ in found]


def with_progress(parent: ParentChannel, name: str, job: Callable[[str], Any]) -> Any:
    """The result of a job, which gets the address for its tasks' reports; these go to the console meanwhile."""
    with Inbox() as inbox, ThreadPoolExecutor(1, name) as pool:
        running = pool.submit(job, inbox.address)
        while not running.done():
            for event in inbox.wait(_POLL_S):
                parent.pass_on(event)
        return running.result()


def messages_of(ranges: list[FileRange]) -> int:
    """About the number of messages in ranges, for a progress bar; never more than there are in their files."""
    return sum(each.messages for each in ranges)

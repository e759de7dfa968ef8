"""Counts transferred messages by vhost, queue, exchange and routing key.

Tasks read four small columns of the table, and return counts. On standard output: `counting` (number of all messages,
at the begin), `counted` (number of further ones), `done` with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.jobs.job import InspectJob
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import report
from leveret.pipeline.spark.session import locked_scratch, start_session
from leveret.pipeline.table.plan import FileRange, plan_ranges
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.scan import read_rows
from leveret.pipeline.table.tasks import messages_of, run_tasks, with_progress

COUNTED: Final = ("vhost", "queue", "exchange", "routing_key")
_MERGED_ROWS: Final = 262_144


def run_inspection(job: InspectJob, parent: ParentChannel) -> None:
    """Count and report `done`; Spark is not started without messages.

    Raises:
        LeveretError: as `count_messages`; Spark does not start, or another inspection runs.
    """
    manifest = Manifest(job.root)
    if not manifest.files():
        parent.say("done", rows=[])
        return
    with locked_scratch(job.work, "inspect", "inspecting") as scratch:
        spark = start_session("inspect", job.spark, scratch, store=job.root)
        rows = with_progress(parent, "inspect", lambda inbox: count_messages(spark, manifest, inbox))
    parent.say("done", rows=rows)


def count_messages(spark: SparkSession, manifest: Manifest, inbox: str = "") -> list[dict[str, Any]]:
    """Sorted rows of vhost, queue, exchange, routing_key and messages; octets that are no UTF-8 are replaced.

    Progress is reported to `inbox`, if one is named. If a compaction replaced and deleted files meanwhile, all are
    counted once more.

    Raises:
        StorageError: a file cannot be read.
        SparkFailed: anything else.
    """
    stored = manifest.files()
    try:
        return _count(spark, manifest, inbox)
    except StorageError:
        if not has_replaced(manifest, stored):
            raise
    return _count(spark, manifest, inbox)


def has_replaced(manifest: Manifest, files: Iterable[StoredFile]) -> bool:
    """Whether the manifest, which is refreshed, no longer names some of these files."""
    manifest.refresh()
    return not {file.path for file in files} <= {file.path for file in manifest.files()}


def _count(spark: SparkSession, manifest: Manifest, inbox: str) -> list[dict[str, Any]]:
    ranges = plan_ranges(manifest, TableRequest(columns=COUNTED))
    if inbox:
        report(inbox, "counting", messages=messages_of(ranges))

    def work(task: int, mine: list[FileRange]) -> list[dict[str, Any]]:
        counts = MessageCounts()
        for each in mine:
            for batch in read_rows(each):
                counts.add(batch)
                if inbox:
                    report(inbox, "counted", messages=batch.num_rows)
        return counts.rows()

    found = MessageCounts()
    for rows in run_tasks(spark, ranges, work):
        found.add_counted(rows)
    return found.rows()


class MessageCounts:
    """Counts rows by their names; memory is bounded by the number of different ones."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._tables: list[pa.Table] = []
        self._waiting = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of rows with the columns COUNTED."""
        table = pa.Table.from_batches([batch]).group_by(list(COUNTED)).aggregate([([], "count_all")])
        self._take(table.rename_columns([*COUNTED, "messages"]))

    def add_counted(self, rows: list[dict[str, Any]]) -> None:
        """Add rows of another count."""
        if rows:
            self._take(pa.Table.from_pylist(rows))

    def rows(self) -> list[dict[str, Any]]:
        """The counts, sorted by their names."""
        self._merge()
        found = [row for table in self._tables for row in table.to_pylist()]
        return sorted(found, key=lambda row: tuple(row[name] for name in COUNTED))

    def _take(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._waiting += table.num_rows
        if self._waiting > _MERGED_ROWS:
            self._merge()

    def _merge(self) -> None:
        if len(self._tables) > 1:
            whole = pa.concat_tables(self._tables).group_by(list(COUNTED)).aggregate([("messages", "sum")])
            self._tables = [whole.rename_columns([*COUNTED, "messages"])]
        self._waiting = 0

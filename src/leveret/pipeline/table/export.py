"""Exports the table as Parquet files, which DuckDB, pyarrow, pandas and Spark read by themselves.

    <target>/messages-<n>.parquet   the rows of one task, with the columns of the request; one file if there is no row
    <target>/_export.json           what was exported, from which entry of the manifest; the last that is written

Without `_export.json` an export is not complete. The target is a new or empty directory, or place in a store: nothing
is replaced. On standard output: `exporting` (number of messages, at the begin), `exported` (number of further ones),
`done` with the rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from leveret.model.errors import InvalidCommand, LeveretError, StorageError
from leveret.pipeline.archive.manifest import Manifest
from leveret.pipeline.files.files import (
    Place,
    keep,
    make_directory,
    matching,
    place_of,
    sync_directory,
    write_durably,
    written_beside,
)
from leveret.pipeline.jobs.job import ExportJob
from leveret.pipeline.jobs.parent_channel import ParentChannel
from leveret.pipeline.jobs.progress import report
from leveret.pipeline.spark.session import locked_scratch, start_session
from leveret.pipeline.table.columns import PENDING, schema_of
from leveret.pipeline.table.plan import FileRange, open_archive, plan_ranges
from leveret.pipeline.table.request import TableRequest, request_of
from leveret.pipeline.table.scan import read_rows
from leveret.pipeline.table.tasks import messages_of, run_tasks, with_progress

PARQUET: Final = "parquet"
COMPLETE: Final = "_export.json"
_FILE: Final = "messages-{:06}.parquet"
_COUNTED: Final = ("vhost", "queue", "state")


def run_export(job: ExportJob, parent: ParentChannel) -> None:
    """Export and report `done`.

    Raises:
        LeveretError: as `export_messages`; Spark does not start, or another export runs.
    """
    request = request_of(job.options)
    with locked_scratch(job.work, "export", "exporting") as scratch, _new_place(job) as target:
        manifest = open_archive(job.data_dir)
        plan_ranges(manifest, request)
        spark = start_session("export", job.spark, scratch, store=job.root)
        rows = with_progress(
            parent, "export", lambda inbox: export_messages(spark, manifest, target, job.options, inbox)
        )
    parent.say("done", rows=rows)


def export_messages(
    spark: SparkSession, manifest: Manifest, target: Place, options: dict[str, str], inbox: str = ""
) -> list[dict[str, Any]]:
    """Write the rows of a request (its options, as of a query) into `target`.

    Returns:
        Sorted rows of vhost, queue, messages and pending, the number of messages in that state.

    Raises:
        InvalidCommand, PreconditionFailed: there is no such column, or the moment is not known.
        StorageError: a file cannot be read or written.
        SparkFailed: anything else.
    """
    request = request_of(options)
    ranges = plan_ranges(manifest, _counting(request))
    if inbox:
        report(inbox, "exporting", messages=messages_of(ranges))
    columns = list(request.columns)

    def work(task: int, mine: list[FileRange]) -> dict[str, Any]:
        place: Place = target / _FILE.format(task)
        counts = _write(place, (batch for each in mine for batch in read_rows(each)), columns, inbox)
        return {
            "file": place.name if counts else "",
            "counts": [[*names, count] for names, count in counts.items()],
        }

    found = run_tasks(spark, ranges, work)
    files = [each["file"] for each in found if each["file"]] or [_write_none(target, columns)]
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        counts.update({tuple(names): count for *names, count in each["counts"]})
    rows = _rows(counts)
    document = {
        "archive": str(manifest.data_dir),
        "manifest_entry": manifest.number,
        "exported_ms": time.time_ns() // 1_000_000,
        "options": options,
        "columns": columns,
        "messages": sum(counts.values()),
        "files": files,
    }
    write_durably(target / COMPLETE, msgspec.json.format(msgspec.json.encode(document)))
    return rows


def _counting(request: TableRequest) -> TableRequest:
    """The request with the columns that are counted."""
    columns = dict.fromkeys((*request.columns, *_COUNTED))
    return msgspec.structs.replace(request, columns=tuple(columns))


def _write(
    place: Place, batches: Iterator[pa.RecordBatch], columns: list[str], inbox: str
) -> Counter[tuple[str, str, str]]:
    """Write a file of these columns, without any row none; return the numbers of rows by vhost, queue and state."""
    counts: Counter[tuple[str, str, str]] = Counter()
    first = next(batches, None)
    if first is None:
        return counts
    with written_beside(place.parent) as beside:
        schema = first.select(columns).schema
        with _writer(beside, schema) as writer:
            for batch in chain((first,), batches):
                writer.write_batch(batch.select(columns))
                grouped = pa.Table.from_batches([batch.select(list(_COUNTED))]).group_by(list(_COUNTED))
                for row in grouped.aggregate([([], "count_all")]).to_pylist():
                    counts[row["vhost"], row["queue"], row["state"]] += row["count_all"]
                if inbox:
                    report(inbox, "exported", messages=batch.num_rows)
        keep(beside, place)
    sync_directory(place.parent)
    return counts


def _write_none(target: Place, columns: list[str]) -> str:
    """Write a file without rows, because other tools take a directory without files for an error; return its name."""
    place: Place = target / _FILE.format(0)
    with written_beside(target) as beside:
        _writer(beside, schema_of(tuple(columns))).close()
        keep(beside, place)
    sync_directory(target)
    return place.name


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)


def _rows(counts: Counter[tuple[str, str, str]]) -> list[dict[str, Any]]:
    queues = sorted({(vhost, queue) for vhost, queue, _ in counts})
    total: Counter[tuple[str, str]] = Counter()
    for (vhost, queue, _), count in counts.items():
        total[vhost, queue] += count
    return [
        {
            "vhost": vhost,
            "queue": queue,
            "messages": total[vhost, queue],
            "pending": counts[vhost, queue, PENDING],
        }
        for vhost, queue in queues
    ]


def _is_within(target: Place, archive: Place) -> bool:
    """Whether a target is in the archive, by whatever name: there a sweep would delete its files."""
    if isinstance(target, Path) and isinstance(archive, Path):
        return target.resolve().is_relative_to(archive.resolve())
    return str(target) == str(archive) or str(target).startswith(f"{archive}/")


@contextmanager
def _new_place(job: ExportJob) -> Iterator[Place]:
    """The target, made if it does not exist; its files are removed again after an error.

    Raises:
        InvalidCommand: the format is unknown, or the target is in the archive, or has files.
        StorageError: it cannot be made.
    """
    if job.format != PARQUET:
        raise InvalidCommand(f"there is no format '{job.format}' to export to: there is {PARQUET}")
    target = place_of(job.target)
    if _is_within(target, job.root):
        raise InvalidCommand(f"{target} is in the archive itself: name another place")
    try:
        make_directory(target)
        has_files = bool(matching(target, "*"))
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error}") from error
    if has_files:
        raise InvalidCommand(f"{target} has files already, and an export replaces none: name a new place")
    try:
        yield target
    except LeveretError:
        with suppress(OSError):
            for place in matching(target, "*"):
                place.unlink(missing_ok=True)
        raise

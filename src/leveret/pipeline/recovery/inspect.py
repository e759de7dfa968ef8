"""Counts transferred messages by vhost, exchange and routing key: tasks read three columns of every file.

Parquet stores columns apart, and names and keys as dictionaries. So bodies are not read, a row costs a few
instructions, and ten million messages take seconds. A task returns counts, not rows. Records that an upstream
collected twice, as it may after a crash, count once: the manifest names their files.

On standard output: `counting` (number of all messages, at the begin), `counted` (number of further ones), `done`
with the rows.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import MESSAGE
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.repetitions import collected_again
from leveret.pipeline.archive.settled_offsets import Int64s, Mask, QueueIncarnation, rows_by_incarnation
from leveret.pipeline.archive.tables import messages_in
from leveret.pipeline.files.files import Place, make_directory, opened
from leveret.pipeline.jobs.console import Console
from leveret.pipeline.jobs.job import InspectJob
from leveret.pipeline.jobs.progress import Inbox, report
from leveret.pipeline.spark.errors import SparkFailed, cause_of
from leveret.pipeline.spark.session import start_session

TASKS_PER_CORE: Final = 4
_BATCH_ROWS: Final = 131_072
_POLL_S: Final = 0.1
_NAMES: Final = ["exchange", "routing_key"]
_COUNTED: Final = [*_NAMES, "kind"]
_IDENTITY: Final = ["queue", "queue_epoch", "queue_offset"]
_PAIRS_A_ROW: Final = 4
"""Up to so many possible pairs of names a row, counting uses an array with a place for each; otherwise it sorts."""


def run_inspection(job: InspectJob, console: Console) -> None:
    """Count and report `done`; Spark is not started without messages.

    Raises:
        LeveretError: as `count_messages`; Spark does not start.
    """
    manifest = Manifest(job.root)
    files = manifest.files()
    if not files:
        console.say("done", rows=[])
        return
    scratch = job.work / "spark" / "inspect"
    shutil.rmtree(scratch, ignore_errors=True)
    make_directory(scratch)
    spark = start_session("inspect", job.spark, scratch, store=job.root)
    console.say("counting", messages=_messages_of(files))
    with Inbox() as inbox, ThreadPoolExecutor(1, "inspect") as pool:
        running = pool.submit(count_messages, spark, manifest, inbox.address)
        while not running.done():
            for event in inbox.wait(_POLL_S):
                console.pass_on(event)
        console.say("done", rows=running.result())


def count_messages(spark: SparkSession, manifest: Manifest, inbox: str = "") -> list[dict[str, Any]]:
    """Sorted rows of vhost, exchange, routing_key and messages; octets that are no UTF-8 are replaced.

    Progress is reported to `inbox`, if one is named. If a compaction replaced and deleted files meanwhile, all are
    counted once more.

    Raises:
        StorageError: a file cannot be read.
        SparkFailed: anything else.
    """
    stored = manifest.files()
    try:
        return _count_files(spark, manifest.data_dir, stored, inbox)
    except StorageError:
        if not has_replaced(manifest, stored):
            raise
    stored = manifest.files()
    if inbox:
        report(inbox, "counting", messages=_messages_of(stored))
    return _count_files(spark, manifest.data_dir, stored, inbox)


def has_replaced(manifest: Manifest, files: Iterable[StoredFile]) -> bool:
    """Whether the manifest, which is refreshed, no longer names some of these files."""
    manifest.refresh()
    return not {file.path for file in files} <= {file.path for file in manifest.files()}


def _messages_of(files: Iterable[StoredFile]) -> int:
    return sum(part.messages for file in files for part in file.queues)


def _count_files(
    spark: SparkSession, data_dir: Place, stored: Sequence[StoredFile], inbox: str
) -> list[dict[str, Any]]:
    if not stored:
        return []
    again = collected_again(stored)
    files = [(file.vhost, file.path, again.get(file.path, {})) for file in stored]
    tasks = min(len(files), spark.sparkContext.defaultParallelism * TASKS_PER_CORE)

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                tally, error = _counted(data_dir, files[task::tasks], inbox)
                rows = msgspec.msgpack.encode(tally.rows())
                yield pa.RecordBatch.from_arrays(
                    [pa.array([rows], pa.binary()), pa.array([error])], names=["rows", "error"]
                )

    frame = spark.range(0, tasks, 1, tasks).mapInArrow(apply, "rows binary, error string")
    try:
        found = frame.collect()
    except PySparkException as error:
        raise SparkFailed(cause_of(error)) from error
    counts: Counter[tuple[str, str, str]] = Counter()
    for rows, trouble in found:
        if trouble:
            raise StorageError(trouble)
        for vhost, exchange, routing_key, count in msgspec.msgpack.decode(bytes(rows)):
            # Names that differ only in octets that are no UTF-8 have the same text.
            counts[vhost, _text(exchange), _text(routing_key)] += count
    return [
        {"vhost": vhost, "exchange": exchange, "routing_key": routing_key, "messages": messages}
        for (vhost, exchange, routing_key), messages in sorted(counts.items())
    ]


def _text(octets: bytes) -> str:
    return octets.decode(errors="replace")


class Tally:
    """Counts messages by vhost, exchange and routing key, a batch of rows at a time."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._found: dict[str, list[tuple[Int64s, Int64s]]] = {}

    def count(self, vhost: str, batch: pa.RecordBatch) -> int:
        """Count the messages in a batch, whose names are dictionaries; return their number."""
        exchanges, keys = (batch.column(name) for name in _NAMES)
        is_message = batch.column("kind").to_numpy() == MESSAGE
        width = len(keys.dictionary)
        pairs = exchanges.indices.to_numpy()[is_message].astype(np.int64) * width
        pairs += keys.indices.to_numpy()[is_message]
        if len(exchanges.dictionary) * width <= _PAIRS_A_ROW * len(batch):
            counts = np.bincount(pairs)
            present = np.flatnonzero(counts)
            counts = counts[present]
        else:
            present, counts = np.unique(pairs, return_counts=True)
        if len(present):
            found = self._numbered(exchanges)[present // width] << 32 | self._numbered(keys)[present % width]
            self._found.setdefault(vhost, []).append((found, counts))
        return len(pairs)

    def rows(self) -> list[tuple[str, bytes, bytes, int]]:
        """The counts: vhost, exchange, routing key, messages; each once."""
        names = list(self._numbers)
        rows = []
        for vhost, found in self._found.items():
            pairs, places = np.unique(np.concatenate([pairs for pairs, _ in found]), return_inverse=True)
            counts = np.zeros(len(pairs), np.int64)
            np.add.at(counts, places, np.concatenate([counts for _, counts in found]))
            rows += [
                (vhost, names[pair >> 32], names[pair & 0xFFFF_FFFF], count)
                for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)
            ]
        return rows

    def _numbered(self, column: pa.DictionaryArray) -> Int64s:
        """The numbers of the names in a column's dictionary."""
        numbers = self._numbers
        return np.array([numbers.setdefault(name, len(numbers)) for name in column.dictionary.to_pylist()])


def _counted(
    data_dir: Place, files: Iterable[tuple[str, str, dict[QueueIncarnation, Mask]]], inbox: str
) -> tuple[Tally, str]:
    """The messages in files (vhost, path, `collected_again`), and the error of a file if there is one."""
    tally = Tally()
    for vhost, path, again in files:
        place: Place = data_dir / path
        try:
            with (
                opened(place) as source,
                messages_in(source, dictionaries=[*_NAMES, "queue"]) as parquet,
            ):
                batches = _each_once(parquet, vhost, again) if again else _all(parquet)
                for batch in batches:
                    messages = tally.count(vhost, batch)
                    if inbox:
                        report(inbox, "counted", messages=messages)
        except (OSError, pa.ArrowInvalid) as error:
            return tally, f"{place}: damaged or missing: {error}; restore the file from a copy"
    return tally, ""


def _all(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    yield from parquet.iter_batches(_BATCH_ROWS, columns=_COUNTED)


def _each_once(
    parquet: pq.ParquetFile, vhost: str, again: dict[QueueIncarnation, Mask]
) -> Iterator[pa.RecordBatch]:
    """The rows of a file without repeated ones; read at once, because bodies are not read."""
    rows = parquet.read([*_COUNTED, *_IDENTITY])
    offsets = rows.column("queue_offset").to_numpy()
    is_new = np.ones(len(offsets), np.bool_)
    for incarnation, mine in rows_by_incarnation(vhost, rows):
        if incarnation in again:
            _, firsts = np.unique(offsets[mine], return_index=True)
            is_first = np.zeros(len(mine), np.bool_)
            is_first[firsts] = True
            is_new[mine] = is_first & ~again[incarnation].contains(offsets[mine])
    yield from rows.filter(pa.array(is_new)).select(_COUNTED).unify_dictionaries().to_batches()

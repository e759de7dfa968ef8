"""Counting transferred messages by vhost, exchange and routing key: tasks read three columns of every file.

Parquet keeps the columns apart, and names and keys as dictionaries, so bodies are not touched, a row costs a few
instructions, and ten million messages take seconds. A task hands back counts, not rows.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.model.errors import StorageError
from leveret.pipeline.decode import MESSAGE
from leveret.pipeline.files import Place, make_directory, opened
from leveret.pipeline.job import InspectJob
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.session import start_session
from leveret.pipeline.spark_error import SparkFailed, cause_of

TASKS_PER_CORE: Final = 4
_BATCH_ROWS: Final = 131_072
_NAMES: Final = ["exchange", "routing_key"]

Counts: TypeAlias = Counter[tuple[str, str, str]]
"""Messages by vhost, exchange and routing key."""


def run_inspection(job: InspectJob) -> list[dict[str, Any]]:
    """The rows of `count_messages`; Spark is not started when there is nothing to count."""
    manifest = Manifest(job.root)
    if not manifest.files():
        return []
    scratch = job.work / "spark" / "inspect"
    shutil.rmtree(scratch, ignore_errors=True)
    make_directory(scratch)
    return count_messages(start_session("inspect", job.spark, scratch), manifest)


def count_messages(spark: SparkSession, manifest: Manifest) -> list[dict[str, Any]]:
    """Rows of vhost, exchange, routing_key and messages, sorted; octets that are no UTF-8 are replaced.

    Raises:
        StorageError: a file cannot be read.
        SparkFailed: anything else.
    """
    data_dir = manifest.data_dir
    files = [(file.vhost, file.path) for file in manifest.files()]
    tasks = min(len(files), spark.sparkContext.defaultParallelism * TASKS_PER_CORE)

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                counts, error = _counted(data_dir, files[task::tasks])
                rows = msgspec.msgpack.encode([(*key, count) for key, count in counts.items()])
                yield pa.RecordBatch.from_arrays(
                    [pa.array([rows], pa.binary()), pa.array([error])], names=["rows", "error"]
                )

    frame = spark.range(0, tasks, 1, tasks).mapInArrow(apply, "rows binary, error string")
    try:
        found = frame.collect()
    except PySparkException as error:
        raise SparkFailed(cause_of(error)) from error
    counts: Counts = Counter()
    for rows, trouble in found:
        if trouble:
            raise StorageError(trouble)
        for vhost, exchange, routing_key, count in msgspec.msgpack.decode(bytes(rows)):
            counts[vhost, exchange, routing_key] += count
    return [
        {"vhost": vhost, "exchange": exchange, "routing_key": routing_key, "messages": messages}
        for (vhost, exchange, routing_key), messages in sorted(counts.items())
    ]


def _counted(data_dir: Place, files: Iterable[tuple[str, str]]) -> tuple[Counts, str]:
    """Counts of the messages in files (vhost, path), and what is wrong with one if that is so."""
    counts: Counts = Counter()
    for vhost, path in files:
        place: Place = data_dir / path
        try:
            with opened(place) as source, pq.ParquetFile(source, read_dictionary=_NAMES) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=[*_NAMES, "kind"]):
                    _count(batch, vhost, counts)
        except (OSError, pa.ArrowInvalid) as error:
            return counts, f"{place}: it is damaged or gone: {error}; restore the file from a copy"
    return counts, ""


def _count(batch: pa.RecordBatch, vhost: str, counts: Counts) -> None:
    exchanges, keys = (batch.column(name) for name in _NAMES)
    pairs = exchanges.indices.to_numpy().astype(np.int64) * len(keys.dictionary) + keys.indices.to_numpy()
    pairs = pairs[batch.column("kind").to_numpy() == MESSAGE]
    for pair, count in zip(*(each.tolist() for each in np.unique(pairs, return_counts=True)), strict=True):
        exchange, key = divmod(pair, len(keys.dictionary))
        # Names that differ only in octets that are no UTF-8 look the same.
        counts[vhost, _text(exchanges.dictionary[exchange]), _text(keys.dictionary[key])] += count


def _text(octets: pa.Scalar) -> str:
    return bytes(octets.as_py()).decode(errors="replace")

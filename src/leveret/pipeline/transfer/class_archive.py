"""Makes the class archive (`shared_classes`): starts Spark, uses each part of it once, and ends it in order."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from leveret.pipeline.files.files import locked
from leveret.pipeline.jobs.job import LoginCredentials, SparkSettings, TransferJob
from leveret.pipeline.jobs.progress import Inbox
from leveret.pipeline.spark.java import find_java_home
from leveret.pipeline.spark.session import start_session
from leveret.pipeline.spark.shared_classes import archive_path, delete_leftovers, make_archive_options
from leveret.pipeline.transfer.sink import StoreSink
from leveret.pipeline.transfer.source import TransferOptions, UpstreamSource, spark_options

_LOCK_TIMEOUT_S: Final = 0.1
_EXIT_TIMEOUT_S: Final = 120.0
_QUERY_S: Final = 2


def make_archive(lock_timeout_s: float = _LOCK_TIMEOUT_S) -> Path:
    """Make the archive unless it exists; takes half a minute.

    Raises:
        StorageError: another process is making it for longer than `lock_timeout_s`, or the cache directory cannot be
            written.
        ConfigError: there is no Java.
    """
    with tempfile.TemporaryDirectory(prefix="leveret-warm-") as name:
        scratch = Path(name)
        archive = archive_path(find_java_home(scratch, os.environ), os.environ)
        beside, options = make_archive_options(archive)
        with locked(archive.with_suffix(".lock"), lock_timeout_s, "making the class archive"):
            delete_leftovers(archive)
            if archive.exists():
                return archive
            spark = start_session("warm", SparkSettings(), scratch, options)
            _exercise(spark, scratch)
            _end_java(spark)
            # Some Javas cannot make one; an empty file prevents further tries.
            beside.touch()
            beside.rename(archive)
    return archive


def _exercise(spark: SparkSession, scratch: Path) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    spark.range(0, 2, 1, 2).mapInArrow(same, "id bigint").collect()
    spark.sparkContext.parallelize(range(2), 2).map(bytes).collect()
    spark.dataSource.register(UpstreamSource)
    spark.dataSource.register(StoreSink)
    job = TransferJob(
        data_dir=str(scratch / "data"),
        reference="",
        endpoints=["127.0.0.1:1"],
        credentials=LoginCredentials(username="", password=""),
        vhosts=["/"],
    )
    with Inbox() as inbox:
        options = spark_options(TransferOptions(job=job, inbox=inbox.address, cores=1))
        query = (
            spark.readStream.format(UpstreamSource.name())
            .options(**options)
            .load()
            .writeStream.format(StoreSink.name())
            .options(**options)
            .option("checkpointLocation", (scratch / "checkpoint").as_uri())
            .start()
        )
        query.awaitTermination(_QUERY_S)
        query.stop()


def _end_java(spark: SparkSession) -> None:
    """End the JVM in order, upon which it writes the archive."""
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(_EXIT_TIMEOUT_S)

"""Counting transferred messages by vhost, exchange and routing key: Spark reads three columns of every file.

Parquet keeps the columns apart, and names and keys as dictionaries, so bodies are not touched and ten million
messages take seconds.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from leveret.model.errors import StorageError
from leveret.pipeline.decode import MESSAGE
from leveret.pipeline.files import make_directory
from leveret.pipeline.job import InspectJob
from leveret.pipeline.manifest import Manifest
from leveret.pipeline.session import start_session
from leveret.pipeline.spark_error import SparkFailed, cause_of


def run_inspection(job: InspectJob) -> list[dict[str, Any]]:
    """The rows of `count_messages`; Spark is not started when there is nothing to count."""
    manifest = Manifest(job.root)
    if not manifest.files():
        return []
    scratch = job.root / "spark" / "inspect"
    shutil.rmtree(scratch, ignore_errors=True)
    make_directory(scratch)
    return count_messages(start_session("inspect", job.spark, scratch), manifest)


def count_messages(spark: SparkSession, manifest: Manifest) -> list[dict[str, Any]]:
    """Rows of vhost, exchange, routing_key and messages, sorted; octets that are no UTF-8 are replaced.

    Raises:
        StorageError: a file cannot be read.
        SparkFailed: anything else.
    """
    # No URI in the strict sense: Spark takes a percent sign as it stands.
    paths = [f"file://{path.absolute()}" for path in _paths_of(manifest)]
    names = ["vhost", "exchange", "routing_key"]
    try:
        messages = spark.read.parquet(*paths).where(F.col("kind") == MESSAGE)
        found = messages.groupBy(*names).count().collect()
    except (PySparkException, Py4JJavaError) as error:
        damaged = next((path for path in _paths_of(manifest) if path.name in str(error)), None)
        if damaged is None:
            raise SparkFailed(cause_of(error)) from error
        raise StorageError(
            f"{damaged}: it is damaged or gone; restore the file from a copy (Spark's own words are in its log)"
        ) from error
    counts: Counter[tuple[str, str, str]] = Counter()
    for vhost, exchange, routing_key, count in found:
        # Names that differ only in octets that are no UTF-8 look the same.
        counts[vhost, _text(exchange), _text(routing_key)] += count
    return [
        {"vhost": vhost, "exchange": exchange, "routing_key": routing_key, "messages": messages}
        for (vhost, exchange, routing_key), messages in sorted(counts.items())
    ]


def _paths_of(manifest: Manifest) -> list[Path]:
    return [manifest.data_dir / file.path for file in manifest.files()]


def _text(octets: bytes) -> str:
    return bytes(octets).decode(errors="replace")

"""Runs numbered pieces of work, each in a task of Spark's SQL; results are small, and go through msgpack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.pipeline.spark.errors import SparkFailed, cause_of


def run_numbered(spark: SparkSession, count: int, work: Callable[[int], Any], result: Any) -> list[Any]:
    """The results of `work`, which have the type `result`, for the numbers below `count`, in their order.

    Raises:
        SparkFailed: a task failed as often as Spark repeats it.
    """
    if not count:
        return []

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0)
            done = [msgspec.msgpack.encode(work(number)) for number in numbers.to_pylist()]
            yield pa.RecordBatch.from_arrays([numbers, pa.array(done, pa.binary())], ["number", "result"])

    frame = spark.range(0, count, 1, count).mapInArrow(apply, "number bigint, result binary")
    try:
        rows = frame.collect()
    except PySparkException as error:
        raise SparkFailed(cause_of(error)) from error
    return [msgspec.msgpack.decode(bytes(octets), type=result) for _, octets in sorted(rows)]

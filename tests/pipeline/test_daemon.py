"""Spark's Python workers are forked with all they need."""

from __future__ import annotations

import gc
import sys

import pyspark
from pyspark.sql import SparkSession

from leveret.pipeline.daemon import LOADED


def test_a_worker_begins_with_what_it_needs_loaded_once_for_all(spark: SparkSession) -> None:
    def seen(number: int) -> tuple[str, list[str], int]:
        return pyspark.__file__, [name for name in LOADED if name in sys.modules], gc.get_freeze_count()

    [(place, loaded, frozen)] = spark.sparkContext.parallelize([0], 1).map(seen).collect()
    assert place == pyspark.__file__, "with its bytecode beside it, not in a zip"
    assert loaded == list(LOADED)
    assert frozen > 50_000, "no garbage collection looks at them"

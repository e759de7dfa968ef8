"""Spark's Python workers are forked with all they need."""

from __future__ import annotations

import gc
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from leveret.pipeline.spark.daemon import LOADED
from tests.pipeline.conftest import OF_EXECUTORS

pytestmark = pytest.mark.spark

TIMEOUT_S = 20.0
RPC_REQUEST = 3


def test_a_worker_begins_with_what_it_needs_loaded_once_for_all(spark: SparkSession) -> None:
    def seen(number: int) -> tuple[str, list[str], int]:
        return pyspark.__file__, [name for name in LOADED if name in sys.modules], gc.get_freeze_count()

    [(place, loaded, frozen)] = spark.sparkContext.parallelize([0], 1).map(seen).collect()
    assert place == pyspark.__file__, "with its bytecode beside it, not in a zip"
    assert loaded == list(LOADED)
    assert frozen > 50_000, "no garbage collection looks at them"


def test_who_does_not_know_the_secret_of_the_run_is_not_listened_to_by_its_driver(
    spark: SparkSession,
) -> None:
    """Every user of the machine reaches its port, and it reads what it is sent as Java's objects."""
    port = int(spark.sparkContext.getConf().get("spark.driver.port") or 0)
    request = struct.pack(">BqI", RPC_REQUEST, 1, 20) + bytes(20)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as stranger:
        stranger.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = stranger.recv(4096)
    assert b"Expected SaslMessage" in answer


def test_the_workers_of_a_transfer_and_of_a_recovery_are_forked_from_one_daemon(spark: SparkSession) -> None:
    def in_sql(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})

    [row] = spark.range(1).coalesce(1).mapInArrow(in_sql, "daemon bigint").collect()
    assert [row.daemon] == spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()


def test_a_secret_reaches_the_workers_and_no_list_of_processes(spark: SparkSession) -> None:
    def seen(number: int) -> str:
        return os.environ["AWS_SECRET_ACCESS_KEY"]

    assert spark.sparkContext.parallelize([0], 1).map(seen).collect() == [OF_EXECUTORS]
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes())
    assert [line for line in lines if b"spark.sql.shuffle.partitions=1" in line], "Spark is among them"
    assert not [line for line in lines if OF_EXECUTORS.encode() in line]

"""The rows of a batch, as Spark's process of the source gets them: with the plan, or by a worker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import serializers
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.python_streaming_source_runner import (
    NON_EMPTY_PYARROW_RECORD_BATCHES,
    PREFETCHED_RECORDS_NOT_FOUND,
    check_support_func,
    partitions_func,
)
from pyspark.worker_util import pickleSer

from leveret.pipeline.jobs.job import LoginCredentials, TransferJob
from leveret.pipeline.transfer.source import (
    _DESCRIPTORS,
    Slices,
    TransferOptions,
    UpstreamReader,
    UpstreamSource,
)

SPARK: Any = serializers
PICKLED: Any = pickleSer
"""Spark has no types for these."""


@pytest.mark.parametrize(
    ("ends", "tasks", "how"),
    [
        ({"a": 10}, 1, NON_EMPTY_PYARROW_RECORD_BATCHES),
        ({"a": 10, "b": 10}, 2, PREFETCHED_RECORDS_NOT_FOUND),
        ({}, 0, PREFETCHED_RECORDS_NOT_FOUND),
    ],
)
def test_the_rows_of_a_batch_of_one_task_come_with_its_plan(
    tmp_path: Path, ends: dict[str, int], tasks: int, how: int
) -> None:
    reader = reader_in(tmp_path)
    found, said, rest = planned(reader, dict.fromkeys("ab", 0), ends)
    assert (len(found), said) == (tasks, how)
    if how == NON_EMPTY_PYARROW_RECORD_BATCHES:
        SPARK.read_int(rest)
        [task] = found
        assert list(pa.ipc.open_stream(rest)) == list(reader.read(task))


def test_rows_of_an_earlier_batch_do_not_come_again(tmp_path: Path) -> None:
    reader = reader_in(tmp_path)
    planned(reader, dict.fromkeys("ab", 0), {"a": 10})
    assert planned(reader, dict.fromkeys("ab", 10), {"a": 20, "b": 20})[1] == PREFETCHED_RECORDS_NOT_FOUND


def test_spark_limits_its_batches_as_those_of_any_reader(tmp_path: Path) -> None:
    said = io.BytesIO()
    check_support_func(reader_in(tmp_path), said)
    assert int.from_bytes(said.getvalue(), "big") == 1


def reader_in(root: Path) -> UpstreamReader:
    job = TransferJob(
        data_dir=str(root),
        reference="eu.2",
        endpoints=["127.0.0.1:1"],
        credentials=LoginCredentials(username="", password=""),
        vhosts=["a", "b"],
    )
    return UpstreamReader(TransferOptions(job=job, inbox="", cores=2))


def planned(
    reader: UpstreamReader, start: dict[str, int], ends: dict[str, int]
) -> tuple[list[Slices], int, io.BytesIO]:
    """The tasks that Spark gets, how it gets their rows, and what follows."""
    asked, said = io.BytesIO(), io.BytesIO()
    for offsets in (start, start | ends):
        SPARK.write_with_length(json.dumps(offsets).encode(), asked)
    asked.seek(0)
    partitions_func(reader, UpstreamSource({}), from_arrow_schema(_DESCRIPTORS), 100, asked, said)
    said.seek(0)
    tasks = [PICKLED._read_with_length(said) for _ in range(SPARK.read_int(said))]
    return tasks, SPARK.read_int(said), said

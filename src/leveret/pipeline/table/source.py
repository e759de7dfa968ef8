"""The table as a data source of Spark: `spark.read.format("leveret").load(uri)`, and `readStream`.

    from leveret.pipeline.table.source import register; register(spark)

The driver plans ranges of files, and each task reads one: rows go to Spark as Arrow batches. Spark asks a source in
Python for all columns, so a reader names the wanted ones, as the option `columns` or as the reader's schema. Options
narrow the ranges. Spark's filters do not: Spark 4.3 keeps the narrowed plan of a query for later queries of the same
DataFrame, which would then lack rows.

An error of ours is a sentence: Spark would add the stack of its Python process, which ends with the error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from leveret.model.errors import InvalidCommand, LeveretError
from leveret.pipeline.archive.manifest import Manifest, uncollected
from leveret.pipeline.spark.worker import freeze_modules
from leveret.pipeline.spark.workers import pack
from leveret.pipeline.table.columns import schema_of
from leveret.pipeline.table.plan import FileRange, open_archive, plan_ranges, ranges_by_task
from leveret.pipeline.table.positions import Positions, next_positions, ranges_between
from leveret.pipeline.table.request import TableRequest, columns_of, request_of
from leveret.pipeline.table.scan import read_rows

FORMAT: Final = "leveret"
WAIT_S: Final = 1.0
POLL_S: Final = 0.1


def register(spark: SparkSession) -> None:
    """Make the format `leveret` known to a session, and send this package to its workers."""
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):
        context.addPyFile(str(pack(Path(mkdtemp(prefix="leveret-")))))
    spark.dataSource.register(MessagesSource)


class MessagesSource(DataSource):
    """The messages of an archive; see docs/standby-tables.md for its options."""

    @classmethod
    def name(cls) -> str:
        """For `spark.read.format`."""
        return FORMAT

    def schema(self) -> StructType:
        """The wanted columns."""
        with _in_a_sentence():
            _uri(self.options)
            return _struct(request_of(self.options).columns)

    def reader(self, schema: StructType) -> MessagesReader:
        """A reader of the columns of `schema`."""
        with _in_a_sentence():
            return MessagesReader(_uri(self.options), _request(self.options, schema))

    def streamReader(self, schema: StructType) -> MessagesStreamReader:
        """A reader of the columns of `schema`, batch by batch."""
        # Spark itself fails on an error here; the reader finds the same one as soon as it is asked for something.
        return MessagesStreamReader(dict(self.options), schema)


class RangePartition(InputPartition):
    """The ranges of files that one task reads."""

    def __init__(self, ranges: list[FileRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class MessagesReader(DataSourceReader):
    """Reads the table as it stands now, or at a moment."""

    def __init__(self, uri: str, request: TableRequest) -> None:
        self._uri = uri
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each task."""
        with _in_a_sentence(), uncollected():
            return [
                RangePartition(each)
                for each in ranges_by_task(plan_ranges(open_archive(self._uri), self._request))
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        yield from _rows(partition)


class MessagesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what the manifest gains; runs in a process of its own beside the driver."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._request = TableRequest()
        self._manifest: Manifest | None = None
        self._until: Positions | None = None

    def initialOffset(self) -> Positions:
        """The begin of all logs."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the present end."""
        with _in_a_sentence():
            self._until = dict(self._refreshed().next_by_log)

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:
        """The end of the next batch; waits up to a second for one, so that an idle query costs little."""
        with _in_a_sentence():
            deadline_s = time.monotonic() + WAIT_S
            while True:
                manifest = self._refreshed()
                found = next_positions(manifest, start, self._request, self._until)
                if found != start or self._until is not None or time.monotonic() > deadline_s:
                    return found
                time.sleep(POLL_S)

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """A partition for each task of the batch between two positions."""
        with _in_a_sentence():
            manifest = self._refreshed()
            ranges = ranges_between(manifest, start, end, self._request)
            return [RangePartition(each) for each in ranges_by_task(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        yield from _rows(partition)

    def _refreshed(self) -> Manifest:
        if self._manifest is None:
            self._request = _request(self._options, self._schema)
            if self._request.as_of_ms is not None:
                raise InvalidCommand(
                    "option asOf is for spark.read: a stream has each message as it stands at the end of its batch"
                )
            self._manifest = open_archive(_uri(self._options))
        else:
            self._manifest.refresh()
        return self._manifest


def _uri(options: Mapping[str, str]) -> str:
    uri = options.get("path")
    if not uri:
        raise InvalidCommand("name the archive: spark.read.format('leveret').load(PATH or URI)")
    return uri


def _request(options: Mapping[str, str], schema: StructType) -> TableRequest:
    """The request of a query's options, with the columns of its schema.

    Raises:
        InvalidCommand: an option is unknown, or a column, or a column has another type.
    """
    columns = columns_of(schema.names)
    ours = _struct(columns)
    for field in schema.fields:
        if field.dataType != ours[field.name].dataType:
            raise InvalidCommand(
                f"column '{field.name}' is of type {ours[field.name].dataType.simpleString()}, and not "
                f"{field.dataType.simpleString()}"
            )
    return msgspec.structs.replace(request_of(options), columns=columns)


def _struct(columns: tuple[str, ...]) -> StructType:
    return from_arrow_schema(schema_of(columns))


def _rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    freeze_modules()
    if isinstance(partition, RangePartition):
        # Without any range Spark asks once, for nothing.
        with _in_a_sentence():
            for each in partition.ranges:
                yield from read_rows(each)


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Show an error of ours without the stack of this process, which ends with it."""
    try:
        yield
    except LeveretError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise

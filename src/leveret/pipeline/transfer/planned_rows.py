"""A stream reader that sends the rows of a batch with its plan, so that no Python worker of Spark's has to read them.

Spark asks one worker for a batch's rows, and hands them to another one that writes them. For a handful of descriptors
the first one is a process more that every micro-batch waits for. Spark keeps rows that come with the plan, for a batch
of one task, but only takes them from the wrapper of its own simple readers (`isinstance`); so this is one. The batches
of several tasks are read by workers, as ever.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper


class PlannedRowsReader(_SimpleStreamReaderWrapper):
    """See the module; `latestOffset`, `partitions` and `read` are a subclass's."""

    def __init__(self) -> None:
        """Wrap nothing."""
        super().__init__(cast(Any, None))

    @abstractmethod
    def planned_rows(self) -> pa.RecordBatch | None:
        """The rows of the batch that was planned last; None if workers read them."""

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:
        """For Spark, right after `partitions` with the same offsets."""
        rows = self.planned_rows()
        return None if rows is None else iter([rows])

    def commit(self, end: dict[str, Any]) -> None:
        """Forget nothing: rows are kept for the batch that was planned last, and by Spark."""

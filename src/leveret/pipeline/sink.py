"""The transfer's stream sink: executors fetch and store what descriptors say, the driver writes the manifest.

A batch that is repeated after a crash finds the same files and is left out by the manifest. When the
upstream goes away in the middle of a slice, what has come is stored and recorded all the same - in a
disaster that is the last of it - and the query is started again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from leveret.model.errors import LeveretError
from leveret.pipeline.files import Place
from leveret.pipeline.link import Link, link_of
from leveret.pipeline.manifest import Manifest, StoredFile
from leveret.pipeline.progress import report
from leveret.pipeline.source import DESCRIPTOR, TransferOptions, read_options
from leveret.pipeline.store import store_range
from leveret.pipeline.stream_connection import ConnectionLost
from leveret.pipeline.worker import spare_modules
from leveret.wire.record import OUTGOING_STREAM

_manifests: dict[Place, Manifest] = {}


class TransferCut(LeveretError):
    """The upstream went away in the middle of a batch; what had come is recorded."""


class StoreSink(DataSource):
    """The data directory."""

    @classmethod
    def name(cls) -> str:
        """For `writeStream.format`."""
        return "leveret_store"

    def schema(self) -> str:
        """Descriptors."""
        return DESCRIPTOR

    def streamWriter(self, schema: object, overwrite: bool) -> StoreWriter:
        """The writer."""
        spare_modules()
        return StoreWriter(read_options(self.options))


@dataclass
class Stored(WriterCommitMessage):
    """What one task stored, and why it ended early if it did."""

    files: list[StoredFile]
    cut: str = ""


class StoreWriter(DataSourceStreamArrowWriter):
    """`write` runs in executors, `commit` beside the driver."""

    def __init__(self, options: TransferOptions) -> None:
        self._options = options
        self._job = options.job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Fetch and store every slice; on disk when this returns."""
        spare_modules()
        stored = Stored([])
        for batch in iterator:
            for row in batch.to_pylist():
                file, cut = self._transfer(row["vhost"], row["first"], row["next"])
                if file is not None:
                    stored.files.append(file)
                if cut:
                    stored.cut = cut
                    return stored
        return stored

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Record what all tasks stored.

        Raises:
            TransferCut, TransferGap: not all of the batch; the driver starts the query anew.
        """
        spare_modules()
        parts = [message for message in messages if isinstance(message, Stored)]
        for file in self._manifest().append([file for part in parts for file in part.files]):
            self._tell(file)
        cuts = [part.cut for part in parts if part.cut]
        if cuts:
            raise TransferCut(cuts[0])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was stored: no manifest names it, the next start deletes it."""

    def _transfer(self, vhost: str, first: int, end: int) -> tuple[StoredFile | None, str]:
        """Store a slice, or as much of it as came, with the reason why not all."""
        link = link_of(self._job, vhost)
        lost: list[LeveretError] = []
        chunks = self._fetch(link, first, end, lost)
        file = store_range(self._job.root, vhost, chunks)
        if lost:
            return file, str(lost[0])
        link.worked()
        return file, ""

    def _fetch(
        self, link: Link, first: int, end: int, lost: list[LeveretError]
    ) -> Iterator[bytes | memoryview]:
        """Chunks until the end or until there is trouble; a connection kept from before may be stale."""
        has_some = False
        for attempt in range(2):
            try:
                for raw in link.client(self._job).fetch(OUTGOING_STREAM, first, end):
                    has_some = True
                    yield raw
                return
            except LeveretError as error:
                if isinstance(error, ConnectionLost) and not attempt and not has_some:
                    link.close()
                    continue
                link.failed(error)
                lost.append(error)
                return

    def _manifest(self) -> Manifest:
        data_dir = self._job.root
        if data_dir not in _manifests:
            _manifests[data_dir] = Manifest(data_dir)
        return _manifests[data_dir]

    def _tell(self, file: StoredFile) -> None:
        report(
            self._options.inbox,
            "stored",
            vhost=file.vhost,
            next=file.next,
            records=file.records,
            bytes=file.bytes,
            oldest_ms=file.min_ms,
            newest_ms=file.max_ms,
            at_ms=time.time_ns() // 1_000_000,
        )

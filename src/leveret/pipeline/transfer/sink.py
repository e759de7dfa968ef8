"""The transfer's stream sink: executors fetch and store the ranges of descriptors, the driver writes the manifest.

A batch that is repeated after a crash makes the same files, and the manifest skips them. If the connection to the
upstream ends in the middle of a slice, the received part is stored and recorded - in a disaster it is the last part
- and the query is started again. A failure of one log loses no records of another.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from leveret.model.errors import LeveretError
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.store import store_range
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.progress import report
from leveret.pipeline.spark.worker import freeze_modules
from leveret.pipeline.transfer.source import (
    DESCRIPTOR,
    RECORDED,
    Slice,
    TransferOptions,
    read_options,
    source_address,
)
from leveret.pipeline.upstream.link import NEEDS_OPERATOR, UpstreamLink, link_of, state_of
from leveret.pipeline.upstream.stream_client import UpstreamUnreachable
from leveret.pipeline.upstream.stream_connection import ConnectionLost
from leveret.wire.log_name import label_of, node_of, title_of, vhost_of
from leveret.wire.record import OUTGOING_STREAM

_manifests: dict[Place, Manifest] = {}


class TransferCut(LeveretError):
    """A batch did not come, or could not be stored, as a whole; the received part is recorded."""


class StoreSink(DataSource):
    """The data directory as a sink."""

    @classmethod
    def name(cls) -> str:
        """For `writeStream.format`."""
        return "leveret_store"

    def schema(self) -> str:
        """Descriptors."""
        return DESCRIPTOR

    def streamWriter(self, schema: object, overwrite: bool) -> StoreWriter:
        """The writer."""
        freeze_modules()
        return StoreWriter(read_options(self.options))


class RangeEnd(NamedTuple):
    """The offset of a log's first record that is not stored, the reason, and whether it concerns the log alone."""

    log: str
    offset: int
    reason: str
    is_its_own: bool


@dataclass
class Stored(WriterCommitMessage):
    """The result of one task: stored files, and the slices that it did not store as a whole."""

    files: list[StoredFile]
    cuts: list[RangeEnd]


class StoreWriter(DataSourceStreamArrowWriter):
    """`write` runs in executors, `commit` in the driver's process."""

    def __init__(self, options: TransferOptions) -> None:
        self._options = options
        self._job = options.job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Fetch and store every slice, except those behind a log's cut; on disk when this returns.

        If no endpoint answers any more, all other slices of that node are cut too: each would wait for the same
        endpoints, while the received records wait to be recorded.
        """
        freeze_modules()
        stored = Stored([], [])
        errors: dict[str, tuple[str, Exception]] = {}
        for row in (row for batch in iterator for row in batch.to_pylist()):
            wanted = Slice(**row)
            log, first, label = wanted.log, wanted.first, wanted.label
            of_node = {each: error for each, (node, error) in errors.items() if node == label}
            error = of_node.get(log) or _of_all(of_node)
            if error is None:
                link = link_of(self._job, log, wanted.endpoint, label)
                if _is_doubtful(of_node):
                    link.close()
                file, error = self._transfer(link, wanted)
                if file is not None:
                    stored.files.append(file)
                    first = file.next
            if error is not None:
                errors.setdefault(log, (label, error))
                stored.cuts.append(RangeEnd(log, first, str(error), _is_its_own(error)))
        return stored

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Record the files of all tasks.

        Raises:
            TransferCut, TransferGap: the batch is incomplete; the driver starts the query anew.
        """
        freeze_modules()
        parts = [message for message in messages if isinstance(message, Stored)]
        cuts = [cut for part in parts for cut in part.cuts]
        files = [file for part in parts for file in part.files]
        recorded = self._manifest().append(
            _before(cuts, files), begun=self._options.begun, terms=self._job.terms
        )
        if recorded:
            # Confirms may wait for it at the upstream, so it comes before the report to this node.
            report(source_address(self._options.inbox), RECORDED)
        for file in recorded:
            self._report(file)
        for cut in {cut.log: cut for cut in sorted(cuts, reverse=True) if cut.is_its_own}.values():
            report(
                self._options.inbox,
                "cut",
                vhost=vhost_of(cut.log),
                log=cut.log,
                offset=cut.offset,
                error=cut.reason,
            )
        if cuts:
            raise TransferCut(f"{title_of(cuts[0].log)}: {cuts[0].reason}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the stored files: no manifest entry names them, and the next start deletes them."""

    def _transfer(self, link: UpstreamLink, wanted: Slice) -> tuple[StoredFile | None, Exception | None]:
        """Store a slice, or its received part with the reason."""
        lost: list[LeveretError] = []
        try:
            with closing(self._fetch(link, wanted, lost)) as chunks:
                file = store_range(
                    self._job.root,
                    vhost_of(link.log),
                    chunks,
                    node=label_of(link.log),
                    is_of_cluster=bool(link.label),
                )
        except (LeveretError, OSError, pa.ArrowException) as error:
            return None, error
        if lost:
            return file, lost[0]
        link.worked()
        return file, None

    def _fetch(self, link: UpstreamLink, wanted: Slice, lost: list[LeveretError]) -> Generator[memoryview]:
        """Yield chunks until the end, or what came since, or an error, put into `lost`; a kept connection may be stale.

        A new connection may reach another log than the planned one: none of its records is stored.
        """
        has_some = False
        for attempt in range(2):
            try:
                client = link.client(self._job)
                for raw in client.fetch(
                    OUTGOING_STREAM,
                    wanted.first,
                    wanted.next,
                    most=wanted.most,
                    log_id=wanted.log_id,
                    writer=wanted.writer,
                ):
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

    def _report(self, file: StoredFile) -> None:
        report(
            self._options.inbox,
            "stored",
            vhost=file.vhost,
            node=node_of(file.node),
            log=file.log,
            next=file.next,
            records=file.records,
            bytes=file.bytes,
            oldest_ms=file.min_ms,
            newest_ms=file.max_ms,
            at_ms=time.time_ns() // 1_000_000,
        )


def _of_all(errors: Mapping[str, Exception]) -> Exception | None:
    """The error that means a lost node, None if there is none."""
    return next((error for error in errors.values() if isinstance(error, UpstreamUnreachable)), None)


def _is_its_own(error: Exception) -> bool:
    """Whether an error is about the log's records, rather than the connection or this disk."""
    return isinstance(error, LeveretError) and state_of(error) == NEEDS_OPERATOR


def _is_doubtful(errors: Mapping[str, Exception]) -> bool:
    """Whether kept connections may be dead: a new one finds that out sooner than the silence of each."""
    return any(isinstance(error, ConnectionLost) for error in errors.values())


def _before(cuts: Iterable[RangeEnd], files: Iterable[StoredFile]) -> list[StoredFile]:
    """The files that are before a cut of their log.

    For a log without files, the manifest would accept a later one, and the cut records would be missing for good.
    """
    ends: dict[str, int] = {}
    for cut in cuts:
        ends[cut.log] = min(cut.offset, ends.get(cut.log, cut.offset))
    return [file for file in files if file.first < ends.get(file.log, file.next)]

"""When the transfer compacts: now and then, beside the streaming query, as a Spark job of one task a vhost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leveret.model.errors import StorageError
from leveret.pipeline.compact import compact, due
from leveret.pipeline.files import Place, locked
from leveret.pipeline.job import TransferJob
from leveret.pipeline.manifest import Manifest, StoredFile
from leveret.pipeline.plan import is_pinned
from leveret.pipeline.spark_error import SparkFailed, cause_of
from leveret.pipeline.store import delete_orphans

RECOVERY_LOCK: Final = "recovery.lock"


class Compaction:
    """Compacts one data directory while it is being transferred into."""

    def __init__(self, spark: SparkSession) -> None:
        """Nothing happens before `turn` is called."""
        self._spark = spark
        self._turned_s = time.monotonic()
        self._threads = ThreadPoolExecutor(1, "compaction")
        self._running: Future[list[dict[str, Any]]] | None = None
        self._garbage: list[Place] = []

    def turn(self, job: TransferJob) -> list[dict[str, Any]]:
        """Begin if it is time; what has been compacted since the last call: vhost, files, bytes, from_bytes, records.

        Raises:
            LeveretError: why it failed; what was transferred is as it was, and the next turn tries again.
        """
        if self._running is not None:
            if not self._running.done():
                return []
            running, self._running = self._running, None
            return running.result()
        if time.monotonic() - self._turned_s >= job.compact_interval_s:
            self._turned_s = time.monotonic()
            self._running = self._threads.submit(self._compact, job)
        return []

    def stop(self) -> None:
        """End what goes on; what was transferred is as it was, or compacted."""
        if self._running is not None:
            self._spark.sparkContext.cancelAllJobs()
        self._threads.shutdown()

    def _compact(self, job: TransferJob) -> list[dict[str, Any]]:
        self._delete_garbage(job)
        manifest = Manifest(job.root)
        now_ms = time.time_ns() // 1_000_000
        work = [
            files
            for vhost in sorted(manifest.next_by_vhost)
            if (
                files := due(
                    manifest, vhost, now_ms, bytes_max=job.retain_bytes_max, retain_ms=job.retain_ms_max
                )
            )
        ]
        rows = []
        for files, file in zip(work, self._run(job.root, work), strict=True):
            gone = [each.path for each in files]
            manifest.append([file], removed=gone)
            self._garbage += [job.root / name for each in files for name in each.names]
            rows.append(
                {
                    "vhost": file.vhost,
                    "files": len(files),
                    "from_bytes": sum(each.bytes for each in files),
                    "bytes": file.bytes,
                    "records": file.records,
                }
            )
        return rows

    def _run(self, root: Place, work: list[list[StoredFile]]) -> list[StoredFile]:
        """Compact each of `work` in a Spark task of its own."""
        if not work:
            return []

        def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                numbers = batch.column(0).to_pylist()
                done = [msgspec.msgpack.encode(compact(root, work[number])) for number in numbers]
                columns = [batch.column(0), pa.array(done, pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "file"])

        frame = self._spark.range(0, len(work), 1, len(work)).mapInArrow(apply, "number bigint, file binary")
        try:
            rows = frame.collect()
        except PySparkException as error:
            raise SparkFailed(cause_of(error)) from error
        found = {row["number"]: msgspec.msgpack.decode(bytes(row["file"]), type=StoredFile) for row in rows}
        return [found[number] for number in range(len(work))]

    def _delete_garbage(self, job: TransferJob) -> None:
        """Delete what was compacted a turn ago, once no recovery may read it any more."""
        if not self._garbage or is_pinned(job.root):
            return
        with suppress(StorageError), locked(job.work / RECOVERY_LOCK, 0, "recovering"):
            for place in self._garbage:
                place.unlink(missing_ok=True)
            self._garbage.clear()


def sweep(manifest: Manifest, work: Path) -> None:
    """Delete files that no manifest entry names; only while no transfer runs, and not under a recovery's hands.

    `work` is the job's.
    """
    if is_pinned(manifest.data_dir):
        return
    with suppress(StorageError), locked(work / RECOVERY_LOCK, 0, "recovering"):
        delete_orphans(manifest)

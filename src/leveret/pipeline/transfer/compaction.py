"""The schedule of compactions: beside the streaming query, as a Spark job of one task a log."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from leveret.model.errors import LeveretError
from leveret.pipeline.archive.compact import compact, due, known_since_ms
from leveret.pipeline.archive.manifest import Manifest, StoredFile, Terms
from leveret.pipeline.archive.sweep import delete_unread
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import TransferJob
from leveret.pipeline.spark.numbered_tasks import run_numbered
from leveret.wire.log_name import vhost_of

Work = tuple[list[StoredFile], int]
"""The files that become one, and the time since when the state of the vhost's queues is known then, in ms."""


class Compaction:
    """Compacts one data directory while a transfer writes into it."""

    def __init__(self, spark: SparkSession) -> None:
        """Begin idle, until `turn` is called."""
        self._spark = spark
        self._turned_s = time.monotonic()
        self._threads = ThreadPoolExecutor(1, "compaction")
        self._running: Future[list[dict[str, Any]]] | None = None
        self._garbage: list[Place] = []
        self._terms: Terms | None = None

    def turn(self, job: TransferJob) -> list[dict[str, Any]]:
        """Begin when due; return the compactions since the last call: vhost, files, bytes, from_bytes, records.

        A failed one has vhost and error instead; the next turn tries again.

        Raises:
            LeveretError, OSError: all failed; the transferred data are unchanged, and the next turn tries again.
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
        """End a running compaction; the transferred data are unchanged, or compacted."""
        if self._running is not None:
            self._spark.sparkContext.cancelAllJobs()
        self._threads.shutdown()

    def _compact(self, job: TransferJob) -> list[dict[str, Any]]:
        manifest = Manifest(job.root)
        self._delete_garbage(manifest, job.work, job.terms)
        now_ms = time.time_ns() // 1_000_000
        work: list[Work] = [
            (files, known_since_ms(manifest, files, now_ms))
            for log in sorted(manifest.next_by_log)
            if (job.terms is None or vhost_of(log) in job.terms)
            and (
                files := due(
                    manifest, log, now_ms, bytes_max=job.retain_bytes_max, retain_ms=job.retain_ms_max
                )
            )
        ]
        found = self._run(job, work)
        return [
            self._replace(manifest, files, each, job.terms)
            for (files, _), each in zip(work, found, strict=True)
        ]

    def _replace(
        self,
        manifest: Manifest,
        files: list[StoredFile],
        found: StoredFile | str,
        terms: Terms | None,
    ) -> dict[str, Any]:
        """Replace these files by the new one in the manifest; return a row about that, or about its failure."""
        vhost = files[0].vhost
        if isinstance(found, str):
            return {"vhost": vhost, "error": found}
        try:
            manifest.append([found], removed=[each.path for each in files], terms=terms)
        except (LeveretError, OSError) as error:
            return {"vhost": vhost, "error": str(error)}
        self._garbage += [manifest.data_dir / name for each in files for name in each.names]
        return {
            "vhost": vhost,
            "log": files[0].log,
            "files": len(files),
            "from_bytes": sum(each.bytes for each in files),
            "bytes": found.bytes,
            "records": found.records,
        }

    def _run(self, job: TransferJob, work: list[Work]) -> list[StoredFile | str]:
        """Compact each of `work` in a Spark task of its own; return the new files, or the errors."""
        root, terms = job.root, job.terms or {}
        return run_numbered(
            self._spark, len(work), lambda number: _compacted(root, work[number], terms), StoredFile | str
        )

    def _delete_garbage(self, manifest: Manifest, work: Path, terms: Terms | None) -> None:
        """Delete files compacted in an earlier turn, once no recovery may read them."""
        if terms != self._terms:
            # A vhost may have had another owner meanwhile, whose files may have these names. The transfer swept since.
            self._garbage, self._terms = [], terms
        if self._garbage:
            self._garbage = delete_unread(manifest, work, self._garbage, terms)


def _compacted(root: Place, work: Work, terms: Terms) -> StoredFile | str:
    """The new file, or the error as a text: an exception would fail the tasks of all other vhosts."""
    try:
        files, since_ms = work
        return compact(root, files, since_ms, terms.get(files[0].vhost, 0))
    except LeveretError as error:
        return str(error)

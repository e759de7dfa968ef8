"""The quarantined messages of this node, for operators: reports, and the messages in them. See storage.quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from leveret.session.divergent_messages import Tail, message_rows
from leveret.storage.quarantine.report import DivergentReport, chunks_of, reports


def divergent_reports(data_dir: Path) -> list[dict[str, Any]]:
    """Return one row a report, oldest first.

    Raises:
        StorageError: a report cannot be read.
    """
    return [report.summary() for report in reports(data_dir) if report.logs]


def divergent_messages(data_dir: Path, report_id: str | None) -> Iterator[dict[str, Any]]:
    """Yield the messages of one report, or of all, read on demand, in the form of `session.divergent_messages`.

    Raises:
        NotFound: there is no such report.
        StorageError: files cannot be read.
    """
    for report in reports(data_dir) if report_id is None else [DivergentReport.load(data_dir, report_id)]:
        for log in report.logs:
            tail = Tail(report.id, log.kind, log.vhost, log.queue, log.from_offset, log.has_relocated)
            yield from message_rows(tail, partial(chunks_of, data_dir, report.id, log))

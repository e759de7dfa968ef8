"""The quarantined messages of this node, for operators: reports, and the messages in them. See storage.quarantine."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from leveret.session.divergent_messages import Tail, message_rows
from leveret.storage.quarantine.report import DivergentReport, chunks_of, reports

_WAITING_MAX: Final = 4
_WAITING_S: Final = 60.0


def divergent_reports(data_dir: Path) -> list[dict[str, Any]]:
    """Return one row a report, oldest first; none for those that have only settlements.

    Raises:
        StorageError: a report cannot be read.
    """
    return [report.summary() for report in reports(data_dir) if not report.has_only_settlements]


class DivergentParts:
    """The messages in parts, for another node that asks for one after the other.

    To read the messages of earlier parts again, each time, would cost the square of their number. So the reading of a
    part that was left early waits for the next part, for a while. It holds an open file and the settled offsets of a
    log.
    """

    def __init__(self, data_dir: Path) -> None:
        """Read nothing yet."""
        self._data_dir = data_dir
        self._waiting: dict[tuple[str | None, int], tuple[float, Iterator[dict[str, Any]]]] = {}

    def read(self, report_id: str | None, first: int) -> Generator[dict[str, Any], None, None]:
        """As `divergent_messages`, without the first `first` messages; close it, for the next part to go on there."""
        self.forget_old()
        _, rows = self._waiting.pop((report_id, first), (0, None))
        if rows is None:
            rows = islice(divergent_messages(self._data_dir, report_id), first, None)
        at = first
        try:
            for row in rows:
                at += 1
                yield row
        except GeneratorExit:
            self._waiting[report_id, at] = time.monotonic(), rows
            while len(self._waiting) > _WAITING_MAX:
                self._waiting.pop(next(iter(self._waiting)), None)
            raise

    def forget_old(self) -> None:
        """Forget readings that nobody has continued for a minute."""
        before_s = time.monotonic() - _WAITING_S
        for key, (since_s, _) in list(self._waiting.items()):
            if since_s < before_s:
                self._waiting.pop(key, None)


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

"""The reports of quarantined records, and access to the records; see storage.quarantine.

A report is of one join. Until it is finished, its entry of a log is in a file beside the chunks of that log; then all
entries are in the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from leveret.model.errors import Corrupt, NotFound, StorageError
from leveret.storage.inspection.walk import HEADERS_BYTES, Damage, walk
from leveret.storage.segment_file import STEP_BYTES, Unreadable, starts
from leveret.storage.state_file import StateFile
from leveret.wire.chunk import Chunk, ChunkError, ChunkType, decode_chunk

T = TypeVar("T")

DIRECTORY: Final = "divergent"
_REPORT: Final = "report.json"
_LOG: Final = "log.json"
_ID: Final = re.compile(r"\d{8}T\d{6}-e\d+(-\d+)?")


class DivergentLog(msgspec.Struct):
    """Records from `from_offset` up to `next_offset` of the log at `path`, below the data directory.

    `kind` is the first part of the path. `vhost` and `queue` are None if it is no queue's log, or the queue was
    unknown.
    """

    path: str
    kind: str
    vhost: str | None
    queue: str | None
    from_offset: int
    next_offset: int
    chunks: int = 0
    octets: int = 0
    messages: int = 0
    """Messages of a queue or stream."""
    settlements: int = 0
    """Messages that the records of a queue settle."""
    settlements_lost: int = 0
    """Settled messages that are before `from_offset`: the leader has them, unsettled."""
    definitions: int = 0
    """Changes of definitions."""
    damaged: int = 0
    """Places that were unreadable when they were quarantined; their octets are here as they were."""
    settled_to: int = 0
    """The offset up to which settlements behind `next_offset` count; these are here, too."""
    has_relocated: bool = False
    """Whether all of the log is here, so that messages before `from_offset` count that are relocated behind it."""
    is_lost: bool = False
    """Whether no other node may have its confirmed messages: the queue was led on without this copy."""

    @property
    def unsettled(self) -> int:
        """Messages that no record here settles."""
        return self.messages - (self.settlements - self.settlements_lost)

    @property
    def has_only_settlements(self) -> bool:
        """Whether it has no message: a queue's leader has all that these records settle, and delivers it again."""
        return self.kind == "queues" and not self.messages and not self.damaged


class DivergentReport(msgspec.Struct):
    """The quarantined logs of one join on this node (`node_id`), which had reached epoch `from_epoch` by itself."""

    id: str
    at_ms: int
    from_epoch: int
    to_epoch: int
    node_id: str
    leader_id: str
    leader_uri: str
    is_finished: bool = False
    logs: list[DivergentLog] = []

    @classmethod
    def begun(
        cls,
        at_ms: int,
        *,
        from_epoch: int,
        to_epoch: int,
        node_id: str,
        leader_id: str = "",
        leader_uri: str = "",
    ) -> DivergentReport:
        """The report of a join that begins, before anything is quarantined; nothing is written."""
        report_id = f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y%m%dT%H%M%S}-e{from_epoch}"
        return cls(report_id, at_ms, from_epoch, to_epoch, node_id, leader_id, leader_uri)

    @classmethod
    def load(cls, data_dir: Path, report_id: str) -> DivergentReport:
        """The report of this id.

        Raises:
            NotFound: there is no such report.
            StorageError: the report cannot be read.
        """
        # The id comes from outside, and must not be another path.
        directory = directory_of(data_dir, report_id)
        if not _ID.fullmatch(report_id) or not (directory / _REPORT).exists():
            raise NotFound(f"there is no report '{report_id}' of divergent messages")
        report = _load(directory / _REPORT, cls)
        if not report.is_finished:
            report.logs = [_load(path, DivergentLog) for path in sorted(directory.rglob(_LOG))]
        return report

    def add(self, data_dir: Path, log: DivergentLog) -> None:
        """Write the entry of one more log, durably. Raises StorageError."""
        path = directory_of(data_dir, self.id) / log.path / _LOG
        StateFile(path).save(msgspec.to_builtins(log))
        self.logs.append(log)

    def save(self, data_dir: Path) -> None:
        """Write the report, durably. Raises StorageError."""
        StateFile(directory_of(data_dir, self.id) / _REPORT).save(msgspec.to_builtins(self))

    @property
    def has_only_settlements(self) -> bool:
        """Whether there is nothing here that an operator may want back: no message and no definition."""
        return all(log.has_only_settlements for log in self.logs)

    def summary(self) -> dict[str, Any]:
        """The report with its sums, in its JSON form."""
        logs = self.logs
        return {
            **msgspec.to_builtins(self),
            "messages": sum(log.messages for log in logs),
            "octets": sum(log.octets for log in logs),
            "settlements": sum(log.settlements for log in logs),
            "settlements_lost": sum(log.settlements_lost for log in logs),
            "damaged": sum(log.damaged for log in logs),
            "lost": sum(log.unsettled for log in logs if log.is_lost),
            "queues": [
                {"vhost": log.vhost, "queue": log.queue, "messages": log.messages}
                for log in logs
                if log.kind in ("queues", "streams") and not log.has_only_settlements
            ],
        }


def directory_of(data_dir: Path, report_id: str) -> Path:
    """The directory of a report and its logs."""
    return data_dir / DIRECTORY / report_id


def reports(data_dir: Path) -> list[DivergentReport]:
    """All reports, oldest first; a report has no logs if the node died before it had quarantined any.

    Raises:
        StorageError: a report cannot be read.
    """
    names = [path.parent.name for path in (data_dir / DIRECTORY).glob(f"*/{_REPORT}")]
    found = [DivergentReport.load(data_dir, name) for name in names if _ID.fullmatch(name)]
    return sorted(found, key=lambda report: (report.at_ms, len(report.id), report.id))


def _load(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(StateFile(path).load(), kind)
    except msgspec.ValidationError as error:
        raise StorageError(f"{path}: {error}; repair the file, or move its directory away") from error


def chunks_of(
    data_dir: Path, report_id: str, log: DivergentLog, kind: ChunkType
) -> Iterator[Chunk | Corrupt]:
    """Yield the log's chunks of this type, and the error for each unreadable place.

    Raises:
        StorageError: files cannot be opened.
    """
    directory = directory_of(data_dir, report_id) / log.path
    if not starts(directory):
        yield Corrupt(str(directory), "", log.from_offset, -1, "the quarantined files are missing")
    window_bytes = STEP_BYTES if kind == ChunkType.USER else HEADERS_BYTES
    end = log.next_offset if kind == ChunkType.USER else max(log.next_offset, log.settled_to)
    for found in walk(directory, log.from_offset, end, window_bytes=window_bytes):
        if isinstance(found, Damage):
            yield found.error(directory)
        elif found.header.type == kind:
            try:
                yield decode_chunk(found.file.read(found.position, found.header.chunk_bytes))
            except (ChunkError, Unreadable) as error:
                yield found.damage(str(error)).error(directory)

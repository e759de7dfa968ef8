"""What was quarantined, as its report says, and reading it back; see storage.quarantine.

A report is of one join. As long as it is not finished, what it has of a log is in a file beside the chunks of
that log; then all of it is in the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

    `kind` is the first part of that. `vhost` and `queue` None: it is no queue's, or nobody knew whose.
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
    """Records of a queue or stream that are messages."""
    settlements: int = 0
    """Messages that records of a queue settle."""
    settlements_lost: int = 0
    """Those of them that stand before `from_offset`: they are back, unsettled."""
    definitions: int = 0
    """Changes of definitions."""
    damaged: int = 0
    """Places that could not be read even when they were quarantined; the octets are here as they were."""
    settled_to: int = 0
    """Up to where settlements count that stand behind `next_offset`; what is there is here as well."""
    has_relocated: bool = False
    """Whether all of the log is here, so that messages before `from_offset` count which stand again behind it."""
    is_lost: bool = False
    """Whether what was confirmed of it may be nowhere else: the queue was led on without it."""

    @property
    def unsettled(self) -> int:
        """Messages that nothing here settles."""
        return self.messages - (self.settlements - self.settlements_lost)


class DivergentReport(msgspec.Struct):
    """What one join quarantined on this node (`node_id`), which had come to epoch `from_epoch` by itself."""

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
    def load(cls, data_dir: Path, report_id: str) -> DivergentReport:
        """The report of this id.

        Raises:
            NotFound: there is none.
            StorageError: it cannot be read.
        """
        # The id comes from outside, and is to be no other path.
        directory = directory_of(data_dir, report_id)
        if not _ID.fullmatch(report_id) or not (directory / _REPORT).exists():
            raise NotFound(f"there is no report '{report_id}' of divergent messages")
        report = _load(directory / _REPORT, cls)
        if not report.is_finished:
            report.logs = [_load(path, DivergentLog) for path in sorted(directory.rglob(_LOG))]
        return report

    def add(self, data_dir: Path, log: DivergentLog) -> None:
        """Write, durably, what was quarantined of one more log. Raises StorageError."""
        path = directory_of(data_dir, self.id) / log.path / _LOG
        StateFile(path).save(msgspec.to_builtins(log))
        self.logs.append(log)

    def save(self, data_dir: Path) -> None:
        """Write it, durably. Raises StorageError."""
        StateFile(directory_of(data_dir, self.id) / _REPORT).save(msgspec.to_builtins(self))

    def summary(self) -> dict[str, Any]:
        """The report with its sums, as JSON has it."""
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
                if log.kind in ("queues", "streams")
            ],
        }


def directory_of(data_dir: Path, report_id: str) -> Path:
    """Where a report and what it tells of are."""
    return data_dir / DIRECTORY / report_id


def reports(data_dir: Path) -> list[DivergentReport]:
    """All reports, oldest first; one of a node that died before it had quarantined anything has no logs.

    Raises:
        StorageError: one cannot be read.
    """
    names = [path.parent.name for path in (data_dir / DIRECTORY).glob(f"*/{_REPORT}")]
    found = [DivergentReport.load(data_dir, name) for name in names if _ID.fullmatch(name)]
    return sorted(found, key=lambda report: (report.at_ms, len(report.id), report.id))


def _load(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(StateFile(path).load(), kind)
    except msgspec.ValidationError as error:
        raise StorageError(f"{path}: {error}; mend the file, or move its directory away") from error


def chunks_of(
    data_dir: Path, report_id: str, log: DivergentLog, kind: ChunkType
) -> Iterator[Chunk | Corrupt]:
    """The log's chunks of this type, one at a time; where none can be read, the error itself.

    Raises:
        StorageError: files cannot be opened.
    """
    directory = directory_of(data_dir, report_id) / log.path
    if not starts(directory):
        yield Corrupt(str(directory), "", log.from_offset, -1, "what was set aside is not there any more")
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

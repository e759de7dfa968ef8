"""Looks at archived messages of one queue, from a moment on, without Spark: a few, for a person to read.

Of each file that has the queue, row groups are read one at a time, first the small columns, and the bodies only of
row groups in which something was found.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import MESSAGE
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.settled_offsets import NOTHING, Int64s, Masks, QueueIncarnation, SettledRanges
from leveret.pipeline.archive.settlements import settlements_of
from leveret.pipeline.archive.tables import dictionary, messages_in
from leveret.pipeline.files.files import Place, opened

_IDENTITY: Final = ["queue", "queue_epoch", "queue_offset", "kind", "timestamp_ms"]
_CONTENT: Final = ["exchange", "routing_key", "properties", "body"]


def archived_messages(
    data_dir: Place, vhost: str, queue: str, *, from_ms: int, count: int, body_bytes_max: int
) -> list[dict[str, Any]]:
    """The first `count` messages that came at `from_ms` or later, in the order of the upstream's log.

    Returns:
        Rows of offset, timestamp_ms, settled, body_bytes, and in base64: exchange, routing_key, properties (flags and
        list), body (its first `body_bytes_max`). Messages that compaction removed were settled, and are not there.

    Raises:
        StorageError: a file cannot be read.
    """
    files = Manifest(data_dir).files_of(vhost)
    settled = _settled(data_dir, [file for file in files if _settles(file, queue)])
    seen: set[tuple[int, int]] = set()
    rows: list[dict[str, Any]] = []
    for file in files:
        if len(rows) >= count:
            break
        if any(part.queue == queue and part.max_ms >= from_ms and part.messages for part in file.queues):
            for row in _rows(data_dir / file.path, queue, from_ms, body_bytes_max, count - len(rows), seen):
                epoch = row.pop("epoch")
                mask = settled.get(QueueIncarnation(vhost, queue, epoch), NOTHING)
                row["settled"] = bool(mask.contains(np.array([row["offset"]], np.int64))[0])
                rows.append(row)
    return rows


def _settles(file: StoredFile, queue: str) -> bool:
    """Whether a file may have settlements of the queue; of a compacted one the manifest does not tell."""
    is_compacted = file.history_from_ms > 0
    settles = is_compacted or any(part.queue == queue and part.settled for part in file.queues)
    return settles and bool(file.settlements)


def _settled(data_dir: Place, files: list[StoredFile]) -> Masks:
    ranges = SettledRanges()
    for file in files:
        place: Place = data_dir / file.settlements
        try:
            ranges.add_settlements(file.vhost, settlements_of(data_dir, file))
        except (OSError, pa.ArrowInvalid) as error:
            raise StorageError(f"{place}: it is damaged or gone: {error}") from error
    return ranges.masks()


def _rows(
    place: Place, queue: str, from_ms: int, body_bytes_max: int, count: int, seen: set[tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Those of one file; what was collected twice comes once."""
    try:
        with opened(place) as source, messages_in(source, dictionaries=["queue"]) as parquet:
            for group in range(parquet.num_row_groups):
                wanted = _wanted(parquet, group, queue, from_ms)
                if not len(wanted):
                    continue
                table = parquet.read_row_group(group, [*_IDENTITY[1:3], "timestamp_ms", *_CONTENT])
                while count and len(wanted):
                    some, wanted = wanted[:count], wanted[count:]
                    for row in table.take(pa.array(some)).to_pylist():
                        identity = (row["queue_epoch"], row["queue_offset"])
                        if identity not in seen:
                            seen.add(identity)
                            count -= 1
                            yield _shown(row, body_bytes_max)
                if not count:
                    return
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{place}: it is damaged or gone: {error}") from error


def _wanted(parquet: pq.ParquetFile, group: int, queue: str, from_ms: int) -> Int64s:
    """The places in a row group of the queue's messages."""
    table = parquet.read_row_group(group, _IDENTITY)
    names = dictionary(table.column("queue"))
    known = names.dictionary.to_pylist()
    if queue not in known:
        return np.empty(0, np.int64)
    is_wanted = (
        (names.indices.to_numpy() == known.index(queue))
        & (table.column("kind").to_numpy() == MESSAGE)
        & (table.column("timestamp_ms").to_numpy() >= from_ms)
    )
    return np.flatnonzero(is_wanted)


def _shown(row: dict[str, Any], body_bytes_max: int) -> dict[str, Any]:
    octets = {name: row[name] for name in ("exchange", "routing_key", "properties")}
    octets["body"] = row["body"][:body_bytes_max]
    return {
        "epoch": row["queue_epoch"],
        "offset": row["queue_offset"],
        "timestamp_ms": row["timestamp_ms"],
        "body_bytes": len(row["body"]),
        **{name: base64.b64encode(value).decode() for name, value in octets.items()},
    }

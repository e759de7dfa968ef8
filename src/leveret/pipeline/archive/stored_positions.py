"""Stored positions of streams' readers and publishers: the offset of each reader, the last id of each publisher.

Both travel in the trailers of the chunks of the upstream's streams. A file beside each Parquet file has the
positions of its chunks (`.books`, an Arrow file after STORED_POSITIONS). So the stored positions are known for any
prefix of the transferred records, and for any moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from leveret.model.errors import StorageError
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.tables import read_table
from leveret.pipeline.files.files import Place
from leveret.wire.chunk import Attribute
from leveret.wire.incarnation import in_order
from leveret.wire.record import is_recovery

SUFFIX: Final = ".books"
STORED_POSITIONS: Final = pa.schema(
    [
        pa.field("queue", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("queue_epoch", pa.int64(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("name", pa.binary(), nullable=False),
        pa.field("value", pa.uint64(), nullable=False),
    ]
)
"""`queue_offset` and `timestamp_ms` are the chunk's; `kind` is a wire.chunk.Attribute."""
PUBLISHERS_MAX: Final = 254
"""The most publishers of a stream that are recovered: the stream keeps one more, which is the recovery itself."""
_READERS: Final = 8
Incarnation = tuple[str, int]
_PositionKey = tuple[str, int, int, bytes]
"""Queue and epoch, the kind, and the reference of a reader or a publisher."""


class _Row(NamedTuple):
    """A row after STORED_POSITIONS."""

    queue: str
    epoch: int
    offset: int
    timestamp_ms: int
    kind: int
    name: bytes
    value: int


class StoredPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The stored positions of one incarnation of a stream at some moment.

    Attributes:
        sequences: (publisher's reference, its last publishing id), the most recent publisher last.
        offsets: (reader's reference, its offset).
        clamped: the number of offsets that were beyond the stream's end, and are that end here.
    """

    queue: str
    epoch: int
    sequences: list[tuple[bytes, int]] = []
    offsets: list[tuple[bytes, int]] = []
    clamped: int = 0


class StoredPositionsCollector:
    """Collects the stored positions in chunks; a repeated one once, and only the last one of a millisecond.

    Rows are in the order of their last occurrence: a stream with too many publishers forgets the first ones.
    """

    def __init__(self) -> None:
        """Begin without positions."""
        self._rows: dict[int, _Row] = {}
        self._last: dict[_PositionKey, int] = {}
        self._next_number = 0

    def note(
        self, incarnation: Incarnation, offset: int, timestamp_ms: int, said: Iterable[tuple[int, bytes, int]]
    ) -> None:
        """Take the attributes of a chunk of this incarnation, at this offset and time."""
        for kind, name, value in said:
            if kind not in (Attribute.SEQUENCE, Attribute.OFFSET):
                continue
            row = _Row(*incarnation, offset, timestamp_ms, kind, name, value)
            at = self._last.get((*incarnation, kind, name), -1)
            before = self._rows.get(at, row)
            if before.value == value:
                row = before
            if before.value == value or before.timestamp_ms == timestamp_ms:
                self._rows.pop(at, None)
            self._last[*incarnation, kind, name] = self._next_number
            self._rows[self._next_number] = row
            self._next_number += 1

    def table(self) -> pa.Table:
        """The table after STORED_POSITIONS."""
        return _table(list(self._rows.values()))


def _table(rows: list[_Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(STORED_POSITIONS)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, STORED_POSITIONS, strict=True)],
        schema=STORED_POSITIONS,
    )


def last_stored_positions(data_dir: Place, files: Iterable[StoredFile]) -> pa.Table:
    """The last stored positions in these files of one vhost, in their order.

    Incarnations that the queue has left for a later one are left out.

    Raises:
        StorageError: a file cannot be read.
    """
    return _table(list(_last_rows(data_dir, files, None).values()))


def stored_positions_at(
    manifest: Manifest, vhost: str, as_of_ms: int | None = None
) -> dict[Incarnation, StoredPositions]:
    """The stored positions of a vhost's streams, at a moment or at the end.

    Raises:
        StorageError: a file cannot be read.
    """
    files = manifest.files_of(vhost)
    found: dict[Incarnation, StoredPositions] = {}
    for (queue, epoch, kind, name), row in _last_rows(manifest.data_dir, files, as_of_ms).items():
        positions = found.setdefault(
            (queue, epoch), StoredPositions(queue=queue, epoch=epoch, sequences=[], offsets=[])
        )
        if kind == Attribute.SEQUENCE:
            positions.sequences.append((name, row.value))
            continue
        # At that moment the reader had read no further than the stream's end.
        positions.offsets.append((name, min(row.value, row.offset)))
        if row.value > row.offset:
            found[queue, epoch] = msgspec.structs.replace(positions, clamped=positions.clamped + 1)
    for positions in found.values():
        del positions.sequences[:-PUBLISHERS_MAX]
    return found


def _last_rows(
    data_dir: Place, files: Iterable[StoredFile], as_of_ms: int | None
) -> dict[_PositionKey, _Row]:
    """The last row of each reader and publisher of the present incarnations, the most recent publisher last.

    The last row is that of the latest chunk of the stream. Files do not tell: those of a node that led the stream
    before may be the later ones, for what that node collects of other queues.
    """
    wanted = [
        file for file in files if file.stored_positions and (as_of_ms is None or file.min_ms <= as_of_ms)
    ]
    found: dict[_PositionKey, _Row] = {}
    newest: dict[str, int] = {}
    with ThreadPoolExecutor(_READERS) as readers:
        tables = readers.map(lambda file: _read(data_dir / file.stored_positions), wanted)
        for file, table in zip(wanted, tables, strict=True):
            columns = (column.to_pylist() for column in table.columns)
            for row in map(_Row, *columns):
                if row.kind == Attribute.SEQUENCE and is_recovery(row.name):
                    # The publisher is a plan of another node's recovery, no application.
                    continue
                if as_of_ms is None or file.history_from_ms or row.timestamp_ms <= as_of_ms:
                    key = (row.queue, row.epoch, row.kind, row.name)
                    if key in found and row.offset <= found[key].offset:
                        continue
                    found.pop(key, None)
                    found[key] = row
                    newest[row.queue] = max(row.epoch, newest.get(row.queue, 0), key=in_order)
    return {key: row for key, row in found.items() if row.epoch == newest[row.queue]}


def _read(place: Place) -> pa.Table:
    try:
        return read_table(place)
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{place}: {error}; restore the file from a copy and promote again") from error

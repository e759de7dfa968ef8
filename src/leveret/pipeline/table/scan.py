"""Reads ranges of files as rows of the table: of each row group first the keys, then the wanted columns, if any row is.

Parquet stores columns apart, so a column that is not wanted is not read, and neither are the bodies of a row group
without a wanted message. This module uses no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.pipeline.archive.decode import MESSAGE
from leveret.pipeline.archive.settled_offsets import Bools, Int64s, QueueIncarnation, rows_by_incarnation
from leveret.pipeline.archive.settlements import settlements_of
from leveret.pipeline.archive.tables import dictionary, messages_in, whole
from leveret.pipeline.files.files import opened
from leveret.pipeline.table.columns import OF_STATE, PENDING, schema_of
from leveret.pipeline.table.content import STORED, content_columns, has_entries, unpacked
from leveret.pipeline.table.plan import FilePiece, FileRange, unreadable
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.states import KnownSettlements, are_in, state_columns

_KEYS: Final = ("queue", "queue_epoch", "queue_offset", "kind", "timestamp_ms")
_DICTIONARIES: Final = ("queue", "exchange", "routing_key", "properties")
_MAY_BE_STREAMS: Final = ("stream", "")
"""The types of queues whose messages may be entries of a stream; an earlier upstream named no types."""
_CONTENT: Final = ("exchange", "routing_key", "properties", "body")


def read_rows(wanted: FileRange) -> Iterator[pa.RecordBatch]:
    """The wanted rows, with the schema of the request's columns; a batch is of one row group.

    Raises:
        StorageError: a file cannot be read.
    """
    reader = _RangeOfRows(wanted)
    for piece in wanted.pieces:
        place = wanted.data_dir / piece.path
        try:
            yield from reader.rows_of(piece)
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(place, error) from error


class _Found(NamedTuple):
    """The wanted rows of a row group: their keys and their states."""

    rows: Int64s
    keys: pa.Table
    reasons: npt.NDArray[np.int16]
    times: Int64s


class _RangeOfRows:
    """Reads the pieces of one range."""

    def __init__(self, wanted: FileRange) -> None:
        self._wanted = wanted
        self._request: TableRequest = wanted.request
        columns = wanted.request.columns
        self._schema = schema_of(columns)
        self._has_states = bool(wanted.request.state or OF_STATE.intersection(columns))
        self._stored = list(dict.fromkeys(STORED[name] for name in columns if name in STORED))
        self._keys = ["queue", "kind", "timestamp_ms"]
        self._is_of_all = wanted.request.queues is None and not self._has_states
        if not self._is_of_all or {"incarnation", "offset", "queue_type"}.intersection(columns):
            self._keys = list(_KEYS)
        self._settlements = self._known()

    def _known(self) -> KnownSettlements:
        wanted = self._wanted
        known = KnownSettlements(incarnation for piece in wanted.pieces for incarnation in piece.parts)
        for file in wanted.settlements:
            try:
                table = settlements_of(
                    wanted.data_dir,
                    file,
                    until_ms=self._request.as_of_ms,
                    timed=bool(OF_STATE.intersection(self._request.columns) - {"state"}),
                )
            except (OSError, pa.ArrowInvalid) as error:
                raise unreadable(wanted.data_dir / file.settlements, error) from error
            known.add(file.vhost, table)
        return known

    def rows_of(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a piece."""
        if self._request.state == PENDING and all(
            self._settlements.covers(incarnation, ranges) for incarnation, (_, ranges) in piece.parts.items()
        ):
            return
        seen: dict[QueueIncarnation, Int64s] = {}
        place = self._wanted.data_dir / piece.path
        with opened(place) as source, messages_in(source, dictionaries=_DICTIONARIES) as parquet:
            groups = parquet.num_row_groups
            for group in range(groups):
                if group * piece.shares // groups != piece.share or not self._may_have(parquet, group):
                    continue
                are_alike = self._is_of_all and not piece.without and piece.only is None
                keys = parquet.read_row_group(group, self._keys if are_alike else list(_KEYS))
                found = self._find_alike(keys) if are_alike else self._find(keys, piece, seen)
                if len(found.rows):
                    yield self._batch(*self._content(parquet, group, found, piece), piece)

    def _may_have(self, parquet: pq.ParquetFile, group: int) -> bool:
        """Whether the statistics of a row group allow for wanted messages."""
        least: dict[str, int] = {}
        most: dict[str, int] = {}
        row_group = parquet.metadata.row_group(group)
        for at in range(row_group.num_columns):
            column = row_group.column(at)
            if (
                column.path_in_schema in _KEYS
                and column.statistics is not None
                and column.statistics.has_min_max
            ):
                least[column.path_in_schema] = column.statistics.min
                most[column.path_in_schema] = column.statistics.max
        if least.get("kind", MESSAGE) != MESSAGE:
            return False
        times = "timestamp_ms"
        return times not in least or self._request.wants_times(least[times], most[times])

    def _find_alike(self, keys: pa.Table) -> _Found:
        """The wanted rows where the time alone decides."""
        found = np.flatnonzero(self._in_time(keys) & (keys.column("kind").to_numpy() == MESSAGE))
        nothing = np.empty(0, np.int64)
        return _Found(found, _taken(keys, found), nothing.astype(np.int16), nothing)

    def _find(self, keys: pa.Table, piece: FilePiece, seen: dict[QueueIncarnation, Int64s]) -> _Found:
        offsets = keys.column("queue_offset").to_numpy()
        is_wanted = self._in_time(keys) & (keys.column("kind").to_numpy() == MESSAGE)
        is_found = np.zeros(len(offsets), np.bool_)
        reasons, times = np.full(len(offsets), -1, np.int16), np.zeros(len(offsets), np.int64)
        for incarnation, rows in rows_by_incarnation(self._wanted.vhost, keys):
            mine = rows[is_wanted[rows]]
            if not len(mine) or incarnation not in piece.parts:
                continue
            mine = mine[_once(piece, incarnation, offsets[mine], seen)]
            is_found[mine] = True
            if self._has_states:
                reasons[mine], times[mine] = self._settlements.of(incarnation).states(offsets[mine])
        if self._request.state:
            is_found &= are_in(self._request.state, reasons)
        found = np.flatnonzero(is_found)
        return _Found(found, _taken(keys, found), reasons[found], times[found])

    def _in_time(self, keys: pa.Table) -> Bools:
        times = keys.column("timestamp_ms").to_numpy()
        is_in = np.ones(len(times), np.bool_)
        if self._request.from_ms is not None:
            is_in &= times >= self._request.from_ms
        if self._request.end_ms is not None:
            is_in &= times < self._request.end_ms
        return is_in

    def _content(
        self, parquet: pq.ParquetFile, group: int, found: _Found, piece: FilePiece
    ) -> tuple[_Found, pa.Table | None]:
        """The stored content of the wanted rows; a row of a stream may become several, whatever columns are wanted."""
        may_have_entries = any(kind in _MAY_BE_STREAMS for kind, _ in piece.parts.values())
        # Properties tell which rows are entries.
        names = list(dict.fromkeys([*self._stored, "properties"])) if may_have_entries else self._stored
        if not names:
            return found, None
        stored = _taken(parquet.read_row_group(group, names), found.rows)
        if not may_have_entries or not has_entries(stored):
            return found, stored
        if set(names) != set(_CONTENT):
            stored = _taken(parquet.read_row_group(group, _CONTENT), found.rows)
        stored, rows = unpacked(stored, _plain(found.keys.column("queue")).to_pylist())
        reasons, times = found.reasons, found.times
        if self._has_states:
            reasons, times = reasons[rows], times[rows]
        return _Found(found.rows[rows], found.keys.take(pa.array(rows)), reasons, times), stored

    def _batch(self, found: _Found, stored: pa.Table | None, piece: FilePiece) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = self._key_columns(found, piece)
        if self._has_states:
            columns |= state_columns(found.reasons, found.times)
        if stored is not None:
            columns |= content_columns(stored, self._schema.names)
        return pa.RecordBatch.from_arrays(
            [columns[name].cast(self._schema.field(name).type) for name in self._schema.names],
            schema=self._schema,
        )

    def _key_columns(self, found: _Found, piece: FilePiece) -> dict[str, pa.Array]:
        keys = found.keys
        made: dict[str, Callable[[], pa.Array]] = {
            "vhost": lambda: pa.repeat(pa.scalar(self._wanted.vhost), len(found.rows)),
            "queue": lambda: _plain(keys.column("queue")),
            "queue_type": lambda: self._types(keys, piece),
            "incarnation": lambda: whole(keys.column("queue_epoch")),
            "offset": lambda: whole(keys.column("queue_offset")),
            "timestamp": lambda: pa.array(keys.column("timestamp_ms").to_numpy() * 1000),
        }
        return {name: made[name]() for name in self._schema.names if name in made}

    def _types(self, keys: pa.Table, piece: FilePiece) -> pa.Array:
        types = np.empty(keys.num_rows, object)
        for incarnation, rows in rows_by_incarnation(self._wanted.vhost, keys):
            types[rows] = piece.parts[incarnation][0] or None
        return pa.array(types, pa.string())


def _taken(table: pa.Table, rows: Int64s) -> pa.Table:
    """These rows, of which there may be all."""
    return table if len(rows) == table.num_rows else table.take(pa.array(rows))


def _once(
    piece: FilePiece, incarnation: QueueIncarnation, offsets: Int64s, seen: dict[QueueIncarnation, Int64s]
) -> Bools:
    """Which of these messages of a piece are rows: none that another file has, or this one had before."""
    is_row = np.ones(len(offsets), np.bool_)
    if piece.only is not None:
        only = piece.only.get(incarnation)
        is_row = is_row & only.contains(offsets) if only is not None else ~is_row
    if incarnation in piece.without:
        before = seen.get(incarnation, np.empty(0, np.int64))
        first = np.zeros(len(offsets), np.bool_)
        first[np.unique(offsets, return_index=True)[1]] = True
        is_row &= first & ~np.isin(offsets, before) & ~piece.without[incarnation].contains(offsets)
        seen[incarnation] = np.append(before, offsets)
    return is_row


def _plain(column: pa.ChunkedArray) -> pa.Array:
    names = dictionary(column)
    return names.dictionary.take(names.indices)

"""The settlements of a stored file, with their times: from its sidecar, or from the settlement records themselves.

A sidecar of an earlier version has no times. Its file has them: a settlement record is a row, whose body are the
ranges (`decode`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leveret.pipeline.archive.decode import SETTLEMENT, SETTLEMENTS, UNKNOWN
from leveret.pipeline.archive.manifest import Moves, StoredFile
from leveret.pipeline.archive.tables import read_table
from leveret.pipeline.files.files import Place, opened
from leveret.wire.record import decode_settlements
from leveret.wire.site_order import MOVES

CLOCKS_MS: Final = 2000
"""The difference of a cluster's clocks up to which a message that is moved about a moment is not lost as of it."""


def settlements_of(
    data_dir: Place, file: StoredFile, *, until_ms: int | None = None, timed: bool = False
) -> pa.Table:
    """The settlements in a file that count, after SETTLEMENTS.

    Moves that wait do not count. As of a moment, moves of a short time before it do not either: the copy of the message
    has the time of another node's clock, which may be after the moment.

    Args:
        data_dir: the data directory.
        file: a file with a sidecar.
        until_ms: only those by that time; what a compaction merged had all come by any time that can be asked for.
        timed: whether each needs its time and reason, even where only the settlement records have it.

    Raises:
        OSError, pa.ArrowInvalid: a file is missing, or damaged.
    """
    is_cut = until_ms is not None and not file.history_from_ms and file.max_ms > until_ms
    table = read_table(data_dir / file.settlements)
    if "timestamp_ms" not in table.column_names:
        if not file.history_from_ms and (is_cut or timed):
            table = _recorded(data_dir / file.path)
        else:
            table = _untimed(table, is_merged=bool(file.history_from_ms))
    if is_cut:
        table = table.filter(pc.field("timestamp_ms") <= until_ms)
    if file.moves is Moves.NONE or (file.moves is Moves.COUNT and until_ms is None):
        return table
    is_move = pc.field("reason").isin(list(MOVES))
    if file.moves is Moves.COUNT and until_ms is not None:
        is_move &= pc.field("timestamp_ms") > until_ms - CLOCKS_MS
    return table.filter(~is_move)


def _untimed(table: pa.Table, *, is_merged: bool) -> pa.Table:
    """A sidecar of an earlier version, without times; a compaction of then gave its ranges a reason, of none."""
    if is_merged:
        at = table.schema.get_field_index("reason")
        reasons = pa.array(np.full(table.num_rows, UNKNOWN, np.uint8))
        table = table.set_column(at, SETTLEMENTS.field("reason"), reasons)
    times = pa.array(np.zeros(table.num_rows, np.int64))
    return table.append_column(SETTLEMENTS.field("timestamp_ms"), times)


def _recorded(place: Place) -> pa.Table:
    """The ranges of all settlement records in a file."""
    with opened(place) as source:
        records = pq.read_table(
            source,
            columns=["queue", "queue_epoch", "timestamp_ms", "body"],
            read_dictionary=["queue"],
            filters=[("kind", "=", SETTLEMENT)],
            partitioning=None,
            page_checksum_verification=True,
        )
    settled = [list(decode_settlements(body)) for body in records.column("body").to_pylist()]
    rows = np.repeat(np.arange(len(settled)), [len(each) for each in settled])
    found = records.select(["queue", "queue_epoch", "timestamp_ms"]).take(pa.array(rows))
    ranges = [each for some in settled for each in some]
    for name in ("first", "count", "reason"):
        values = pa.array([getattr(each, name) for each in ranges], SETTLEMENTS.field(name).type)
        found = found.append_column(SETTLEMENTS.field(name), values)
    return found.select(SETTLEMENTS.names)

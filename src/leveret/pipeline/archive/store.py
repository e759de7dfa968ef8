"""Stores a range of an outgoing log: Parquet of its records, and a sidecar of their settlements.

`<data_dir>/data/vhost-<vhost>/<first>-<next>.parquet` (of a cluster's node `<first>-<next>-<label>.parquet`) after
decode.RECORDS, zstd level 1, and `...settled`, an Arrow file after decode.SETTLEMENTS; of streams also `...books` (see
`stored_positions`). The name follows from the content, so storing a range again writes the same file again. Only the
manifest makes a file count.

This module uses neither Spark nor the network: chunks come in, files come out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.pipeline.archive.decode import RECORDS, SETTLEMENTS, Decoder
from leveret.pipeline.archive.manifest import Moves, StoredFile
from leveret.pipeline.archive.stored_positions import SUFFIX
from leveret.pipeline.archive.tables import write_table
from leveret.pipeline.files.files import (
    Place,
    keep,
    make_directory,
    name_in,
    note_named,
    sync_directory,
    uncache,
    vhost_directory,
    written_beside,
)
from leveret.wire.chunk import fingerprint_of
from leveret.wire.site_order import MOVES

RUN_BYTES_MAX: Final = 16_000_000
ROW_GROUP_ROWS: Final = 16_384
DATA: Final = "data"
SETTLED: Final = ".settled"
_LABEL_CHARACTERS_MAX: Final = 120


def store_range(
    data_dir: Place,
    vhost: str,
    chunks: Iterable[bytes | memoryview],
    *,
    node: str = "",
    is_of_cluster: bool = False,
) -> StoredFile | None:
    """Store contiguous chunks; on disk when this returns; None without chunks.

    Moves (`wire.site_order`) of a cluster's node wait for those of the others; a single node has all in one order.
    Memory is bounded by a run of 16 MB, for any length of the range.

    Raises:
        ChunkError: the chunks are damaged or leave a gap.
        StorageError: the disk refuses.
    """
    runs = _runs(chunks)
    first = next(runs, None)
    if first is None:
        return None
    directory: Place = data_dir / DATA / vhost_directory(vhost)
    make_directory(directory)
    decoder = Decoder(vhost)
    with written_beside(directory) as beside:
        settled = _write_records(beside, decoder, chain((first,), runs))
        path: Place = directory / f"{range_name(decoder.first, decoder.next, node)}.parquet"
        size = keep(beside, path)
        note_named(path, is_named=False)
        uncache(path)
    settlements, settled_bytes = write_sidecar(data_dir, path.with_suffix(SETTLED), settled)
    positions, positions_bytes = write_sidecar(
        data_dir, path.with_suffix(SUFFIX), decoder.stored_positions.table()
    )
    sync_directory(directory)
    parts, last = list(decoder.parts.values()), decoder.last
    assert last is not None
    return StoredFile(
        vhost=vhost,
        node=node,
        path=name_in(data_dir, path),
        settlements=settlements,
        stored_positions=positions,
        first=decoder.first,
        next=decoder.next,
        records=decoder.records,
        bytes=size + settled_bytes + positions_bytes,
        min_ms=min(part.min_ms for part in parts),
        max_ms=max(part.max_ms for part in parts),
        queues=parts,
        mark=fingerprint_of(last),
        epoch=last.epoch,
        moves=Moves.WAIT if is_of_cluster and _has_moves(settled) else Moves.NONE,
    )


def write_sidecar(data_dir: Place, place: Place, table: pa.Table) -> tuple[str, int]:
    """Write a file beside one of records; return its name in the archive and its octets, none for an empty table."""
    if not table.num_rows:
        return "", 0
    size = write_table(place, table)
    note_named(place, is_named=False)
    return name_in(data_dir, place), size


def _has_moves(settled: pa.Table) -> bool:
    return bool(np.isin(settled.column("reason").to_numpy(), MOVES).any())


def range_name(first: int, end: int, node: str) -> str:
    """The begin of the names of a range's files; the label of a node is quoted, and never long."""
    label = quote(node, safe="@").replace(".", "%2E")
    if len(label) > _LABEL_CHARACTERS_MAX:
        label = hashlib.sha256(node.encode()).hexdigest()
    return f"{first:020}-{end:020}" + (f"-{label}" if label else "")


def records_writer(path: Path) -> pq.ParquetWriter:
    """A writer of a file with the schema RECORDS."""
    return pq.ParquetWriter(
        path,
        RECORDS,
        compression="zstd",
        compression_level=1,
        use_dictionary=["vhost", "queue", "exchange", "routing_key", "properties"],
        column_encoding={
            "queue_epoch": "DELTA_BINARY_PACKED",
            "queue_offset": "DELTA_BINARY_PACKED",
            "timestamp_ms": "DELTA_BINARY_PACKED",
        },
        write_statistics=["queue_epoch", "queue_offset", "timestamp_ms", "kind"],
        write_page_checksum=True,
    )


def _write_records(path: Path, decoder: Decoder, runs: Iterable[list[bytes | memoryview]]) -> pa.Table:
    """Write all runs; return their settlements."""
    settled: list[pa.RecordBatch] = []
    with records_writer(path) as writer:
        for run in runs:
            decoded = decoder.decode(run)
            writer.write_batch(decoded.records, row_group_size=ROW_GROUP_ROWS)
            settled.append(decoded.settlements)
    return pa.Table.from_batches(settled, schema=SETTLEMENTS).unify_dictionaries().combine_chunks()


def _runs(chunks: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Cut chunks into runs of bounded size, and at the ends of memory blocks, whose chunks are decoded in place."""
    run: list[bytes | memoryview] = []
    size = 0
    for raw in chunks:
        if run and _memory_of(raw) is not _memory_of(run[-1]):
            yield run
            run, size = [], 0
        run.append(raw)
        size += len(raw)
        if size >= RUN_BYTES_MAX:
            yield run
            run, size = [], 0
    if run:
        yield run


def _memory_of(raw: bytes | memoryview) -> object:
    """The block of memory that a chunk is in; None for a chunk with memory of its own."""
    return raw.obj if isinstance(raw, memoryview) and isinstance(raw.obj, np.ndarray) else None

"""Finding the survivors: messages that no settlement names.

The driver merges the sidecars into masks, a few octets a queue; tasks read the key columns of the files
and keep what the masks do not have. Files that the masks cover wholly - most of a long history - are not
even opened. Only survivors' keys and references are written, as runs (`plan`); no rows go through Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leveret.model.errors import StorageError
from leveret.pipeline.decode import MESSAGE
from leveret.pipeline.files import sync_directory, sync_file, written_beside
from leveret.pipeline.manifest import Manifest, StoredFile
from leveret.pipeline.plan import SURVIVORS, RunPart, covered_number
from leveret.pipeline.settled import NOTHING, Mask, QueueLife, Ranges, rows_by_life
from leveret.pipeline.store import read_settlements

Masks = dict[QueueLife, Mask]
_KEYS = ["queue", "queue_epoch", "queue_offset", "kind", "timestamp_ms"]


def not_to_recover(
    manifest: Manifest, vhost: str, *, start_from_scratch: bool = False, all_available: bool = False
) -> Masks:
    """What a promotion leaves out of a vhost: the settled, and what an earlier promotion covered.

    Raises:
        StorageError: a sidecar cannot be read, unless `all_available`.
    """
    ranges = Ranges()
    if start_from_scratch:
        return {}
    for file in manifest.files():
        if file.vhost == vhost and file.settlements:
            path = manifest.data_dir / file.settlements
            try:
                ranges.add_settlements(vhost, read_settlements(path))
            except (OSError, pa.ArrowInvalid) as error:
                if not all_available:
                    raise StorageError(
                        f"{path}: {error}; what is settled is not known: restore the file from a copy, or "
                        "promote with --all-available to recover what may have been consumed already"
                    ) from error
    for file in manifest.ever_added(vhost, covered_number(manifest.data_dir, vhost)):
        for part in file.queues:
            firsts, counts = zip(*part.ranges, strict=True)
            ranges.add(QueueLife(vhost, part.queue, part.epoch), firsts, counts)
    return ranges.masks()


def may_have_survivors(file: StoredFile, masks: Masks) -> bool:
    """Whether a file must be opened; seldom true in vain."""
    return any(
        part.messages
        and not all(
            masks.get(QueueLife(file.vhost, part.queue, part.epoch), NOTHING).covers(first, count)
            for first, count in part.ranges
        )
        for part in file.queues
    )


def write_run(
    data_dir: Path, vhost: str, files: Iterable[tuple[int, str]], masks: Masks, run: Path
) -> list[RunPart]:
    """Write the survivors in (number, path) files to `run`; nothing is written when there are none.

    Raises:
        StorageError: a file cannot be read.
    """
    found: dict[str, list[pa.RecordBatch]] = {}
    for number, name in files:
        for life, rows in _survivors_of(data_dir / name, vhost, masks):
            batch = rows.append_column("file", pa.array(np.full(rows.num_rows, number, np.int32)))
            found.setdefault(life.queue, []).extend(batch.select(SURVIVORS.names).to_batches())
    if not found:
        return []
    with written_beside(run.parent) as beside:
        with pa.OSFile(str(beside), "wb") as sink, pa.ipc.new_file(sink, SURVIVORS) as writer:
            for batches in found.values():
                table = pa.Table.from_batches(batches).cast(SURVIVORS).combine_chunks()
                writer.write_batch(table.to_batches()[0])
        sync_file(beside)
        beside.rename(run)
    sync_directory(run.parent)
    return [
        RunPart(run.name, index, queue, sum(batch.num_rows for batch in batches))
        for index, (queue, batches) in enumerate(found.items())
    ]


def _survivors_of(path: Path, vhost: str, masks: Masks) -> list[tuple[QueueLife, pa.Table]]:
    """Keys of the survivors in a file, with the number of their row; by queue and epoch."""
    try:
        keys = pq.read_table(
            path, columns=_KEYS, read_dictionary=["queue"], memory_map=True, partitioning=None
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{path}: {error}; restore the file from a copy and promote again") from error
    is_message = keys.column("kind").to_numpy() == MESSAGE
    offsets = keys.column("queue_offset").to_numpy()
    keys = keys.append_column("row", pa.array(np.arange(keys.num_rows, dtype=np.int32)))
    found = []
    for life, rows in rows_by_life(vhost, keys):
        kept = rows[is_message[rows] & ~masks.get(life, NOTHING).contains(offsets[rows])]
        if len(kept):
            columns = keys.select(["queue_epoch", "queue_offset", "timestamp_ms", "row"])
            found.append((life, columns.take(pa.array(kept))))
    return found

"""Compaction: replaces files beyond the retention by one file without settled messages.

Settled messages in the archive are history: queues can be recovered as they stood at any moment of it. The
retention's limits bound the history. Compaction takes the oldest files of a log, removes every message that a
settlement among them names, and puts the rest into one file: unsettled messages, all settlements, merged, and the
last stored positions of streams' readers and publishers. So the time of a recovery depends on the unsettled
messages and the records since.

No unsettled message is ever removed, whatever the limits. A file made by a compaction has the time from which on
history is complete (`history_from_ms`). Files are deleted some time after the manifest has dropped them, because a
reader may still use an earlier manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Final

import numpy as np
import pyarrow as pa

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import MESSAGE, RECORDS, SETTLEMENTS, UNKNOWN
from leveret.pipeline.archive.manifest import Manifest, Moves, QueuePart, StoredFile
from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Int64s,
    Mask,
    Masks,
    SettledRanges,
    rows_by_incarnation,
)
from leveret.pipeline.archive.store import ROW_GROUP_ROWS, SETTLED, range_name, records_writer, write_sidecar
from leveret.pipeline.archive.stored_positions import SUFFIX, last_stored_positions
from leveret.pipeline.archive.tables import messages_in, read_table
from leveret.pipeline.files.files import (
    Place,
    keep,
    name_in,
    note_named,
    opened,
    sync_directory,
    written_beside,
)
from leveret.wire.incarnation import may_have_messages, numbering_of
from leveret.wire.log_name import title_of, vhost_of

FILES_MIN: Final = 32
FILES_MANY: Final = 1000
BYTES_MIN: Final = 64_000_000
"""The least size that is worth a compaction; many files are worth one at any size."""
COMPACTED: Final = ".compacted.parquet"


def due(
    manifest: Manifest, log: str, now_ms: int, *, bytes_max: int | None, retain_ms: int | None
) -> list[StoredFile]:
    """The oldest files of a log that are beyond the limits, none if compacting them is not worthwhile.

    The logs of a vhost share its limit in octets by what each of them has. Files whose moves do not count yet stay.
    """
    files = manifest.files_of_log(log)
    size = sum(file.bytes for file in files)
    beside = (each for other in manifest.logs_of(vhost_of(log)) for each in manifest.files_of_log(other))
    of_vhost = sum(file.bytes for file in beside) or 1
    over = 0 if bytes_max is None else size - bytes_max * size // of_vhost
    older_ms = -1 if retain_ms is None else now_ms - retain_ms

    def is_too_old(dated: tuple[StoredFile, int]) -> bool:
        nonlocal over
        file, came_ms = dated
        is_past = (over > 0 or came_ms < older_ms) and file.moves is not Moves.WAIT
        over -= file.bytes
        return is_past

    dated = zip(files, _came_ms(files, now_ms), strict=True)
    is_past = [file for file, _ in takewhile(is_too_old, dated)]
    return is_past if _is_worth_it(is_past) else []


def known_since_ms(manifest: Manifest, files: list[StoredFile], now_ms: int) -> int:
    """The time since when the state of queues is known, once these oldest files of a log are compacted."""
    stored = manifest.files_of_log(files[0].log)
    return max(_came_ms(stored, now_ms)[: len(files)])


def _came_ms(files: list[StoredFile], now_ms: int) -> list[int]:
    """The times at which the last records of a log's files had come, by the upstream's clock.

    If that clock was fast for a moment, a file has a time in the future; it came no later than the next file.
    """
    came: list[int] = []
    for file in reversed(files):
        is_ahead = file.max_ms > now_ms
        came.append(came[-1] if is_ahead and came else file.max_ms)
    return came[::-1]


def _is_worth_it(is_past: list[StoredFile]) -> bool:
    """Whether new or newly settled records are as many as the earlier compacted ones, which are written again."""
    fresh = [file for file in is_past if not file.history_from_ms]
    before = [file for file in is_past if file.history_from_ms]
    size = sum(file.bytes for file in fresh)
    settled = sum(part.settled for file in fresh for part in file.queues)
    is_as_much = 2 * size >= sum(file.bytes for file in before)
    settles_as_much = 2 * settled >= sum(file.records for file in before)
    is_some = len(fresh) >= FILES_MIN or size >= BYTES_MIN
    return len(fresh) >= FILES_MANY or (is_some and (is_as_much or settles_as_much))


def compact(
    data_dir: Place, files: list[StoredFile], since_ms: int | None = None, term: int = 0
) -> StoredFile:
    """Write the file that replaces these oldest files of a log; on disk when this returns.

    Only the manifest makes it count. `since_ms` is from `known_since_ms`; the default is that of the files' own times.
    `term` is the owner's in a shared archive: the files of two owners have different names, because their contents
    differ.

    Raises:
        StorageError: a file cannot be read, or the disk refuses.
    """
    vhost, node = files[0].vhost, files[0].node
    try:
        masks, settled = _settled(data_dir, files)
        directory: Place = (data_dir / files[0].path).parent
        parts = _parts(files)
        owner = f"-t{term}" if term else ""
        path: Place = directory / f"{range_name(files[0].first, files[-1].next, node)}{owner}{COMPACTED}"
        records = 0
        with written_beside(directory) as beside:
            with records_writer(beside) as writer:
                for batch in _kept(data_dir, files, masks):
                    writer.write_table(batch, row_group_size=ROW_GROUP_ROWS)
                    records += batch.num_rows
                    for incarnation, rows in rows_by_incarnation(vhost, batch):
                        parts[incarnation.queue, incarnation.epoch].messages += len(rows)
            size = keep(beside, path)
            note_named(path, is_named=False)
        settlements, settled_bytes = write_sidecar(data_dir, path.with_suffix(SETTLED), settled)
        stored_positions = last_stored_positions(data_dir, files)
        positions, positions_bytes = write_sidecar(data_dir, path.with_suffix(SUFFIX), stored_positions)
        sync_directory(directory)
    except (OSError, pa.ArrowInvalid, StorageError) as error:
        raise StorageError(f"{data_dir}: {title_of(files[0].log)} is not compacted: {error}") from error
    return StoredFile(
        vhost=vhost,
        node=node,
        path=name_in(data_dir, path),
        settlements=settlements,
        stored_positions=positions,
        first=files[0].first,
        next=files[-1].next,
        records=records,
        bytes=size + settled_bytes + positions_bytes,
        min_ms=min(file.min_ms for file in files),
        max_ms=max(file.max_ms for file in files),
        queues=[part for part in parts.values() if _is_named(part)],
        mark=files[-1].mark,
        epoch=files[-1].epoch,
        history_from_ms=max(file.max_ms for file in files) if since_ms is None else since_ms,
    )


def _settled(data_dir: Place, files: list[StoredFile]) -> tuple[Masks, pa.Table]:
    """The settlements of the files: as masks, and as a sidecar with adjacent ranges joined."""
    ranges = SettledRanges()
    for file in files:
        if file.settlements:
            place = data_dir / file.settlements
            with _read(place):
                ranges.add_settlements(file.vhost, read_table(place))
    masks: Masks = {}
    rows: list[dict[str, object]] = []
    for incarnation, starts, ends in ranges.merged():
        masks[incarnation] = Mask(starts, ends - starts)
        rows += [
            {
                "queue": incarnation.queue,
                "queue_epoch": incarnation.epoch,
                "first": first,
                "count": end - first,
                "reason": UNKNOWN,
                "timestamp_ms": 0,
            }
            for first, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
    return masks, pa.Table.from_pylist(rows, schema=SETTLEMENTS)


def _parts(files: list[StoredFile]) -> dict[tuple[str, int], QueuePart]:
    """A QueuePart for each queue and epoch, with all its ranges and without messages."""
    parts: dict[tuple[str, int], QueuePart] = {}
    for part in (part for file in files for part in file.queues):
        known = parts.get((part.queue, part.epoch))
        if known is None:
            parts[part.queue, part.epoch] = QueuePart(
                part.queue,
                part.epoch,
                ranges=list(part.ranges),
                min_ms=part.min_ms,
                max_ms=part.max_ms,
                type=part.type,
            )
            continue
        known.type = known.type or part.type
        known.min_ms, known.max_ms = min(known.min_ms, part.min_ms), max(known.max_ms, part.max_ms)
        for first, count in part.ranges:
            known.add_range(first, count)
    return parts


def _is_named(part: QueuePart) -> bool:
    """Whether the manifest has to name what is left of a part: its messages, or that another numbering came.

    What a later numbering had counts in the earlier ones in other logs until their end is here, though it is settled.
    """
    return bool(part.messages) or (numbering_of(part.epoch) > 0 and may_have_messages(part.epoch))


def _kept(data_dir: Place, files: list[StoredFile], masks: Masks) -> Iterator[pa.Table]:
    """Yield the unsettled messages, a row group at a time; files and groups without any are not read whole."""
    for file in files:
        place = data_dir / file.path
        with (
            _read(place),
            opened(place) as source,
            messages_in(source, dictionaries=["vhost", "queue"]) as parquet,
        ):
            for group in range(parquet.num_row_groups):
                keys = parquet.read_row_group(group, columns=["queue", "queue_epoch", "queue_offset", "kind"])
                rows = _unsettled(file.vhost, keys, masks)
                if len(rows):
                    yield parquet.read_row_group(group).take(pa.array(rows)).cast(RECORDS)


@contextmanager
def _read(place: Place) -> Iterator[None]:
    """Add the file's name to an error of reading it."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{place}: damaged or missing: {error}; restore the file from a copy") from error


def _unsettled(vhost: str, keys: pa.Table, masks: Masks) -> Int64s:
    offsets = keys.column("queue_offset").to_numpy()
    is_kept = keys.column("kind").to_numpy() == MESSAGE
    for incarnation, rows in rows_by_incarnation(vhost, keys):
        is_kept[rows] &= ~masks.get(incarnation, NOTHING).contains(offsets[rows])
    return np.flatnonzero(is_kept)

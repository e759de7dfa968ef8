"""Plans a read of the table: ranges of files for tasks, from the manifest alone.

A task gets neighbouring files of one vhost, or a share of the row groups of a large one, of about RANGE_BYTES, and the
names of the files whose settlements it needs: it reads these itself, so that the driver holds no messages. It holds
the settlements of a vhost only if a queue there has two incarnations. A file without a wanted vhost, queue or time is
in no range.

A row is a message, once: a record that was collected twice is in the range of its first file. A queue whose policy
came back has its messages in two incarnations (`wire.incarnation`). Then a message that is pending is in the first
incarnation in which it is, as a recovery counts it, and a settled one in the last that has it. But an offset that a
later numbering has, or settles, is not pending in an earlier one; as of a moment it is. A recovery does the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from leveret.model.errors import PreconditionFailed, StorageError
from leveret.model.moment import moment_text
from leveret.pipeline.archive.history import check_known
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.repetitions import collected_again, parts_of
from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Bools,
    Int64s,
    Mask,
    Masks,
    QueueIncarnation,
    SettledRanges,
)
from leveret.pipeline.archive.settlements import settlements_of
from leveret.pipeline.files.files import Place, place_of
from leveret.pipeline.table.columns import OF_STATE
from leveret.pipeline.table.request import TableRequest
from leveret.pipeline.table.settling import SettlingFiles
from leveret.wire.incarnation import epoch_of, generation_of, in_order, may_have_messages, numbering_of

RANGE_BYTES: Final = 32_000_000
"""About the stored octets of a task."""
RANGE_MESSAGES: Final = 500_000
"""The most messages of a task, about: a second's work or two, however small messages are when they are stored."""
RANGE_FILES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A file, or a share of its row groups.

    Attributes:
        path: the file, in the data directory.
        share: the number of the share, of `shares`.
        parts: the queue's type, and the ranges of records, of each incarnation with wanted messages.
        without: by incarnation, the offsets that are in other files; an incarnation in it may repeat its own, too.
        only: if it is not None, the offsets that are wanted, by incarnation.
    """

    path: str
    share: int
    shares: int
    parts: dict[QueueIncarnation, tuple[str, list[tuple[int, int]]]]
    without: Masks = field(default_factory=dict)
    only: Masks | None = None


@dataclass(frozen=True, slots=True)
class FileRange:
    """What one task reads.

    Attributes:
        settlements: the files whose settlements decide about its messages, in the order of the log.
        bytes: about the stored octets. messages: about the number of messages, wanted or not.
    """

    data_dir: Place
    vhost: str
    request: TableRequest
    pieces: list[FilePiece]
    settlements: list[StoredFile]
    bytes: int
    messages: int


def open_archive(uri: str) -> Manifest:
    """The manifest of the archive at a path or URI.

    Raises:
        StorageError: it cannot be read, or there is none.
    """
    place = place_of(uri)
    try:
        if isinstance(place, Path):
            # To list a directory that may not be read is no error for what reads the manifest, but an empty list.
            for each in (place, place / "manifest"):
                if each.exists():
                    next(each.iterdir(), None)
        manifest = Manifest(place)
    except OSError as error:
        raise StorageError(f"{place}: the archive cannot be read: {error}") from error
    if not manifest.entries:
        raise StorageError(
            f"{place}: there is no archive here, or no record was transferred to it yet: it has no manifest. The "
            "archive of a downstream is at its standby.replication.downstream.data_dir, or in its data_dir/standby"
        )
    return manifest


def plan_ranges(manifest: Manifest, request: TableRequest) -> list[FileRange]:
    """The ranges with all wanted rows.

    Raises:
        PreconditionFailed: the state at the wanted moment is not known.
        StorageError: a file of settlements cannot be read.
    """
    vhosts = [vhost for vhost in manifest.vhosts if request.wants_vhost(vhost)]
    _check_moment(manifest, vhosts, request)
    ranges: list[FileRange] = []
    for vhost in vhosts:
        files = manifest.files_of(vhost)
        without = collected_again(files)
        hidden = _hidden(manifest.data_dir, files, request)
        for file in files if hidden else ():
            mine = {each: hidden[each] for each, _ in parts_of([file]) if each in hidden}
            if mine:
                without[file.path] = _union_of(without.get(file.path, {}), mine)
        ranges += ranges_of(manifest.data_dir, files, request, without=without)
    return ranges


def ranges_of(
    data_dir: Place,
    files: list[StoredFile],
    request: TableRequest,
    *,
    without: dict[str, Masks],
    only: dict[str, Masks] | None = None,
    settling: list[StoredFile] | None = None,
) -> list[FileRange]:
    """Deal the files of one vhost to tasks; `settling` are those with settlements, by default the same files."""
    ranges: list[FileRange] = []
    if not files:
        return ranges
    settlements = _settling(files if settling is None else settling, request)
    for group in _grouped(list(_pieces(files, request, without, only or {}))):
        pieces = [each.piece for each in group]
        needed = settlements.needed(
            {each: ranges for each, (_, ranges) in piece.parts.items()} for piece in pieces
        )
        size, messages = sum(each.bytes for each in group), sum(each.messages for each in group)
        ranges.append(FileRange(data_dir, files[0].vhost, request, pieces, needed, size, messages))
    return ranges


def ranges_by_task(ranges: list[FileRange]) -> list[list[FileRange]]:
    """The ranges of each task: those of small vhosts share one."""
    tasks: list[list[FileRange]] = []
    load = 1.0
    for each in ranges:
        more = _load(each.bytes, each.messages)
        if not tasks or load + more > 1:
            tasks.append([])
            load = 0.0
        tasks[-1].append(each)
        load += more
    return tasks


def _pieces(
    files: list[StoredFile], request: TableRequest, without: dict[str, Masks], only: dict[str, Masks]
) -> Iterator[_Sized]:
    for file in files:
        wanted = request.wanted_parts(file)
        if not wanted:
            continue
        parts = {
            QueueIncarnation(file.vhost, part.queue, part.epoch): (part.type, part.ranges) for part in wanted
        }
        mine = without.get(file.path, {})
        # A file that repeats itself is read by one task, which sees both places.
        messages = sum(part.messages for part in wanted)
        shares = 1 if mine else max(1, math.ceil(_load(file.bytes, messages)))
        for share in range(shares):
            piece = FilePiece(file.path, share, shares, parts, mine, only.get(file.path))
            yield _Sized(piece, file.bytes // shares, messages // shares)


@dataclass(frozen=True, slots=True)
class _Sized:
    piece: FilePiece
    bytes: int
    messages: int


def _grouped(sized: list[_Sized]) -> Iterator[list[_Sized]]:
    group: list[_Sized] = []
    load = 0.0
    for each in sized:
        more = _load(each.bytes, each.messages)
        if group and (load + more > 1 or len(group) >= RANGE_FILES_MAX):
            yield group
            group, load = [], 0.0
        group.append(each)
        load += more
    if group:
        yield group


def _load(size: int, messages: int) -> float:
    """The share of one task that reading so much is."""
    return max(size / RANGE_BYTES, messages / RANGE_MESSAGES)


def _settling(files: list[StoredFile], request: TableRequest) -> SettlingFiles:
    """The files whose settlements may matter to a request; none if no state is asked for."""
    if not request.state and not OF_STATE.intersection(request.columns):
        return SettlingFiles([])
    as_of_ms = request.as_of_ms
    return SettlingFiles(
        [file for file in files if file.settlements and (as_of_ms is None or file.min_ms <= as_of_ms)]
    )


def _check_moment(manifest: Manifest, vhosts: list[str], request: TableRequest) -> None:
    """Refuse a moment before all that is known."""
    as_of_ms = request.as_of_ms
    if as_of_ms is None:
        return
    for vhost in vhosts:
        check_known(manifest, vhost, as_of_ms)
    oldest_ms = min((file.min_ms for file in manifest.files() if file.vhost in vhosts), default=as_of_ms)
    if as_of_ms < oldest_ms:
        raise PreconditionFailed(
            f"the history of these queues begins at {moment_text(oldest_ms)}, by the upstream's clock: no record in "
            "the archive is older; ask for that moment or a later one"
        )


def _hidden(data_dir: Place, files: list[StoredFile], request: TableRequest) -> Masks:
    """By incarnation, the messages whose row is that of another incarnation; see the module."""
    by_epoch: defaultdict[tuple[str, int], set[QueueIncarnation]] = defaultdict(set)
    for incarnation, _ in parts_of(files):
        by_epoch[incarnation.queue, epoch_of(incarnation.epoch)].add(incarnation)
    mates = {each for incarnations in by_epoch.values() if len(incarnations) > 1 for each in incarnations}
    if not mates:
        return {}
    held: defaultdict[tuple[str, int], defaultdict[QueueIncarnation, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for incarnation, part in parts_of(files):
        if incarnation in mates:
            held[part.queue, epoch_of(part.epoch)][incarnation] += part.ranges
    settled = _settled(data_dir, files, request.as_of_ms)
    found: Masks = {}
    for incarnations in held.values():
        offsets = {each: _offsets(ranges) for each, ranges in incarnations.items()}
        found |= _elsewhere(offsets, settled, is_now=request.as_of_ms is None)
    return found


def _elsewhere(held: dict[QueueIncarnation, Int64s], settled: Masks, *, is_now: bool) -> Masks:
    """Of the incarnations of one queue, the offsets of each whose row is that of another one."""
    order = sorted(held, key=lambda each: in_order(each.epoch))
    pending = {each: held[each][~settled.get(each, NOTHING).contains(held[each])] for each in order}
    gone: dict[QueueIncarnation, list[Int64s]] = {each: [] for each in order}
    for each in order if is_now else ():
        is_renumbered = _are_renumbered(pending[each], each, held, settled)
        gone[each].append(pending[each][is_renumbered])
        pending[each] = pending[each][~is_renumbered]
    for at, each in enumerate(order):
        for other in order[:at]:
            gone[each].append(np.intersect1d(pending[each], pending[other]))
        rest = np.setdiff1d(held[each], pending[each])
        for other in order:
            if other != each and generation_of(other.epoch) == generation_of(each.epoch):
                is_later = order.index(other) > at
                gone[each].append(np.intersect1d(rest, held[other] if is_later else pending[other]))
    return {each: _mask(np.concatenate(offsets)) for each, offsets in gone.items() if any(map(len, offsets))}


def _are_renumbered(
    offsets: Int64s, incarnation: QueueIncarnation, held: dict[QueueIncarnation, Int64s], settled: Masks
) -> Bools:
    """Whether a later numbering than this incarnation's has each of these offsets, or settles it."""
    found: Bools = np.zeros(len(offsets), np.bool_)
    for other in held:
        if may_have_messages(other.epoch) and numbering_of(other.epoch) > numbering_of(incarnation.epoch):
            found |= np.isin(offsets, held[other]) | settled.get(other, NOTHING).contains(offsets)
    return found


def _settled(data_dir: Place, files: list[StoredFile], as_of_ms: int | None) -> Masks:
    ranges = SettledRanges()
    for file in files:
        if file.settlements and (as_of_ms is None or file.min_ms <= as_of_ms):
            try:
                ranges.add_settlements(file.vhost, settlements_of(data_dir, file, until_ms=as_of_ms))
            except (OSError, pa.ArrowInvalid) as error:
                raise unreadable(data_dir / file.settlements, error) from error
    return ranges.masks()


def unreadable(place: Place, error: Exception) -> StorageError:
    """The error of a file that cannot be read."""
    return StorageError(
        f"{place}: it is damaged, missing or not to be read: {error}; restore the file from a copy, or run the query "
        "again if a compaction replaced it meanwhile"
    )


def _union_of(one: Masks, other: Masks) -> Masks:
    """By incarnation, the offsets that are in one of the two."""
    both = {each: _either(one[each], other[each]) for each in one.keys() & other.keys()}
    return one | other | both


def _either(one: Mask, other: Mask) -> Mask:
    """The offsets that are in one of two sets."""
    starts, ends = (np.concatenate(each) for each in zip(one.intervals(), other.intervals(), strict=True))
    return Mask(starts, ends - starts)


def _offsets(ranges: Iterable[tuple[int, int]]) -> Int64s:
    return np.unique(np.concatenate([np.arange(first, first + count) for first, count in ranges]))


def _mask(offsets: Int64s) -> Mask:
    return Mask(offsets, np.ones_like(offsets))

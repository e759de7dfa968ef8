"""Counts the messages that a partial promotion leaves to a later one, when its plans are frozen.

These messages are unsettled, were recovered by no earlier promotion, and are not requested by this one: other
queues (`--queues`), virtual hosts (`--exclude-virtual-hosts`), messages after a moment (`--as-of`). Tasks read the
key columns of the files and return counts; they write nothing. An unreadable file that the promotion itself does
not need does not stop it: its records are counted as unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from leveret.model.errors import StorageError
from leveret.pipeline.archive.decode import MESSAGE
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.settled_offsets import (
    NOTHING,
    Int64s,
    Masks,
    QueueIncarnation,
    rows_by_incarnation,
)
from leveret.pipeline.files.files import Place
from leveret.pipeline.jobs.job import RecoverJob, Selection
from leveret.pipeline.recovery.counting import with_unsettled
from leveret.pipeline.recovery.unsettled import UnsettledMessages, keys_of, not_to_recover, span_of

_ALL_THAT_IS_KNOWN: Final = Selection(all_available=True)


class LeftOutFiles(NamedTuple):
    """The files of a vhost that may have left-out messages.

    Attributes:
        selection: the requested part of the vhost; None for nothing.
    """

    vhost: str
    files: list[StoredFile]
    masks: Masks
    selection: Selection | None


def leaves_out(job: RecoverJob) -> bool:
    """Whether a job is a promotion of less than everything."""
    return job.to is None and not job.scratch and bool(job.exclude or not job.selection.is_of_all)


def left_out_files(manifest: Manifest, job: RecoverJob) -> list[LeftOutFiles]:
    """The vhosts that may have left-out messages, of those that another node does not recover.

    Raises:
        StorageError: an earlier plan's outcome cannot be read.
    """
    found = []
    for vhost in manifest.vhosts:
        if not job.wants(vhost) and vhost not in job.exclude:
            # Another node of the cluster recovers it, or the site does not follow it.
            continue
        selection = job.selection if job.wants(vhost) else None
        if selection is not None and selection.is_of_all:
            continue
        masks = not_to_recover(manifest, vhost, _ALL_THAT_IS_KNOWN, job.plans_of(vhost))
        files = [
            file for file in with_unsettled(manifest.files_of(vhost), masks) if _may_be_left(file, selection)
        ]
        if files:
            found.append(LeftOutFiles(vhost, files, masks, selection))
    return found


def _may_be_left(file: StoredFile, selection: Selection | None) -> bool:
    return selection is None or any(
        not selection.wants(part.queue)
        or (selection.as_of_ms is not None and part.max_ms > selection.as_of_ms)
        for part in file.queues
    )


def count_left_out(data_dir: Place, rest: LeftOutFiles) -> UnsettledMessages:
    """The spans of a vhost's left-out messages in these files; for an unreadable file, the number of its records."""
    offsets: dict[tuple[str, int], list[Int64s]] = {}
    unreadable: dict[str, int] = {}
    for file in rest.files:
        try:
            keys = keys_of(data_dir / file.path)
        except StorageError:
            unreadable[file.path] = file.records
            continue
        for incarnation, mine in _left_of(keys, rest):
            offsets.setdefault((incarnation.queue, incarnation.epoch), []).append(mine)
    spans = [span_of(queue, epoch, np.concatenate(found)) for (queue, epoch), found in offsets.items()]
    return UnsettledMessages([], unreadable, spans)


def _left_of(keys: pa.Table, rest: LeftOutFiles) -> Iterator[tuple[QueueIncarnation, Int64s]]:
    """The left-out offsets, by incarnation."""
    is_message = keys.column("kind").to_numpy() == MESSAGE
    offsets, timestamps = (keys.column(name).to_numpy() for name in ("queue_offset", "timestamp_ms"))
    for incarnation, rows in rows_by_incarnation(rest.vhost, keys):
        left = rows[is_message[rows] & ~rest.masks.get(incarnation, NOTHING).contains(offsets[rows])]
        if rest.selection is not None and rest.selection.wants(incarnation.queue):
            since_ms = rest.selection.as_of_ms
            left = left[timestamps[left] > since_ms] if since_ms is not None else left[:0]
        if len(left):
            yield incarnation, offsets[left]


def count_left_out_files(
    found: list[LeftOutFiles],
    split: Callable[[LeftOutFiles], Iterable[LeftOutFiles]],
    count: Callable[[list[LeftOutFiles]], Iterable[tuple[str, UnsettledMessages]]],
) -> list[dict[str, Any]]:
    """Count by tasks, each with a part of the files; one task counts again the messages that two may both have found.

    Args:
        found: the vhosts and files to search.
        split: makes the parts.
        count: runs the tasks, `count_left_out` each; results come with their vhosts.

    Returns:
        A row a vhost: virtual_host, queues, messages, unreadable_records.
    """
    counted = _summed(count([part for rest in found for part in split(rest)]))
    again = [rest for rest in found if counted[rest.vhost].counted()[1]]
    counted |= _summed(count(again))
    return [_row_of(vhost, each) for vhost, each in counted.items() if each.spans or each.unreadable]


def _summed(results: Iterable[tuple[str, UnsettledMessages]]) -> dict[str, UnsettledMessages]:
    counted: dict[str, UnsettledMessages] = {}
    for vhost, some in results:
        counted.setdefault(vhost, UnsettledMessages([], {})).add(some)
    return counted


def _row_of(vhost: str, found: UnsettledMessages) -> dict[str, Any]:
    totals, _ = found.counted()
    return {
        "virtual_host": vhost,
        "queues": len(totals),
        "messages": sum(totals.values()),
        "unreadable_records": sum(found.unreadable.values()),
    }

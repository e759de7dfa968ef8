"""A stream of the table: positions in the outgoing logs, as the manifest has them, and the rows between two of them.

A position is {log: offset in it} (`wire.log_name`), always the end of a file that the manifest had. A message of an
incarnation of a queue is a row of the batch with the first file that has it; a record that was collected again is none.
A compaction may have merged files since. Then the manifest's earlier entries say which messages of the merged file
belong to the batch. Settled messages that the compaction removed are rows of no later batch; so a message of a queue
whose policy came back is a row of each incarnation: its earlier row may never have been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leveret.model.errors import PreconditionFailed
from leveret.pipeline.archive.manifest import Manifest, StoredFile
from leveret.pipeline.archive.repetitions import collected_again, parts_of
from leveret.pipeline.archive.settled_offsets import Masks, SettledRanges
from leveret.pipeline.table.plan import FileRange, ranges_of
from leveret.pipeline.table.request import TableRequest
from leveret.wire.log_name import title_of, vhost_of

Positions = dict[str, int]


def next_positions(
    manifest: Manifest,
    start: Mapping[str, int],
    request: TableRequest,
    until: Mapping[str, int] | None = None,
) -> Positions:
    """The end of the batch that begins at `start`, with at most the wanted number of files; not beyond `until`."""
    waiting: list[tuple[int, str, int]] = []
    for log in sorted(manifest.next_by_log):
        if request.wants_vhost(vhost_of(log)):
            most = manifest.next_by_log[log] if until is None else until.get(log, 0)
            ends = [file.next for file in manifest.files_of_log(log) if start.get(log, 0) < file.next <= most]
            waiting += [(number, log, end) for number, end in enumerate(ends)]
    if request.files_max:
        # The next file of each log comes first, so that none waits for the backlog of another.
        waiting = sorted(waiting)[: request.files_max]
    ends_by_log = dict(start)
    for _, log, end in waiting:
        ends_by_log[log] = max(end, ends_by_log.get(log, 0))
    return ends_by_log


def ranges_between(
    manifest: Manifest, start: Mapping[str, int], end: Mapping[str, int], request: TableRequest
) -> list[FileRange]:
    """The ranges with the rows of a batch.

    Raises:
        PreconditionFailed: the archive has no longer what the batch needs to be exact.
    """
    found: list[FileRange] = []
    read = dict(start)
    for log in sorted(end):
        if end[log] > read.get(log, 0):
            found += _ranges_of_log(manifest, log, end, read, request)
            read[log] = end[log]
    return found


def _ranges_of_log(
    manifest: Manifest, log: str, end: Mapping[str, int], read: Mapping[str, int], request: TableRequest
) -> list[FileRange]:
    """The ranges of one log, without messages that were `read` before, in whatever log of its vhost."""
    first, behind = read.get(log, 0), end[log]
    if manifest.next_by_log.get(log, 0) < behind:
        raise PreconditionFailed(
            f"{title_of(log)}: the stream has read up to offset {behind}, and the archive ends at "
            f"{manifest.next_by_log.get(log, 0)}: its data were deleted since, or this is another archive; begin "
            "a new checkpoint"
        )
    files = [file for file in manifest.files_of_log(log) if file.next > first and file.first < behind]
    of_vhost = _ever(manifest, vhost_of(log))
    ever = [file for file in of_vhost if file.log == log]
    merged = [file for file in files if file.first < first or file.next > behind]
    only = {file.path: _between(ever, file, first, behind) for file in merged}
    earlier = [file for file in of_vhost if file.next <= read.get(file.log, 0)]
    without = collected_again([*earlier, *files])
    # A message is settled behind it in its log, or in that of another node.
    others = [file for file in of_vhost if file.log != log and file.next <= end.get(file.log, 0)]
    there = {file.path: file for file in manifest.files_of(vhost_of(log))}
    settling = [*files, *(there[file.path] for file in others if file.path in there)]
    return ranges_of(manifest.data_dir, files, request, without=without, only=only, settling=settling)


def _ever(manifest: Manifest, vhost: str) -> list[StoredFile]:
    """The files that the vhost ever had, as its transfer stored them, as far as the manifest knows."""
    ever = {file.path: file for file in manifest.ever_added(vhost, manifest.number)}
    return sorted(ever.values(), key=lambda file: (file.node, file.first, file.next))


def _between(ever: list[StoredFile], merged: StoredFile, first: int, behind: int) -> Masks:
    """The records of a merged file between two positions."""
    begin, end = max(first, merged.first), min(behind, merged.next)
    parts = [file for file in ever if begin <= file.first and file.next <= end and file.path != merged.path]
    at = begin
    for file in parts:
        at = max(at, file.next) if file.first <= at else at
    if at < end:
        raise PreconditionFailed(
            f"{title_of(merged.log)}: a compaction merged messages that this stream has read, up to offset {first}, "
            "with later ones, and the manifest no longer tells them apart: begin a new checkpoint, and keep a longer "
            "history than the stream is behind (standby.replication.retention.*)"
        )
    return _masks(parts)


def _masks(files: Iterable[StoredFile]) -> Masks:
    ranges = SettledRanges()
    for incarnation, part in parts_of(files):
        ranges.add(incarnation, *zip(*part.ranges, strict=True))
    return ranges.masks()

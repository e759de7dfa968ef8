"""The return of a delayed follower to a time: its logs get their ends of that time, and removed data come back.

Each step may be repeated: a log that is truncated already stays unchanged, and kept data stay kept until the end. So an
interrupted call, even by a crash, is repeated; until one has ended, the node records on disk that it is no copy of its
leader (`Applier.begin_rewriting`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from leveret.model.errors import PreconditionFailed
from leveret.runtime.replication.applier import Applier, QuarantineFactory
from leveret.storage.delayed.index import (
    KEPT,
    NEVER_MS,
    DelayIndex,
    EntryKind,
    FrameGroup,
    IndexBase,
    IndexEntry,
)
from leveret.storage.delayed.spool import Spool
from leveret.storage.tree import Tree
from leveret.wire.link import ChangeKind, LogChange

logger = logging.getLogger(__name__)

_ENTRY_BYTES: Final = 16_384
"""The room, in octets, of a quarantined log's directory and its two entries."""


class _KeptLog(NamedTuple):
    """The kept files of a log that a frame destroyed; they are stored under the frame's offset `at`."""

    at: int
    noted: IndexEntry


@dataclass(slots=True)
class PastLogs:
    """The state at a time.

    Attributes:
        ends: the end of each log.
        drops: the first offsets of logs whose drops still wait.
        kept: for each log the kept files of later frames, in order.
        files: the content of each state file that was replaced later; None if it did not exist.
    """

    ends: dict[str, int]
    drops: dict[str, int] = field(default_factory=dict)
    kept: dict[str, list[_KeptLog]] = field(default_factory=dict)
    files: dict[str, bytes | None] = field(default_factory=dict)

    def _before(self, group: FrameGroup) -> None:
        for _, frame in group.frames:
            for each in frame.noted:
                if each.kind in KEPT:
                    self.drops.pop(each.name, None)
                elif each.kind is EntryKind.DROP:
                    self.drops[each.name] = each.offset
                elif each.kind is EntryKind.BEGINS:
                    self._begins(each)

    def _begins(self, noted: IndexEntry) -> None:
        """Keep the segments that the leader got again, also those that it got after the time."""
        if noted.name in self.drops:
            self.drops[noted.name] = min(self.drops[noted.name], noted.offset)

    def _after(self, group: FrameGroup) -> None:
        for at, frame in group.frames:
            for each in frame.noted:
                if each.kind in KEPT:
                    self.kept.setdefault(each.name, []).append(_KeptLog(at, each))
                elif each.kind is EntryKind.BEGINS and each.name not in self.kept:
                    self._begins(each)
                elif each.kind is EntryKind.FILE:
                    self.files.setdefault(each.name, each.octets)


def past(index: DelayIndex, base: IndexBase, until_ms: int) -> PastLogs:
    """Return the state after the leader's changes up to a time; the window begins with `base`.

    Raises:
        StorageError: the index cannot be read.
    """
    then = IndexBase(base.offset, base.at_ms, base.delay_ms, dict(base.ends))
    found, is_after = PastLogs(then.ends), False
    for group in index.groups(base.offset):
        is_after |= group.at_ms > until_ms
        if is_after:
            found._after(group)
        else:
            then.follow(group)
            found._before(group)
    return found


def quarantine_bytes(then: PastLogs, tree: Tree, index: DelayIndex) -> int:
    """Return the octets that the quarantine of later records takes at most.

    Of each log the segment in which they begin is copied; the segments behind it are linked. Of a log that was
    destroyed later, even repeatedly, the records before each destruction count as well.
    """
    needed = 0
    for name, log in tree.logs.items():
        is_whole = name not in then.ends or name in then.kept
        begin = log.first_offset if is_whole else then.ends[name]
        if begin < log.next_offset:
            needed += min(log.bytes_from(begin), log.segment_bytes_max) + _ENTRY_BYTES
    for name, kept in then.kept.items():
        needed += sum(index.largest_kept(at, name) + _ENTRY_BYTES for at, _ in kept)
    return needed


def missing_log(then: PastLogs, index: DelayIndex) -> str | None:
    """Return the name of a log whose state at the time is gone, because its kept files are; None if there is none."""
    for name, kept in then.kept.items():
        # A log without a record may have had no file.
        if then.ends.get(name) and not _stays(kept, then.ends[name]) and not index.has_kept(kept[0].at, name):
            return name
    return None


def _stays(kept: list[_KeptLog], end: int) -> bool:
    """Whether all destructions were truncations behind the log's end at that time."""
    return all(each.kind is EntryKind.TRUNCATED and end <= each.offset for _, each in kept)


async def go_back(then: PastLogs, index: DelayIndex, applier: Applier, quarantine: QuarantineFactory) -> None:
    """Restore the state; later records are quarantined. The caller appends nothing meanwhile.

    Raises:
        StorageError: the disk refuses it; the call may be repeated.
    """
    applier.begin_rewriting()
    applier.quarantine = quarantine
    tree = applier.tree
    for name, kept in then.kept.items():
        _restore(name, kept, then.ends.get(name), index, applier)
        await asyncio.sleep(0)
    for name, log in tuple(tree.logs.items()):
        end = then.ends.get(name)
        if end is None or end <= log.first_offset < log.next_offset:
            applier.apply(LogChange(ChangeKind.QUARANTINE, name))
            if end is not None:
                applier.apply(LogChange(ChangeKind.BEGIN, name, end))
        elif end < log.next_offset:
            applier.apply(LogChange(ChangeKind.TRUNCATE, name, end))
        await asyncio.sleep(0)
    for name, octets in then.files.items():
        kind = ChangeKind.REMOVE if octets is None else ChangeKind.FILE
        applier.apply(LogChange(kind, name, octets=octets or b""))
    for name, first_offset in then.drops.items():
        applier.apply(LogChange(ChangeKind.DROP, name, first_offset))
    applier.make_empty()


def _restore(name: str, kept: list[_KeptLog], end: int | None, index: DelayIndex, applier: Applier) -> None:
    """Restore a log to its state before the first destruction; the caller truncates it at `end` afterwards.

    Destructions are undone backwards: the log after each one is quarantined, and the kept log takes its place.
    """
    tree = applier.tree
    if end is not None and _stays(kept, end):
        return
    for number, (at, noted) in reversed([*enumerate(kept)]):
        if not index.has_kept(at, name):
            # Also for a log that had no file. If files are gone, `missing_log` has told of it before any change.
            logger.warning("no_kept_files log=%s frame=%d", name, at)
            continue
        if (
            name in tree.logs
            and noted.kind is EntryKind.TRUNCATED
            and tree.logs[name].next_offset > noted.offset
        ):
            applier.apply(LogChange(ChangeKind.TRUNCATE, name, noted.offset))
        if name in tree.logs:
            is_common = noted.kind is EntryKind.TRUNCATED
            applier.apply(LogChange(ChangeKind.DELETE if is_common else ChangeKind.QUARANTINE, name))
        if number and kept[number - 1].at == at:
            # The same frame had truncated it before, and the files are of before that.
            continue
        index.restore(at, name, tree.path_of(name))
        log = tree.log(tree.path_of(name)).open(with_messages=False)
        if noted.kind is not EntryKind.DELETED:
            _cut_quarantined(log.next_offset, end, name, noted, applier)


def _cut_quarantined(
    next_offset: int, end: int | None, name: str, noted: IndexEntry, applier: Applier
) -> None:
    """Truncate the records that are in quarantine since the leader had the log truncated, or quarantined."""
    if noted.kind is EntryKind.QUARANTINED and end is None:
        applier.apply(LogChange(ChangeKind.DELETE, name))
        return
    end = max(noted.offset if noted.kind is EntryKind.TRUNCATED else 0, end or 0)
    if end < next_offset:
        applier.remove_divergent(LogChange(ChangeKind.TRUNCATE, name, end))


def refuse_to_lead(data_dir: Path, now_ms: int) -> None:
    """Refuse to lead while a delayed follower has changes to leave out: an operator has to choose their fate.

    Raises:
        PreconditionFailed: there are such changes.
        StorageError: the index cannot be read.
    """
    index, spool, due_ms = DelayIndex(data_dir), Spool(data_dir), 0
    if spool.exists:
        spool.open()
        due_ms = NEVER_MS if spool.has_waiting else 0
        spool.close()
    if index.exists:
        base = index.open()
        for group in index.groups(base.offset):
            due_ms = max(due_ms, group.begun_ms + base.delay_ms)
        index.close()
    if due_ms > now_ms:
        raise PreconditionFailed(
            f"{data_dir}: this node was a delayed follower and can leave changes out; start it with --follow again "
            "and run leveretctl promote_follower with --apply-delayed or --apply-until"
        )
    if index.exists:
        index.remove()

"""A delayed follower goes back to a time: its logs end where they ended then, and what was removed since is back.

Each step may be made again: a log that is cut already stays as it is, and what was kept stays kept until the end. So a
call that was broken off, even by a crash, is repeated; until one has ended the node says on disk that it is no copy of
its leader (`Applier.begin_rewriting`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from leveret.runtime.replication.applier import Applier, QuarantineFactory
from leveret.storage.delayed.index import KEPT, Base, DelayIndex, FrameGroup, Noted, NotedKind
from leveret.wire.link import ChangeKind, LogChange


class _KeptLog(NamedTuple):
    """What a frame destroyed: the files of a log are kept under the frame's offset."""

    at: int
    noted: Noted


@dataclass(slots=True)
class PastLogs:
    """How all was at a time.

    Attributes:
        ends: where each log ended.
        drops: where logs began then, as far as a drop still waits.
        kept: of each log what was destroyed since, in order.
        files: of each state file that was replaced since, what it held; None if there was none.
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
                elif each.kind is NotedKind.DROP:
                    self.drops[each.name] = each.offset

    def _after(self, group: FrameGroup) -> None:
        for at, frame in group.frames:
            for each in frame.noted:
                if each.kind in KEPT:
                    self.kept.setdefault(each.name, []).append(_KeptLog(at, each))
                elif each.kind is NotedKind.FILE:
                    self.files.setdefault(each.name, each.octets)


def past(index: DelayIndex, base: Base, until_ms: int) -> PastLogs:
    """How all was when the leader had done what it did by a time; the window begins with `base`.

    Raises:
        StorageError: the index cannot be read.
    """
    then = Base(base.offset, base.at_ms, base.delay_ms, dict(base.ends))
    found, is_after = PastLogs(then.ends), False
    for group in index.groups(base.offset):
        is_after |= group.at_ms > until_ms
        if is_after:
            found._after(group)
        else:
            then.follow(group)
            found._before(group)
    return found


async def go_back(then: PastLogs, index: DelayIndex, applier: Applier, quarantine: QuarantineFactory) -> None:
    """Have all as it was; what came since is quarantined. Nothing is appended meanwhile.

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
            applier.apply(LogChange(ChangeKind.CUT, name, end))
        await asyncio.sleep(0)
    for name, octets in then.files.items():
        kind = ChangeKind.REMOVE if octets is None else ChangeKind.FILE
        applier.apply(LogChange(kind, name, octets=octets or b""))
    for name, first_offset in then.drops.items():
        applier.apply(LogChange(ChangeKind.DROP, name, first_offset))


def _restore(name: str, kept: list[_KeptLog], end: int | None, index: DelayIndex, applier: Applier) -> None:
    """Put a log back as it was before the first of what destroyed it; what came after `end` is cut off by others.

    Backwards, so that what each of them left is quarantined: its log then takes that one's place.
    """
    tree = applier.tree
    if end is not None and all(each.kind is NotedKind.CUT and end <= each.offset for _, each in kept):
        # It was cut behind its end of then only.
        return
    for at, noted in reversed(kept):
        if not index.has_kept(at, name):
            continue
        if name in tree.logs and noted.kind is NotedKind.CUT and tree.logs[name].next_offset > noted.offset:
            applier.apply(LogChange(ChangeKind.CUT, name, noted.offset))
        if name in tree.logs:
            is_common = noted.kind is NotedKind.CUT
            applier.apply(LogChange(ChangeKind.DELETE if is_common else ChangeKind.QUARANTINE, name))
        index.restore(at, name, tree.path_of(name))
        log = tree.log(tree.path_of(name)).open(with_messages=False)
        if noted.kind is not NotedKind.DELETED:
            _cut_quarantined(log.next_offset, end, name, noted, applier)


def _cut_quarantined(next_offset: int, end: int | None, name: str, noted: Noted, applier: Applier) -> None:
    """Cut off what is quarantined since the leader had the log cut, or quarantined."""
    if noted.kind is NotedKind.QUARANTINED and end is None:
        applier.apply(LogChange(ChangeKind.DELETE, name))
        return
    end = max(noted.offset if noted.kind is NotedKind.CUT else 0, end or 0)
    if end < next_offset:
        applier.remove_divergent(LogChange(ChangeKind.CUT, name, end))

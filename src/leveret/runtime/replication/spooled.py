"""The conversion of an older Leveret's spool: a delayed follower applies the spooled frames, each with its time.

The spool's note lags behind the applied changes, so after a crash some changes are made again. That is harmless:
present chunks are skipped, and a change that begins or removes a log has the same result as before. Only a repeated
quarantine would also take later chunks: the note is updated after each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.applier import Applier
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.delayed.spool import JOINED, JOINING, AppliedPosition, Spool, SpoolEntry
from leveret.wire.chunk import decode_chunk
from leveret.wire.link import ChangeKind, FrameHead, LogChange

_NOTED: Final = frozenset({JOINING, JOINED, ChangeKind.TRUNCATE, ChangeKind.QUARANTINE})
_ALONE: Final = _NOTED | {ChangeKind.BEGIN, ChangeKind.DELETE}


class FrameReceiver(Protocol):
    """A taker of frames with their times: a Delaying."""

    def joining(self, leader: ProvenLeader) -> None:
        """Begin a join: the leader compares its logs with the copies."""

    def take_at(self, at_ms: int, head: FrameHead, changes: list[LogChange]) -> None:
        """Take a frame that the leader cut at `at_ms`. Raises StorageError."""

    def joined(self) -> None:
        """End the join: this node has received all records of the leader."""


async def take_over(spool: Spool, taker: FrameReceiver, applier: Applier, commits: GroupCommit) -> None:
    """Apply all waiting changes of a spool, and remove it.

    Raises:
        StorageError: the spool cannot be read, or the disk refuses it; the next start continues.
    """
    await asyncio.to_thread(spool.open)
    joining = spool.note.joining
    if joining is not None:
        taker.joining(_leader_of(joining))
    for waiting in spool.waiting():
        at = waiting.first
        for entries in _parts(waiting.entries):
            if entries[0].kind == JOINING:
                joining = bytes(entries[0].octets)
                taker.joining(_leader_of(joining))
            elif entries[0].kind == JOINED:
                taker.joined()
                joining = None
            else:
                _apply(entries, waiting.at_ms, taker, applier, is_in_join=joining is not None)
            at += len(entries)
            if entries[0].kind in _NOTED:
                await commits.all_durable()
                applier.drop_due()
                spool.save(AppliedPosition(at, waiting.at_ms, joining))
        commits.begin()
        await asyncio.sleep(0)
    await commits.all_durable()
    spool.remove()


def _parts(entries: list[SpoolEntry]) -> Iterable[list[SpoolEntry]]:
    """Yield changes that may be made together; one that replaces or removes a log, or marks a join, is alone."""
    part: list[SpoolEntry] = []
    for entry in entries:
        if entry.kind in _ALONE:
            yield from filter(None, (part, [entry]))
            part = []
        else:
            part.append(entry)
    if part:
        yield part


def _apply(
    entries: list[SpoolEntry], at_ms: int, taker: FrameReceiver, applier: Applier, *, is_in_join: bool
) -> None:
    ends: dict[str, int | None] = {}
    changes: list[LogChange] = []
    for entry in entries:
        kind = ChangeKind(entry.kind)
        chunk = decode_chunk(entry.octets, check=False) if kind is ChangeKind.APPEND else None
        change = LogChange(kind, entry.name, entry.offset, chunk, entry.octets)
        if applier.has_made(change) or not _fits(change, ends, applier):
            continue
        changes.append(change)
    taker.take_at(at_ms, FrameHead(int(not is_in_join), 0, 0, 0, 0), changes)


def _fits(change: LogChange, ends: dict[str, int | None], applier: Applier) -> bool:
    """Return whether the change continues the present log; a damaged one is copied anew from the leader."""
    name = change.name
    log = applier.tree.logs.get(name)
    if name not in ends:
        ends[name] = None if log is None else log.next_offset
    end = ends[name]
    if change.chunk is not None:
        header = change.chunk.header
        if header.chunk_id != (change.offset if end is None else end):
            return False
        if log is not None and end == log.next_offset and change.offset not in (log.newest_segment, end):
            # The offsets agree by chance: the chunk belongs to a log that was deleted later.
            return False
        ends[name] = header.next_offset
    elif change.kind is ChangeKind.TRUNCATE:
        return end is not None
    elif change.kind is ChangeKind.BEGIN:
        ends[name] = change.offset
    elif change.kind in (ChangeKind.DELETE, ChangeKind.QUARANTINE):
        ends[name] = None
    return True


def _leader_of(octets: bytes | memoryview) -> ProvenLeader:
    return msgspec.msgpack.decode(octets, type=ProvenLeader)

"""The spool of an older Leveret's delayed follower becomes what this one has: it is applied, each frame with its time.

The note lags behind what is applied, so after a crash some changes are made again, and that must do no harm: chunks
that are there are skipped, and a change that begins or removes a log has the same result as before. Only a change that
quarantines would also take later chunks: the note is updated behind each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.applier import Applier
from leveret.session.link_handshake import ProvenLeader
from leveret.storage.delayed.spool import JOINED, JOINING, Note, Spool, SpoolEntry
from leveret.wire.chunk import decode_chunk
from leveret.wire.link import ChangeKind, FrameHead, LogChange

_NOTED: Final = frozenset({JOINING, JOINED, ChangeKind.CUT, ChangeKind.QUARANTINE})
_ALONE: Final = _NOTED | {ChangeKind.BEGIN, ChangeKind.DELETE}


class FrameTaker(Protocol):
    """A Delaying."""

    def joining(self, leader: ProvenLeader) -> None:
        """A leader compares what it has with what this node has."""

    def take_at(self, at_ms: int, head: FrameHead, changes: list[LogChange]) -> None:
        """A frame that the leader cut at a time. Raises StorageError."""

    def joined(self) -> None:
        """This node was sent all that the leader has."""


async def take_over(spool: Spool, taker: FrameTaker, applier: Applier, commits: GroupCommit) -> None:
    """Apply all that waits in a spool, and have none any more.

    Raises:
        StorageError: it cannot be read, or the disk refuses it; the next start goes on with it.
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
                await commits.settle()
                applier.drop_due()
                spool.save(Note(at, waiting.at_ms, joining))
        commits.begin()
        await asyncio.sleep(0)
    await commits.settle()
    spool.remove()


def _parts(entries: list[SpoolEntry]) -> Iterable[list[SpoolEntry]]:
    """Changes that may be made together; one after which a log is another one, and a mark of a join, is alone."""
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
    entries: list[SpoolEntry], at_ms: int, taker: FrameTaker, applier: Applier, *, is_in_join: bool
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
    """Whether what the change goes on with is here: a log may be damaged, and comes anew from the leader."""
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
            # By chance: it goes on with a log that was deleted later.
            return False
        ends[name] = header.next_offset
    elif change.kind is ChangeKind.CUT:
        return end is not None
    elif change.kind is ChangeKind.BEGIN:
        ends[name] = change.offset
    elif change.kind in (ChangeKind.DELETE, ChangeKind.QUARANTINE):
        ends[name] = None
    return True


def _leader_of(octets: bytes | memoryview) -> ProvenLeader:
    return msgspec.msgpack.decode(octets, type=ProvenLeader)

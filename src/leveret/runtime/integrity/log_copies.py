"""The readable messages of one log, on this node and on others, for an operator who may give the log up."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from leveret.model.errors import LeveretError
from leveret.runtime.integrity.answers import LogEntry, need_list
from leveret.runtime.integrity.peers import InspectedPeer
from leveret.storage.quarantine.report import DivergentLog


class CopyState(StrEnum):
    """The state of a node's copy of a log."""

    MISSING = "missing"
    DAMAGED = "damaged"
    READABLE = "readable"
    UNKNOWN = "unknown"


class CopyRole(StrEnum):
    """The purpose of a node's copy of a log."""

    LEADER = "leader"
    MIRROR = "mirror"
    FOLLOWER = "follower"


class LogCopy(msgspec.Struct, frozen=True):
    """One node's copy of a log.

    Attributes:
        node: the node's name.
        role: the purpose of the copy.
        state: the state of the copy.
        messages: the readable unsettled messages; None if the node was not asked for them, or did not answer.
        octets: the size of the readable chunks; None as above.
        first_offset, next_offset: the range of offsets; None for an empty copy, or as above.
        why: the reason of an unknown state.
    """

    node: str
    role: CopyRole
    state: CopyState
    messages: int | None = None
    octets: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    why: str = ""


def copy_of(node: str, role: CopyRole, found: DivergentLog | None, *, is_damaged: bool = False) -> LogCopy:
    """Return the copy in which these messages were found; None if there is none."""
    if found is None:
        return LogCopy(node, role, CopyState.MISSING, messages=0, octets=0)
    state = CopyState.DAMAGED if is_damaged or found.damaged else CopyState.READABLE
    return LogCopy(node, role, state, found.unsettled, found.octets, found.from_offset, found.next_offset)


async def copy_at(peer: InspectedPeer, path: str) -> LogCopy:
    """Return the copy at the other side of a replication link, by its offsets."""
    try:
        found = await peer.ask("bounds", {"path": path})
        extents = need_list(found, "logs", LogEntry)
    except LeveretError as error:
        return LogCopy(peer.name, CopyRole.FOLLOWER, CopyState.UNKNOWN, why=str(error))
    if not extents:
        is_there = bool(found.get("on_disk"))
        state = CopyState.DAMAGED if is_there else CopyState.MISSING
        return LogCopy(peer.name, CopyRole.FOLLOWER, state)
    extent = extents[0]
    return LogCopy(
        peer.name,
        CopyRole.FOLLOWER,
        CopyState.READABLE,
        first_offset=extent.first_offset,
        next_offset=extent.next_offset,
    )

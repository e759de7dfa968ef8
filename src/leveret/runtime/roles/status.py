"""Replication status in numbers, of followers and of a leader."""

from __future__ import annotations

from typing import Any, Final

from leveret.runtime.replication.applier import WaitingChanges
from leveret.runtime.replication.identity import NodeIdentity
from leveret.runtime.replication.inbound import Inbound
from leveret.runtime.roles.follower_server import FollowerServer

_HEARD_MS: Final = 2_500
"""A leader sends a message every second; one that has sent none for this time may have lost this node."""


def leader_status(follower_server: FollowerServer | None) -> dict[str, Any]:
    """Position, followers, and which of them are in sync."""
    feed = follower_server.feed if follower_server is not None else None
    rows = [link.row() for link in follower_server.listener.followers] if follower_server is not None else []
    in_sync = [row["name"] for row in rows if row["in_sync"]]
    return {
        "position": feed.position if feed else 0,
        "records": feed.records if feed else 0,
        "followers": rows,
        "in_sync": in_sync,
        "in_sync_count": len(in_sync),
        "is_short": feed.in_sync.is_short if feed else False,
    }


def follower_status(
    inbound: Inbound | None,
    identity: NodeIdentity,
    apply_delay_ms: int,
    now_ms: int,
    newest_at_ms: int | None = None,
) -> dict[str, Any] | None:
    """The lag of this node behind its leader; for a fenced node only the leader; None without one.

    `newest_at_ms` is that of the FollowerRole.
    """
    if inbound is None:
        return _replacement(identity) if identity.is_fenced else None
    progress = inbound.progress
    leader = progress.leader
    delayed = inbound.delayed_changes() or WaitingChanges()
    is_delayed = inbound.delayed_changes() is not None
    has_all, bytes_left = progress.has_all, progress.bytes_left
    return _shown(
        uri=str(inbound.uri),
        name=leader.name if leader else "",
        epoch=leader.epoch if leader else identity.seen_epoch,
        state=inbound.state,
        error=inbound.error,
        connected_at_ms=progress.connected_at_ms,
        position=progress.position if has_all else None,
        applied_position=progress.position if has_all and not is_delayed else None,
        acked_position=progress.acked_position,
        received_bytes=progress.received_bytes,
        lag_bytes=None if bytes_left is None else bytes_left + delayed.octets,
        lag_records=delayed.records if has_all else None,
        lag_s=lag_s(inbound, now_ms),
        newest_at_ms=newest_at_ms,
        apply_delay_s=apply_delay_ms / 1000,
        held_back=delayed_changes(delayed) if is_delayed else None,
        in_sync=inbound.state == "streaming",
        progress=inbound.copying(),
    )


def _replacement(identity: NodeIdentity) -> dict[str, Any]:
    """The leader that replaced this node, as far as it is known."""
    return _shown(uri=identity.replaced_by, epoch=identity.seen_epoch, state="unknown")


def _shown(**known: Any) -> dict[str, Any]:
    """All fields of `leader` in the status, in their order."""
    fields: dict[str, Any] = {
        "uri": "",
        "name": "",
        "epoch": 0,
        "state": "",
        "error": "",
        "connected_at_ms": None,
        "position": None,
        "applied_position": None,
        "acked_position": None,
        "received_bytes": 0,
        "lag_bytes": None,
        "lag_records": None,
        "lag_s": None,
        "newest_at_ms": None,
        "apply_delay_s": 0.0,
        "held_back": None,
        "in_sync": False,
        "progress": None,
    }
    return fields | known


def lag_s(inbound: Inbound, now_ms: int) -> float | None:
    """The age of the last applied change, by the leader's clock; None for a node that does not have all before it.

    For a delayed follower, the age of the first change that it can leave out.
    """
    progress = inbound.progress
    delayed = inbound.delayed_changes()
    if delayed is not None and delayed.oldest_at_ms is not None:
        return max(0, now_ms - delayed.oldest_at_ms) / 1000
    if not progress.has_all or not progress.cut_at_ms:
        return None
    if progress.state == "streaming" and now_ms - progress.cut_at_ms < _HEARD_MS:
        # The leader reports its position every second, and this node was there.
        return 0.0
    return max(0, now_ms - progress.cut_at_ms) / 1000


def delayed_changes(delayed: WaitingChanges) -> dict[str, Any]:
    """The changes that a delayed follower can leave out."""
    return {
        "messages": delayed.messages,
        "records": delayed.records,
        "bytes": delayed.octets,
        "oldest_at_ms": delayed.oldest_at_ms,
        "newest_at_ms": delayed.newest_at_ms,
    }


def would_lose(inbound: Inbound | None, now_ms: int) -> dict[str, Any]:
    """The changes of the leader that a promotion loses, or would lose now.

    They are not `known` unless the leader has handed over, or was heard just now: a leader confirms without a follower
    whose link is silent. Then they are those of the time when it was last heard, `seconds` ago.
    """
    if inbound is None:
        return {"known": False, "messages": None, "bytes": None, "seconds": None}
    progress = inbound.progress
    since_ms = progress.heard_at_ms
    is_heard = progress.state == "streaming" and since_ms is not None and now_ms - since_ms < _HEARD_MS
    is_known = inbound.has_handed_over or is_heard
    if since_ms is not None and progress.has_all and progress.cut_at_ms:
        # The leader's last words may have waited here, as while this process stood still.
        since_ms = min(since_ms, progress.cut_at_ms)
    return {
        "known": is_known,
        "messages": 0 if progress.has_all else None,
        "bytes": progress.bytes_left,
        "seconds": 0.0 if is_known else (None if since_ms is None else max(0, now_ms - since_ms) / 1000),
    }

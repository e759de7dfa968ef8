"""The dangers for queues, streams and followers if one node stopped in order: pure.

A node is *safe to stop* if each queue with a copy on it keeps a synchronised copy, its majority and a node that serves
it, and each follower keeps a node in sync to follow. The texts are for operators: they follow the object's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from leveret.core.replication.placement import QueuePlacement
from leveret.core.rules.validation import CLASSIC, QUORUM, STREAM


class StopDanger(NamedTuple):
    """The danger for one object.

    Attributes:
        kind: `queue`, `stream`, `follower` or `leader`.
        name: the name of the queue or stream; for a follower or a leader the node's name.
        vhost: the vhost of a queue or stream; otherwise empty.
        lack: the text that follows the object's name: `would be without ...`.
    """

    kind: str
    name: str
    vhost: str
    lack: str

    @property
    def readable_name(self) -> str:
        """The object as RabbitMQ's health checks name it."""
        return (
            f"{self.kind} '{self.name}' in vhost '{self.vhost}'"
            if self.vhost
            else f"{self.kind} '{self.name}'"
        )


def lacks_synchronised_mirror(kind: str, placed: QueuePlacement, me: str) -> bool:
    """Return whether `me` has the only synchronised copy of a classic queue that is to be mirrored."""
    return kind == CLASSIC and placed.leader == me and placed.is_mirrored and not placed.synchronised_mirrors


def is_only_copy(kind: str, placed: QueuePlacement, me: str, *, durable: bool) -> bool:
    """Return whether `me` leads a stream of one copy, or a transient queue, which no other node copies."""
    is_alone = not durable or (kind == STREAM and not placed.recoverable_mirrors)
    return is_alone and placed.leader == me and not placed.is_exclusive


def loses_quorum(kind: str, placed: QueuePlacement, me: str) -> bool:
    """Return whether a quorum queue, or a stream of several copies, needs `me` for the majority of its members."""
    if kind != QUORUM and (kind != STREAM or not placed.recoverable_mirrors):
        return False
    members = (placed.leader, *placed.recoverable_mirrors)
    online = {placed.leader, *placed.synchronised_mirrors} if placed.state != "down" else set()
    return me in online and len(online) - 1 <= len(members) // 2


def queue_lack(kind: str, placed: QueuePlacement, me: str, *, durable: bool) -> str:
    """Return the danger for a queue or a stream without node `me`; empty for none.

    An exclusive queue is in no danger: it ends with its connection anyway. A durable queue without a mirror policy
    would be down: no other node can serve it.
    """
    if placed.is_exclusive:
        return ""
    if loses_quorum(kind, placed, me):
        return "would be without a majority of its members"
    if lacks_synchronised_mirror(kind, placed, me):
        return "would be without a synchronised copy"
    if is_only_copy(kind, placed, me, durable=durable):
        return (
            "would be gone: it is transient, and transient queues are not mirrored"
            if not durable
            else f"would be without a home: its only copy is at node {me}"
        )
    if placed.leader == me and kind == CLASSIC and not placed.is_mirrored:
        return f"would be without a home: no policy has it mirrored, and its only copy is at node {me}"
    return ""


def follower_dangers(status: Mapping[str, Any]) -> list[StopDanger]:
    """Return the dangers for the followers of this node, and for its leader.

    Args:
        status: the replication status: role, node_id, followers (rows with name, in_sync, lag_records), and etcd's
            records of the leader and of the nodes in sync, if any.
    """
    rows: Sequence[Mapping[str, Any]] = status["followers"]
    if status["role"] == "follower":
        return [*_last_in_sync(status), *(_orphaned(row) for row in rows)]
    if status["role"] != "leader" or any(row["in_sync"] for row in rows):
        return []
    return [StopDanger("follower", row["name"], "", _behind(row["lag_records"])) for row in rows]


def _behind(records: int | None) -> str:
    count = "changes" if records is None else f"{records} change{'s' if records != 1 else ''}"
    return (
        f"would be without {count} that only this node has, and no other follower is in sync"
        if records != 0
        else "would be without a leader: neither it nor another follower is in sync"
    )


def _orphaned(row: Mapping[str, Any]) -> StopDanger:
    return StopDanger("follower", row["name"], "", "would be without a node to follow")


def _last_in_sync(status: Mapping[str, Any]) -> list[StopDanger]:
    """Return the danger for the leader, if etcd names this node as its only follower in sync."""
    etcd = status["etcd"]
    leader = etcd["leader"] if etcd else None
    if leader is None:
        return []
    in_sync: Collection[str] = etcd["in_sync"] or ()
    if set(in_sync) != {leader["node_id"], status["node_id"]}:
        return []
    name = (status["leader"] or {}).get("name") or leader["node_id"]
    return [StopDanger("leader", name, "", "would be without a follower in sync")]

"""Conditions of a follower's promotion: the operator's decisions, and the conditions that only force overrides."""

from __future__ import annotations

from leveret.core.replication.election import TORN
from leveret.runtime.replication.delaying import ALL_MS
from leveret.runtime.replication.identity import NodeIdentity
from leveret.runtime.roles.following import FollowerRole


def undecided(following: FollowerRole | None, apply_until_ms: int | None) -> str:
    """The reason why the operator must say what this node leaves out, or cannot have that; empty if there is none."""
    if following is not None and following.delaying is not None:
        return following.delaying.why_not(apply_until_ms)
    is_in_vain = apply_until_ms is not None and apply_until_ms < ALL_MS
    return "this node is no delayed follower: it cannot go back to a time" if is_in_vain else ""


def why_not(
    role: str, identity: NodeIdentity, following: FollowerRole | None, apply_until_ms: int | None
) -> str:
    """The reason why a promotion needs force; empty if it needs none."""
    if role == "fenced":
        return "this node was replaced by another leader, whose later messages would be lost"
    if identity.followed_epoch == 0:
        return "this node has never finished joining a leader: it does not have all data"
    leader = following.inbound.progress.leader if following is not None else None
    if identity.cluster and leader is not None and following is not None and following.inbound.is_connected:
        return (
            f"this node still follows node {leader.name} of cluster {identity.cluster}, or a follower of it: a "
            "promoted node is a broker of its own with copies of the messages, and the cluster goes on beside it"
        )
    delaying = following.delaying if following is not None else None
    if delaying is not None and delaying.waits and apply_until_ms is not None and apply_until_ms != ALL_MS:
        # It may go back to a time before a join that has not ended.
        return delaying.lacks(apply_until_ms)
    if delaying is not None and delaying.is_torn:
        return "this node was catching up with its leader: it does not have all data yet"
    if identity.rewriting:
        return f"{TORN}: it does not have all data"
    progress = following.inbound.progress if following is not None else None
    if progress is not None and (progress.state == "catching_up" or progress.is_torn):
        return "this node is catching up with its leader: it does not have all data yet"
    return ""

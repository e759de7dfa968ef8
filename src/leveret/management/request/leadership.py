"""Changes need a leader: a follower, a fenced node, and a node without its lease are read only."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from leveret.management.node import ManagedNode
from leveret.management.request.replies import BadRequest

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
FENCED: Final = "fenced"
SUSPENDED: Final = "suspended"
STARTING: Final = "this node is about to lead, and serves clients once its queues are recovered"
ROLES: Final = (LEADER, FOLLOWER, FENCED, SUSPENDED)


def is_leader(node: ManagedNode) -> bool:
    """Whether this node decides about definitions, and serves clients once it is open."""
    return node.replication.role == LEADER


def serves(node: ManagedNode) -> bool:
    """Whether clients are served here now: a new leader recovers its queues first."""
    return is_leader(node) and node.is_open


def need_serving(node: ManagedNode) -> None:
    """Check that the node `serves`.

    Raises:
        BadRequest: it does not; the text names the node that does.
    """
    if not is_leader(node):
        status = node.replication.status()
        place = "by a node that runs" if status["role"] == SUSPENDED else "on its leader"
        reason = f"{standing(status)}; changes are made {place}"
        raise BadRequest("not_leader", reason, HTTPStatus.SERVICE_UNAVAILABLE)
    if not node.is_open:
        raise BadRequest("starting", f"{STARTING}; try again then", HTTPStatus.SERVICE_UNAVAILABLE)


def lack_of_users(node: ManagedNode) -> str:
    """The reason why the node cannot tell right credentials from wrong ones; empty if it can.

    A follower has no users before its first join, and a node without its lease may lack the newest. The text names no
    other node: the caller is a stranger.
    """
    if serves(node):
        return ""
    if node.replication.role == SUSPENDED:
        lack = standing(node.replication.status())
    elif not node.broker.definitions.by_kind["users"]:
        lack = "this node has no users yet: it serves no client, and has not received the definitions of its leader"
    else:
        return ""
    return f"{lack}; the credentials may be right: try again then, or ask another node"


def standing(status: dict[str, Any]) -> str:
    """The role of a node that does not lead, with the leader, if known."""
    if status["role"] == SUSPENDED:
        return "this node of a cluster has no lease in etcd, and serves no client until it has one again"
    leader = status["leader"] or {}
    place = leader.get("uri")
    if place and leader.get("name"):
        place = f"{place} ({leader['name']})"
    if status["role"] == FOLLOWER:
        return f"this node is a follower of {place or 'a leader that it has not reached yet'}"
    led = f" by {place}, its leader since then" if place else ", as another node was promoted"
    return f"this node was fenced in epoch {status['epoch']}{led}"

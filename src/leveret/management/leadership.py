"""Who may be changed: a leader. A follower and a node that was fenced are read only."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from leveret.management.node import ManagedNode
from leveret.management.replies import Declined

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
FENCED: Final = "fenced"
ROLES: Final = (LEADER, FOLLOWER, FENCED)


def is_leader(node: ManagedNode) -> bool:
    """Whether clients are served and definitions decided here."""
    return node.replication.role == LEADER


def need_leader(node: ManagedNode) -> None:
    """Go on only if the node `is_leader`.

    Raises:
        Declined: it is not; says where to go instead.
    """
    if not is_leader(node):
        reason = f"{standing(node.replication.status())}; changes are made on its leader"
        raise Declined("not_leader", reason, HTTPStatus.SERVICE_UNAVAILABLE)


def standing(status: dict[str, Any]) -> str:
    """What a node is that is no leader, and who leads, as far as that is known."""
    leader = status["leader"] or {}
    place = leader.get("uri")
    if place and leader.get("name"):
        place = f"{place} ({leader['name']})"
    if status["role"] == FOLLOWER:
        return f"this node is a follower of {place or 'a leader it has not reached yet'}"
    led = f" by {place}, its leader since then" if place else ", as another node was promoted"
    return f"this node was fenced in epoch {status['epoch']}{led}"

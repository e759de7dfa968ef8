"""Maintenance mode: taking the node out of service for clients, and back."""

from __future__ import annotations

from leveret.cli.command import Session, command
from leveret.cli.commands.nodes.safe_to_stop import FORCE, refuse_unless_safe


@command(
    "Will suspend client connection listeners on node {node}. "
    "The node will no longer accept client connections!",
    "suspend_listeners",
)
def suspend_listeners(ctl: Session) -> None:
    """Refuse new AMQP and stream clients. Open connections and the HTTP API stay."""
    ctl.api.put("operations", "listeners", body={"suspended": True})


@command(
    "Will resume client connection listeners on node {node}. The node will now accept client connections",
    "resume_listeners",
)
def resume_listeners(ctl: Session) -> None:
    """Admit clients again."""
    ctl.api.put("operations", "listeners", body={"suspended": False})


@command(
    "Will put node {node} into maintenance mode. The node will no longer serve any client traffic!",
    "drain",
)
def drain(ctl: Session, force: FORCE = False) -> None:
    """Refuse new clients and close all connections, until revive or a restart.

    A node of a cluster gets no new queues, and hands over those that it leads: afterwards other nodes lead them.

    Refused if the node is not safe to stop, see check_if_safe_to_stop.
    """
    if not force:
        refuse_unless_safe(ctl)
    ctl.api.put_without_timeout("operations", "maintenance", body={"draining": True})


@command(
    "Will put node {node} back into regular operating mode. The node will again serve client traffic.",
    "revive",
)
def revive(ctl: Session) -> None:
    """Serve clients again after drain."""
    ctl.api.put("operations", "maintenance", body={"draining": False})

"""Commands for both kinds of replication to another site at once, and other names of commands."""

from __future__ import annotations

from leveret.cli.command import Session, command
from leveret.cli.commands.replication import standby_promotion as standby


@command("Enabling warm standby ...", "enable_warm_standby")
def enable_warm_standby(ctl: Session) -> None:
    """Enable both kinds of replication."""
    ctl.api.post("definitions", "sync", "enable")
    _connect(ctl)


@command("Disabling warm standby ...", "disable_warm_standby")
def disable_warm_standby(ctl: Session) -> None:
    """Disable both kinds of replication, until they are enabled again."""
    _disconnect(ctl)
    ctl.api.post("definitions", "sync", "disable")


@command("Restarting warm standby ...", "restart_warm_standby")
def restart_warm_standby(ctl: Session) -> None:
    """Disable and enable both links, with new endpoints and credentials."""
    _disconnect(ctl)
    ctl.api.post("replication", "schema", "restart")
    _connect(ctl)


promote_warm_standby = standby.promote_standby_replication_downstream.called("promote_warm_standby")
promote_standby_replication_downstream_cluster = standby.promote_standby_replication_downstream.called(
    "promote_standby_replication_downstream_cluster"
)


def _is_downstream(ctl: Session) -> bool:
    """Whether the node has a message link to start and stop; an upstream has none."""
    return bool(ctl.api.get("replication", "standby", "details")["operating_mode"] == "downstream")


def _connect(ctl: Session) -> None:
    if _is_downstream(ctl):
        ctl.api.post("replication", "standby", "connect")


def _disconnect(ctl: Session) -> None:
    if _is_downstream(ctl):
        ctl.api.post("replication", "standby", "disconnect")

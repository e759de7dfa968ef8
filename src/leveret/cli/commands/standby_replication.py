"""Message replication: a downstream keeps an upstream's messages, and takes its place when it must."""

from __future__ import annotations

from typing import Final

from leveret.cli.command import Session, command
from leveret.cli.commands.links import Endpoints, Mode, side_lines
from leveret.cli.commands.standby_promotion import carry_out
from leveret.cli.secrets import text_of
from leveret.cli.values import Report, Table

_STATUS: Final = (
    "virtual_host",
    "state",
    "endpoint",
    "transferred",
    "lag_records",
    "lag_ms",
    "missing_records",
    "missing_messages",
    "last_timestamp",
    "error",
)


@command(
    "Setting upstream endpoints for standby replication ...",
    "set_standby_replication_upstream_endpoints - < endpoints.json",
)
def set_standby_replication_upstream_endpoints(ctl: Session, endpoints: Endpoints) -> None:
    """Set where and as whom this node reaches its upstream's stream listeners (port 5552)."""
    ctl.api.put_text("replication", "standby", "upstream", text=text_of(endpoints))


@command("Connecting this downstream to its upstream ...", "connect_standby_replication_downstream")
def connect_standby_replication_downstream(ctl: Session) -> None:
    """Start or resume transferring messages from the upstream."""
    ctl.api.post("replication", "standby", "connect")


@command("Disconnecting this downstream from its upstream ...", "disconnect_standby_replication_downstream")
def disconnect_standby_replication_downstream(ctl: Session) -> None:
    """Stop transferring messages from the upstream."""
    ctl.api.post("replication", "standby", "disconnect")


@command("Setting standby replication mode to {mode} ...", "set_standby_replication_mode downstream")
def set_standby_replication_mode(ctl: Session, mode: Mode) -> None:
    """Change sides without recovering messages."""
    ctl.api.put("replication", "standby", "mode", body={"operating_mode": mode})


@command("Standby replication status ...", "standby_replication_status")
def standby_replication_status(ctl: Session) -> Report:
    """Show which side this node is on, and how far each virtual host is transferred."""
    status = ctl.api.get("replication", "standby", "details")
    lines = side_lines(status)
    lines += [("Error", status["error"])] if status["error"] else []
    return Report(lines, status, Table.of(_STATUS, status["vhosts"], unknown=None))


@command(
    "Listing virtual hosts available for multi-DC replication recovery ...",
    "list_vhosts_available_for_standby_replication_recovery",
)
def list_vhosts_available_for_standby_replication_recovery(ctl: Session) -> Table:
    """List the virtual hosts with transferred data on this node."""
    names = ctl.api.get("replication", "standby", "available")
    return Table(("virtual_host",), [[name] for name in names], headless=True)


@command(
    "Listing disk space (in gb) used by multi-DC replication",
    "display_disk_space_used_by_standby_replication_data",
)
def display_disk_space_used_by_standby_replication_data(ctl: Session) -> Table:
    """Show how much the transferred data takes."""
    rows = ctl.api.get("replication", "standby", "disk-usage")
    return Table.of(("node", "size", "unit", "vhost"), rows, unknown=None)


@command("Inspecting standby upstream metrics related to recovery...", "inspect_standby_upstream_metrics")
def inspect_standby_upstream_metrics(ctl: Session) -> Table:
    """Show what this node collects for downstreams: the age of each queue's oldest message."""
    rows = ctl.api.get("replication", "standby", "upstream-metrics")
    return Table.of(("queue", "timestamp", "vhost", "messages", "collected_offset"), rows, unknown=None)


@command("Inspecting standby downstream metrics related to recovery...", "inspect_standby_downstream_metrics")
def inspect_standby_downstream_metrics(ctl: Session) -> Table:
    """Show what this node has transferred, by queue."""
    rows = ctl.api.get("replication", "standby", "downstream-metrics")
    return Table.of(("queue", "timestamp", "vhost", "messages", "settled"), rows, unknown=None)


@command(
    "Inspecting local data available for standby replication recovery ...",
    "inspect_local_data_available_for_standby_replication_recovery",
)
def inspect_local_data_available_for_standby_replication_recovery(ctl: Session) -> Table:
    """Count transferred messages by virtual host, exchange and routing key; reads all data.

    A message that was collected twice, as after a crash of the upstream, counts twice; it is recovered once.
    """
    rows = carry_out(ctl, "inspect", {}, "that; nothing was changed")
    return Table.of(("exchange", "messages", "routing_key", "vhost"), rows, unknown=None)


@command(
    "Deleting all data transferred for standby replication ...",
    "delete_all_data_on_standby_replication_cluster",
)
def delete_all_data_on_standby_replication_cluster(ctl: Session) -> None:
    """Delete what was transferred; a live downstream then begins anew with what the upstream still has."""
    ctl.api.delete("replication", "standby", "data")

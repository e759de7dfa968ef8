"""Message replication: a downstream keeps an upstream's messages, and takes its place when it must."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

from typer import Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.commands.links import Endpoints, Mode, side_lines
from leveret.cli.secrets import text_of
from leveret.cli.values import Report, Table

_SUMMARY: Final = ("first_timestamp", "last_timestamp", "message_count", "virtual_host")
_STATUS: Final = (
    "virtual_host",
    "state",
    "endpoint",
    "transferred",
    "lag_records",
    "lag_ms",
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
    """Start, or resume, to transfer messages from the upstream."""
    ctl.api.post("replication", "standby", "connect")


@command("Disconnecting this downstream from its upstream ...", "disconnect_standby_replication_downstream")
def disconnect_standby_replication_downstream(ctl: Session) -> None:
    """Stop to transfer messages from the upstream."""
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
    "Will promote cluster to upstream...",
    "promote_standby_replication_downstream --exclude-virtual-hosts tmp",
)
def promote_standby_replication_downstream(
    ctl: Session,
    start_from_scratch: Annotated[
        bool,
        Option("--start-from-scratch", help="Recover consumed messages too, whatever was recovered before."),
    ] = False,
    all_available: Annotated[
        bool, Option("--all-available", help="Recover all there is where nothing tells what was consumed.")
    ] = False,
    exclude_virtual_hosts: Annotated[
        str, Option("--exclude-virtual-hosts", help="Virtual hosts to leave out, separated by commas.")
    ] = "",
) -> Table:
    """End the links and put every message that was not consumed back into its queue."""
    steps = ctl.api.stream(
        "replication",
        "standby",
        "promote",
        body={
            "start_from_scratch": start_from_scratch,
            "all_available": all_available,
            "exclude_virtual_hosts": [name for name in exclude_virtual_hosts.split(",") if name],
        },
    )
    return Table.of(_SUMMARY, _follow(steps, shows=sys.stderr.isatty() and not ctl.quiet), unknown=None)


@command("Displaying standby promotion summary ...", "display_standby_promotion_summary")
def display_standby_promotion_summary(ctl: Session) -> Table:
    """Show what promotions recovered."""
    return Table.of(_SUMMARY, ctl.api.get("replication", "standby", "summary"), unknown=None)


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
    """Count transferred messages by virtual host, exchange and routing key; reads all data."""
    rows = ctl.api.get_slowly("replication", "standby", "data")
    return Table.of(("exchange", "messages", "routing_key", "vhost"), rows, unknown=None)


@command(
    "Deleting all data transferred for standby replication ...",
    "delete_all_data_on_standby_replication_cluster",
)
def delete_all_data_on_standby_replication_cluster(ctl: Session) -> None:
    """Delete what was transferred; on a live downstream, disconnect and connect afterwards."""
    ctl.api.delete("replication", "standby", "data")


def _follow(steps: Iterator[dict[str, Any]], *, shows: bool) -> list[dict[str, Any]]:
    """Wait for a promotion's end; the rows of its summary.

    Raises:
        CtlError: it failed, or the node went away.
    """
    with _Bar(shows) as bar:
        for step in steps:
            if "summary" in step:
                rows: list[dict[str, Any]] = step["summary"]
                return rows
            if "error" in step:
                raise CtlError(exits.SOFTWARE, step["reason"])
            bar.advance(step["progress"])
    raise CtlError(
        exits.UNAVAILABLE, "the node went away during the promotion; promote again, it goes on from there"
    )


class _Bar:
    """A progress bar on a terminal, nothing in a pipe."""

    def __init__(self, shows: bool) -> None:
        self._progress: Any = None
        self._total = 0
        if shows:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = TextColumn("recovering"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("recovering", total=None)

    def __enter__(self) -> _Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, news: dict[str, Any]) -> None:
        """Take what the recovery said: `planned` raises the total, `published` is done."""
        if self._progress is None:
            return
        if news.get("event") == "planned":
            self._total += sum(news["queues"].values())
            self._progress.update(self._task, total=self._total)
        elif news.get("event") == "published":
            self._progress.advance(self._task, news["messages"])

"""The node itself."""

from __future__ import annotations

import time
from typing import Annotated, Final

from typer import Option

from leveret.cli.api import Unreachable
from leveret.cli.command import Session, command
from leveret.cli.values import Report, Table

_POLL_S: Final = 0.1
_GB: Final = 10**9


@command("Status of the node ...")
def status(ctl: Session) -> Report:
    """Show what the node is, what it uses and what it holds."""
    overview = ctl.api.get("overview")
    node = ctl.api.get("nodes", overview["node"])
    totals, messages = overview["object_totals"], overview["queue_totals"]
    lines = [
        ("Node name", node["name"]),
        ("Cluster name", overview["cluster_name"]),
        ("Leveret version", node["leveret_version"]),
        ("OS PID", node["os_pid"]),
        ("Uptime (seconds)", node["uptime"] // 1000),
        ("Data directory", node["db_dir"]),
        ("Total memory used", f"{node['mem_used'] / _GB:.4f} gb"),
        ("Free disk space", f"{node['disk_free'] / _GB:.4f} gb"),
        ("File descriptors", f"{node['fd_used']} used, {node['fd_total']} limit"),
        ("Connection count", totals["connections"]),
        ("Queue count", totals["queues"]),
        (
            "Messages",
            f"{messages['messages_ready']} ready, {messages['messages_unacknowledged']} unacknowledged",
        ),
    ]
    listeners = Table.of(("protocol", "ip_address", "port"), overview["listeners"])
    return Report(lines, {**node, **overview}, listeners)


@command("")
def await_startup(
    ctl: Session,
    timeout: Annotated[float, Option("--timeout", "-t", help="Seconds to wait at most.")] = 300.0,
) -> None:
    """Wait until the node answers."""
    deadline_s = time.monotonic() + timeout
    while True:
        try:
            with ctl.open() as api:
                api.get("whoami")
            return
        except Unreachable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)

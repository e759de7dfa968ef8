"""Message replication: a downstream keeps an upstream's messages, and can replace it."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from typer import Argument, Option

from leveret.cli.command import Session, command
from leveret.cli.commands.columns import with_node
from leveret.cli.commands.replication.links import Endpoints, Mode, side_lines
from leveret.cli.commands.replication.standby_promotion import (
    carry_out,
    last_heard,
    lines_of_left_out,
    newest_age,
)
from leveret.cli.output.ages import age
from leveret.cli.output.values import ReportLines, Table
from leveret.cli.secrets import text_of
from leveret.wire.log_name import ABSENT

_STATUS: Final = ("virtual_host", "state", "transferred", "lag_records", "lag_ms")
"""The columns for people, whose terminal may have 80; other facts are in the lines above."""
_STATUS_ALL: Final = (
    "virtual_host",
    "state",
    "endpoint",
    "transferred",
    "lag_records",
    "lag_ms",
    "heard_ago_ms",
    "missing_records",
    "missing_messages",
    "last_timestamp",
    "newest_age_ms",
    "error",
)
_DOWNSTREAMS: Final = ("virtual_host", "downstream", "transferred", "lag_records", "last_seen")


_AGAIN: Final = (
    "promote_standby_replication_downstream continues it, delete_all_data_on_standby_replication_cluster "
    "gives it up"
)
_LEFT: Final = (
    "promote_standby_replication_downstream recovers these messages, and lists them by queue with --dry-run"
)
_UNTAGGED: Final = (
    "not replicated: a policy asks for it, but the virtual host does not have the tag standby_replication; "
    "see update_vhost_metadata"
)
_HEARD_MS: Final = 5_000
"""An upstream that reported less long ago is alive: it reports about once a second."""


@command(
    "Setting upstream endpoints for standby replication ...",
    "set_standby_replication_upstream_endpoints - < endpoints.json",
)
def set_standby_replication_upstream_endpoints(ctl: Session, endpoints: Endpoints) -> None:
    """Set the upstream's endpoints (stream listeners, port 5552) and user."""
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
    """Change the mode without recovering messages."""
    ctl.api.put("replication", "standby", "mode", body={"operating_mode": mode})


@command("Standby replication status ...", "standby_replication_status")
def standby_replication_status(ctl: Session) -> ReportLines:
    """Show the mode of standby replication, and the lag of each virtual host."""
    status = ctl.api.get("replication", "standby", "details")
    lines = side_lines(status)
    lines += [("Called by its upstream", status["downstream"])] if status.get("downstream") else []
    lines += [("Error", status["error"])] if status["error"] else []
    lines += _promotion(status)
    lines += [(f"Of {_title(row)}", _collected(row)) for row in status.get("collected", [])]
    lines += [(f"Of {name}", _UNTAGGED) for name in status.get("untagged", [])]
    lines += [(f"Of node {row['node']}", row["error"]) for row in status.get("nodes", []) if row["error"]]
    for row in status["vhosts"]:
        lines.append((f"Of {row['virtual_host']}", _standing(row)))
        lines += [
            (f"Of {row['virtual_host']} at {each['node']}", _at_node(each)) for each in row.get("nodes", [])
        ]
    if status["operating_mode"] != "downstream":
        rows = status.get("downstreams", [])
        return ReportLines(lines, status, Table.of(with_node(_DOWNSTREAMS, rows), rows, unknown=None))
    columns = _STATUS if ctl.is_for_people else _STATUS_ALL
    if status.get("nodes"):
        columns = ("virtual_host", "node", *columns[1:])
    return ReportLines(lines, status, Table.of(columns, status["vhosts"], unknown=None))


def _promotion(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The progress of an unfinished promotion, and the messages that partial ones left to a later one."""
    lines = []
    if promotion := status.get("promotion"):
        begun = f"begun {age(time.time() * 1000 - promotion['begun_ms'])} ago"
        if promotion["is_running"]:
            lines.append(("Promotion", f"{begun}; {promotion['step']}"))
        else:
            lines.append(("Promotion", f"{begun}, was interrupted and does not run: {_AGAIN}"))
        lines += [(f"Left of {row['virtual_host']}", _left(row)) for row in promotion["vhosts"]]
        if promotion["plans_error"]:
            lines.append(("Left", f"not known, its plans cannot be read: {promotion['plans_error']}"))
        elif not promotion["vhosts"]:
            lines.append(("Left", "not counted yet"))
    if left_out := status.get("left_out"):
        excluded = sorted({*left_out["exclude"], *left_out.get("unfollowed", [])})
        only = [("all queues but", left_out["only_queues"]), ("virtual hosts", excluded)]
        said = [f"{what} {', '.join(names)}" for what, names in only if names]
        said += ["messages after the chosen moment"] if left_out["as_of_ms"] else []
        lines.append(("Left out by the last promotion", f"{'; '.join(said)} ({_LEFT})"))
        lines += lines_of_left_out(left_out)
    return lines


def _left(row: dict[str, Any]) -> str:
    """The messages of a virtual host that an unfinished promotion still has to recover."""
    messages, queues = (f"{row[f'{name}_left']} of {row[name]} {name}" for name in ("messages", "queues"))
    return f"{messages}, in {queues}"


def _collected(row: dict[str, Any]) -> str:
    """A virtual host's collected data, in words."""
    text = (
        f"{row['queues']} replicated queues, {row['records']} records collected, {row['kept']} of them kept"
    )
    if row["oldest_ms"] is not None:
        text += f" ({row['bytes'] / 1e6:.1f} MB, the oldest {age(time.time() * 1000 - row['oldest_ms'])} old)"
    text += f"; {row['downstreams']} downstreams"
    text += f", the slowest {row['slowest_lag_records']} records behind" if row["downstreams"] else ""
    if row["missing_messages"]:
        text += f"; retention dropped {row['missing_messages']} messages that are still in queues"
    return f"{text}; {row['error']}" if row.get("error") else text


def _title(row: dict[str, Any]) -> str:
    """A virtual host, in a cluster with the node that collects it."""
    return f"{row['virtual_host']} at {row['node']}" if "node" in row else str(row["virtual_host"])


def _at_node(row: dict[str, Any]) -> str:
    """What is transferred from one node of an upstream cluster, in words."""
    if row["state"] == ABSENT:
        return "does not run, or was forgotten; other nodes lead its queues"
    lacks = f"{row['lag_records']} records are missing" if row["lag_records"] else "all records are here"
    text = f"{row['state']}; {lacks}"
    return f"{text}; {row['error']}" if row["error"] else text


def _standing(row: dict[str, Any]) -> str:
    """A virtual host's transferred data, in words."""
    missing = f"{row['lag_records']} records that the upstream had {last_heard(row)} are not here"
    if row.get("heard_ago_ms") is None:
        text = "no news from the upstream since this node started: its records are not known"
    elif row["heard_ago_ms"] >= _HEARD_MS:
        text = (
            f"no news from the upstream for {age(row['heard_ago_ms'])}: its records since then are not known"
        )
        text += f"; {missing}" if row["lag_records"] else "; all earlier records are here"
    elif row["lag_records"]:
        text = f"{row['lag_records']} records are missing, a lag of {age(row['lag_ms'])}"
    else:
        text = "all records of the upstream are here"
    text = f"{text}; {newest_age(row)}"
    if row["missing_records"]:
        text += f"; {row['missing_records']} records never arrived, because its retention was too short"
    if row["missing_messages"]:
        text += f"; up to {row['missing_messages']} messages of its queues will not arrive: see the dry run"
    return f"{text}; {row['error']}" if row.get("error") else text


@command(
    "Listing virtual hosts available for multi-DC replication recovery ...",
    "list_vhosts_available_for_standby_replication_recovery",
)
def list_vhosts_available_for_standby_replication_recovery(ctl: Session) -> Table:
    """List the virtual hosts with transferred data."""
    names = ctl.api.get("replication", "standby", "available")
    return Table(("virtual_host",), [[name] for name in names], headless=True)


@command(
    "Listing disk space (in gb) used by multi-DC replication",
    "display_disk_space_used_by_standby_replication_data",
)
def display_disk_space_used_by_standby_replication_data(ctl: Session) -> Table:
    """Show the disk space of the transferred data."""
    rows = ctl.api.get("replication", "standby", "disk-usage")
    return Table.of(("node", "size", "unit", "vhost"), rows, unknown=None)


@command("Inspecting standby upstream metrics related to recovery...", "inspect_standby_upstream_metrics")
def inspect_standby_upstream_metrics(ctl: Session) -> Table:
    """Show the queues that are collected for downstreams, with the time of each queue's oldest message."""
    rows = ctl.api.get("replication", "standby", "upstream-metrics")
    return Table.of(("queue", "timestamp", "vhost", "messages", "collected_offset"), rows, unknown=None)


@command("Inspecting standby downstream metrics related to recovery...", "inspect_standby_downstream_metrics")
def inspect_standby_downstream_metrics(ctl: Session) -> Table:
    """Show the transferred messages, by queue."""
    rows = ctl.api.get("replication", "standby", "downstream-metrics")
    return Table.of(("queue", "timestamp", "vhost", "messages", "settled"), rows, unknown=None)


@command(
    "Inspecting local data available for standby replication recovery ...",
    "inspect_local_data_available_for_standby_replication_recovery",
)
def inspect_local_data_available_for_standby_replication_recovery(ctl: Session) -> Table:
    """Count transferred messages by virtual host, queue, exchange and routing key; reads all data."""
    rows = carry_out(ctl, "inspect", {}, "the inspection; nothing was changed")
    return Table.of(("exchange", "messages", "routing_key", "vhost", "queue"), rows, unknown=None)


@command(
    "Exporting data available for standby replication recovery to {target} ...",
    "export_standby_data --format parquet --queue orders /var/exports/orders",
)
def export_standby_data(
    ctl: Session,
    target: Annotated[
        str,
        Argument(
            help="A new directory on the node's machine, by its whole path, or the URI of a place in a store."
        ),
    ],
    form: Annotated[Literal["parquet"], Option("--format", help="The files' format.")] = "parquet",
    virtual_host: Annotated[str, Option("--virtual-host", help="Only messages of this virtual host.")] = "",
    queue: Annotated[str, Option("--queue", help="Only messages of queues of this name.")] = "",
    since: Annotated[
        str, Option("--from", help="Only messages that came at that time or later; UTC without an offset.")
    ] = "",
    until: Annotated[str, Option("--to", help="Only messages that came before that time.")] = "",
    as_of: Annotated[
        str, Option("--as-of", help="The state as of a time, without later messages and settlements.")
    ] = "",
    state: Annotated[str, Option("--state", help="Only messages that are pending, or settled.")] = "",
    columns: Annotated[str, Option("--columns", help="Only these columns, separated by commas.")] = "",
) -> Table:
    """Write transferred messages with their properties and states to Parquet files; shows their numbers by queue."""
    body = {
        "target": target,
        "format": form,
        "vhost": virtual_host,
        "queue": queue,
        "from": since,
        "to": until,
        "as_of": as_of,
        "state": state,
        "columns": columns,
    }
    rows = carry_out(
        ctl, "export", body, "the export, which has no _export.json then: name a new place for the next"
    )
    return Table.of(("vhost", "queue", "messages", "pending"), rows, unknown=None)


@command(
    "Deleting all data transferred for standby replication ...",
    "delete_all_data_on_standby_replication_cluster",
)
def delete_all_data_on_standby_replication_cluster(ctl: Session) -> None:
    """Delete all transferred data. A live downstream then begins again with the records that the upstream still has."""
    ctl.api.delete("replication", "standby", "data")

"""Schema replication: a downstream follows its upstream's definitions."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli.command import Session, command
from leveret.cli.commands.replication.links import Endpoints, Mode, side_lines
from leveret.cli.output.ages import age
from leveret.cli.output.values import ReportLines, Table
from leveret.cli.secrets import password_of, text_of


@command('Adding schema replication user "{username}" ...', "add_schema_replication_user schema-replicator -")
def add_schema_replication_user(
    ctl: Session,
    username: Annotated[str, Argument(help="Name of the user.")],
    password: Annotated[
        str | None, Argument(help="Password; - or none reads it from standard input.")
    ] = None,
) -> None:
    """Add a user with full permissions on the virtual host of schema replication."""
    body = {"name": username, "password": password_of(password)}
    ctl.api.post("replication", "schema", "users", body=body)


@command(
    "Setting upstream endpoints for schema replication ...",
    "set_schema_replication_upstream_endpoints - < endpoints.json",
)
def set_schema_replication_upstream_endpoints(ctl: Session, endpoints: Endpoints) -> None:
    """Set the upstream's endpoints and user: AMQP listeners, or RabbitMQ's management API.

    An endpoint is `host:5672` for another Leveret, or `http://host:15672` or `https://host:15671` for the management
    API of RabbitMQ or LavinMQ, whose user then needs the tag administrator. An open link stays until
    restart_schema_replication ends it.
    """
    ctl.api.put_text("replication", "schema", "upstream", text=text_of(endpoints))


@command("Schema replication status ...", "schema_replication_status")
def schema_replication_status(ctl: Session) -> ReportLines:
    """Show the mode of schema replication and the state of the link."""
    status = ctl.api.get("tanzu", "osr", "schema", "status")
    lines = [*side_lines(status), *_last_sync(status)]
    more = {
        "upstream_endpoint": "Connected to",
        "upstream_cluster": "Upstream cluster",
        "last_sync_duration": "Last sync duration (milliseconds)",
        "last_sync_request_stamp": "Last sync request (Unix time)",
        "last_connection_completion_stamp": "Last connection (Unix time)",
        "last_change_stamp": "Last change (Unix time)",
        "last_sync_sent_bytes": "Last sync sent (bytes)",
        "last_sync_received_bytes": "Last sync received (bytes)",
        "sync_interval_ms": "Sync interval (milliseconds)",
        "changes_applied": "Changes applied",
        "conflict_count": "Conflicts",
        "refused_count": "Changes refused",
        "last_error": "Last error",
    }
    lines += [(title, status[field]) for field, title in more.items() if status.get(field)]
    lines += [("Downstream", _downstream(each)) for each in status.get("downstreams", [])]
    lines += [("Conflict", each) for each in status.get("conflicts", [])]
    lines += [("Refused", each) for each in status.get("refused", [])]
    return ReportLines(lines, status)


def _last_sync(status: dict[str, Any]) -> list[tuple[str, str]]:
    """The age of a downstream's definitions."""
    if status["operating_mode"] != "downstream":
        return []
    stamp = status.get("last_sync_stamp")
    if not stamp:
        return [("Last sync", "none since this node started")]
    return [("Last sync", f"{age(time.time() * 1000 - stamp * 1000)} ago: definitions are as of then")]


def _downstream(row: dict[str, Any]) -> str:
    synced = "in sync" if row["in_sync"] else "catching up"
    return f"{row['cluster']} as {row['user']}, {synced}, last request {row['last_request_stamp']}"


@command("What a schema sync would change ...", "schema_replication_diff")
def schema_replication_diff(ctl: Session) -> Table:
    """Show the changes that a sync would make now, and change nothing."""
    rows = ctl.api.get_without_timeout("replication", "schema", "diff")
    if not ctl.is_for_people:
        return Table.of(("action", "kind", "key", "fields", "reason", "own", "upstream"), rows, unknown=None)
    shown = [[row["action"], row["kind"], row["entity"], _detail(row)] for row in rows]
    return Table(("action", "kind", "entity", "detail"), shown)


def _detail(row: dict[str, Any]) -> str:
    if row["reason"]:
        return str(row["reason"])
    return ", ".join(f"{field}: {row['own'][field]} -> {row['upstream'][field]}" for field in row["fields"])


_CHANGES_SHOWN: Final = 3


def _shortened(changes: list[str]) -> str:
    more = [f"and {len(changes) - _CHANGES_SHOWN} more"] if len(changes) > _CHANGES_SHOWN else []
    return ", ".join([*changes[:_CHANGES_SHOWN], *more])


@command("Schema changes that were applied ...", "schema_replication_history")
def schema_replication_history(ctl: Session) -> Table:
    """Show the last changes that were applied from the upstream, newest first."""
    rows = ctl.api.get("replication", "schema", "history")
    columns = ["stamp", "upstream", "upstream_cluster", "puts", "deletes", "conflicts", "refused"]
    columns += ["duration_ms", "sent_bytes", "received_bytes"]
    if not ctl.is_for_people:
        return Table.of([*columns, "changes"], rows)
    shown = [{**row, "changes": _shortened(row["changes"])} for row in rows]
    return Table.of([*columns, "changes"], shown)


@command("Syncing the schema with the upstream ...", "sync_schema_replication --force")
def sync_schema_replication(
    ctl: Session,
    force: Annotated[
        bool,
        Option("--force", help="Replace queues in conflict with the upstream's, and delete their messages."),
    ] = False,
) -> ReportLines:
    """Sync at once, and show the applied and the refused changes."""
    done = ctl.api.post_without_timeout("replication", "schema", "sync", body={"force": force})
    lines = [("Put", done["puts"]), ("Deleted", done["deletes"])]
    lines += [("Conflict", each) for each in done["conflicts"]]
    lines += [("Refused", each) for each in done["refused"]]
    return ReportLines(lines, done)


@command("Enabling schema replication ...", "enable_schema_replication")
def enable_schema_replication(ctl: Session) -> None:
    """Enable schema replication: follow the upstream, or serve downstreams."""
    ctl.api.post("definitions", "sync", "enable")


@command("Disabling schema replication ...", "disable_schema_replication")
def disable_schema_replication(ctl: Session) -> None:
    """Disable schema replication until it is enabled again."""
    ctl.api.post("definitions", "sync", "disable")


@command("Restarting schema replication ...", "restart_schema_replication")
def restart_schema_replication(ctl: Session) -> None:
    """Disable and enable schema replication, with new endpoints and credentials."""
    ctl.api.post("replication", "schema", "restart")


@command("Setting schema replication mode to {mode} ...", "set_schema_replication_mode downstream")
def set_schema_replication_mode(ctl: Session, mode: Mode) -> None:
    """Change the mode: a downstream becomes an upstream, or the reverse."""
    ctl.api.put("replication", "schema", "mode", body={"operating_mode": mode})

"""Schema replication: a downstream follows its upstream's definitions."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from leveret.cli.command import Session, command
from leveret.cli.commands.links import Endpoints, Mode, side_lines
from leveret.cli.secrets import password_of, text_of
from leveret.cli.values import Report


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
    """Set where and as whom this node reaches its upstream's AMQP listeners."""
    ctl.api.put_text("replication", "schema", "upstream", text=text_of(endpoints))


@command("Schema replication status ...", "schema_replication_status")
def schema_replication_status(ctl: Session) -> Report:
    """Show which side this node is on, and how the link does."""
    status = ctl.api.get("tanzu", "osr", "schema", "status")
    lines = side_lines(status)
    more = {
        "last_sync_duration": "Last sync duration (milliseconds)",
        "last_sync_request_stamp": "Last sync request (Unix time)",
        "last_connection_completion_stamp": "Last connection (Unix time)",
        "changes_applied": "Changes applied",
        "last_error": "Last error",
    }
    lines += [(title, status[field]) for field, title in more.items() if status.get(field)]
    lines += [("Conflict", each) for each in status.get("conflicts", [])]
    lines += [("Refused", each) for each in status.get("refused", [])]
    return Report(lines, status)


@command("Enabling schema replication ...", "enable_schema_replication")
def enable_schema_replication(ctl: Session) -> None:
    """Follow the upstream, or serve downstreams, again."""
    ctl.api.post("definitions", "sync", "enable")


@command("Disabling schema replication ...", "disable_schema_replication")
def disable_schema_replication(ctl: Session) -> None:
    """Neither follow nor serve, until it is enabled again."""
    ctl.api.post("definitions", "sync", "disable")


@command("Restarting schema replication ...", "restart_schema_replication")
def restart_schema_replication(ctl: Session) -> None:
    """Disable and enable: takes new endpoints and credentials."""
    ctl.api.post("replication", "schema", "restart")


@command("Setting schema replication mode to {mode} ...", "set_schema_replication_mode downstream")
def set_schema_replication_mode(ctl: Session, mode: Mode) -> None:
    """Change sides: a downstream becomes an upstream, or the other way round."""
    ctl.api.put("replication", "schema", "mode", body={"operating_mode": mode})

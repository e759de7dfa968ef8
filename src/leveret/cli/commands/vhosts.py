"""Virtual hosts."""

from __future__ import annotations

from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.values import Table

Name = Annotated[str, Argument(help="Name of the virtual host.")]
_KNOWN: Final = (
    "name",
    "tags",
    "description",
    "default_queue_type",
    "tracing",
    "cluster_state",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
)


@command('Adding vhost "{name}" ...')
def add_vhost(
    ctl: Session,
    name: Name,
    description: Annotated[str | None, Option(help="What it is for.")] = None,
    tags: Annotated[
        str | None, Option(help="Tags, separated by commas; standby_replication collects its messages.")
    ] = None,
    default_queue_type: Annotated[str | None, Option(help="Type of queues declared without one.")] = None,
) -> None:
    """Add a virtual host; one that is there gets what is named here."""
    wanted = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    body = {field: value for field, value in wanted.items() if value is not None}
    ctl.api.put("vhosts", name, body=body)


@command('Deleting vhost "{name}" ...')
def delete_vhost(ctl: Session, name: Name) -> None:
    """Delete a virtual host and all that is in it."""
    _check(ctl, name)
    ctl.api.delete("vhosts", name)


@command("Listing vhosts ...")
def list_vhosts(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"What to show: {', '.join(_KNOWN)}.")] = None,
) -> Table:
    """List virtual hosts."""
    return Table.of(chosen(columns, ("name",), _KNOWN), ctl.api.get("vhosts"))


@command('Setting tags for virtual host "{name}" to {tags} ...')
def set_vhost_tags(
    ctl: Session,
    name: Name,
    tags: Annotated[list[str] | None, Argument(help="All tags; none takes them away.")] = None,
) -> None:
    """Set the tags of a virtual host."""
    _check(ctl, name)
    ctl.api.put("vhosts", name, body={"tags": ",".join(tags or [])})


def _check(ctl: Session, name: str) -> Any:
    held = ctl.api.get_or_none("vhosts", name)
    if held is None:
        raise CtlError(exits.DATA, f"Virtual host '{name}' does not exist")
    return held

"""Virtual hosts."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError
from leveret.cli.checks import need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.completion import vhosts
from leveret.cli.output.values import MessageLine, Table

Name = Annotated[str, Argument(help="Name of the virtual host.", autocompletion=vhosts)]
Description = Annotated[str | None, Option(help="Description of the virtual host.")]
Tags = Annotated[
    str | None,
    Option(
        help="Tags, separated by commas. Messages of a virtual host with the tag standby_replication are collected for "
        "downstreams."
    ),
]
QueueType = Annotated[
    str | None, Option(help="Type of queues declared without one: classic, quorum or stream.")
]
_KNOWN: Final = (
    "name",
    "tracing",
    "cluster_state",
    "description",
    "tags",
    "default_queue_type",
    "metadata",
    "protected_from_deletion",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
)


@command(
    'Adding vhost "{name}" ...', 'add_vhost orders --description "all orders" --tags standby_replication'
)
def add_vhost(
    ctl: Session,
    name: Annotated[str, Argument(help="Name of the virtual host.")],
    description: Description = None,
    tags: Tags = None,
    default_queue_type: QueueType = None,
) -> None:
    """Add a virtual host, or update the given metadata of an existing one."""
    _put(ctl, name, description, tags, default_queue_type)


@command('Updating metadata of vhost "{name}" ...', "update_vhost_metadata orders --tags a,b")
def update_vhost_metadata(
    ctl: Session,
    name: Name,
    description: Description = None,
    tags: Tags = None,
    default_queue_type: QueueType = None,
) -> None:
    """Change the description, tags or default queue type of a virtual host. Other metadata stay."""
    if description is None and tags is None and default_queue_type is None:
        raise CtlError(exits.USAGE, "nothing to update: give --description, --tags or --default-queue-type")
    need_vhost(ctl, name)
    _put(ctl, name, description, tags, default_queue_type)


@command('Deleting vhost "{name}" ...', "delete_vhost orders")
def delete_vhost(ctl: Session, name: Name) -> None:
    """Delete a virtual host with its queues, exchanges and messages."""
    need_vhost(ctl, name)
    ctl.api.delete("vhosts", name)


@command("", "list_vhosts name tags messages")
def list_vhosts(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_KNOWN)}.")] = None,
) -> Table:
    """List virtual hosts."""
    wanted = chosen(columns, ("name",), _KNOWN)
    ctl.announce("Listing vhosts ...")
    return Table.of(wanted, ctl.api.get("vhosts"))


@command('Setting tags for virtual host "{name}" to {tags} ...', "set_vhost_tags orders standby_replication")
def set_vhost_tags(
    ctl: Session,
    name: Name,
    tags: Annotated[
        list[str] | None, Argument(help="All tags; without any, the present tags are removed.")
    ] = None,
) -> None:
    """Set the tags of a virtual host."""
    need_vhost(ctl, name)
    ctl.api.put("vhosts", name, body={"tags": ",".join(tags or [])})


@command("Trying to restart vhost '{vhost}' on node '{node}' ...", "restart_vhost -p orders")
def restart_vhost(ctl: Session) -> MessageLine:
    """Start a failed virtual host. In Leveret a virtual host runs as long as its node."""
    if ctl.api.get_or_none("vhosts", ctl.vhost) is None:
        text = f"Failed to start vhost '{ctl.vhost}' on node '{ctl.node}': there is no such vhost"
        raise CtlError(exits.SOFTWARE, text)
    return MessageLine(f"Vhost '{ctl.vhost}' is already running on node '{ctl.node}'", {"result": "ok"})


@command('Starting tracing for vhost "{vhost}" ...', "trace_on -p orders")
def trace_on(ctl: Session) -> MessageLine:
    """Copy every message of a virtual host to the exchange amq.rabbitmq.trace."""
    need_vhost(ctl)
    ctl.api.put("vhosts", ctl.vhost, body={"tracing": True})
    return MessageLine(f"Trace enabled for vhost {ctl.vhost}", {"result": "ok"})


@command('Stopping tracing for vhost "{vhost}" ...', "trace_off -p orders")
def trace_off(ctl: Session) -> MessageLine:
    """Stop copying messages to amq.rabbitmq.trace."""
    need_vhost(ctl)
    ctl.api.put("vhosts", ctl.vhost, body={"tracing": False})
    return MessageLine(f"Trace disabled for vhost {ctl.vhost}", {"result": "ok"})


def _put(
    ctl: Session, name: str, description: str | None, tags: str | None, default_queue_type: str | None
) -> None:
    wanted = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    body = {field: value for field, value in wanted.items() if value is not None}
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("vhosts", name, body=body)

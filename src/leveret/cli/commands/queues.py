"""Queues."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NotThere
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.values import Message, Table

Name = Annotated[str, Argument(help="Name of the queue.")]
_KNOWN: Final = (
    "name",
    "vhost",
    "durable",
    "auto_delete",
    "exclusive",
    "arguments",
    "type",
    "state",
    "policy",
    "effective_policy_definition",
    "consumers",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
)


@command("Listing queues for vhost {vhost} ...")
def list_queues(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"What to show: {', '.join(_KNOWN)}.")] = None,
) -> Table:
    """List the queues of a virtual host, by default with the number of their messages."""
    wanted = chosen(columns, ("name", "messages"), _KNOWN)
    return Table.of(wanted, ctl.api.get("queues", ctl.vhost))


@command("Purging queue '{name}' in vhost '{vhost}' ...")
def purge_queue(ctl: Session, name: Name) -> None:
    """Drop all messages of a queue that are ready."""
    _in_queue(ctl, name)
    ctl.api.delete("queues", ctl.vhost, name, "contents")


@command("Deleting queue '{name}' on vhost '{vhost}' ...")
def delete_queue(
    ctl: Session,
    name: Name,
    if_empty: Annotated[bool, Option("--if-empty", "-e", help="Only if it holds no message.")] = False,
    if_unused: Annotated[bool, Option("--if-unused", "-u", help="Only if it has no consumer.")] = False,
) -> Message:
    """Delete a queue."""
    ready = _in_queue(ctl, name)
    conditions = {"if-empty": if_empty, "if-unused": if_unused}
    ctl.api.delete("queues", ctl.vhost, name, **{key: "true" for key, wanted in conditions.items() if wanted})
    return Message(f"Queue was successfully deleted with {ready} ready messages", {"messages": ready})


def _in_queue(ctl: Session, name: str) -> int:
    """How many messages are ready in a queue that exists."""
    try:
        return int(ctl.api.get("queues", ctl.vhost, name)["messages_ready"])
    except NotThere as error:
        raise CtlError(exits.UNAVAILABLE, str(error)) from None

"""Queues."""

from __future__ import annotations

from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi, TimedOut
from leveret.cli.checks import listed, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.completion import queues
from leveret.cli.output.values import MessageLine, ReportLines, Table
from leveret.cli.pids import pid

Name = Annotated[str, Argument(help="Name of the queue.", autocompletion=queues)]
_KNOWN: Final = (
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_dlx",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_dlx",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "slave_pids",
    "synchronised_slave_pids",
    "mirror_pids",
    "synchronised_mirror_pids",
    "state",
    "type",
    "leader",
    "members",
    "online",
    "copies_missing",
    "on_leader_loss",
    "not_mirrored",
    "remote_dc_confirm",
    "remote_dc_confirm_unmet",
    "remote_dc_confirms_waiting",
    "remote_dc_confirmed_locally",
    "remote_dc_refused",
    "vhost",
    "node",
)
_UNRESPONSIVE: Final = ("name", "durable", "auto_delete", "arguments", "pid", "recoverable_mirrors")
_COPY: Final = ("node", "role", "state", "messages", "octets", "first_offset", "next_offset")
_DOWN: Final = ("crashed", "stopped", "down")
_DEFAULT_TIMEOUT_S: Final = 60


@command("", "list_queues -p orders name messages consumers")
def list_queues(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_KNOWN)}.")] = None,
    online: Annotated[bool, Option("--online", help="Only queues that are served.")] = False,
    offline: Annotated[bool, Option("--offline", help="Only queues that are down.")] = False,
    local: Annotated[bool, Option("--local", help="Only queues that this node leads.")] = False,
) -> Table:
    """List the queues of a virtual host, by default with the number of their messages."""
    wanted = chosen(columns, ("name", "messages"), _KNOWN)
    ctl.announce(f"Timeout: {float(ctl.timeout_s or _DEFAULT_TIMEOUT_S)} seconds ...")
    ctl.announce(f"Listing queues for vhost {ctl.vhost} ...")
    found = [_shown(each) for each in _led(ctl, local)]
    if online is not offline:
        found = [each for each in found if (each["state"] in _DOWN) is offline]
    return Table.of(wanted, found)


@command("", "list_unresponsive_queues --queue-timeout 1000")
def list_unresponsive_queues(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_UNRESPONSIVE)}.")] = None,
    local: Annotated[bool, Option("--local", help="Only queues that this node leads.")] = False,
    queue_timeout: Annotated[
        int,
        Option(
            min=1,
            max=86_400_000,
            help="Milliseconds in which a queue must answer; --timeout bounds the command.",
        ),
    ] = 15_000,
) -> Table:
    """List queues that are down or do not answer in time."""
    wanted = chosen(columns, ("name",), _UNRESPONSIVE)
    ctl.announce(f"Listing unresponsive queues for vhost {ctl.vhost} ...")
    found = []
    for each in _led(ctl, local):
        try:
            seen = ctl.api.get_with_timeout(queue_timeout / 1000, "queues", ctl.vhost, each["name"])
        except NotFoundByApi:
            continue
        except TimedOut:
            seen = {**each, "state": "crashed"}
        if seen["state"] in _DOWN:
            found.append(_shown(seen))
    return Table.of(wanted, found)


@command("Purging queue '{name}' in vhost '{vhost}' ...", "purge_queue -p orders tmp")
def purge_queue(ctl: Session, name: Name) -> None:
    """Drop all ready messages of a queue."""
    _queue(ctl, name, exits.UNAVAILABLE)
    with refused_as(exits.UNAVAILABLE):
        ctl.api.delete("queues", ctl.vhost, name, "contents")


@command("", "delete_queue -p orders tmp --if-unused")
def delete_queue(
    ctl: Session,
    name: Name,
    if_empty: Annotated[
        bool, Option("--if-empty", "-e", help="Delete the queue only if it holds no message.")
    ] = False,
    if_unused: Annotated[
        bool, Option("--if-unused", "-u", help="Delete the queue only if it has no consumer.")
    ] = False,
) -> MessageLine:
    """Delete a queue."""
    conditions = {"if queue is empty": if_empty, "if queue is unused": if_unused}
    shown = " and ".join(text for text, wanted in conditions.items() if wanted)
    ctl.announce(f"Deleting queue '{name}' on vhost '{ctl.vhost}' {shown + ' ' if shown else ''}...")
    ready = _queue(ctl, name, exits.USAGE)["messages_ready"]
    query = {"if-empty": if_empty, "if-unused": if_unused}
    with refused_as(exits.USAGE):
        ctl.api.delete("queues", ctl.vhost, name, **{key: "true" for key, wanted in query.items() if wanted})
    return MessageLine(f"Queue was successfully deleted with {ready} ready messages", {"messages": ready})


@command("", "restart_queue -p orders paid --dry-run")
def restart_queue(
    ctl: Session,
    name: Name,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only show the remaining log of the queue at each node.")
    ] = False,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Give up the messages: without this a restart is refused.")
    ] = False,
) -> ReportLines:
    """Let a crashed queue begin anew, empty, with its name, arguments and bindings.

    First try the ways that lose no message: restore the log's directory, start nodes that have a mirror, or run scrub
    beside a follower. Each running node of the cluster quarantines the readable messages of the log, and
    list_divergent_messages shows them. A follower, or a stopped node of the cluster, deletes its copy.
    """
    ctl.announce(f"{'Looking at' if dry_run else 'Restarting'} queue '{name}' in vhost '{ctl.vhost}' ...")
    where, consent = ("queues", ctl.vhost, name, "restart"), "true" if yes else "false"
    with refused_as(exits.UNAVAILABLE):
        lost = (
            ctl.api.get_without_timeout(*where)
            if dry_run
            else ctl.api.put_without_timeout(*where, give_up=consent)
        )
    return ReportLines(
        [("Damage", lost["damage"]), ("Would give up" if dry_run else "Gave up", _given_up(lost["copies"]))],
        lost,
        Table.of(_COPY, lost["copies"], unknown="?"),
    )


def _given_up(copies: list[dict[str, Any]]) -> str:
    """The number of messages in the longest copy: copies are of one queue."""
    most = max((each["messages"] or 0 for each in copies), default=0)
    unknown = [each["node"] for each in copies if each["messages"] is None]
    return f"{most} messages that can be read" + (f"; not counted: {', '.join(unknown)}" if unknown else "")


def _led(ctl: Session, local: bool) -> list[dict[str, Any]]:
    """The queues of the virtual host: those that the node leads, or all."""
    return [each for each in listed(ctl, "queues") if not local or each["node"] == ctl.node]


def _queue(ctl: Session, name: str, status: int) -> dict[str, Any]:
    """An existing queue."""
    found: dict[str, Any] | None = ctl.api.get_or_none("queues", ctl.vhost, name)
    if found is None:
        raise CtlError(status, f"no queue '{name}' in vhost '{ctl.vhost}'")
    return found


def _shown(queue: dict[str, Any]) -> dict[str, Any]:
    """A queue of the API with columns that only rabbitmqctl has."""
    owner = queue.get("owner_pid_details") or {}
    tag = queue.get("single_active_consumer_tag") or queue.get("exclusive_consumer_tag")
    name = f"{queue['vhost']}/{queue['name']}"
    mirrors, synchronised = (
        None if nodes is None else [pid(node, name) for node in nodes]
        for nodes in (queue.get("slave_nodes"), queue.get("synchronised_slave_nodes"))
    )
    return {
        **queue,
        "pid": pid(queue["node"], name),
        "slave_pids": mirrors,
        "mirror_pids": mirrors,
        "synchronised_slave_pids": synchronised,
        "synchronised_mirror_pids": synchronised,
        "owner_pid": pid(queue["node"], owner["name"]) if owner.get("name") else "",
        "exclusive_consumer_tag": tag,
        "effective_policy_definition": queue.get("effective_policy_definition") or {},
    }

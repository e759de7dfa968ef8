"""Connected clients."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, NotFoundByApi
from leveret.cli.checks import listed
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.completion import users
from leveret.cli.output.values import MessageLine, Table
from leveret.cli.pids import pid

Reason = Annotated[str, Argument(help="The reason that the clients receive.", metavar="EXPLANATION")]
Limit = Annotated[int, Option(min=0, help="Maximum number of connections to close; 0 for all.")]
Delay = Annotated[
    int,
    Option("--per-connection-delay", min=0, max=86_400_000, help="Milliseconds from one to the next."),
]
_CONNECTION: Final = (
    "pid",
    "name",
    "port",
    "host",
    "peer_port",
    "peer_host",
    "ssl",
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
    "state",
    "channels",
    "protocol",
    "auth_mechanism",
    "user",
    "vhost",
    "timeout",
    "frame_max",
    "channel_max",
    "client_properties",
    "connected_at",
    "recv_oct",
    "recv_cnt",
    "send_oct",
    "send_cnt",
    "send_pend",
    "proxied_by",
)
_CHANNEL: Final = (
    "pid",
    "connection",
    "name",
    "number",
    "user",
    "vhost",
    "transactional",
    "confirm",
    "consumer_count",
    "messages_unacknowledged",
    "messages_uncommitted",
    "acks_uncommitted",
    "messages_unconfirmed",
    "prefetch_count",
    "global_prefetch_count",
    "state",
)
_CONSUMER: Final = (
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "activity_status",
    "arguments",
)
_ATTEMPTS: Final = ("protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded")


@command("", "list_connections user peer_host vhost channels")
def list_connections(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_CONNECTION)}.")] = None,
) -> Table:
    """List the open connections."""
    wanted = chosen(columns, ("user", "peer_host", "peer_port", "state"), _CONNECTION)
    ctl.announce("Listing connections ...")
    items = [{**each, "pid": pid(each["node"], each["name"])} for each in ctl.api.get("connections")]
    return Table.of(wanted, items)


@command("", "list_channels name user messages_unacknowledged")
def list_channels(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_CHANNEL)}.")] = None,
) -> Table:
    """List the open channels."""
    wanted = chosen(columns, ("pid", "user", "consumer_count", "messages_unacknowledged"), _CHANNEL)
    ctl.announce("Listing channels ...")
    items = [
        {
            **each,
            "pid": pid(each["node"], each["name"]),
            "connection": pid(each["node"], each["connection_details"]["name"]),
        }
        for each in ctl.api.get("channels")
    ]
    return Table.of(wanted, items)


@command("", "list_consumers -p orders")
def list_consumers(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_CONSUMER)}.")] = None,
) -> Table:
    """List the consumers of a virtual host."""
    default = [name for name in _CONSUMER if name != "activity_status"]
    wanted = chosen(columns, default, _CONSUMER)
    ctl.announce(f"Listing consumers in vhost {ctl.vhost} ...")
    items = []
    for each in listed(ctl, "consumers"):
        channel = each["channel_details"]
        where = pid(channel["node"], channel["name"])
        items.append({**each, "queue_name": each["queue"]["name"], "channel_pid": where})
    return Table.of(wanted, items)


@command('Listing authentication attempts for node "{node}" ...', "list_node_auth_attempt_stats")
def list_node_auth_attempt_stats(
    ctl: Session,
    by_source: Annotated[
        bool, Option("--by-source", help="By address and user: empty, because nodes count by protocol.")
    ] = False,
) -> Table:
    """List the numbers of login attempts for each protocol."""
    if by_source:
        columns = ("remote_address", "username", *_ATTEMPTS)
        return Table.of(columns, ctl.api.get("auth", "attempts", ctl.node, "source"))
    return Table.of(_ATTEMPTS, ctl.api.get("auth", "attempts", ctl.node))


@command('Resetting authentication attempt metrics on node "{node}" ...', "reset_node_auth_attempt_metrics")
def reset_node_auth_attempt_metrics(ctl: Session) -> None:
    """Reset the numbers of login attempts."""
    ctl.api.delete("auth", "attempts", ctl.node)


@command("Closing connection {connection}, reason: {explanation}...", "close_connection '<pid>' maintenance")
def close_connection(
    ctl: Session,
    connection: Annotated[
        str, Argument(help="Pid or name of the connection, as list_connections shows them.")
    ],
    explanation: Reason,
) -> None:
    """Close a connection, with a reason for its client."""
    for each in ctl.api.get("connections"):
        if connection in (each["name"], pid(each["node"], each["name"])):
            _close(ctl, [each], explanation)
            return
    raise CtlError(exits.UNAVAILABLE, f"there is no connection {connection}")


@command("", "close_all_connections --vhost orders --limit 10 maintenance")
def close_all_connections(
    ctl: Session,
    explanation: Reason,
    everywhere: Annotated[bool, Option("--global", help="In all virtual hosts.")] = False,
    limit: Limit = 0,
    delay_ms: Delay = 0,
) -> MessageLine:
    """Close all connections, of the virtual host of -p or of all."""
    if not ctl.vhost_given and not everywhere:
        raise CtlError(exits.USAGE, "name a virtual host with --vhost, or all of them with --global")
    place = "" if everywhere else f" in vhost {ctl.vhost}"
    ctl.announce(f"Closing all connections{place}, reason: {explanation}...")
    found = [each for each in ctl.api.get("connections") if everywhere or each["vhost"] == ctl.vhost]
    closed = _close(ctl, found[: limit or None], explanation, delay_ms)
    return MessageLine(f"Closed {closed} connections", {"result": "ok", "closed": closed})


@command(
    "Closing connections of user {username}, reason: {explanation}...",
    "close_all_user_connections alice maintenance",
)
def close_all_user_connections(
    ctl: Session,
    username: Annotated[str, Argument(help="Name of the user.", autocompletion=users)],
    explanation: Reason,
    limit: Limit = 0,
    delay_ms: Delay = 0,
) -> None:
    """Close all connections of a user."""
    found = [each for each in ctl.api.get("connections") if each["user"] == username]
    _close(ctl, found[: limit or None], explanation, delay_ms)


def _close(ctl: Session, found: Iterable[dict[str, Any]], explanation: str, delay_ms: int = 0) -> int:
    """Close connections one after another; return the number of those that still existed."""
    closed = 0
    for each in found:
        if closed and delay_ms:
            time.sleep(delay_ms / 1000)
        try:
            ctl.api.delete_with_reason(explanation, "connections", each["name"])
        except NotFoundByApi:
            continue
        closed += 1
    return closed

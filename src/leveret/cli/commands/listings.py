"""What there is, and who is connected."""

from __future__ import annotations

from typing import Annotated, Final

from typer import Argument

from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.values import Table

Columns = Annotated[list[str] | None, Argument(help="What to show.")]
_EXCHANGE: Final = ("name", "type", "durable", "auto_delete", "internal", "arguments")
_CONNECTION: Final = (
    "user",
    "peer_host",
    "peer_port",
    "state",
    "name",
    "host",
    "port",
    "vhost",
    "protocol",
    "channels",
    "channel_max",
    "frame_max",
    "timeout",
    "connected_at",
    "client_properties",
    "recv_oct",
    "send_oct",
    "ssl",
)
_CHANNEL: Final = (
    "name",
    "user",
    "consumer_count",
    "messages_unacknowledged",
    "number",
    "vhost",
    "state",
    "confirm",
    "transactional",
    "prefetch_count",
    "global_prefetch_count",
)
_BINDING: Final = (
    "source_name",
    "source_kind",
    "destination_name",
    "destination_kind",
    "routing_key",
    "arguments",
)


@command("Listing exchanges for vhost {vhost} ...")
def list_exchanges(ctl: Session, columns: Columns = None) -> Table:
    """List the exchanges of a virtual host."""
    return Table.of(chosen(columns, _EXCHANGE[:2], _EXCHANGE), ctl.api.get("exchanges", ctl.vhost))


@command("Listing bindings for vhost {vhost}...")
def list_bindings(ctl: Session, columns: Columns = None) -> Table:
    """List the bindings of a virtual host."""
    items = [
        {
            "source_name": each["source"],
            "source_kind": "exchange",
            "destination_name": each["destination"],
            "destination_kind": each["destination_type"],
            "routing_key": each["routing_key"],
            "arguments": each["arguments"],
        }
        for each in ctl.api.get("bindings", ctl.vhost)
    ]
    return Table.of(chosen(columns, _BINDING, _BINDING), items)


@command("Listing connections ...")
def list_connections(ctl: Session, columns: Columns = None) -> Table:
    """List the open connections."""
    return Table.of(chosen(columns, _CONNECTION[:4], _CONNECTION), ctl.api.get("connections"))


@command("Listing channels ...")
def list_channels(ctl: Session, columns: Columns = None) -> Table:
    """List the open channels."""
    return Table.of(chosen(columns, _CHANNEL[:4], _CHANNEL), ctl.api.get("channels"))


@command("Listing consumers in vhost {vhost} ...")
def list_consumers(ctl: Session) -> Table:
    """List the consumers of a virtual host."""
    names = (
        "queue_name",
        "channel_pid",
        "consumer_tag",
        "ack_required",
        "prefetch_count",
        "active",
        "arguments",
    )
    items = [
        {**each, "queue_name": each["queue"]["name"], "channel_pid": each["channel_details"]["name"]}
        for each in ctl.api.get("consumers", ctl.vhost)
    ]
    return Table.of(names, items)

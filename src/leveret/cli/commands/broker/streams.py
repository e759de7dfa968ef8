"""Streams, super streams, and clients of the stream protocol."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from typer import Argument, Option

from leveret.cli import exits
from leveret.cli.api import CtlError, EditConflict, NotFoundByApi
from leveret.cli.checks import listed, need_vhost, refused_as
from leveret.cli.command import Session, command
from leveret.cli.commands.columns import chosen
from leveret.cli.completion import queues
from leveret.cli.output.values import MessageLine, Table
from leveret.core.rules.super_streams import PARTITION_ORDER, SUPER_STREAM, is_super_stream
from leveret.model.locators import BALANCED

Stream = Annotated[str, Argument(help="Name of the stream.", autocompletion=queues)]
SuperStream = Annotated[str, Argument(help="Name of the super stream.", metavar="SUPER_STREAM")]
Node = Annotated[str, Argument(help="Name of the node.")]
_A: Final = {"exchange": "an exchange", "queue": "a queue"}
_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?"
)
_DIGITS_MAX: Final = 20
_PARTITIONS: Final = 3
_UNITS: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS_S: Final = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)
_CONNECTION: Final = (
    "conn_name",
    "port",
    "peer_port",
    "host",
    "peer_host",
    "user",
    "vhost",
    "subscriptions",
    "ssl",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "auth_mechanism",
    "heartbeat",
    "frame_max",
    "client_properties",
    "connected_at",
    "node",
    "protocol",
    "state",
)
_CONSUMER: Final = (
    "connection",
    "connection_pid",
    "node",
    "subscription_id",
    "stream",
    "messages_consumed",
    "offset",
    "offset_lag",
    "credits",
    "active",
    "activity_status",
    "properties",
)
_PUBLISHER: Final = (
    "connection",
    "connection_pid",
    "node",
    "publisher_id",
    "reference",
    "stream",
    "messages_published",
    "messages_confirmed",
    "messages_errored",
)
_STATUS: Final = (
    "role",
    "node",
    "state",
    "epoch",
    "offset",
    "committed_offset",
    "first_offset",
    "readers",
    "segments",
    "copies_missing",
)

_TRACKING: Final = ("type", "reference", "value")


@command("", "list_stream_connections conn_name user")
def list_stream_connections(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_CONNECTION)}.")] = None,
) -> Table:
    """List stream connections."""
    wanted = chosen(columns, ("conn_name",), _CONNECTION)
    ctl.announce("Listing stream connections ...")
    found = ctl.api.get("stream", "connections")
    return Table.of(wanted, [{**each, "conn_name": each["name"]} for each in found])


@command("", "list_stream_consumers -p orders stream offset")
def list_stream_consumers(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_CONSUMER)}.")] = None,
) -> Table:
    """List the stream consumers of a virtual host."""
    default = (
        "connection",
        "subscription_id",
        "stream",
        "messages_consumed",
        "offset",
        "offset_lag",
        "credits",
    )
    wanted = chosen(columns, (*default, "active", "activity_status", "properties"), _CONSUMER)
    ctl.announce("Listing stream consumers ...")
    return Table.of(wanted, map(_placed, listed(ctl, "stream", "consumers")))


@command("", "list_stream_publishers -p orders stream reference")
def list_stream_publishers(
    ctl: Session,
    columns: Annotated[list[str] | None, Argument(help=f"Columns: {', '.join(_PUBLISHER)}.")] = None,
) -> Table:
    """List the stream publishers of a virtual host."""
    wanted = chosen(
        columns, tuple(name for name in _PUBLISHER if name not in ("connection_pid", "node")), _PUBLISHER
    )
    ctl.announce("Listing stream publishers ...")
    return Table.of(wanted, map(_placed, listed(ctl, "stream", "publishers")))


@command("", "stream_status -p orders events --tracking")
def stream_status(
    ctl: Session,
    name: Stream,
    tracking: Annotated[
        bool, Option("--tracking", help="Show publishers' last ids and readers' stored offsets.")
    ] = False,
) -> Table:
    """Show the replicas of a stream and their offsets."""
    stream = _stream(ctl, name)
    if tracking:
        ctl.announce(f"Tracking status of stream {name} on node {stream['node']} ...")
        return Table.of(_TRACKING, ctl.api.get("queues", ctl.vhost, name, "tracking"))
    ctl.announce(f"Status of stream {name} on node {stream['node']} ...")
    missing = stream.get("copies_missing", 0)
    rows = ctl.api.get("queues", ctl.vhost, name, "replicas")
    return Table.of(_STATUS, [{**row, "copies_missing": missing} for row in rows])


@command("Adding a replica for queue {name} on node {node} ...", "add_replica -p orders events rabbit@c")
def add_replica(ctl: Session, name: Stream, node: Node) -> None:
    """Have a node keep a copy of a stream."""
    with refused_as(exits.UNAVAILABLE):
        ctl.api.post("queues", ctl.vhost, name, "replicas", "add", body={"node": node})


@command("Removing a replica of queue {name} on node {node} ...", "delete_replica -p orders events rabbit@c")
def delete_replica(ctl: Session, name: Stream, node: Node) -> None:
    """Have a node keep no copy of a stream."""
    with refused_as(exits.UNAVAILABLE):
        ctl.api.delete("queues", ctl.vhost, name, "replicas", "delete", node)


@command("Restarting stream {name} ...", "restart_stream -p orders events --preferred-leader-node rabbit@b")
def restart_stream(
    ctl: Session,
    name: Stream,
    preferred_leader_node: Annotated[
        str, Option(help="Node that is to lead the stream; by default another one that leads few.")
    ] = "",
) -> MessageLine:
    """Have another replica lead a stream; its clients are notified, and reconnect."""
    with refused_as(exits.UNAVAILABLE):
        found = ctl.api.post(
            *("queues", ctl.vhost, name, "replicas", "restart"),
            body={"preferred_leader_node": preferred_leader_node or None},
        )
    return MessageLine(f"Stream {name} is led by {found['leader']}", {"leader": found["leader"]})


@command(
    "Setting retention policy of stream {name} to {retention} ...",
    "set_stream_retention_policy -p orders events 1D",
)
def set_stream_retention_policy(
    ctl: Session,
    name: Stream,
    retention: Annotated[str, Argument(help="Greatest age, as 7D, 12h or 30m.")],
) -> None:
    """Set the retention of a stream, by a policy for that stream alone."""
    _stream(ctl, name)
    escaped = "".join(
        character if character.isalnum() or character in "_-" else f"\\{character}" for character in name
    )
    body = {
        "pattern": f"^{escaped}$",
        "definition": {"max-age": retention},
        "priority": 0,
        "apply-to": "queues",
    }
    with refused_as(exits.UNAVAILABLE):
        ctl.api.put("policies", ctl.vhost, f"{name}-retention", body=body)


@command("Adding a super stream ...", "add_super_stream -p orders invoices --partitions 3")
def add_super_stream(
    ctl: Session,
    name: SuperStream,
    partitions: Annotated[
        int | None, Option(min=1, max=1000, help="Number of streams, for routing by hash; 3 by default.")
    ] = None,
    binding_keys: Annotated[
        str,
        Option("--binding-keys", "--routing-keys", help="Routing keys of the streams, separated by commas."),
    ] = "",
    max_length_bytes: Annotated[str | None, Option(help="Size of each stream, as 20gb.")] = None,
    max_age: Annotated[
        str | None, Option(help="Greatest age of messages, as 7D, or as P7DT12H (ISO 8601).")
    ] = None,
    segment_bytes: Annotated[
        str | None, Option("--stream-max-segment-size-bytes", help="Size of a segment, as 500mb.")
    ] = None,
    leader_locator: Annotated[
        str | None,
        Option(
            help="Leaders of the streams: client-local, balanced, random or least-leaders. "
            "In a cluster balanced by default."
        ),
    ] = None,
    initial_cluster_size: Annotated[
        int | None, Option(min=1, help="Number of nodes that have a copy of each stream.")
    ] = None,
) -> MessageLine:
    """Declare an exchange and its streams, one for each partition or key."""
    need_vhost(ctl)
    if ctl.api.get_or_none("exchanges", ctl.vhost, name) is not None:
        raise CtlError(exits.SOFTWARE, f"there is already {_A['exchange']} named {name}")
    keys = [key for key in binding_keys.split(",") if key]
    if keys and partitions is not None:
        raise CtlError(exits.USAGE, "give --partitions or --binding-keys, not both: each key has a stream")
    keys = keys or [str(number) for number in range(partitions or _PARTITIONS)]
    if leader_locator is None and len(ctl.api.get("nodes")) > 1:
        # As by the stream protocol: partitions are there to spread the work over the nodes.
        leader_locator = BALANCED
    wanted: dict[str, Any] = {
        "x-queue-type": "stream",
        "x-max-length-bytes": _bytes(max_length_bytes),
        "x-stream-max-segment-size-bytes": _bytes(segment_bytes),
        "x-max-age": max_age and _age(max_age),
        "x-queue-leader-locator": leader_locator,
        "x-initial-cluster-size": initial_cluster_size,
    }
    arguments = {key: value for key, value in wanted.items() if value is not None}
    there = [key for key in keys if ctl.api.get_or_none("queues", ctl.vhost, f"{name}-{key}") is not None]
    if there:
        raise CtlError(exits.SOFTWARE, f"there is already {_A['queue']} named {name}-{there[0]}")
    made: list[tuple[str, ...]] = []
    try:
        with refused_as(exits.SOFTWARE):
            _make(ctl, name, keys, arguments, made)
    except CtlError:
        # All or nothing, as in RabbitMQ; what somebody else made meanwhile stays.
        _remove(ctl, made)
        raise
    return MessageLine(f"Super stream {name} has been created", {"result": "ok"})


@command("Deleting a super stream ...", "delete_super_stream -p orders invoices")
def delete_super_stream(ctl: Session, name: SuperStream) -> MessageLine:
    """Delete a super stream: its exchange, its streams and their messages."""
    need_vhost(ctl)
    exchange = ctl.api.get_or_none("exchanges", ctl.vhost, name)
    if exchange is None:
        raise CtlError(exits.SOFTWARE, f"stream_not_found: there is no exchange {name}")
    bindings = ctl.api.get("exchanges", ctl.vhost, name, "bindings", "source")
    ends = {(each["destination_type"], each["destination"]) for each in bindings}
    streams = {each for kind, each in ends if kind == "queue" and _is_stream(ctl, each)}
    if not is_super_stream(exchange["arguments"], ends, streams):
        raise CtlError(exits.SOFTWARE, f"stream_not_found: the exchange {name} is no super stream")
    _remove(ctl, [("exchanges", ctl.vhost, name), *(("queues", ctl.vhost, each) for each in sorted(streams))])
    return MessageLine(f"Super stream {name} has been deleted", {"result": "ok"})


def _make(
    ctl: Session, name: str, keys: list[str], arguments: dict[str, Any], made: list[tuple[str, ...]]
) -> None:
    """Make a super stream; `made` gets the path of each object that was not there before, and may be now."""

    def make(kind: str, new: str, body: dict[str, Any]) -> None:
        made.append((f"{kind}s", ctl.vhost, new))
        try:
            ctl.api.put(*made[-1], body=body, is_new=True)
        except EditConflict:
            made.pop()
            raise CtlError(exits.SOFTWARE, f"there is already {_A[kind]} named {new}") from None

    make("exchange", name, {"type": "direct", "durable": True, "arguments": {SUPER_STREAM: True}})
    for order, key in enumerate(keys):
        stream = f"{name}-{key}"
        make("queue", stream, {"durable": True, "arguments": arguments})
        binding = {"routing_key": key, "arguments": {PARTITION_ORDER: order}}
        ctl.api.post("bindings", ctl.vhost, "e", name, "q", stream, body=binding)


def _remove(ctl: Session, paths: list[tuple[str, ...]]) -> None:
    for path in paths:
        try:
            ctl.api.delete(*path)
        except NotFoundByApi:
            continue


def _age(text: str) -> str:
    """An age as streams write it; a duration of ISO 8601 becomes seconds (a year has 365 days, a month 30)."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return text
    return f"{sum(int(count or 0) * each for count, each in zip(found.groups(), _UNITS_S, strict=True))}s"


def _is_stream(ctl: Session, name: str) -> bool:
    """Whether there is a queue of this name, and it is a stream."""
    return (ctl.api.get_or_none("queues", ctl.vhost, name) or {}).get("type") == "stream"


def _stream(ctl: Session, name: str) -> dict[str, Any]:
    """An existing stream."""
    found: dict[str, Any] | None = ctl.api.get_or_none("queues", ctl.vhost, name)
    if found is None:
        raise CtlError(exits.UNAVAILABLE, f"no stream '{name}' in vhost '{ctl.vhost}'")
    if found.get("type") != "stream":
        raise CtlError(exits.UNAVAILABLE, f"'{name}' in vhost '{ctl.vhost}' is no stream")
    return found


def _placed(client: dict[str, Any]) -> dict[str, Any]:
    """A consumer or publisher of the API, with its stream and connection by name."""
    details = client.get("connection_details") or {}
    queue = client.get("queue") or {}
    return {
        **client,
        "stream": queue.get("name"),
        "connection": details.get("name"),
        "connection_pid": details.get("name"),
        "node": details.get("node"),
        "messages_consumed": client.get("consumed"),
        "messages_published": client.get("published"),
        "messages_confirmed": client.get("confirmed"),
        "messages_errored": client.get("errored"),
    }


def _bytes(text: str | None) -> int | None:
    """A size in RabbitMQ's form for streams."""
    if text is None:
        return None
    number, unit = text[:-2], text[-2:].lower()
    if len(text) <= _DIGITS_MAX and text.isdecimal():
        return int(text)
    if len(text) <= _DIGITS_MAX and unit in _UNITS and number.isdecimal():
        return int(number) * _UNITS[unit]
    raise CtlError(exits.USAGE, f"'{text}' is not a size: expected a number with kb, mb, gb or tb")

"""`/api/connections`: the open connections over AMQP 0-9-1, AMQP 1.0 and the stream protocol."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from starlette.responses import Response

from leveret.management.peers import AnyPeer, amqp_connections, other_connections
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_list, whole_rows
from leveret.management.request.other_nodes import parts
from leveret.management.request.paged_lists import Listing
from leveret.management.request.places import at_holder
from leveret.management.request.replies import done
from leveret.management.resources.channels import shown_channel
from leveret.management.views.peer_view import amqp_connection_json, ends, other_connection_json
from leveret.model.errors import NotFound
from leveret.session.amqp091.connection import ClientConnection

P = TypeVar("P", bound=AnyPeer)
_REASON: Final = "Closed via management plugin"


async def show_all(call: Call) -> Response:
    """The connections that the caller may see: all, or its own."""
    return await _list(call, visible(call))


async def show_vhost(call: Call) -> Response:
    """The connections to one vhost."""
    vhost = call.vhost()
    return await _list(call, [each for each in visible(call) if each.vhost == vhost])


async def show(call: Call) -> Response:
    """One connection."""
    return call.show(connection_json(call, _existing(call)))


async def close(call: Call) -> Response:
    """End a connection; the client gets `x-reason`."""
    existing = _existing(call)
    call.caller.require_own(existing.user)
    _close(existing, reason_given(call))
    await call.node.messages_durable()
    return done()


async def show_channels(call: Call) -> Response:
    """The channels of one connection; those of other protocols have none."""
    existing = _existing(call)
    own = list(existing.channels.values()) if isinstance(existing, ClientConnection) else []
    listing = Listing(own, lambda each: shown_channel(call, each), order=lambda each: each.number)
    return await call.list(listing)


async def show_of_user(call: Call) -> Response:
    """A user's connections, in short."""
    rows = [
        {
            "name": name_of(each),
            "vhost": each.vhost,
            "user": each.user,
            "node": call.node.config.node_name,
        }
        for each in _of_user(call)
    ]
    return await whole_rows(call, rows, "name")


async def close_of_user(call: Call) -> Response:
    """End all connections of a user, on all nodes."""
    call.caller.require_own(call.path("user"))
    await parts(call, method="DELETE")
    for each in _of_user(call):
        _close(each, reason_given(call))
    await call.node.messages_durable()
    return done()


def visible(call: Call) -> list[AnyPeer]:
    """The connections of the caller, or all for monitors."""
    found: list[AnyPeer] = [*amqp_connections(call.node), *other_connections(call.node)]
    return visible_of(call, found)


def visible_of(call: Call, found: list[P]) -> list[P]:
    """The same, of these connections."""
    return call.caller.watched(found, lambda each: each.user)


def connection_json(call: Call, connection: AnyPeer) -> dict[str, Any]:
    """A connection of any protocol."""
    if isinstance(connection, ClientConnection):
        shown = amqp_connection_json(call.node, connection)
    else:
        shown = other_connection_json(call.node, connection)
    return {**shown, **call.rates.connection(connection, call.ranges())}


def name_of(connection: AnyPeer) -> str:
    """`PEER:PORT -> OWN:PORT`."""
    return connection.peer if isinstance(connection, ClientConnection) else connection.name


def _is_here(call: Call) -> bool:
    return any(name_of(each) == call.path("name") for each in visible(call))


_elsewhere: Final = at_holder("/api/connections/{name}", _is_here)


def _existing(call: Call) -> AnyPeer:
    name = call.path("name")
    for each in visible(call):
        if name_of(each) == name:
            return each
    raise NotFound(f"connection '{name}' does not exist")


def _of_user(call: Call) -> list[AnyPeer]:
    user = call.path("user")
    return [each for each in visible(call) if each.user == user]


def reason_given(call: Call) -> str:
    """The reason for the end of a connection; UTF-8 in the header's octets, as RabbitMQ takes it."""
    given = call.request.headers.get("x-reason")
    return _REASON if given is None else given.encode("latin-1").decode(errors="replace")


def _close(connection: AnyPeer, reason: str) -> None:
    if isinstance(connection, ClientConnection):
        connection.force_close(reason)
    else:
        connection.cut(reason)


async def _list(call: Call, found: list[AnyPeer]) -> Response:
    listing = Listing(
        found,
        lambda each: connection_json(call, each),
        order=name_of,
        name=lambda each: ends(name_of(each))["name"],
    )
    return await whole_list(call, listing, in_pages=True)


ROUTES = [
    resource("/api/connections", GET=show_all),
    resource("/api/connections/username/{user}", defines=False, GET=show_of_user, DELETE=close_of_user),
    resource("/api/connections/{name}", defines=False, place=_elsewhere, GET=show, DELETE=close),
    resource("/api/connections/{name}/channels", place=_elsewhere, GET=show_channels),
    resource("/api/vhosts/{vhost}/connections", GET=show_vhost),
]

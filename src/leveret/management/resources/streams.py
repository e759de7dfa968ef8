"""`/api/stream`: connections, publishers and consumers of the stream protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from leveret.management.node import ManagedNode
from leveret.management.peers import stream_connections
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_list, whole_rows
from leveret.management.request.paged_lists import Listing, Row
from leveret.management.request.places import at_holder
from leveret.management.request.replies import done
from leveret.management.resources.connections import connection_json, name_of, reason_given, visible_of
from leveret.management.views.peer_view import publisher_json, subscription_json
from leveret.model.errors import NotFound
from leveret.runtime.clients.stream_peer import StreamPeer


async def show_connections(call: Call) -> Response:
    """The stream connections that the caller may see: all, or its own."""
    return await _list(call, _visible(call))


async def show_connections_of_vhost(call: Call) -> Response:
    """The stream connections to one vhost."""
    vhost = call.vhost()
    return await _list(call, [each for each in _visible(call) if each.vhost == vhost])


async def show_connection(call: Call) -> Response:
    """One stream connection."""
    return call.show(connection_json(call, _existing(call)))


async def close(call: Call) -> Response:
    """End a stream connection; `x-reason` goes into the log."""
    existing = _existing(call)
    call.caller.require_own(existing.user)
    existing.cut(reason_given(call))
    await call.node.messages_durable()
    return done()


async def show_publishers(call: Call) -> Response:
    """The publishers of the stream protocol; in one vhost, to one stream."""
    return await _attached(call, "publishers", "queue", publisher_json)


async def show_consumers(call: Call) -> Response:
    """The consumers of the stream protocol; in one vhost."""
    return await _attached(call, "subscriptions", "stream", subscription_json)


async def show_publishers_of(call: Call) -> Response:
    """One connection's publishers."""
    existing = _existing(call)
    return await call.plain_list([publisher_json(call.node, existing, each) for each in existing.publishers])


async def show_consumers_of(call: Call) -> Response:
    """One connection's consumers."""
    existing = _existing(call)
    return await call.plain_list(
        [subscription_json(call.node, existing, each) for each in existing.subscriptions]
    )


async def _attached(
    call: Call, what: str, to: str, shown: Callable[[ManagedNode, StreamPeer, int], Row]
) -> Response:
    """Publishers or consumers, of the path's vhost and stream, if it has any."""
    parts = call.request.path_params
    vhosts = {call.vhost()} if "vhost" in parts else set(call.seen_vhosts())
    stream = call.path("stream") if "stream" in parts else None
    rows = [
        shown(call.node, connection, number)
        for connection in _visible(call)
        if connection.vhost in vhosts
        for number, existing in getattr(connection, what).items()
        if stream in (None, getattr(existing, to))
    ]
    return await whole_rows(call, rows)


def _visible(call: Call) -> list[StreamPeer]:
    return visible_of(call, stream_connections(call.node))


def _is_here(call: Call) -> bool:
    return any(name_of(each) == call.path("name") for each in _visible(call))


_elsewhere: Final = at_holder("/api/stream/connections/{vhost}/{name}", _is_here)


def _existing(call: Call) -> StreamPeer:
    vhost, name = call.vhost(), call.path("name")
    for each in _visible(call):
        if each.vhost == vhost and name_of(each) == name:
            return each
    raise NotFound(f"stream connection '{name}' does not exist in vhost '{vhost}'")


async def _list(call: Call, found: list[StreamPeer]) -> Response:
    listing = Listing(found, lambda each: connection_json(call, each), order=name_of, name=name_of)
    return await whole_list(call, listing, in_pages=True)


ROUTES = [
    resource("/api/stream/connections", GET=show_connections),
    resource("/api/stream/connections/{vhost}", GET=show_connections_of_vhost),
    resource(
        "/api/stream/connections/{vhost}/{name}",
        defines=False,
        place=_elsewhere,
        GET=show_connection,
        DELETE=close,
    ),
    resource("/api/stream/connections/{vhost}/{name}/publishers", place=_elsewhere, GET=show_publishers_of),
    resource("/api/stream/connections/{vhost}/{name}/consumers", place=_elsewhere, GET=show_consumers_of),
    resource("/api/stream/publishers", GET=show_publishers),
    resource("/api/stream/publishers/{vhost}", GET=show_publishers),
    resource("/api/stream/publishers/{vhost}/{stream}", GET=show_publishers),
    resource("/api/stream/consumers", GET=show_consumers),
    resource("/api/stream/consumers/{vhost}", GET=show_consumers),
]

"""`/api/connections`: who is connected, over AMQP 0-9-1 and the stream protocol."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.consumer_view import amqp_connections, channels_of, connections_of
from leveret.management.replies import done, json_reply, list_reply
from leveret.model.errors import NotFound


async def show_all(call: Call) -> Response:
    """The connections the caller may see: all, or its own."""
    return list_reply(visible(call, connections_of(call.node)), call.request.query_params)


async def show_vhost(call: Call) -> Response:
    """The connections to one vhost."""
    vhost = call.vhost()
    found = [each for each in connections_of(call.node) if each["vhost"] == vhost]
    return list_reply(visible(call, found), call.request.query_params)


async def show(call: Call) -> Response:
    """One connection."""
    return json_reply(_held(call))


async def close(call: Call) -> Response:
    """End a connection; `x-reason` is told to the client."""
    name = _held(call)["name"]
    reason = call.request.headers.get("x-reason", "Closed via management plugin")
    for each in amqp_connections(call.node):
        if each.peer == name:
            each.force_close(reason)
    for stream in call.node.streams.connections:
        if stream.name == name:
            stream.close(reason)
    await call.node.commit()
    return done()


async def show_channels(call: Call) -> Response:
    """The channels of one connection."""
    name = _held(call)["name"]
    return json_reply([each for each in channels_of(call.node) if each["connection_details"]["name"] == name])


def visible(call: Call, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What belongs to the caller, or all for those who monitor."""
    if call.caller.has(Need.MONITORING):
        return found
    return [each for each in found if each["user"] == call.caller.name]


def _held(call: Call) -> dict[str, Any]:
    name = call.path("name")
    for each in visible(call, connections_of(call.node)):
        if each["name"] == name:
            return each
    raise NotFound(f"connection '{name}' does not exist")


ROUTES = [
    resource("/api/connections", GET=show_all),
    resource("/api/connections/{name}", GET=show, DELETE=close),
    resource("/api/connections/{name}/channels", GET=show_channels),
    resource("/api/vhosts/{vhost}/connections", GET=show_vhost),
]

"""`/api/channels`: the open channels."""

from __future__ import annotations

from starlette.responses import Response

from leveret.management.call import Call, resource
from leveret.management.consumer_view import channels_of
from leveret.management.replies import json_reply, list_reply
from leveret.management.resources.connections import visible
from leveret.model.errors import NotFound


async def show_all(call: Call) -> Response:
    """The channels the caller may see: all, or its own."""
    return list_reply(visible(call, channels_of(call.node)), call.request.query_params)


async def show_vhost(call: Call) -> Response:
    """The channels in one vhost."""
    vhost = call.vhost()
    found = [each for each in channels_of(call.node) if each["vhost"] == vhost]
    return list_reply(visible(call, found), call.request.query_params)


async def show(call: Call) -> Response:
    """One channel."""
    name = call.path("name")
    for each in visible(call, channels_of(call.node)):
        if each["name"] == name:
            return json_reply(each)
    raise NotFound(f"channel '{name}' does not exist")


ROUTES = [
    resource("/api/channels", GET=show_all),
    resource("/api/channels/{name}", GET=show),
    resource("/api/vhosts/{vhost}/channels", GET=show_vhost),
]

"""`/api/channels`: the open channels."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from leveret.management.peers import channels
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_list
from leveret.management.request.paged_lists import Listing
from leveret.management.request.places import at_holder
from leveret.management.views.peer_view import channel_json, channel_name, consumer_json
from leveret.management.views.queue_view import idle_since
from leveret.model.errors import NotFound
from leveret.session.amqp091.channel import Channel


async def show_all(call: Call) -> Response:
    """The channels that the caller may see: all, or its own."""
    return await _list(call, _visible(call))


async def show_vhost(call: Call) -> Response:
    """The channels in one vhost."""
    vhost = call.vhost()
    return await _list(call, [each for each in _visible(call) if each.connection.vhost == vhost])


async def show(call: Call) -> Response:
    """One channel, with its consumers."""
    name = call.path("name")
    for each in _visible(call):
        if channel_name(each) == name:
            consumers = [consumer_json(call.node, consumer) for consumer in each.consumers.values()]
            more = {"consumer_details": consumers, "deliveries": [], "publishes": []}
            return call.show({**shown_channel(call, each), **more})
    raise NotFound(f"channel '{name}' does not exist")


def shown_channel(call: Call, channel: Channel) -> dict[str, Any]:
    """A channel with its rates."""
    return {
        **channel_json(call.node, channel),
        **call.rates.channel(channel, call.ranges()),
        **idle_since(call.rates.channel_idle_since_ms(channel)),
    }


def _visible(call: Call) -> list[Channel]:
    """The channels of the caller, or all for monitors."""
    return call.caller.watched(channels(call.node), lambda each: each.connection.user)


async def _list(call: Call, found: list[Channel]) -> Response:
    listing = Listing(
        found,
        lambda each: shown_channel(call, each),
        order=lambda each: (each.connection.peer, each.number),
        name=channel_name,
        row_order=("connection_details.name", "number"),
    )
    return await whole_list(call, listing, in_pages=True)


def _is_here(call: Call) -> bool:
    return any(channel_name(each) == call.path("name") for each in _visible(call))


ROUTES = [
    resource("/api/channels", GET=show_all),
    resource("/api/channels/{name}", place=at_holder("/api/channels/{name}", _is_here), GET=show),
    resource("/api/vhosts/{vhost}/channels", GET=show_vhost),
]

"""`/api/consumers`: the consumers and their queues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.responses import Response

from leveret.management.peers import consumers, stream_connections
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_list
from leveret.management.request.paged_lists import Listing, Row
from leveret.management.views.peer_view import consumer_json, stream_consumer_json


async def show_all(call: Call) -> Response:
    """The consumers in all vhosts that the caller may see."""
    seen = set(call.seen_vhosts())
    return await _list(call, seen)


async def show_vhost(call: Call) -> Response:
    """The consumers in one vhost."""
    vhost = call.vhost()
    return await _list(call, {vhost})


async def _list(call: Call, vhosts: set[str]) -> Response:
    rows: list[Callable[[], Row]] = [
        partial(consumer_json, call.node, each)
        for each in consumers(call.node)
        if each.queue.key[0] in vhosts
    ]
    rows += [
        partial(stream_consumer_json, call.node, connection, number, subscription)
        for connection in stream_connections(call.node)
        if connection.vhost in vhosts
        for number, subscription in connection.subscriptions.items()
    ]
    return await whole_list(call, Listing(rows, lambda row: row(), order=lambda row: 0, row_order=()))


ROUTES = [
    resource("/api/consumers", GET=show_all),
    resource("/api/consumers/{vhost}", GET=show_vhost),
]

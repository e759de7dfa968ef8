"""`/api/consumers`: the consumers and their queues."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from starlette.responses import Response

from leveret.management.peers import consumers, stream_connections
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_list
from leveret.management.request.paged_lists import Listing, Row
from leveret.management.views.peer_view import consumer_json, stream_consumer_json, user_of


async def show_all(call: Call) -> Response:
    """The consumers that the caller may see: all, or its own."""
    return await _list(call, call.broker.topologies)


async def show_vhost(call: Call) -> Response:
    """The same in one vhost."""
    return await _list(call, [call.broker.topology(call.path("vhost")).vhost])


async def _list(call: Call, vhosts: Collection[str]) -> Response:
    rows: list[Callable[[], Row]] = [
        partial(consumer_json, call.node, each)
        for each in call.caller.watched(consumers(call.node), user_of)
        if each.queue.key[0] in vhosts
    ]
    rows += [
        partial(stream_consumer_json, call.node, connection, number, subscription)
        for connection in call.caller.watched(stream_connections(call.node), lambda each: each.user)
        if connection.vhost in vhosts
        for number, subscription in connection.subscriptions.items()
    ]
    return await whole_list(call, Listing(rows, lambda row: row(), order=lambda row: 0, row_order=()))


ROUTES = [
    resource("/api/consumers", GET=show_all),
    resource("/api/consumers/{vhost}", GET=show_vhost),
]

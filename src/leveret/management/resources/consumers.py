"""`/api/consumers`: who consumes from which queue."""

from __future__ import annotations

from starlette.responses import Response

from leveret.management.call import Call, resource
from leveret.management.consumer_view import consumers_of
from leveret.management.replies import json_reply


async def show_all(call: Call) -> Response:
    """The consumers in all vhosts the caller sees."""
    return json_reply([each for each in consumers_of(call.node) if call.caller.sees(each["queue"]["vhost"])])


async def show_vhost(call: Call) -> Response:
    """The consumers in one vhost."""
    vhost = call.vhost()
    return json_reply([each for each in consumers_of(call.node) if each["queue"]["vhost"] == vhost])


ROUTES = [
    resource("/api/consumers", GET=show_all),
    resource("/api/consumers/{vhost}", GET=show_vhost),
]

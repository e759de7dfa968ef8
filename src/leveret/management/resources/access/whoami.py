"""`/api/whoami`: the caller's name and tags."""

from __future__ import annotations

from starlette.responses import Response

from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply


async def show(call: Call) -> Response:
    """The caller."""
    return json_reply({"name": call.caller.name, "tags": list(call.caller.tags)})


ROUTES = [resource("/api/whoami", GET=show)]

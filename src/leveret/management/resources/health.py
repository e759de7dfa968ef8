"""`/api/health/checks`: is the node fit to serve."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from leveret.management.call import Call, resource
from leveret.management.replies import json_reply


async def check_alarms(call: Call) -> Response:
    """Ok while every queue can be served; otherwise 503 with the queues whose logs are damaged."""
    damaged = [
        {"name": queue.key[1], "vhost": queue.key[0], "reason": queue.damage}
        for queue in call.broker.queues.values()
        if queue.damage is not None
    ]
    if not damaged:
        return json_reply({"status": "ok"})
    reason = "queues are down because their logs are damaged"
    body = {"status": "failed", "reason": reason, "queues": damaged}
    return json_reply(body, HTTPStatus.SERVICE_UNAVAILABLE)


async def check_virtual_hosts(call: Call) -> Response:
    """Ok: a vhost runs as long as its node does."""
    return json_reply({"status": "ok"})


ROUTES = [
    resource("/api/health/checks/alarms", GET=check_alarms),
    resource("/api/health/checks/local-alarms", GET=check_alarms),
    resource("/api/health/checks/virtual-hosts", GET=check_virtual_hosts),
]

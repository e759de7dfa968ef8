"""A downstream's transferred data, for inspection before a recovery.

GET available              names of vhosts with data to recover
GET disk-usage             a row a vhost
GET downstream-metrics     a row a queue
GET moments                a row a vhost: its queues' states are known from earliest_ms to newest_ms
GET messages               of one queue, those that came at from_ms or later: ?vhost=V&queue=Q&from_ms=N&count=N
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand
from leveret.model.whole_number import whole_number

COUNT_MAX: Final = 200
_NUMBER_MAX: Final = 1 << 53


async def show_available(call: Call) -> Response:
    """The vhosts with data to recover."""
    return json_reply(await call.node.standby.archive.list_vhosts_available())


async def show_disk_usage(call: Call) -> Response:
    """The transferred data's use of disk, a row a vhost."""
    return json_reply(await call.node.standby.archive.disk_usage())


async def show_metrics(call: Call) -> Response:
    """The transferred queues, a row each."""
    return json_reply(await call.node.standby.archive.metrics())


async def show_moments(call: Call) -> Response:
    """The moments that a recovery may ask for."""
    return json_reply(await call.node.standby.archive.moments())


async def show_messages(call: Call) -> Response:
    """The transferred messages of one queue, also settled ones."""
    vhost, queue = call.query.get("vhost", ""), call.query.get("queue", "")
    if not vhost or not queue:
        raise InvalidCommand("name a queue: ?vhost=V&queue=Q")
    from_ms, count = _number(call, "from_ms", 0), _number(call, "count", 10)
    return json_reply(
        await call.node.standby.archive.messages(vhost, queue, from_ms, max(1, min(count, COUNT_MAX)))
    )


def _number(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, str(default))
    number = whole_number(text, most=_NUMBER_MAX)
    if number is None:
        raise InvalidCommand(f"{name}: '{text[:20]}' is no whole number")
    return number


_MONITORING: Final = Requirement.MONITORING
_STANDBY: Final = "/api/replication/standby"
ROUTES = [
    resource(f"{_STANDBY}/available", need=_MONITORING, GET=show_available),
    resource(f"{_STANDBY}/disk-usage", need=_MONITORING, GET=show_disk_usage),
    resource(f"{_STANDBY}/downstream-metrics", need=_MONITORING, GET=show_metrics),
    resource(f"{_STANDBY}/moments", need=_MONITORING, GET=show_moments),
    resource(f"{_STANDBY}/messages", need=Requirement.ADMINISTRATOR, GET=show_messages),
]

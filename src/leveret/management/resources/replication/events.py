"""`/api/replication/history`: the events of the nodes, newest first.

A row an event: node, kind, by, begun_ms, ended_ms (null while it goes on), is_running, error, result; an event that
neither runs nor has ended was interrupted by its node's end. See `runtime.process.event_history`.
"""

from __future__ import annotations

from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import documents_of_others
from leveret.management.request.replies import json_reply


async def show_history(call: Call) -> Response:
    """The events of all nodes that answer."""
    rows = [{"node": call.cluster.name, **row} for row in call.node.event_history.rows()]
    for others in await documents_of_others(call):
        rows += others
    return json_reply(sorted(rows, key=lambda row: -row["begun_ms"]))


ROUTES = [resource("/api/replication/history", need=Requirement.MONITORING, GET=show_history)]

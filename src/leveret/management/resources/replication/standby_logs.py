"""The data kept for the standby: an upstream's outgoing logs with their downstreams, a downstream's orphaned data."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import documents_of_others, parts
from leveret.management.request.replies import done, json_reply
from leveret.management.resources.replication.standby_replication import with_node
from leveret.model.errors import NotFound


async def list_downstreams(call: Call) -> Response:
    """The known downstreams, a row a vhost and downstream, in a cluster one for each node."""
    rows = with_node(call, call.node.upstream.downstreams())
    for others in await documents_of_others(call):
        rows += others
    return json_reply(rows)


async def forget_downstream(call: Call) -> Response:
    """Keep nothing for a downstream any more."""
    name = call.path("name")
    others = [each.status for each in await parts(call, method="DELETE")]
    if not call.node.upstream.forget_downstream(name) and HTTPStatus.NO_CONTENT not in others:
        raise NotFound(f"no downstream '{name}' has transferred anything from here")
    return done()


async def delete_outgoing(call: Call) -> Response:
    """Remove the outgoing logs, in a cluster of all nodes; those of tagged vhosts begin anew."""
    rows = with_node(call, call.node.upstream.delete_logs())
    for others in await documents_of_others(call, method="POST"):
        rows += others
    return json_reply(rows)


async def delete_orphaned(call: Call) -> Response:
    """Remove transferred data that this node would not recover."""
    return json_reply(await call.node.standby.delete_orphaned_data())


_ADMIN: Final = Requirement.ADMINISTRATOR
_STANDBY: Final = "/api/replication/standby"
ROUTES = [
    resource(f"{_STANDBY}/downstreams", need=Requirement.MONITORING, GET=list_downstreams),
    resource(f"{_STANDBY}/downstreams/{{name}}", need=_ADMIN, defines=False, DELETE=forget_downstream),
    resource(f"{_STANDBY}/delete-outgoing", need=_ADMIN, defines=False, POST=delete_outgoing),
    resource(f"{_STANDBY}/delete-orphaned", need=_ADMIN, defines=False, POST=delete_orphaned),
]

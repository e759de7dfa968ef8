"""Schema replication: its status and switches, under the commercial product's paths and our own.

    GET  /api/tanzu/osr/schema/status[/NODE]     PUT    /api/tanzu/osr/schema/enable/NODE
    POST /api/definitions/sync/enable[/NODE]     DELETE /api/tanzu/osr/schema/disable/NODE
    PUT  /api/tanzu/osr/schema/enable-cluster-wide, DELETE .../disable-cluster-wide: all nodes that run

`/api/replication/schema/...` is what `leveretctl` uses for the rest.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from leveret.management.asking import parts
from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.replies import done, json_reply
from leveret.model.errors import NotFound, PreconditionFailed


class Mode(msgspec.Struct):
    """The body that sets a mode."""

    operating_mode: str


class NewUser(msgspec.Struct):
    """The body that adds a replication user."""

    name: str
    password: str


class Forced(msgspec.Struct):
    """The body that asks for a sync; `force` replaces queues in conflict although they hold messages."""

    force: bool = False


async def show_status(call: Call) -> Response:
    """How the schema follows, or is served."""
    _own_node(call)
    return json_reply(call.node.schema_sync.status())


async def enable(call: Call) -> Response:
    """Follow or serve again."""
    _own_node(call)
    await call.node.schema_sync.enable()
    return done()


async def disable(call: Call) -> Response:
    """Neither follow nor serve."""
    _own_node(call)
    await call.node.schema_sync.disable()
    return done()


async def enable_all(call: Call) -> Response:
    """The same on all nodes of the cluster."""
    await call.node.schema_sync.enable()
    return await _on_others(call, "PUT")


async def disable_all(call: Call) -> Response:
    """The same on all nodes of the cluster."""
    await call.node.schema_sync.disable()
    return await _on_others(call, "DELETE")


async def _on_others(call: Call, method: str) -> Response:
    for part in await parts(call, method=method):
        if part.status >= HTTPStatus.BAD_REQUEST:
            raise PreconditionFailed(f"node '{part.node}' did not do this: {part.document['reason']}")
    return done()


async def restart(call: Call) -> Response:
    """Take new endpoints and credentials."""
    await call.node.schema_sync.restart()
    return done()


async def set_mode(call: Call) -> Response:
    """Change sides."""
    await call.node.schema_sync.set_mode((await call.body(Mode)).operating_mode)
    return done()


async def set_endpoints(call: Call) -> Response:
    """Name the upstream; the body is the JSON of RabbitMQ's command."""
    await call.node.schema_sync.set_endpoints(await call.octets())
    return done()


async def add_user(call: Call) -> Response:
    """Add a user for the link."""
    wanted = await call.body(NewUser)
    await call.node.schema_sync.add_user(wanted.name, wanted.password)
    return done()


async def show_diff(call: Call) -> Response:
    """What a sync would change now; nothing is changed."""
    return json_reply(await call.node.schema_sync.diff())


async def show_history(call: Call) -> Response:
    """The deltas that were applied here, newest first."""
    return json_reply(call.node.schema_sync.history())


async def sync(call: Call) -> Response:
    """Sync at once; the reply says what was changed."""
    wanted = await call.body(Forced)
    return json_reply(await call.node.schema_sync.sync(force=wanted.force))


def _own_node(call: Call) -> None:
    """Paths may name a node; there is one."""
    if "node" in call.request.path_params and call.path("node") != call.node.config.node_name:
        raise NotFound(f"node '{call.path('node')}' is not part of this cluster")


_ADMIN = Need.ADMINISTRATOR
ROUTES = [
    resource("/api/tanzu/osr/schema/status", need=Need.MONITORING, GET=show_status),
    resource("/api/tanzu/osr/schema/status/{node}", need=Need.MONITORING, GET=show_status),
    resource("/api/tanzu/osr/schema/enable/{node}", need=_ADMIN, defines=False, PUT=enable),
    resource("/api/tanzu/osr/schema/disable/{node}", need=_ADMIN, defines=False, DELETE=disable),
    resource("/api/tanzu/osr/schema/enable-cluster-wide", need=_ADMIN, defines=False, PUT=enable_all),
    resource("/api/tanzu/osr/schema/disable-cluster-wide", need=_ADMIN, defines=False, DELETE=disable_all),
    resource("/api/definitions/sync/enable", need=_ADMIN, defines=False, POST=enable),
    resource("/api/definitions/sync/enable/{node}", need=_ADMIN, defines=False, POST=enable),
    resource("/api/definitions/sync/disable", need=_ADMIN, defines=False, POST=disable),
    resource("/api/definitions/sync/disable/{node}", need=_ADMIN, defines=False, POST=disable),
    resource("/api/replication/schema/restart", need=_ADMIN, defines=False, POST=restart),
    resource("/api/replication/schema/mode", need=_ADMIN, defines=False, PUT=set_mode),
    resource("/api/replication/schema/upstream", need=_ADMIN, PUT=set_endpoints),
    resource("/api/replication/schema/users", need=_ADMIN, POST=add_user),
    resource("/api/replication/schema/sync", need=_ADMIN, POST=sync),
    resource("/api/replication/schema/diff", need=_ADMIN, GET=show_diff),
    resource("/api/replication/schema/history", need=Need.MONITORING, GET=show_history),
]

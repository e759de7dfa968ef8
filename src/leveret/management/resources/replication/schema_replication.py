"""Schema replication: its status and switches, under the commercial product's paths and our own.

    GET  /api/tanzu/osr/schema/status[/NODE]     PUT    /api/tanzu/osr/schema/enable/NODE
    POST /api/definitions/sync/enable[/NODE]     DELETE /api/tanzu/osr/schema/disable/NODE
    PUT  /api/tanzu/osr/schema/enable-cluster-wide, DELETE .../disable-cluster-wide

The switches apply to all nodes of a cluster. The status comes from the node that follows for all. `leveretctl` uses
`/api/replication/schema/...` for the rest.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.other_nodes import CHANGE_TIMEOUT_S
from leveret.management.request.places import at_node, need_this_node
from leveret.management.request.replies import done, json_reply
from leveret.model.errors import NotFound, ResourceLocked

_SYNC_MARGIN_S: Final = 10.0


class SchemaModeBody(msgspec.Struct):
    """The body that sets a mode."""

    operating_mode: str


class SchemaUserBody(msgspec.Struct):
    """The body that adds a replication user."""

    name: str
    password: str


class SchemaSyncBody(msgspec.Struct):
    """The body that asks for a sync; with `force`, it replaces conflicting queues even if they hold messages."""

    force: bool = False


async def show_status(call: Call) -> Response:
    """The status of the schema's link."""
    if "node" in call.request.path_params:
        need_this_node(call, "node")
    return json_reply(call.node.schema_sync.status())


async def enable(call: Call) -> Response:
    """Follow or serve again."""
    _known_node(call)
    await call.node.schema_sync.enable()
    return done()


async def disable(call: Call) -> Response:
    """Neither follow nor serve."""
    _known_node(call)
    await call.node.schema_sync.disable()
    return done()


async def restart(call: Call) -> Response:
    """Take new endpoints and credentials."""
    await call.node.schema_sync.restart()
    return done()


async def set_mode(call: Call) -> Response:
    """Change sides."""
    await call.node.schema_sync.set_mode((await call.body(SchemaModeBody)).operating_mode)
    return done()


async def set_endpoints(call: Call) -> Response:
    """Name the upstream; the body is the JSON of RabbitMQ's command."""
    await call.node.schema_sync.set_endpoints(await call.octets())
    return done()


async def add_user(call: Call) -> Response:
    """Add a user for the link."""
    wanted = await call.body(SchemaUserBody)
    await call.node.schema_sync.add_user(wanted.name, wanted.password)
    return done()


async def show_diff(call: Call) -> Response:
    """The changes that a sync would make now."""
    return json_reply(await call.node.schema_sync.diff())


async def show_history(call: Call) -> Response:
    """The deltas applied here, newest first."""
    return json_reply(call.node.schema_sync.history())


async def sync(call: Call) -> Response:
    """Sync at once; the reply lists the changes."""
    wanted = await call.body(SchemaSyncBody)
    syncing = call.node.schema_sync.sync(force=wanted.force)
    if call.passed is None:
        return json_reply(await syncing)
    try:
        # The node that passed the request on gives up a little later; no change may follow its report of a failure.
        async with asyncio.timeout(CHANGE_TIMEOUT_S - _SYNC_MARGIN_S):
            return json_reply(await syncing)
    except TimeoutError:
        raise ResourceLocked(
            "the sync did not end in time and may continue, without the effect of `force`"
        ) from None


def _known_node(call: Call) -> None:
    """Check that the path's node, if it names one, exists."""
    if "node" in call.request.path_params and call.path("node") not in call.cluster.members():
        raise NotFound(f"node '{call.path('node')}' is not part of this cluster")


async def _at_follower(call: Call) -> str | None:
    """The node that follows an upstream for all, if it is another one."""
    follower, cluster = call.node.schema_sync.follower, call.cluster
    return follower if follower and follower != cluster.name and follower in cluster.alive() else None


_ADMIN: Final = Requirement.ADMINISTRATOR
ROUTES = [
    resource(
        "/api/tanzu/osr/schema/status", need=Requirement.MONITORING, place=_at_follower, GET=show_status
    ),
    resource(
        "/api/tanzu/osr/schema/status/{node}",
        need=Requirement.MONITORING,
        place=at_node("node"),
        GET=show_status,
    ),
    resource("/api/tanzu/osr/schema/enable/{node}", need=_ADMIN, defines=False, PUT=enable),
    resource("/api/tanzu/osr/schema/disable/{node}", need=_ADMIN, defines=False, DELETE=disable),
    resource("/api/tanzu/osr/schema/enable-cluster-wide", need=_ADMIN, defines=False, PUT=enable),
    resource("/api/tanzu/osr/schema/disable-cluster-wide", need=_ADMIN, defines=False, DELETE=disable),
    resource("/api/definitions/sync/enable", need=_ADMIN, defines=False, POST=enable),
    resource("/api/definitions/sync/enable/{node}", need=_ADMIN, defines=False, POST=enable),
    resource("/api/definitions/sync/disable", need=_ADMIN, defines=False, POST=disable),
    resource("/api/definitions/sync/disable/{node}", need=_ADMIN, defines=False, POST=disable),
    resource("/api/replication/schema/restart", need=_ADMIN, defines=False, place=_at_follower, POST=restart),
    resource("/api/replication/schema/mode", need=_ADMIN, defines=False, PUT=set_mode),
    resource("/api/replication/schema/upstream", need=_ADMIN, PUT=set_endpoints),
    resource("/api/replication/schema/users", need=_ADMIN, POST=add_user),
    resource("/api/replication/schema/sync", need=_ADMIN, defines=False, place=_at_follower, POST=sync),
    resource("/api/replication/schema/diff", need=_ADMIN, GET=show_diff),
    resource(
        "/api/replication/schema/history", need=Requirement.MONITORING, place=_at_follower, GET=show_history
    ),
]

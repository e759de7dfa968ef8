"""`/api/global-parameters`: parameters of the whole cluster.

Two of them are the endpoints of upstreams. They are checked as the commands for them check them, so that other tools
(RabbitMQ's topology operator puts them here) get the same answers.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from leveret.core.schema.delta import SCHEMA_UPSTREAM, STANDBY_UPSTREAM
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, put_reply
from leveret.management.resources.replication.standby_replication import set_upstream
from leveret.model.definitions import AnyEntity, Delete, GlobalParameter, Put
from leveret.model.errors import NotFound


class GlobalParameterBody(msgspec.Struct):
    """The body of a PUT."""

    value: object


async def show_all(call: Call) -> Response:
    """All global parameters."""
    return await call.list_entities(call.definitions["global_parameters"].values())


async def show(call: Call) -> Response:
    """One global parameter."""
    return call.show(call.entity_json(_existing(call)))


async def put(call: Call) -> Response:
    """Set a global parameter."""
    name = call.path("name")
    wanted = await call.body(GlobalParameterBody)
    existed = (name,) in call.definitions["global_parameters"]
    if name == SCHEMA_UPSTREAM:
        await call.node.schema_sync.set_endpoints(msgspec.json.encode(wanted.value))
    elif name == STANDBY_UPSTREAM:
        await set_upstream(call, wanted.value)
    else:
        await call.apply(Put(GlobalParameter(name=name, value=wanted.value)))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Clear a global parameter."""
    await call.apply(Delete("global_parameters", _existing(call).key))
    return done()


def _existing(call: Call) -> AnyEntity:
    name = call.path("name")
    try:
        return call.definitions["global_parameters"][(name,)]
    except KeyError:
        raise NotFound(f"global parameter '{name}' does not exist") from None


ROUTES = [
    resource("/api/global-parameters", need=Requirement.ADMINISTRATOR, GET=show_all),
    resource(
        "/api/global-parameters/{name}",
        need=Requirement.ADMINISTRATOR,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
]

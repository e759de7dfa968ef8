"""`/api/parameters`: runtime parameters of a vhost, by component."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import done, put_reply
from leveret.model.definitions import AnyEntity, Delete, Parameter, Put
from leveret.model.errors import NotFound


class ParameterBody(msgspec.Struct):
    """The body of a PUT."""

    value: object


async def show_all(call: Call) -> Response:
    """The parameters of all vhosts that the caller may see."""
    existing = call.definitions["parameters"].values()
    return await call.list_entities(each for each in existing if call.caller.sees(each.key[0]))


async def show_component(call: Call) -> Response:
    """The parameters of a component, in all vhosts that the caller may see."""
    component = call.path("component")
    existing = call.definitions["parameters"].values()
    return await call.list_entities(
        each for each in existing if each.key[1] == component and call.caller.sees(each.key[0])
    )


async def show_vhost(call: Call) -> Response:
    """The parameters of a component in one vhost."""
    place = (call.vhost(), call.path("component"))
    existing = call.definitions["parameters"].values()
    return await call.list_entities(each for each in existing if each.key[:2] == place)


async def show(call: Call) -> Response:
    """One parameter."""
    return call.show(call.entity_json(_existing(call)))


async def put(call: Call) -> Response:
    """Set a parameter."""
    vhost, component, name = call.vhost(), call.path("component"), call.new_name()
    wanted = await call.body(ParameterBody)
    parameter = Parameter(vhost=vhost, component=component, name=name, value=wanted.value)
    existed = parameter.key in call.definitions["parameters"]
    await call.apply(Put(parameter))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Clear a parameter."""
    await call.apply(Delete("parameters", _existing(call).key))
    return done()


def _existing(call: Call) -> AnyEntity:
    key = (call.vhost(), call.path("component"), call.path("name"))
    try:
        return call.definitions["parameters"][key]
    except KeyError:
        raise NotFound(
            f"parameter '{key[2]}' of component '{key[1]}' does not exist in vhost '{key[0]}'"
        ) from None


ROUTES = [
    resource("/api/parameters", need=Requirement.POLICYMAKER, GET=show_all),
    resource("/api/parameters/{component}", need=Requirement.POLICYMAKER, GET=show_component),
    resource("/api/parameters/{component}/{vhost}", need=Requirement.POLICYMAKER, GET=show_vhost),
    resource(
        "/api/parameters/{component}/{vhost}/{name}",
        need=Requirement.POLICYMAKER,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
]

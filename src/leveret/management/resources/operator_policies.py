"""`/api/operator-policies`: what the operator says of queues, over what policies say.

They are runtime parameters of the component `operator_policy`; here they look like policies.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from leveret.core.schema import OPERATOR_POLICY
from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.replies import done, put_reply
from leveret.model.definitions import Delete, Parameter, Put
from leveret.model.errors import NotFound


class Wanted(msgspec.Struct, rename={"apply_to": "apply-to"}):
    """The body of a PUT."""

    pattern: str
    definition: dict[str, Any]
    priority: int | float = 0
    apply_to: str = "all"


async def show_all(call: Call) -> Response:
    """The operator policies of all vhosts the caller sees."""
    return await call.plain_list(_rows(call, set(call.seen_vhosts())), "vhost", "name")


async def show_vhost(call: Call) -> Response:
    """The operator policies of one vhost."""
    return await call.plain_list(_rows(call, {call.vhost()}), "vhost", "name")


async def show(call: Call) -> Response:
    """One operator policy."""
    return call.show(_row(_held(call)))


async def put(call: Call) -> Response:
    """Set an operator policy; it applies at once."""
    vhost, name = call.vhost(), call.new_name()
    wanted = await call.body(Wanted)
    parameter = Parameter(
        vhost=vhost,
        component=OPERATOR_POLICY,
        name=name,
        value=msgspec.to_builtins(wanted),
    )
    existed = parameter.key in call.definitions["parameters"]
    await call.apply(Put(parameter))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Clear an operator policy."""
    await call.apply(Delete("parameters", _held(call).key))
    return done()


def _rows(call: Call, vhosts: set[str]) -> list[dict[str, Any]]:
    return [
        _row(each)
        for each in call.definitions["parameters"].values()
        if isinstance(each, Parameter) and each.component == OPERATOR_POLICY and each.vhost in vhosts
    ]


def _row(parameter: Parameter) -> dict[str, Any]:
    value = parameter.value
    return {
        "vhost": parameter.vhost,
        "name": parameter.name,
        "pattern": value["pattern"],
        "apply-to": value.get("apply-to", "all"),
        "definition": value["definition"],
        "priority": value["priority"],
    }


def _held(call: Call) -> Parameter:
    vhost, name = call.vhost(), call.path("name")
    held = call.definitions["parameters"].get((vhost, OPERATOR_POLICY, name))
    if not isinstance(held, Parameter):
        raise NotFound(f"operator policy '{name}' does not exist in vhost '{vhost}'")
    return held


ROUTES = [
    resource("/api/operator-policies", GET=show_all),
    resource("/api/operator-policies/{vhost}", GET=show_vhost),
    resource(
        "/api/operator-policies/{vhost}/{name}",
        change=Need.ADMINISTRATOR,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
]

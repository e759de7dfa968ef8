"""`/api/policies`: settings for all queues or exchanges whose name matches."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.listing import Listing
from leveret.management.replies import done, put_reply
from leveret.model.definitions import AnyEntity, Delete, Policy, Put
from leveret.model.errors import NotFound


class Wanted(msgspec.Struct, rename={"apply_to": "apply-to"}):
    """The body of a PUT."""

    pattern: str
    definition: dict[str, Any]
    priority: int | float = 0
    apply_to: str = "all"


async def show_all(call: Call) -> Response:
    """The policies of all vhosts the caller sees."""
    return await _list(call, [each for each in _all(call) if call.caller.sees(each.key[0])])


async def show_vhost(call: Call) -> Response:
    """The policies of one vhost."""
    vhost = call.vhost()
    return await _list(call, [each for each in _all(call) if each.key[0] == vhost])


async def show(call: Call) -> Response:
    """One policy."""
    return call.show(msgspec.to_builtins(_held(call)))


async def put(call: Call) -> Response:
    """Set a policy; it applies at once."""
    vhost, name = call.vhost(), call.new_name()
    wanted = await call.body(Wanted)
    policy = Policy(
        vhost=vhost,
        name=name,
        pattern=wanted.pattern,
        apply_to=wanted.apply_to,
        definition=wanted.definition,
        priority=wanted.priority,
    )
    existed = policy.key in call.definitions["policies"]
    await call.apply(Put(policy))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Clear a policy."""
    await call.apply(Delete("policies", _held(call).key))
    return done()


def _all(call: Call) -> list[AnyEntity]:
    return list(call.definitions["policies"].values())


async def _list(call: Call, held: list[AnyEntity]) -> Response:
    return await call.list(Listing(held, msgspec.to_builtins, order=lambda each: each.key))


def _held(call: Call) -> AnyEntity:
    key = (call.vhost(), call.path("name"))
    try:
        return call.definitions["policies"][key]
    except KeyError:
        raise NotFound(f"policy '{key[1]}' does not exist in vhost '{key[0]}'") from None


ROUTES = [
    resource("/api/policies", GET=show_all),
    resource("/api/policies/{vhost}", GET=show_vhost),
    resource(
        "/api/policies/{vhost}/{name}",
        change=Need.POLICYMAKER,
        GET=show,
        PUT=put,
        DELETE=delete,
    ),
]

"""`/api/exchanges`: exchanges, and the bindings from and to each."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from leveret.core.topology import PREDECLARED
from leveret.management.call import Call, resource
from leveret.management.replies import done, json_reply, list_reply, put_reply
from leveret.management.resources.bindings import binding_json, default_bindings
from leveret.model.definitions import Exchange, Put
from leveret.model.errors import AccessRefused


class Wanted(msgspec.Struct):
    """The body of a PUT."""

    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


async def show_all(call: Call) -> Response:
    """The exchanges of all vhosts the caller sees."""
    seen = [name for name in call.broker.topologies if call.caller.sees(name)]
    return list_reply([each for name in seen for each in _exchanges(call, name)], call.request.query_params)


async def show_vhost(call: Call) -> Response:
    """The exchanges of one vhost."""
    return list_reply(_exchanges(call, call.vhost()), call.request.query_params)


async def show(call: Call) -> Response:
    """One exchange."""
    return json_reply(msgspec.to_builtins(call.broker.exchange(call.vhost(), call.exchange_name())))


async def put(call: Call) -> Response:
    """Declare an exchange, or check that the one there is equivalent."""
    vhost, name = call.vhost(), call.exchange_name()
    wanted = await call.body(Wanted)
    existed = name in call.broker.topology(vhost).exchanges
    if not existed and (not name or name.startswith("amq.")):
        raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    call.caller.may("configure", vhost, name, "exchange")
    exchange = Exchange(
        name=name,
        vhost=vhost,
        type=wanted.type,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        internal=wanted.internal,
        arguments=wanted.arguments,
    )
    await call.apply(Put(exchange))
    return put_reply(existed=existed)


async def delete(call: Call) -> Response:
    """Delete an exchange; `if-unused` only if nothing is bound to it."""
    vhost, name = call.vhost(), call.exchange_name()
    call.broker.exchange(vhost, name)
    if name in PREDECLARED:
        raise AccessRefused(f"exchange '{name}' in vhost '{vhost}' is predeclared and stays")
    call.caller.may("configure", vhost, name, "exchange")
    call.broker.delete_exchange(vhost, name, if_unused=call.flag("if-unused"))
    await call.node.commit()
    return done()


async def show_bindings_from(call: Call) -> Response:
    """What is bound to the exchange."""
    vhost, name = call.vhost(), call.exchange_name()
    call.broker.exchange(vhost, name)
    if not name:
        return json_reply(default_bindings(call, vhost))
    bindings = call.broker.topology(vhost).exchanges[name].bindings.values()
    return json_reply([binding_json(each) for each in bindings])


async def show_bindings_to(call: Call) -> Response:
    """What the exchange is bound to."""
    vhost, name = call.vhost(), call.exchange_name()
    call.broker.exchange(vhost, name)
    return json_reply(
        [binding_json(each) for each in call.broker.topology(vhost).bindings_into("exchange", name)]
    )


def _exchanges(call: Call, vhost: str) -> list[dict[str, Any]]:
    states = call.broker.topology(vhost).exchanges.values()
    return [msgspec.to_builtins(state.definition) for state in states]


ROUTES = [
    resource("/api/exchanges", GET=show_all),
    resource("/api/exchanges/{vhost}", GET=show_vhost),
    resource("/api/exchanges/{vhost}/{name}", GET=show, PUT=put, DELETE=delete),
    resource("/api/exchanges/{vhost}/{name}/bindings/source", GET=show_bindings_from),
    resource("/api/exchanges/{vhost}/{name}/bindings/destination", GET=show_bindings_to),
]

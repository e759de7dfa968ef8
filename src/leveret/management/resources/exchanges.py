"""`/api/exchanges`: exchanges, and the bindings from and to each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from leveret.core.broker.topology import ExchangeState
from leveret.core.rules.validation import declared_name
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import sums_of, with_sum
from leveret.management.request.paged_lists import Listing
from leveret.management.request.replies import done, put_reply
from leveret.management.resources.bindings import binding_json, default_bindings
from leveret.model.definitions import Binding, Exchange, WrittenArguments

_KEY: Final = ("vhost", "name")
_SUMMED: Final = ("message_stats",)
"""The fields that are summed over nodes: each node counts its own clients' publishes."""


class ExchangeBody(msgspec.Struct):
    """The body of a PUT."""

    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: WrittenArguments = {}


async def show_all(call: Call) -> Response:
    """The exchanges of all vhosts that the caller may see."""
    return await _list(call, call.seen_vhosts())


async def show_vhost(call: Call) -> Response:
    """The exchanges of one vhost."""
    return await _list(call, [call.vhost()])


async def show(call: Call) -> Response:
    """One exchange."""
    exchange = call.broker.exchange(call.vhost(), call.exchange_name())
    state = call.broker.topology(exchange.vhost).exchanges[exchange.name]
    shown = {**exchange_json(call, state), "incoming": [], "outgoing": []}
    others = await sums_of(call, _KEY)
    return call.show(with_sum(shown, others.get(exchange.key, ()), _SUMMED))


async def put(call: Call) -> Response:
    """Declare an exchange, or check that an existing one is equivalent."""
    vhost, name = call.vhost(), declared_name(call.exchange_name())
    call.new_name()
    wanted = await call.body(ExchangeBody)
    existing = call.broker.topology(vhost).exchanges.get(name)
    call.check_conditions(existing.definition if existing is not None else None)
    exchange = Exchange(
        name=name,
        vhost=vhost,
        type=wanted.type,
        durable=wanted.durable,
        auto_delete=wanted.auto_delete,
        internal=wanted.internal,
        arguments=wanted.arguments or {},
    )
    call.caller.in_vhost(vhost).declare_exchange(exchange)
    await call.node.commit()
    return put_reply(existed=existing is not None)


async def delete(call: Call) -> Response:
    """Delete an exchange; `if-unused` only without bindings."""
    vhost, name = call.vhost(), call.exchange_name()
    call.broker.exchange(vhost, name)
    actor, if_unused = call.caller.in_vhost(vhost), call.flag("if-unused")
    await call.in_turns(lambda then: actor.delete_exchange_in_turns(name, then, if_unused=if_unused))
    return done()


async def show_bindings_from(call: Call) -> Response:
    """The bindings from the exchange; none for a missing one."""
    vhost, name = call.vhost(), call.exchange_name()
    if not name:
        return await _bindings(call, await default_bindings(call, vhost))
    state = call.broker.topology(vhost).exchanges.get(name)
    return await _bindings(call, state.bindings.values() if state is not None else ())


async def show_bindings_to(call: Call) -> Response:
    """The bindings to the exchange; none for a missing one."""
    vhost, name = call.vhost(), call.exchange_name()
    return await _bindings(call, call.broker.topology(vhost).bindings_into("exchange", name))


def exchange_json(call: Call, state: ExchangeState) -> dict[str, Any]:
    """An exchange as RabbitMQ shows it."""
    applied = {"policy": state.applied.policy} if state.applied.policy else {}
    return {
        **msgspec.to_builtins(state.definition),
        **applied,
        **call.rates.exchange(state, call.ranges()),
    }


async def _list(call: Call, vhosts: list[str]) -> Response:
    # A vhost may be deleted before other nodes have answered.
    states = [state for vhost in vhosts for state in call.broker.topology(vhost).exchanges.values()]
    others = await sums_of(call, _KEY)
    listing = Listing(
        states,
        lambda state: with_sum(exchange_json(call, state), others.get(state.definition.key, ()), _SUMMED),
        order=lambda state: state.definition.key,
        name=lambda state: state.definition.name,
    )
    return await call.list(listing, in_pages=True)


async def _bindings(call: Call, bindings: Iterable[Binding]) -> Response:
    return await call.list(Listing(list(bindings), binding_json, order=lambda binding: binding.key))


ROUTES = [
    resource("/api/exchanges", GET=show_all),
    resource("/api/exchanges/{vhost}", GET=show_vhost),
    resource("/api/exchanges/{vhost}/{name}", GET=show, PUT=put, DELETE=delete),
    resource("/api/exchanges/{vhost}/{name}/bindings/source", GET=show_bindings_from),
    resource("/api/exchanges/{vhost}/{name}/bindings/destination", GET=show_bindings_to),
]

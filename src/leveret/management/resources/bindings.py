"""`/api/bindings`: from an exchange (`e`) to a queue (`q`) or exchange (`e`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from leveret.management.request.call import NAME_BYTES_MAX, Call, resource
from leveret.management.request.paged_lists import Listing
from leveret.management.request.replies import done
from leveret.model.definitions import Binding, WrittenArguments
from leveret.model.errors import InvalidCommand, NotFound
from leveret.runtime.process.work_slices import in_slices

_KINDS: Final = {"q": "queue", "e": "exchange"}


class BindingBody(msgspec.Struct):
    """The body of a POST."""

    routing_key: str = ""
    arguments: WrittenArguments = {}


async def show_all(call: Call) -> Response:
    """The bindings of all vhosts that the caller may see."""
    return await _list(call, call.seen_vhosts())


async def show_vhost(call: Call) -> Response:
    """The bindings of one vhost."""
    return await _list(call, [call.vhost()])


async def show_between(call: Call) -> Response:
    """The bindings between two ends; none if an end does not exist."""
    return await call.plain_list([binding_json(each) for each in _between(call)], "properties_key")


async def post(call: Call) -> Response:
    """Bind; the location names the binding."""
    vhost, source, kind, destination = _ends(call)
    wanted = await call.body(BindingBody)
    if len(wanted.routing_key.encode()) > NAME_BYTES_MAX:
        raise InvalidCommand(f"routing_key should be at most {NAME_BYTES_MAX} bytes")
    _check_ends(call, vhost, source, kind, destination)
    binding = Binding(
        source=source,
        vhost=vhost,
        destination=destination,
        destination_type=kind,
        routing_key=wanted.routing_key,
        arguments=wanted.arguments or {},
    )
    call.caller.in_vhost(vhost).bind(binding)
    await call.node.commit()
    location = f"{quote(destination, safe='')}/{quote(shown_key(binding), safe='~')}"
    return Response(status_code=HTTPStatus.CREATED, headers={"location": location})


async def show(call: Call) -> Response:
    """One binding."""
    return call.show(binding_json(_binding(call)))


async def delete(call: Call) -> Response:
    """Unbind."""
    binding = _binding(call)
    call.caller.in_vhost(binding.vhost).unbind(binding)
    await call.node.commit()
    return done()


def binding_json(binding: Binding) -> dict[str, Any]:
    """A binding as RabbitMQ shows it."""
    return {**msgspec.to_builtins(binding), "properties_key": shown_key(binding)}


def shown_key(binding: Binding) -> str:
    """A binding's name between its ends, fit for a path: its routing key percent-encoded."""
    if not binding.arguments:
        return quote(binding.routing_key, safe="") or "~"
    return quote(binding.routing_key, safe="") + binding.properties_key[len(binding.routing_key) :]


def default_binding(vhost: str, queue: str) -> Binding:
    """The binding of a queue to the default exchange by its name, which no definition has."""
    return Binding(source="", vhost=vhost, destination=queue, routing_key=queue)


async def default_bindings(call: Call, vhost: str) -> list[Binding]:
    """The default bindings of all queues of a vhost."""
    return [
        default_binding(vhost, queue.key[1]) async for queue in in_slices(call.broker.vhost_queues(vhost))
    ]


async def _list(call: Call, vhosts: list[str]) -> Response:
    found = [binding for vhost in vhosts for binding in call.broker.topology(vhost).bindings()]
    for vhost in vhosts:
        found += await default_bindings(call, vhost)
    return await call.list(Listing(found, binding_json, order=lambda binding: binding.key))


def _ends(call: Call) -> tuple[str, str, str, str]:
    """Vhost, source, kind of destination, destination; without a check of the ends."""
    kind = _KINDS.get(call.path("kind"))
    if kind is None:
        raise NotFound("a binding goes to a queue (q) or an exchange (e)")
    return call.vhost(), call.exchange_name("source"), kind, call.path("destination")


def _check_ends(call: Call, vhost: str, source: str, kind: str, destination: str) -> None:
    call.broker.exchange(vhost, source)
    if kind == "queue":
        call.broker.queue(vhost, destination)
    else:
        call.broker.exchange(vhost, destination)


def _between(call: Call) -> list[Binding]:
    vhost, source, kind, destination = _ends(call)
    if not source:
        existing = kind == "queue" and (vhost, destination) in call.broker.queues
        return [default_binding(vhost, destination)] if existing else []
    into = call.broker.topology(vhost).bindings_into(kind, destination)
    return [each for each in into if each.source == source]


def _binding(call: Call) -> Binding:
    """The binding of the path, whose key may be encoded twice, as in a location."""
    wanted = call.path("properties_key")
    found = _between(call)
    for name in (shown_key, lambda each: each.properties_key):
        for each in found:
            if name(each) == wanted:
                return each
    raise NotFound(f"no binding '{wanted}' between the two")


ROUTES = [
    resource("/api/bindings", GET=show_all),
    resource("/api/bindings/{vhost}", GET=show_vhost),
    resource(
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}",
        GET=show_between,
        POST=post,
    ),
    resource(
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}",
        GET=show,
        DELETE=delete,
    ),
]

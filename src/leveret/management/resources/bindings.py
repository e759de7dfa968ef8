"""`/api/bindings`: from an exchange (`e`) to a queue (`q`) or exchange (`e`)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from leveret.management.call import Call, resource
from leveret.management.replies import done, json_reply, list_reply
from leveret.model.definitions import Binding, Put
from leveret.model.errors import AccessRefused, NotFound

_KINDS: Final = {"q": "queue", "e": "exchange"}


class Wanted(msgspec.Struct):
    """The body of a POST."""

    routing_key: str = ""
    arguments: dict[str, Any] = {}


async def show_all(call: Call) -> Response:
    """The bindings of all vhosts the caller sees."""
    seen = [name for name in call.broker.topologies if call.caller.sees(name)]
    return list_reply([each for name in seen for each in _bindings(call, name)], call.request.query_params)


async def show_vhost(call: Call) -> Response:
    """The bindings of one vhost."""
    return list_reply(_bindings(call, call.vhost()), call.request.query_params)


async def show_between(call: Call) -> Response:
    """The bindings between two ends."""
    return json_reply([binding_json(each) for each in _between(call)])


async def post(call: Call) -> Response:
    """Bind; the location names the binding."""
    vhost, source, kind, destination = _ends(call)
    wanted = await call.body(Wanted)
    if not source:
        raise AccessRefused("operation not permitted on the default exchange")
    call.caller.may("write", vhost, destination, kind)
    call.caller.may("read", vhost, source, "exchange")
    binding = Binding(
        source=source,
        vhost=vhost,
        destination=destination,
        destination_type=kind,
        routing_key=wanted.routing_key,
        arguments=wanted.arguments,
    )
    await call.apply(Put(binding))
    location = f"{quote(destination, safe='')}/{quote(binding.properties_key, safe='~')}"
    return Response(status_code=HTTPStatus.CREATED, headers={"location": location})


async def show(call: Call) -> Response:
    """One binding."""
    return json_reply(binding_json(_binding(call)))


async def delete(call: Call) -> Response:
    """Unbind."""
    binding = _binding(call)
    call.caller.may("write", binding.vhost, binding.destination, binding.destination_type)
    call.caller.may("read", binding.vhost, binding.source, "exchange")
    call.broker.unbind(binding)
    await call.node.commit()
    return done()


def binding_json(binding: Binding) -> dict[str, Any]:
    """A binding as RabbitMQ shows it."""
    return {**msgspec.to_builtins(binding), "properties_key": binding.properties_key}


def default_bindings(call: Call, vhost: str) -> list[dict[str, Any]]:
    """Every queue is bound to the default exchange by its name."""
    return [
        binding_json(Binding(source="", vhost=vhost, destination=queue.key[1], routing_key=queue.key[1]))
        for queue in call.broker.vhost_queues(vhost)
    ]


def _bindings(call: Call, vhost: str) -> list[dict[str, Any]]:
    explicit = [binding_json(each) for each in call.broker.topology(vhost).bindings()]
    return default_bindings(call, vhost) + explicit


def _ends(call: Call) -> tuple[str, str, str, str]:
    kind = _KINDS.get(call.path("kind"))
    if kind is None:
        raise NotFound("a binding goes to a queue (q) or an exchange (e)")
    vhost, source, destination = call.vhost(), call.exchange_name("source"), call.path("destination")
    call.broker.exchange(vhost, source)
    if kind == "queue":
        call.broker.queue(vhost, destination)
    else:
        call.broker.exchange(vhost, destination)
    return vhost, source, kind, destination


def _between(call: Call) -> list[Binding]:
    vhost, source, kind, destination = _ends(call)
    if not source:
        return [Binding(source="", vhost=vhost, destination=destination, routing_key=destination)]
    into = call.broker.topology(vhost).bindings_into(kind, destination)
    return [each for each in into if each.source == source]


def _binding(call: Call) -> Binding:
    wanted = call.path("properties_key")
    for each in _between(call):
        if each.properties_key == wanted:
            return each
    raise NotFound(f"no binding '{wanted}' between the two")


ROUTES = [
    resource("/api/bindings", GET=show_all),
    resource("/api/bindings/{vhost}", GET=show_vhost),
    resource("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", GET=show_between, POST=post),
    resource(
        "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}", GET=show, DELETE=delete
    ),
]

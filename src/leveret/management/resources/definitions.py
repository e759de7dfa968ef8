"""`/api/definitions`: all that was declared, as one document; out, and in again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.responses import Response

import leveret
from leveret.management.auth import Need
from leveret.management.call import Call, resource
from leveret.management.replies import done, json_reply
from leveret.management.resources.overview import RABBITMQ_VERSION
from leveret.model.definitions import KINDS, AnyEntity, Put, Queue
from leveret.runtime.definitions_import import entities_of, is_passed_over

_OF_A_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")


async def show_all(call: Call) -> Response:
    """The definitions of the cluster."""
    sections = {kind: [entity_json(each) for each in call.definitions[kind].values()] for kind in KINDS}
    return _document({"rabbitmq_definition_format": "cluster", **_names(call), **sections})


async def show_vhost(call: Call) -> Response:
    """The definitions of one vhost; its name is left out, so that they fit another."""
    vhost = call.vhost()
    sections = {}
    for kind in _OF_A_VHOST:
        own = [entity_json(each) for each in call.definitions[kind].values() if each.key[0] == vhost]
        sections[kind] = [{name: value for name, value in each.items() if name != "vhost"} for each in own]
    names = {"rabbitmq_definition_format": "single_virtual_host", "original_vhost_name": vhost}
    return _document({**names, **_names(call), **sections})


async def put_all(call: Call) -> Response:
    """Put the definitions of a cluster on top of what is there."""
    return await _put(call, None)


async def put_vhost(call: Call) -> Response:
    """Put the definitions of a vhost on top of what is there."""
    return await _put(call, call.vhost())


async def _put(call: Call, vhost: str | None) -> Response:
    kind = call.request.headers.get("content-type", "application/json")
    if kind.partition(";")[0].strip() != "application/json":
        return Response(status_code=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    entities = entities_of(await call.body(dict[str, Any]), vhost)
    held = call.node.broker.definitions
    await call.apply(*(Put(entity) for entity in entities if not is_passed_over(entity, held)))
    return done()


def entity_json(entity: AnyEntity) -> dict[str, Any]:
    """An entity as a definitions file has it."""
    shown: dict[str, Any] = msgspec.to_builtins(entity)
    if isinstance(entity, Queue):
        del shown["epoch"]
    return shown


def _names(call: Call) -> dict[str, str]:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Leveret",
        "product_version": leveret.__version__,
        "original_cluster_name": call.node.config.cluster_name,
    }


def _document(content: dict[str, Any]) -> Response:
    reply = json_reply(content)
    reply.headers["content-disposition"] = "attachment; filename=definitions.json"
    return reply


ROUTES = [
    resource("/api/definitions", need=Need.ADMINISTRATOR, GET=show_all, POST=put_all),
    resource("/api/definitions/{vhost}", need=Need.ADMINISTRATOR, GET=show_vhost, POST=put_vhost),
]

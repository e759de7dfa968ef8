"""`/api/definitions`: all definitions as one document, for export and import."""

from __future__ import annotations

from collections.abc import Iterable
from email import policy
from email.parser import BytesParser
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

import leveret
from leveret.core.broker.broker import Broker
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, json_errors, resource
from leveret.management.request.replies import done, octets_reply
from leveret.model.definitions import KINDS, AnyEntity, Put, Queue, Vhost
from leveret.model.errors import InvalidCommand, Refusal
from leveret.model.served_release import RABBITMQ_VERSION
from leveret.runtime.definitions.importing import (
    document_of,
    each_entity,
    is_passed_over,
    place_of,
    without_loose_bindings,
)
from leveret.runtime.process.work_slices import in_slices

_OF_A_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
_JSON: Final = "application/json"
_FORM: Final = "multipart/form-data"
_QUOTED: Final = str.maketrans({'"': "", "\\": "", "\r": "", "\n": ""})


async def show_all(call: Call) -> Response:
    """The definitions of the cluster."""
    existing = {kind: list(call.definitions[kind].values()) for kind in KINDS}
    return await _document(call, {"rabbitmq_definition_format": "cluster", **_names(call)}, existing)


async def show_vhost(call: Call) -> Response:
    """The definitions of one vhost, without its name, so that they fit another."""
    vhost = call.vhost()
    existing = {
        kind: [each for each in call.definitions[kind].values() if each.key[0] == vhost]
        for kind in _OF_A_VHOST
    }
    names = {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": vhost,
    }
    return await _document(call, {**names, **_names(call)}, existing, without="vhost")


async def put_all(call: Call) -> Response:
    """Add the definitions of a cluster to the present ones."""
    return await _put(call, None)


async def put_vhost(call: Call) -> Response:
    """Add the definitions of a vhost to the present ones."""
    return await _put(call, call.vhost())


async def _put(call: Call, vhost: str | None) -> Response:
    """Import, one import at a time; as in RabbitMQ, entities before a refused one stay."""
    kind = call.request.headers.get("content-type", _JSON)
    media = kind.partition(";")[0].strip().lower()
    if media not in (_JSON, _FORM):
        return Response(status_code=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    octets = await call.octets()
    with json_errors():
        content = document_of(_file_of(kind, octets) if media == _FORM else octets or b"{}")
    async with call.imports:
        wanted = each_entity(content, vhost, default_queue_type=call.broker.default_queue_type)
        with json_errors():
            entities = [entity async for entity in in_slices(wanted)]
        try:
            bound = without_loose_bindings(entities, call.broker.definitions)
            async for entity in in_slices(bound):
                _put_entity(call.broker, entity)
                await call.flush_some()
        finally:
            await call.node.commit()
    return done()


def _put_entity(broker: Broker, entity: AnyEntity) -> None:
    """Put one entity of a document, except those that an import skips.

    Raises:
        InvalidCommand: the text names the refused entity and the reason.
    """
    if is_passed_over(entity, broker.definitions):
        return
    try:
        broker.apply(Put(entity))
    except Refusal as refusal:
        raise InvalidCommand(f"{place_of(entity)}: {refusal}") from None


def _file_of(kind: str, octets: bytes) -> bytes:
    """The part `file` of a form."""
    head = f"content-type: {kind}\r\n\r\n".encode("latin-1")
    form = BytesParser(policy=policy.HTTP).parsebytes(head + octets)
    for part in form.iter_parts():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            return content if isinstance(content, bytes) else b""
    raise InvalidCommand("the form has no part named 'file'")


def entity_json(call: Call, entity: AnyEntity) -> dict[str, Any]:
    """An entity in the form of a definitions file."""
    shown = call.entity_json(entity)
    if isinstance(entity, Queue):
        del shown["epoch"]
    if isinstance(entity, Vhost):
        shown["metadata"] = {key: shown[key] for key in ("description", "tags", "default_queue_type")}
    return shown


def _names(call: Call) -> dict[str, str]:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Leveret",
        "product_version": leveret.__version__,
        "original_cluster_name": call.node.config.cluster_name,
    }


async def _document(
    call: Call,
    names: dict[str, str],
    existing: dict[str, list[AnyEntity]],
    without: str = "",
) -> Response:
    sections = {
        kind: msgspec.Raw(await _section(call, entities, without)) for kind, entities in existing.items()
    }
    reply = octets_reply(msgspec.json.encode({**names, **sections}))
    name = call.query.get("download", "definitions.json").translate(_QUOTED)
    # A header has no letters beyond Latin; the name after the asterisk has all of them (RFC 6266).
    plain = name.encode("ascii", "replace").decode()
    encoded = "" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}"
    reply.headers["content-disposition"] = f'attachment; filename="{plain}"{encoded}'
    return reply


async def _section(call: Call, entities: Iterable[AnyEntity], without: str) -> bytes:
    encode = msgspec.json.Encoder().encode
    rows: list[bytes] = []
    async for entity in in_slices(entities):
        row = entity_json(call, entity)
        row.pop(without, None)
        rows.append(encode(row))
    return b"[" + b",".join(rows) + b"]"


ROUTES = [
    resource(
        "/api/definitions",
        need=Requirement.ADMINISTRATOR,
        is_download=True,
        takes_documents=True,
        GET=show_all,
        POST=put_all,
    ),
    resource(
        "/api/definitions/{vhost}",
        need=Requirement.ADMINISTRATOR,
        is_download=True,
        takes_documents=True,
        GET=show_vhost,
        POST=put_vhost,
    ),
]

"""Definitions from a management API: taken entity by entity, beside the node's other work."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import msgspec
import pytest

from leveret.model.definitions import Definitions, Put, Queue
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync import http_source
from leveret.runtime.schema_sync.endpoints import SchemaUpstreamParameter, UpstreamEndpoint
from leveret.runtime.schema_sync.http_source import HttpSource
from leveret.session.amqp10.client import SchemaLinkError

EMPTY: dict[str, Any] = {
    "users": [], "vhosts": [{"name": "v"}], "permissions": [], "queues": [], "exchanges": [], "bindings": [],
}  # fmt: skip
MANY = 1000


def source() -> HttpSource:
    endpoint = UpstreamEndpoint("127.0.0.1", 1, "http")
    return HttpSource(endpoint, SchemaUpstreamParameter([endpoint], "u", "p"), None, 1.0)


async def test_a_document_is_decoded_entity_by_entity(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    decode = msgspec.json.decode

    def noted(octets: bytes, **options: Any) -> Any:
        if options["type"] == dict[str, Any]:
            sizes.append(len(bytes(octets)))
        return decode(octets, **options)

    monkeypatch.setattr(msgspec.json, "decode", noted)
    queues = [{"name": f"q{number}", "vhost": "v", "durable": True} for number in range(MANY)]
    document = json.dumps({**EMPTY, "queues": queues}).encode()
    entities = await source()._entities(document, b"[]", Definitions())
    assert (len(entities), len(sizes)) == (MANY + 1, MANY + 1)
    assert max(sizes) < 100


@pytest.mark.parametrize("queues", [None, {}, ["q"], [[]], 7])
async def test_a_kind_that_is_no_list_of_objects_is_named(queues: Any) -> None:
    with pytest.raises(SchemaLinkError, match="cannot be read: queues is no list of objects"):
        await source()._entities(json.dumps({**EMPTY, "queues": queues}).encode(), b"[]", Definitions())


async def test_many_entities_that_are_gone_are_forgotten_beside_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_source, "in_slices", partial(in_slices, slice_s=0.0))
    theirs = Definitions()
    for number in range(MANY):
        theirs.apply(Put(Queue(vhost="v", name=f"q{number}")))
    replacing = asyncio.create_task(http_source._replace(theirs, []))
    turns = 0
    while not replacing.done():
        await asyncio.sleep(0)
        turns += 1
    assert not theirs.by_kind["queues"]
    assert turns >= MANY

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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (b"[" * 200 + b"]" * 200, "nested more than 100 levels deep"),
        (b'[{"]":' * 50_000 + b'"["' + b"}]" * 50_000, "nested more than 100 levels deep"),
        (b"1e999", "out of range"),
    ],
    ids=["deep", "deeper than the decoder can skip", "large number"],
)
async def test_of_what_cannot_be_read_one_entity_is_left_as_it_is(arguments: bytes, reason: str) -> None:
    """One argument ended the sync of all definitions (2026-11-30)."""
    queues = b",".join(
        b'{"name": "%s", "vhost": "v", "durable": true, "arguments": {"x": %s}}' % each
        for each in ((b"q1", b"1"), (b"q2", arguments), (b"q3", arguments), (b"q4", b"2"))
    )
    document = (
        json.dumps({**EMPTY, "queues": []}).encode().replace(b'"queues": []', b'"queues": [%s]' % queues)
    )
    theirs, known = Definitions(), Queue(vhost="v", name="q2", epoch=7)
    theirs.apply(Put(known))
    found = source()
    entities = await found._entities(document, b"[]", theirs)
    read = [each for each in entities if isinstance(each, Queue)]
    assert [each.name for each in read] == ["q1", "q2", "q4"]
    assert read[1] is known
    assert [text.partition(": ")[0] for text in found.unreadable] == ["queues 'q2'", "queues 'q3'"]
    assert all(reason in text for text in found.unreadable)


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

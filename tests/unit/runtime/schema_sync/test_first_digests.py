"""Both ends of a schema sync digest many entities in slices, and an upstream is asked only then."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from leveret.core.schema.digests import Digests
from leveret.model.definitions import Definitions, Put, Queue
from leveret.runtime.schema_sync.link import SchemaLink
from leveret.runtime.schema_sync.schema_sync import DIGESTED_AT_ONCE
from leveret.runtime.schema_sync.source import AmqpSource
from leveret.session.schema_exchange import answer
from leveret.testing.network.waiting import until
from leveret.wire.schema_sync import decode_request, encode_reply
from tests.unit.runtime.collecting.site import TAGGED, Site


async def test_an_upstream_digests_many_entities_in_slices_and_few_at_once(directory: Path) -> None:
    site = await Site.started(directory)
    sync = site.node.schema_sync
    await sync.set_mode("upstream")
    await site.apply(Put(TAGGED))
    assert sync.is_ready()
    await site.apply(*(Put(Queue(vhost="v", name=f"q{number}")) for number in range(2 * DIGESTED_AT_ONCE)))
    state = sync.state()
    assert (sync.is_ready(), sync.state()) == (False, state), (
        "what would take long is not even begun in this step"
    )
    await until(sync.is_ready)
    await until(lambda: sync.state() != state)
    await site.apply(*(Put(Queue(vhost="v", name=f"r{number}")) for number in range(DIGESTED_AT_ONCE)))
    assert sync.is_ready()
    await site.apply(*(Put(Queue(vhost="v", name=f"s{number}")) for number in range(DIGESTED_AT_ONCE)))
    assert not sync.is_ready()
    await until(sync.is_ready)
    await site.stop()


class Upstream:
    """The link to an upstream in this process."""

    sent_bytes = received_bytes = 0

    def __init__(self, count: int) -> None:
        self.definitions = Definitions()
        self.digests = Digests()
        for number in range(count):
            self.definitions.apply(Put(Queue(vhost="v", name=f"q{number}", epoch=number + 1)))

    async def request(self, body: bytes, timeout_s: float) -> bytes:
        return encode_reply(answer(self.digests, self.definitions, decode_request(body), "up"))


async def test_a_downstream_digests_what_the_last_sync_brought_in_slices_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = Definitions()
    source = AmqpSource(cast(SchemaLink, Upstream(6 * DIGESTED_AT_ONCE)), "down", 60.0)
    await source.fetch(theirs)
    assert len(theirs.by_kind["queues"]) == 6 * DIGESTED_AT_ONCE
    due: list[int] = []
    update = Digests.update

    def looked(digests: Digests, definitions: Definitions) -> None:
        if definitions is theirs:
            due.append(digests.due_count(definitions))
        update(digests, definitions)

    for queue in cast("list[Queue]", list(theirs.by_kind["queues"].values())):
        theirs.apply(Put(msgspec.structs.replace(queue, epoch=queue.epoch + 1)))
    monkeypatch.setattr(Digests, "update", looked)
    await source.fetch(theirs)
    assert due[0] == 0, "all are digested by then"

"""An upstream with many entities digests them in slices, and is asked only then."""

from __future__ import annotations

from pathlib import Path

from leveret.model.definitions import Put, Queue
from leveret.runtime.schema_sync.schema_sync import DIGESTED_AT_ONCE
from leveret.testing.network.waiting import until
from tests.unit.runtime.collecting.site import TAGGED, Site


async def test_an_upstream_digests_many_entities_in_slices_and_few_at_once(directory: Path) -> None:
    site = Site(directory)
    await site.start()
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

"""What an upstream shows of the queues that it collects."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from leveret.model import definitions as d
from leveret.model.errors import StorageError
from leveret.runtime.collecting.log_identity import OutgoingLogIdentity
from tests.unit.runtime.collecting.site import POLICY, TAGGED, Site, replicating


async def test_a_damaged_message_hides_no_other_queue_and_is_not_read_to_be_counted(directory: Path) -> None:
    """It ended the whole answer, and with it each scrape of `/metrics` (2026-11-29)."""
    site = await replicating(directory, "q", "qb")
    await site.publish(4, "q")
    await site.publish(3, "qb")
    [segment] = site.node.log_store.log(site.queue("q")).directory.glob("*.segment")
    octets = bytearray(segment.read_bytes())
    octets[60] ^= 1
    segment.write_bytes(octets)
    assert [row["queue"] for row in site.node.upstream.metrics()] == ["qb"]
    assert [*site.node.upstream.messages()] == [("v", "q", 4), ("v", "qb", 3)]


async def test_a_log_that_a_full_disk_refused_is_made_once_there_is_room(directory: Path) -> None:
    """Its vhost was not collected until the next start, and no command said so (2026-11-29)."""
    site = await Site.started(directory)
    await site.apply(d.Put(d.Vhost(name="v")), d.Put(d.Queue(name="q", vhost="v")), d.Put(POLICY))
    await site.publish(4)

    def refuse(*_: object) -> None:
        raise StorageError("identity.json: cannot be written") from OSError(errno.ENOSPC, "full")

    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(OutgoingLogIdentity, "_save", refuse)
        await site.apply(d.Put(TAGGED))
        [shown] = site.node.upstream.collected()
        assert (shown["queues"], shown["records"]) == (1, 0)
        assert "the disk refused" in shown["error"]
        await site.publish(3)
    site.node.upstream.open_again()
    site.node.collector.resume(site.node.broker.led_queues())
    await site.settle()
    [row] = site.node.upstream.metrics()
    assert row["collected_offset"] == 7
    [shown] = site.node.upstream.collected()
    assert (shown["queues"], shown["error"]) == (1, "")


async def test_the_counts_of_deleted_queues_are_forgotten_at_the_next_start(directory: Path) -> None:
    """The file of an outgoing log kept a number for each queue whose replication had ended once (2026-11-30)."""
    site = await replicating(directory, "q", "qb")
    for name in ("q", "qb"):
        await site.publish(1, name)
    await site.apply(d.Delete("policies", POLICY.key))
    await site.apply(d.Delete("queues", ("v", "q")), d.Put(POLICY))
    await site.publish(1, "qb")
    before = dict(site.node.collector.logs["v"]._incarnations)
    await site.restart()
    after = site.node.collector.logs["v"]._incarnations
    assert (len(before), [*after]) == (2, [str(site.queue("qb").epoch)])

"""What an upstream shows of the queues that it collects."""

from __future__ import annotations

from pathlib import Path

from tests.unit.runtime.collecting.site import replicating


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

"""How an outgoing log stands: a node says that its log is whole only if all that it promises is in it."""

from __future__ import annotations

from pathlib import Path

from leveret.model import definitions as d
from leveret.runtime.collecting.log_coverage import coverage_of
from leveret.wire.site_order import LogCoverage, is_whole, mark_of, sum_of
from tests.unit.runtime.collecting.site import POLICY, Site, play, replicating


def coverage(site: Site, *, may_promise: bool = True) -> LogCoverage:
    node = site.node
    return coverage_of("v", node.collector.logs["v"], node.broker, node.collector, may_promise=may_promise)


def test_a_log_is_whole_while_all_collected_queues_are_collected_live_or_are_down() -> None:
    async def scenario(directory: Path) -> None:
        site = await replicating(directory, "q1", "q2")
        await site.apply(d.Put(d.Queue(name="other", vhost="v")))
        await site.publish(3, "q1")
        log, collector = site.node.collector.logs["v"], site.node.collector
        marks = sum_of(sum(mark_of(name, site.queue(name).epoch) for name in ("q1", "q2")))
        whole = coverage(site)
        assert whole == LogCoverage(log.writer, log.log.next_offset, marks, marks)
        assert is_whole([whole])
        assert coverage(site, may_promise=False).end == -1
        collector.following.discard(site.queue("q2"))
        assert coverage(site).end == -1
        site.queue("q2").damage = "unreadable"
        assert coverage(site) == whole
        site.queue("q2").damage = None
        await site.apply(d.Delete("policies", POLICY.key))
        assert coverage(site)[1:] == (log.log.next_offset, 0, 0)

    play(scenario)

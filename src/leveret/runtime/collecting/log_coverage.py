"""What the outgoing log of a vhost has of its queues, for the order of a site's logs (`wire.site_order`)."""

from __future__ import annotations

from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue
from leveret.runtime.collecting.collector import Collector
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.wire.site_order import LogCoverage, mark_of, sum_of


def coverage_of(
    vhost: str, log: OutgoingLog, broker: Broker, collector: Collector, *, may_promise: bool
) -> LogCoverage:
    """The coverage of a vhost's log now; a node that may not promise anything (a lost lease) has no whole log.

    What is promised of a queue is collected at that moment, if the queue is collected live. A queue that is down has
    nothing that could be collected.
    """
    led = known = 0
    is_whole = may_promise
    for queue in broker.vhost_queues(vhost):
        if not queue.replicated:
            continue
        mark = mark_of(queue.key[1], queue.epoch)
        known += mark
        if not queue.is_remote:
            led += mark
            is_whole &= _is_collected(queue, collector)
    return LogCoverage(log.writer, log.log.next_offset if is_whole else -1, sum_of(led), sum_of(known))


def _is_collected(queue: Queue, collector: Collector) -> bool:
    return queue in collector.following or queue.damage is not None

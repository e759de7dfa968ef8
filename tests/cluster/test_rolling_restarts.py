"""Nodes are stopped and started in order, one after the other: queues that are idle and drained go round with them.

Logs of every size around a segment's end, and around what is sent to a new mirror whole: each has another way to be
copied, and to be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import pika
import pytest

from leveret.testing.sites.cluster_site import ClusterSite

pytestmark = [pytest.mark.story, pytest.mark.timeout(240)]

SEGMENT_BYTES = 2 << 20
BODY_BYTES = 1 << 16
PER_SEGMENT = SEGMENT_BYTES // BODY_BYTES
SENT_WHOLE = (1 << 20) // BODY_BYTES
COUNTS = {
    "nothing": 0,
    "one": 1,
    "short": SENT_WHOLE - 1,
    "not-short": SENT_WHOLE + 1,
    "before-end": PER_SEGMENT - 1,
    "at-end": PER_SEGMENT,
    "behind-end": PER_SEGMENT + 1,
    "two-ends": 2 * PER_SEGMENT + 1,
    "group": PER_SEGMENT + 1,
}
"""By queue: how many messages it had, before all were settled. `group` is a quorum queue."""
LEFT = "some-left"
ORDERS = [(0, 1, 2), (2, 1, 0)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ClusterSite]:
    config = {"cluster.etcd.lease_ttl": "2s", "segment_bytes_max": str(SEGMENT_BYTES)}
    with ClusterSite(tmp_path, 3, config) as site:
        yield site


def fill(site: ClusterSite) -> None:
    """Every queue is led by another node than the one before, had its messages, and has none; one has its last two."""
    for index, (queue, count) in enumerate({**COUNTS, LEFT: PER_SEGMENT + 2}.items()):
        arguments = {"x-queue-type": "quorum"} if queue == "group" else None
        with site.channel(site.members[index % 3]) as channel:
            channel.queue_declare(queue, durable=True, arguments=arguments)
            body = bytes(BODY_BYTES)
            for number in range(count):
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", queue, body, properties)
            method = None
            for _ in range(count if queue != LEFT else count - 2):
                method, _, _ = channel.basic_get(queue)
            if method is not None:
                channel.basic_ack(method.delivery_tag, multiple=True)
        site.wait_messages(queue, 2 if queue == LEFT else 0)


def test_idle_queues_outlive_rolling_restarts_in_any_order(site: ClusterSite) -> None:
    site.set_policy("two", "^[^g]", {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"})
    fill(site)
    for index in chain.from_iterable(ORDERS):
        node = site.members[index]
        assert node.ctl("await_online_synchronized_mirror").returncode == 0
        assert node.ctl("await_online_quorum_plus_one").returncode == 0
        node.stop()
        site.start(node)
        for queue in (*COUNTS, LEFT):
            site.wait(partial(runs_whole, site, queue), f"{queue} runs, and has its mirrors")
    for node in site.members:
        assert site.api("GET", "replication/divergent", at=node) == [], "nothing was anybody's alone"
        for queue in (*COUNTS, LEFT):
            placed = site.queue(queue, asked=node)
            assert placed is not None
            assert placed.messages == (2 if queue == LEFT else 0)
    with site.channel(site.members[0]) as channel:
        for queue in COUNTS:
            channel.basic_publish("", queue, b"new", mandatory=True)
            assert channel.basic_get(queue, auto_ack=True)[2] == b"new"
        ids = [channel.basic_get(LEFT, auto_ack=True)[1].message_id for _ in range(2)]
        assert ids == [str(PER_SEGMENT), str(PER_SEGMENT + 1)]


def runs_whole(site: ClusterSite, queue: str) -> bool:
    placed = site.queue(queue)
    assert placed is not None
    return placed.state == "running" and len(placed.synchronised) == (2 if queue == "group" else 1)

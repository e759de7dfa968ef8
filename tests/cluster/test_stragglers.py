"""A message that nobody settles pins no disk at any mirror, and is there whoever leads, in its old place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

pytestmark = [
    pytest.mark.story,
    pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available())),
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(180),
]

MIB = 1 << 20
BODY_BYTES = 100_000
QUEUES: dict[str, dict[str, Any]] = {
    "mirrored": {},
    "mirrored-priority": {"x-max-priority": 3},
    "quorum": {"x-queue-type": "quorum"},
}
STRAGGLERS = [b"straggler %d" % number for number in range(3)]
DISK_BYTES_MAX = len(QUEUES) * 2 * MIB


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSite]:
    config = {"cluster.etcd.lease_ttl": "3s", "segment_bytes_max": str(MIB)}
    with ClusterSite(tmp_path_factory.mktemp("stragglers"), 3, config) as site:
        yield site


def on_disk(node: SiteNode) -> int:
    """Octets of the logs of queues."""
    total = 0
    for path in (node.data_dir / "queues").rglob("*segment*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def pass_through(channel: Any, queue: str, size: int) -> None:
    """So many octets through a queue, all settled."""
    for number in range(size // BODY_BYTES):
        channel.basic_publish("", queue, b"%d" % (number % 10) * BODY_BYTES)
        method, _, _ = channel.basic_get(queue)
        channel.basic_ack(method.delivery_tag)


def test_whoever_leads_has_them_in_their_old_place_and_nobody_keeps_what_passed(site: ClusterSite) -> None:
    first, second, third = site.members
    site.set_policy("ha", "^mirrored", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    with site.channel(first) as channel:
        channel.confirm_delivery()
        for queue, arguments in QUEUES.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
            site.wait_synchronised(queue, 2)
            for body in STRAGGLERS:
                channel.basic_publish("", queue, body)
                assert channel.basic_get(queue)[2] == body
        for queue in QUEUES:
            pass_through(channel, queue, 3 * MIB)
        third.kill9()
        for queue in QUEUES:
            pass_through(channel, queue, 4 * MIB)
        # Who is gone and recorded is waited for, until it is taken out of the record.
        site.wait(
            lambda: all(on_disk(node) < DISK_BYTES_MAX for node in (first, second)), "what is given back"
        )
        site.start(third)
        site.wait_members()
        for queue in QUEUES:
            site.wait_synchronised(queue, 2)
            pass_through(channel, queue, 2 * MIB)
        site.wait(lambda: all(on_disk(node) < DISK_BYTES_MAX for node in site.members), "what is given back")
        first.kill9()
    site.wait(lambda: all(led_elsewhere(site, queue, first) for queue in QUEUES), "other leaders")
    site.start(first)
    site.wait_members()
    for queue in QUEUES:
        site.wait_synchronised(queue, 2)
        with site.channel(second) as channel:
            got = [channel.basic_get(queue) for _ in range(len(STRAGGLERS) + 1)]
            assert [body for _, _, body in got] == [*STRAGGLERS, None], queue
            assert all(method.redelivered for method, _, _ in got[:-1])
    for node in site.members:
        assert "quarantined" not in node.log_text(), node.node


def led_elsewhere(site: ClusterSite, queue: str, lost: SiteNode) -> bool:
    place = site.queue(queue, asked=site.members[1])
    return place is not None and place.leader not in (None, lost.node)

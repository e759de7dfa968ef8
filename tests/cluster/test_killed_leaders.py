"""A leader whose process is killed is replaced at once: its companion ends the lease, which would last for a minute."""

from __future__ import annotations

import time
from typing import Final

import pika
import pytest

from leveret.testing.network.ports import wait_until
from leveret.testing.sites.cluster_site import ClusterSite

LEASE_S: Final = 60
CONFIG: Final = {"cluster.etcd.lease_ttl": f"{LEASE_S}s"}
SOON_S: Final = 20.0
"""Of a busy machine; `make bench` measures the time."""


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_is_led_on_long_before_the_lease_of_its_killed_leader_would_end(
    site: ClusterSite, kind: str
) -> None:
    killed, *others = site.members
    site.set_policy("ha", "^classic$", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    with site.channel(killed) as channel:
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
    site.wait_placed(kind, killed, mirrors=others, synchronised=others)
    with site.channel(others[0]) as channel:
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", kind, b"before", persistent)
        began_s = time.monotonic()
        killed.kill9()
        channel.basic_publish("", kind, b"after", persistent)
        assert time.monotonic() - began_s < SOON_S
    # Nor does the next run of the node wait for the lease of its last one.
    killed.launch()
    killed.wait_ready()
    assert time.monotonic() - began_s < LEASE_S / 2
    site.wait_members()
    rows = site.queues(others[1])
    assert rows[kind].leader != killed.node
    wait_until(lambda: site.queues(others[1])[kind].messages == 2, "both messages", SOON_S)


def test_a_leader_that_stands_still_keeps_its_lease(site: ClusterSite) -> None:
    still, other, _ = site.members
    with site.channel(still) as channel:
        channel.queue_declare("still", durable=True)
    with site.paused(still):
        time.sleep(2.0)
        assert still.node in site.members_running(other)
    assert site.queues(other)["still"].leader == still.node

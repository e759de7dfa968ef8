"""Strangers open all the connections that they can to the cluster's port of a node with few file descriptors."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.sites.cluster_site import ClusterSite, SiteNode

pytestmark = pytest.mark.story

OPEN_FILES_MAX: Final = 256
STRANGER: Final = "127.0.0.2"
CONFIG: Final = {"cluster.etcd.lease_ttl": "4s"}


def alarmed(site: ClusterSite, node: SiteNode) -> bool:
    try:
        site.api("GET", "health/checks/alarms", at=node)
    except httpx.HTTPStatusError as failed:
        return "file_descriptor_limit" in failed.response.text
    return False


def led_by_another(site: ClusterSite, asked: SiteNode, lost: SiteNode) -> bool:
    placed = site.queue("q", asked=asked)
    return placed is not None and placed.state == "running" and placed.leader != lost.node


def test_a_cluster_goes_on_while_the_port_of_its_leader_is_flooded(tmp_path: Path) -> None:
    site = ClusterSite(tmp_path, 3, CONFIG)
    for node in site.members:
        node.open_files_max = OPEN_FILES_MAX
    with site, ExitStack() as strangers:
        first, second, third = site.members
        site.set_policy("all", "^q", {"ha-mode": "all", "ha-sync-mode": "automatic"})
        with site.channel(first) as channel:
            channel.queue_declare("q", durable=True)
        site.wait_placed("q", first, mirrors=[second, third], synchronised=[second, third])
        with site.channel(second) as channel:
            channel.basic_publish("", "q", b"before", mandatory=True)
            for _ in range(OPEN_FILES_MAX):
                with suppress(OSError):
                    address = (LOOPBACK, first.cluster_port)
                    strangers.enter_context(
                        socket.create_connection(address, 10, source_address=(STRANGER, 0))
                    )
            site.wait(lambda: alarmed(site, first), "the alarm of the flooded node")
            for number in range(50):
                channel.basic_publish("", "q", b"%d" % number, mandatory=True)
        placed = site.queue("q", asked=third)
        assert placed is not None
        assert (placed.leader, set(placed.synchronised)) == (first.node, {second.node, third.node})
        site.wait_messages("q", 51, asked=third)
        strangers.close()
        site.wait(lambda: not alarmed(site, first), "the end of the alarm")
        for node in site.members:
            assert not re.findall(r".*(?:action=stop|Traceback|append_failed).*", node.log_text())
        first.kill9()
        site.wait(lambda: led_by_another(site, third, first), "another leader")
        with site.channel(third) as channel:
            bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(51)]
        assert bodies == [b"before", *(b"%d" % number for number in range(50))]

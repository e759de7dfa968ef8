"""The console and the loss of a machine: a follower that is promoted from the page, a cluster that lives on."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pika
import pytest
from playwright.sync_api import expect

from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.chromium import Visit
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_site import ClusterSite
from leveret.testing.sites.follower_site import FollowerSite
from tests.browser.console_visit import look_at

pytestmark = pytest.mark.story

SLOW_MS = 60_000
MESSAGES = 200
BODY_BYTES = 50_000
SLOW_BYTES_S = 500_000
HALF_WAY = re.compile(rf"[1-9]\d* of {MESSAGES} messages, .* left")


def publish(port: int, queue: str, count: int, body: bytes = b"") -> None:
    with pika.BlockingConnection(parameters(port, "/")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for _ in range(count):
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def test_a_follower_is_a_copy_and_is_promoted_from_the_page_when_its_leader_is_lost(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with FollowerSite(tmp_path, followers=1) as site:
        site.start()
        publish(site.leader.node.amqp_port, "orders", 5)
        site.wait_even()
        urls = {
            "first": f"http://{LOOPBACK}:{site.leader.node.management_port}",
            "second": f"http://{LOOPBACK}:{site.followers[0].node.management_port}",
        }
        with ConsoleProcess(urls) as console:
            look_at(page, console, "safety")
            row = page.locator("table.queues tr", has_text="orders").first
            expect(row).to_contain_text("◇ one site", timeout=SLOW_MS)
            expect(row).to_contain_text("follower in sync")
            site.leader.node.kill9()
            expect(row).to_contain_text("? not heard", timeout=SLOW_MS)
            expect(row).to_contain_text("follower two@127.0.0.1 had every message then")
            page.get_by_role("link", name="Do", exact=True).click()
            second = page.get_by_role("region", name="second", exact=True)
            second.get_by_role("button", name="Promotion of the follower …", exact=True).click()
            second.get_by_label("This cannot be taken back").fill("second")
            second.locator("button.main").click()
            done = page.get_by_role("article", name="Promotion of the follower at second")
            expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
            page.get_by_role("link", name="History").click()
            expect(page.locator("ol.line")).to_contain_text("took the lead, in epoch 2", timeout=SLOW_MS)


@pytest.mark.xdist_group("cluster")
@pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available()))
def test_a_cluster_that_loses_a_node_is_still_alive_and_says_who_leads_on(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with ClusterSite(tmp_path) as site:
        first = site.members[0]
        first.ctl("set_policy", "ha", ".*", '{"ha-mode": "all", "ha-sync-mode": "automatic"}')
        publish(first.amqp_port, "orders", 5)
        nodes = [f"http://{LOOPBACK}:{node.management_port}" for node in site.members]
        with ConsoleProcess({"cluster": ",".join(nodes)}) as console:
            look_at(page, console, "safety")
            row = page.locator("table.queues tr", has_text="orders").first
            expect(row).to_contain_text("mirror synchronised", timeout=SLOW_MS)
            first.kill9()
            page.get_by_role("link", name="Sites").click()
            card = page.get_by_role("region", name="cluster", exact=True)
            expect(card.locator("tr", has_text=first.node)).to_contain_text("not running", timeout=SLOW_MS)
            expect(card).to_contain_text("✓ alive")
            page.get_by_role("link", name="History").click()
            expect(page.locator("ol.line")).to_contain_text(f"Node {first.node} was lost", timeout=SLOW_MS)


@pytest.mark.torture
@pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available()))
def test_the_synchronisation_of_mirrors_shows_how_far_it_is_and_survives_the_page(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with ClusterSite(tmp_path, links=True) as site:
        first = site.members[0]
        publish(first.amqp_port, "orders", MESSAGES, bytes(BODY_BYTES))
        first.ctl("set_policy", "ha", "^orders$", '{"ha-mode": "all", "ha-sync-mode": "manual"}')
        links = [each.link for each in site.members if each.link is not None]
        for link in links:
            link.limit_bytes_s = SLOW_BYTES_S
        with ConsoleProcess({"cluster": f"http://{LOOPBACK}:{first.management_port}"}) as console:
            look_at(page, console, "do")
            cluster = page.get_by_role("region", name="cluster", exact=True)
            cluster.get_by_role("button", name="Synchronise the mirrors of a queue …").click(timeout=SLOW_MS)
            expect(cluster.locator(".forecast")).to_contain_text(
                f"1 queue with {MESSAGES} messages has mirrors that are not synchronised: orders in /"
            )
            cluster.get_by_label("Virtual host").fill("/")
            cluster.get_by_label("Queue", exact=True).fill("orders")
            cluster.locator("button.main").click()
            job = page.get_by_role("article", name="Synchronise the mirrors of a queue at cluster")
            expect(job.locator(".progress")).to_contain_text(f"of {MESSAGES} messages", timeout=SLOW_MS)
            page.reload()
            expect(job.locator(".progress")).to_contain_text(HALF_WAY, timeout=SLOW_MS)
            for link in links:
                link.limit_bytes_s = None
            expect(job).to_contain_text("✓ done", timeout=SLOW_MS)


@pytest.mark.torture
@pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available()))
def test_the_leaders_of_queues_are_spread_over_the_nodes_from_the_page(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    with ClusterSite(tmp_path) as site:
        first = site.members[0]
        first.ctl("set_policy", "ha", ".*", '{"ha-mode": "all", "queue-master-locator": "client-local"}')
        for number in range(6):
            publish(first.amqp_port, f"orders.{number}", 2)
        site.wait(lambda: led_by(site) == {first.node: 6}, "one node to lead everything")
        site.wait(lambda: all(len(row.synchronised) == 2 for row in site.queues(first).values()), "mirrors")
        with ConsoleProcess({"cluster": f"http://{LOOPBACK}:{first.management_port}"}) as console:
            look_at(page, console, "do")
            cluster = page.get_by_role("region", name="cluster", exact=True)
            cluster.get_by_role("button", name="Spread the leaders of queues …").click(timeout=SLOW_MS)
            expect(cluster.locator(".forecast")).to_contain_text(f"Node {first.node} leads 6 queues now")
            cluster.get_by_label("Only queues of this pattern").fill("^orders")
            cluster.locator("button.main").click()
            job = page.get_by_role("article", name="Spread the leaders of queues at cluster")
            expect(job).to_contain_text("✓ done", timeout=SLOW_MS)
            expect(job.locator("tbody tr")).to_have_count(len(site.members))
            site.wait(lambda: set(led_by(site).values()) == {2}, "each node to lead two queues")


def led_by(site: ClusterSite) -> dict[str, int]:
    """How many queues each node leads."""
    return dict(Counter(row.leader for row in site.queues(site.members[0]).values()))

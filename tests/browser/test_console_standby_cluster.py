"""The console beside a standby of three nodes: which node has which vhost, a node that is lost, and the promotion, with
exact books at its end. And beside a cluster with a standby: a rehearsal, the loss, and the cluster's return.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.chromium import Chromium, Visit
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites import cluster_site
from leveret.testing.sites.cluster_standby import ClusterStandby
from leveret.testing.sites.standby_cluster import StandbyCluster
from tests.browser.console_visit import look_at

pytestmark = [
    pytest.mark.spark,
    pytest.mark.torture,
    pytest.mark.timeout(900),
    pytest.mark.skipif(cluster_site.available() is not None, reason=str(cluster_site.available())),
]

SLOW_MS = 120_000
VHOSTS = ("orders", "shop", "stock")
MESSAGES = 100


def urls_of(sites: StandbyCluster) -> dict[str, str]:
    nodes = sites.cluster.urls
    return {"eu": f"http://{LOOPBACK}:{sites.upstream.management_port}", "us": nodes}


def test_a_standby_of_many_nodes_is_one_site_that_is_promoted_from_the_page(
    visit: Visit, chromium: Chromium, tmp_path: Path
) -> None:
    page = visit.page
    with StandbyCluster(tmp_path, VHOSTS) as sites:
        sites.follow()
        owners = sites.wait_spread(most=1)
        for vhost in VHOSTS:
            sites.publish(vhost, "q", MESSAGES)
        sites.wait_transferred()
        with ConsoleProcess(urls_of(sites)) as console, chromium.visit() as second:
            look_at(page, console)
            shows_owners(page, owners)
            look_at(second.page, console, "do")
            lost = next(node for node in sites.cluster.members if node.node == owners["shop"])
            # With the upstream there, another node would have all that this one had after some seconds.
            sites.upstream.kill9()
            lost.kill9()
            us = page.get_by_role("region", name="us", exact=True)
            expect(us.locator("table.nodes tr", has_text=lost.node)).to_contain_text(
                "✕ not running", timeout=SLOW_MS
            )
            expect(us.locator("table.transfers")).to_contain_text(
                f"its data are at node {lost.node}, which does not run", timeout=SLOW_MS
            )
            page.get_by_role("link", name="Do", exact=True).click()
            promote(page)
            refused = page.get_by_role("article", name="Promotion at us", exact=True).first
            expect(refused).to_contain_text("does not run: start it", timeout=SLOW_MS)
            lost.launch()
            lost.wait_ready()
            sites.wait(lambda: sites.places()["shop"]["is_archive_read"], "the archive of the lost node")
            promote(page)
            for each in (page, second.page):
                done = each.get_by_role("article", name="Promotion at us", exact=True).first
                expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
                expect(done.locator("tbody tr")).to_have_count(len(VHOSTS))
            sites.check_recovered()
            page.get_by_role("link", name="Am I safe?").click()
            row = page.locator("table.queues tr", has_text="qshop at eu")
            expect(row).to_contain_text("Its standby us was promoted, and serves its copy", timeout=SLOW_MS)


def test_a_lost_cluster_returns_from_the_page_as_the_standby_of_its_successor(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    with ClusterStandby("shop", tmp_path, nodes=2) as pair:
        pair.start()
        pair.replicate("osr", "^.*")
        pair.publish("q", [b"{}"] * MESSAGES)
        pair.follow()
        pair.wait_transferred()
        urls = {
            "eu": pair.site.urls,
            "us": f"http://{LOOPBACK}:{pair.downstream.management_port}",
        }
        with ConsoleProcess(urls) as console:
            look_at(page, console)
            eu = page.get_by_role("region", name="eu", exact=True)
            expect(eu.locator("table.nodes tbody tr")).to_have_count(2)
            page.get_by_role("link", name="Do", exact=True).click()
            do(page, "us", "Rehearsal of a promotion")
            done = page.get_by_role("article", name="Rehearsal of a promotion at us")
            expect(done).to_contain_text(f"compared{MESSAGES}", timeout=SLOW_MS)
            pair.lose_site()
            promote(page)
            done = page.get_by_role("article", name="Promotion at us", exact=True)
            expect(done.locator("tbody tr")).to_contain_text(str(MESSAGES), timeout=SLOW_MS)
            pair.restart_upstream()
            pair.turn_round()
            do(page, "eu", "Return as a standby", word="eu")
            done = page.get_by_role("article", name="Return as a standby at eu")
            expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
            page.get_by_role("link", name="Sites").click()
            expect(eu).to_contain_text("rolestandby", timeout=SLOW_MS)
            expect(page.locator("figure.picture svg")).to_have_attribute(
                "aria-label", re.compile("eu follows us, connected"), timeout=SLOW_MS
            )


def shows_owners(page: Page, owners: dict[str, str]) -> None:
    """Each vhost has its node, and no node is taken for a site of its own."""
    us = page.get_by_role("region", name="us", exact=True)
    for vhost, owner in owners.items():
        row = us.locator("table.transfers tr", has_text=vhost)
        expect(row.locator("td[data-label=node]")).to_have_text(owner, timeout=SLOW_MS)
        expect(row.locator("td[data-label=link]")).to_have_text("connected", timeout=SLOW_MS)
    for owner in owners.values():
        expect(us.locator("table.nodes tr", has_text=owner)).to_contain_text("running, link connected")
    expect(page.locator("svg g.site")).to_have_count(2)
    expect(page.locator("figure.picture svg")).to_have_attribute(
        "aria-label", re.compile(r"us follows eu, connected, [^;]*$")
    )


def promote(page: Page) -> None:
    do(page, "us", "Promotion", word="us")


def do(page: Page, site: str, title: str, word: str = "") -> None:
    """Open the form of an action once it is offered, and send it."""
    region = page.get_by_role("region", name=site, exact=True)
    region.get_by_role("button", name=f"{title} …", exact=True).click(timeout=SLOW_MS)
    if word:
        region.get_by_label("This cannot be taken back").fill(word)
    region.locator("button.main").click()

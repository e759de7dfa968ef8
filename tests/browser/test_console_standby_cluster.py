"""The console beside a standby of three nodes: which node has which vhost, a node that is lost, and the promotion.

One story, with exact books at its end.
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
    nodes = ",".join(f"http://{LOOPBACK}:{node.management_port}" for node in sites.cluster.members)
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
            lost.kill9()
            us = page.get_by_role("region", name="us", exact=True)
            expect(us.locator("table.nodes tr", has_text=lost.node)).to_contain_text(
                "✕ not running", timeout=SLOW_MS
            )
            shop = us.locator("table.transfers tr", has_text="shop")
            expect(shop).to_contain_text(
                f"its data are at node {lost.node}, which does not run", timeout=SLOW_MS
            )
            sites.upstream.kill9()
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
    us = page.get_by_role("region", name="us", exact=True)
    us.get_by_role("button", name="Promotion …", exact=True).click(timeout=SLOW_MS)
    us.get_by_label("This cannot be taken back").fill("us")
    us.locator("button.main").click()

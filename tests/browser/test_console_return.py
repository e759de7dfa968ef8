"""The console beside a real standby: a recovery into another broker, then the loss of the upstream and its return."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from leveret.testing.demo.sites import VHOST, Sites
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.chromium import Visit
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites.standby_pair import get
from tests.browser.console_visit import look_at
from tests.browser.test_console_standby import QUEUE, SLOW_MS, opened, publish

pytestmark = [pytest.mark.xdist_group("stories"), pytest.mark.torture, pytest.mark.timeout(600)]
MESSAGES = 70


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with Sites() as sites:
        sites.start()
        publish(sites, 0, MESSAGES)
        sites.pair.follow()
        sites.pair.wait_transferred()
        yield sites


@pytest.fixture(scope="module")
def console(sites: Sites) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(sites.urls) as console:
        yield console


def test_another_broker_gets_the_messages_and_no_page_the_password(
    visit: Visit, sites: Sites, console: ConsoleProcess
) -> None:
    page = visit.page
    with LeveretProcess() as target:
        target.ctl("add_user", "filler", "-", input_text="hidden-word")
        target.ctl("set_permissions", "filler", ".*", ".*", ".*")
        look_at(page, console, "do")
        us = opened(page, "Recovery into another broker")
        expect(us.locator(".forecast")).to_contain_text("This site stays as it is")
        us.get_by_label("The broker, amqp://").fill(f"amqp://filler@{LOOPBACK}:{target.amqp_port}/%2F")
        us.get_by_label("The user's password there").fill("hidden-word")
        us.get_by_label("Only these queues").fill(QUEUE)
        us.get_by_label("This cannot be taken back").fill("us")
        us.locator("button.main").click()
        done = page.get_by_role("article", name="Recovery into another broker at us").first
        expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
        expect(done.locator("td[data-label='message count']")).to_have_text("70")
        [filled] = [row for row in get(target, "queues/%2F") if row["name"] == QUEUE]
        assert filled["messages"] == 70
        assert "hidden-word" not in page.content() + console.log_text()
        page.get_by_role("link", name="History").click()
        expect(page.locator("ol.line")).to_contain_text(f"{LOOPBACK}:{target.amqp_port}")
    assert sites.pair.status()["operating_mode"] == "downstream"


def test_the_lost_site_returns_from_the_page_as_the_standby_of_the_promoted_one(
    visit: Visit, sites: Sites, console: ConsoleProcess
) -> None:
    page, pair = visit.page, sites.pair
    look_at(page, console, "safety")
    row = page.locator("table.queues tr", has_text=f"{QUEUE}{VHOST} at eu")
    expect(row).to_contain_text("✓ safe", timeout=SLOW_MS)
    sites.kill_upstream()
    assert pair.promote().returncode == 0
    expect(row).to_contain_text(
        "Its standby us was promoted, and serves its copy of the queue", timeout=SLOW_MS
    )
    pair.restart_upstream()
    expect(row).to_contain_text("Its standby us was promoted, and follows no more", timeout=SLOW_MS)
    page.get_by_role("link", name="Do", exact=True).click()
    eu = page.get_by_role("region", name="eu", exact=True)
    expect(eu.get_by_role("button", name="Scrub stored data …")).to_be_visible(timeout=SLOW_MS)
    expect(eu.get_by_role("button", name="Return as a standby …")).to_have_count(0)
    pair.turn_round()
    eu.get_by_role("button", name="Return as a standby …").click(timeout=SLOW_MS)
    expect(eu.locator(".forecast")).to_contain_text("afterwards the queues follow the new upstream")
    eu.get_by_label("This cannot be taken back").fill("eu")
    eu.locator("button.main").click()
    done = page.get_by_role("article", name="Return as a standby at eu")
    expect(done).to_contain_text("✓ done", timeout=SLOW_MS)
    page.get_by_role("link", name="Sites").click()
    expect(page.get_by_role("region", name="eu", exact=True)).to_contain_text("rolestandby", timeout=SLOW_MS)
    expect(page.locator("figure.picture svg")).to_have_attribute(
        "aria-label", re.compile("eu follows us, connected"), timeout=SLOW_MS
    )
    page.get_by_role("link", name="History").click()
    expect(page.locator("ol.line")).to_contain_text("begun by guest")
    pair.wait_connected()
    pair.wait_transferred()

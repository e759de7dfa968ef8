"""The console beside a real standby, in the order of a disaster: behind and back, rehearsed, promoted and killed.

All tests share one pair of sites; the last one loses the upstream. `test_console_return.py` has it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pika
import pytest
from playwright.sync_api import Locator, Page, expect

from leveret.testing.applications.applications import parameters
from leveret.testing.applications.audit import Account, audit
from leveret.testing.demo.flights import QUEUES, flights
from leveret.testing.demo.sites import VHOST, Sites
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.chromium import Chromium, Visit
from leveret.testing.servers.console import ConsoleProcess
from tests.browser.console_visit import look_at

# With the other stories in which nodes start Spark, each its own.
pytestmark = [pytest.mark.story, pytest.mark.xdist_group("stories"), pytest.mark.timeout(600)]

QUEUE: Final = "orders"
SLOW_MS: Final = 120_000
FLIGHTS: Final = 8_000
SEED: Final = 20_130_101
RETAINED_BYTES: Final = 10_000_000
"""More than all flights take, and less than twice what a standby is made to lack."""


def publish(sites: Sites, first: int, count: int) -> None:
    with pika.BlockingConnection(parameters(sites.pair.upstream.amqp_port, VHOST)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        for number in range(first, first + count):
            headers = {"priority": "<b>high</b>"} if number == 0 else None
            properties = pika.BasicProperties(delivery_mode=2, headers=headers)
            channel.basic_publish("", QUEUE, f"order {number}".encode(), properties)


def publish_bulk(sites: Sites, count: int, body: bytes) -> None:
    """So many messages that nobody needs: they are settled when this returns."""
    with pika.BlockingConnection(parameters(sites.pair.upstream.amqp_port, VHOST)) as connection:
        channel = connection.channel()
        channel.queue_declare("bulk", durable=True)
        for _ in range(count):
            channel.basic_publish("", "bulk", body, pika.BasicProperties(delivery_mode=2))
        channel.confirm_delivery()
        channel.basic_publish("", "bulk", b"the last", pika.BasicProperties(delivery_mode=2))
        channel.queue_delete("bulk")


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with Sites() as sites:
        sites.pair.upstream.config["standby.replication.retention.size_limit.messages"] = str(RETAINED_BYTES)
        sites.start()
        ctl = sites.pair.upstream.ctl
        ctl("add_user", "looker", "-", input_text="pass")
        ctl("set_user_tags", "looker", "monitoring")
        publish(sites, 0, 50)
        sites.pair.follow()
        sites.pair.wait_transferred()
        yield sites


@pytest.fixture(scope="module")
def console(sites: Sites) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(sites.urls) as console:
        yield console


def opened(page: Page, title: str) -> Locator:
    """The form of an action at site us."""
    us = page.get_by_role("region", name="us", exact=True)
    us.get_by_role("button", name=f"{title} …", exact=True).click(timeout=SLOW_MS)
    expect(us.locator(".forecast")).to_be_visible()
    return us


def test_a_standby_that_falls_behind_is_seen_to_and_is_safe_again_when_it_is_back(
    visit: Visit, sites: Sites, console: ConsoleProcess
) -> None:
    page, downstream = visit.page, sites.pair.downstream
    look_at(page, console, "safety")
    row = page.locator("table.queues tr", has_text=f"{QUEUE}{VHOST} at eu")
    expect(row).to_contain_text("✓ safe", timeout=SLOW_MS)
    downstream.ctl("disconnect_standby_replication_downstream")
    publish(sites, 50, 20)
    expect(row).to_contain_text("◐ behind", timeout=SLOW_MS)
    expect(row).to_contain_text("standby us (disconnected) lacks")
    warning = page.get_by_role("listitem").filter(has_text="Retention overtakes standby us soon")
    expect(warning).to_have_count(0)
    publish_bulk(sites, 7_000, bytes(1_000))
    expect(warning).to_contain_text("Connect the standby, or raise the limit", timeout=SLOW_MS)
    expect(row).to_contain_text(f"the missing records of vhost {VHOST} are")
    downstream.ctl("connect_standby_replication_downstream")
    sites.pair.wait_connected()
    sites.pair.wait_transferred()
    expect(row).to_contain_text("✓ safe", timeout=SLOW_MS)
    expect(warning).to_have_count(0)


def test_a_rehearsal_is_seen_by_a_second_person_and_stays_in_the_history(
    chromium: Chromium, console: ConsoleProcess
) -> None:
    with chromium.visit() as first, chromium.visit() as second:
        look_at(first.page, console, "do")
        look_at(second.page, console, "do", "looker", "pass")
        us = opened(first.page, "Rehearsal of a promotion")
        expect(us.locator(".forecast")).to_contain_text(f"Vhost {VHOST}: everything is here")
        us.locator("button.main").click()
        expect(first.page.get_by_role("article", name="Rehearsal of a promotion at us")).to_be_visible()
        # The page of who began it is closed.
        first.page.goto("about:blank")
        seen = second.page.get_by_role("article", name="Rehearsal of a promotion at us")
        expect(seen).to_contain_text("Begun by guest")
        expect(seen).to_contain_text("✓ done", timeout=SLOW_MS)
        expect(seen.locator("tr", has_text=QUEUE).locator("td[data-label='message count']")).to_have_text(
            "70"
        )
        second.page.get_by_role("link", name="History").click()
        expect(second.page.get_by_role("region", name="Rehearsals")).to_contain_text("us ✓ ")
        expect(second.page.locator("ol.line")).to_contain_text("A rehearsal succeeded: 70 messages")
        expect(second.page.locator("ol.line")).to_contain_text("begun by guest")


def test_a_user_without_the_tag_is_offered_nothing(visit: Visit, console: ConsoleProcess) -> None:
    look_at(visit.page, console, "do", "looker", "pass")
    expect(visit.page.locator("main")).to_contain_text("No site offers this user an operation")
    expect(visit.page.locator("main button", has_text="…")).to_have_count(0)
    assert answer_to_promotion(visit, word="us") == 400


def test_a_moment_is_chosen_with_a_slider_and_shows_what_the_queues_held(
    visit: Visit, console: ConsoleProcess
) -> None:
    look_at(visit.page, console, "do")
    us = opened(visit.page, "Recovery into another broker")
    slider = us.get_by_role("slider")
    expect(slider).to_be_visible(timeout=SLOW_MS)
    slider.press("Home")
    expect(us.get_by_label("Moment")).to_have_value(slider.get_attribute("aria-valuetext") or "none")
    us.get_by_role("button", name="Preview by queue").click()
    preview = us.locator(".preview")
    # The first moment has the first messages of the queue, and not all of them.
    expect(preview.locator("tr", has_text=QUEUE)).to_be_visible(timeout=SLOW_MS)
    us.get_by_label("Moment").fill("")
    us.get_by_role("button", name="Preview by queue").click()
    count = preview.locator("tr", has_text=QUEUE).locator("td[data-label='message count']")
    expect(count).to_have_text("70", timeout=SLOW_MS)


def test_archived_messages_are_shown_by_queue_and_time(visit: Visit, console: ConsoleProcess) -> None:
    page = visit.page
    look_at(page, console, "messages?site=us&source=archived")
    page.get_by_label("Virtual host").fill(VHOST)
    page.get_by_label("Queue", exact=True).fill(QUEUE)
    page.get_by_label("At most").fill("50")
    page.get_by_role("button", name="Look").click()
    letters = page.get_by_role("article")
    expect(letters).to_have_count(50, timeout=SLOW_MS)
    expect(letters.nth(0)).to_contain_text("order 0")
    expect(letters.nth(0)).to_contain_text("<b>high</b>")
    expect(letters.nth(0)).to_contain_text("settledno")
    page.get_by_label("From").fill("2100-01-01T00:00:00")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("main")).to_contain_text("There are no such messages", timeout=SLOW_MS)


def test_plots_of_a_standby_have_what_its_node_kept(visit: Visit, console: ConsoleProcess) -> None:
    look_at(visit.page, console, "plots")
    us = visit.page.locator("section", has=visit.page.get_by_role("heading", name="us", exact=True))
    for title in ("Disk of the archive", "Longest step of the event loop", "Lag behind the upstream"):
        expect(us.locator("figure", has_text=title)).to_be_visible(timeout=SLOW_MS)


def test_a_promotion_that_is_killed_goes_on_from_the_page_and_the_books_balance(
    visit: Visit, sites: Sites, console: ConsoleProcess
) -> None:
    page, pair = visit.page, sites.pair
    # The form asks for the kept history of a site that is killed.
    visit.expect("answered (400|504): GET .*/moments")
    pair.wait_queues([*QUEUES, QUEUE, "beacon"])
    sites.start_applications(FLIGHTS, SEED)
    sites.applications.wait_confirmed(FLIGHTS // 2, lambda count: None)
    look_at(page, console, "do")
    sites.kill_upstream()
    assert answer_to_promotion(visit, word="") == 400
    promote(page)
    wait_until(lambda: pair.status()["promotion"] is not None, "the promotion to run", 60)
    pair.downstream.kill9()
    failed = page.get_by_role("article", name="Promotion at us", exact=True)
    expect(failed).to_contain_text("may continue the job", timeout=SLOW_MS)
    pair.downstream.start()
    interrupted = page.get_by_role("region", name="Promotion of us")
    expect(interrupted).to_contain_text("was interrupted. Promote again to go on with it.", timeout=SLOW_MS)
    promote(page)
    expect(page.get_by_role("article", name="Promotion at us", exact=True).first).to_contain_text(
        "✓ done", timeout=SLOW_MS
    )
    covered = pair.covered(QUEUES)
    books = Account.read(*sites.applications.books)
    result = audit(list(flights(FLIGHTS)), books, sites.drain(), covered, pair.transferred())
    assert result.balances, result
    page.get_by_role("link", name="History").click()
    expect(page.locator("ol.line")).to_contain_text("A promotion was interrupted, begun by guest.")
    expect(page.locator("ol.line")).to_contain_text("The site was promoted")


def promote(page: Page) -> None:
    us = opened(page, "Promotion")
    us.get_by_label("This cannot be taken back").fill("us")
    us.locator("button.main").click()
    expect(page.get_by_role("article", name="Promotion at us", exact=True).first).to_be_visible()


def answer_to_promotion(visit: Visit, *, word: str) -> int:
    """The status of the answer to a promotion of us that is not to begin."""
    visit.expect("answered 400: POST")
    status: int = visit.page.evaluate(
        """async (word) => (await fetch("/jobs", {method: "POST", headers: {"content-type": "application/json"},
           body: JSON.stringify({site: "us", action: "promote", given: {}, word})})).status""",
        word,
    )
    return status

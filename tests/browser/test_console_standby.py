"""The console beside a real standby: it falls behind and comes back, and takes the place of a site that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from playwright.sync_api import Page, expect

from leveret.testing.applications.applications import drain, parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.chromium import Chromium, Visit
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites.standby_pair import StandbyPair

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

VHOST, QUEUE = "shop", "orders"
SLOW_MS = 120_000


def publish(pair: StandbyPair, first: int, count: int) -> None:
    with pika.BlockingConnection(parameters(pair.upstream.amqp_port, VHOST)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(first, first + count):
            channel.basic_publish(
                "", QUEUE, f"order {number}".encode(), pika.BasicProperties(delivery_mode=2)
            )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandbyPair]:
    folder: Path = tmp_path_factory.mktemp("console-standby")
    with StandbyPair(VHOST, folder) as pair:
        pair.start()
        pair.replicate("osr", "^.*")
        with pika.BlockingConnection(parameters(pair.upstream.amqp_port, VHOST)) as connection:
            connection.channel().queue_declare(QUEUE, durable=True)
        publish(pair, 0, 50)
        pair.follow()
        pair.wait_transferred()
        yield pair


@pytest.fixture(scope="module")
def console(pair: StandbyPair) -> Iterator[ConsoleProcess]:
    sites = {
        "eu": f"http://{LOOPBACK}:{pair.upstream.management_port}",
        "us": f"http://{LOOPBACK}:{pair.downstream.management_port}",
    }
    with ConsoleProcess(sites) as console:
        yield console


def look_at(page: Page, console: ConsoleProcess, name: str) -> None:
    page.goto(f"{console.url}#{name}")
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.keyboard.press("Enter")


def test_a_standby_that_falls_behind_is_seen_to_and_is_safe_again_when_it_is_back(
    visit: Visit, pair: StandbyPair, console: ConsoleProcess
) -> None:
    page = visit.page
    look_at(page, console, "safety")
    row = page.locator("table.queues tr", has=page.get_by_text(QUEUE, exact=True))
    expect(row).to_contain_text("✓ safe", timeout=SLOW_MS)
    pair.downstream.ctl("disconnect_standby_replication_downstream")
    publish(pair, 50, 20)
    expect(row).to_contain_text("◐ behind", timeout=SLOW_MS)
    expect(row).to_contain_text("standby us (disconnected) lacks")
    pair.downstream.ctl("connect_standby_replication_downstream")
    pair.wait_connected()
    pair.wait_transferred()
    expect(row).to_contain_text("✓ safe", timeout=SLOW_MS)


def test_a_promotion_asks_for_the_word_goes_on_without_its_page_and_loses_what_it_said(
    chromium: Chromium, pair: StandbyPair, console: ConsoleProcess
) -> None:
    with chromium.visit() as first, chromium.visit() as second:
        look_at(first.page, console, "do")
        look_at(second.page, console, "do")
        us = first.page.get_by_role("region", name="us", exact=True)
        pair.upstream.kill9()
        us.get_by_role("button", name="Promotion …", exact=True).click(timeout=SLOW_MS)
        expect(us.locator(".forecast")).to_contain_text(
            f"Vhost {VHOST}: everything is here that the upstream had when it was last heard"
        )
        assert begun_without_word(first) == 400
        us.get_by_label("This cannot be taken back").fill("us")
        us.locator("button.main").click()
        expect(first.page.get_by_role("article", name="Promotion at us")).to_be_visible()
        first.page.goto("about:blank")
        seen = second.page.get_by_role("article", name="Promotion at us")
        expect(seen).to_contain_text("Begun by guest")
        expect(seen).to_contain_text("✓ done", timeout=SLOW_MS)
        expect(seen.locator("td[data-label='message count']")).to_have_text(["70"])
    taken = drain(pair.downstream.amqp_port, VHOST, QUEUE)
    assert [message.body for message in taken] == [f"order {number}".encode() for number in range(70)]


def begun_without_word(visit: Visit) -> int:
    """The status of the answer to a promotion whose word was not typed."""
    visit.expect("answered 400: POST")
    status: int = visit.page.evaluate(
        """async () => (await fetch("/jobs", {method: "POST", headers: {"content-type": "application/json"},
           body: JSON.stringify({site: "us", action: "promote", given: {}})})).status"""
    )
    return status

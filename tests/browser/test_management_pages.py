"""Every page of RabbitMQ's management page shows of Leveret what it shows of RabbitMQ.

`management_scene` plays the same scene on both; what RabbitMQ 3.10.8 fills is recorded in `management_cells.txt`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

import leveret
from leveret.testing.servers.chromium import Chromium
from tests.browser.management_page import ManagementPage
from tests.browser.management_scene import RECORDED, applications, declare, serving, walk
from tests.conformance.brokers import LEVERET, Broker
from tests.conformance.stream_talker import StreamTalker

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(900)]

ONLY_RABBITMQ: Final = {
    r"Runtime Metrics|chart chart-reductions": "processes of Erlang",
    r"node  Advanced / (channel|connection|consumer|exchange|node_node|queue|vhost|channel_consumer)_": "the same",
    r"node  Advanced / ra_log|node  chart chart-advanced-gc-bytes": "the same",
    r"node  Advanced / GC bytes reclaimed": "the same",
    r"node  Persistence statistics|node  chart chart-(mnesia|persister)": "RabbitMQ's stores",
    r"I/O statistics / (Seek|File handle reopen)": "the same",
    r"overview  Totals / Disk (read|write)": "the same",
    r"node  Overview / Log files": "it is one: `Log file`",
    r"queue quorum  Overview / (Open files|\$node)": "open files are limited and reported for the whole node",
}
"""What is not shown of Leveret, and why: docs/deviations.md has the fields behind these."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with serving(LEVERET) as broker:
        declare(broker)
        with applications(broker):
            yield broker


@pytest.fixture(scope="module")
def page(chromium: Chromium, broker: Broker) -> Iterator[ManagementPage]:
    with chromium.visit(viewport={"width": 1600, "height": 1200}) as visit:
        page = ManagementPage(visit, f"http://127.0.0.1:{broker.management_port}")
        page.log_in("guest", "guest")
        yield page


def test_what_rabbitmq_fills_is_filled_on_every_page(page: ManagementPage, broker: Broker) -> None:
    pictures = os.environ.get("LEVERET_PICTURES")
    filled: set[str] = set()
    for name, lines in walk(page, broker, Path(pictures) if pictures else None):
        assert (name, page.faults()) == (name, [])
        filled |= lines
        page.visit.check()
    missing = set(RECORDED.read_text().splitlines()) - filled
    reasons = re.compile("|".join(ONLY_RABBITMQ))
    assert [line for line in sorted(missing) if not reasons.search(line)] == []


def test_stream_clients_have_pages_of_their_own(page: ManagementPage, broker: Broker) -> None:
    client = StreamTalker(broker.stream_port)
    try:
        client.enter("/")
        client.declare_publisher(1, "stream", "the reference")
        client.subscribe("stream")
        [connection] = broker.api("stream/connections")
        page.open("stream", "connections")
        assert page.column("State") == ["running"]
        page.open("stream", "connections", "/", connection["name"])
        page.refresh()
        assert "the reference" in page.text()
        assert page.faults() == []
        page.submit("Force Close", {"reason": "go away"})
        assert broker.api("stream/connections") == []
    finally:
        client.socket.close()
    page.visit.check()


def test_the_product_and_its_version_stand_at_the_top(page: ManagementPage) -> None:
    page.open("")
    assert page.text("#versions").startswith(f"Leveret {leveret.__version__}")


@pytest.mark.parametrize(
    "period",
    [
        "60|5",
        *(pytest.param(each, marks=pytest.mark.story) for each in ("600|5", "3600|60", "28800|600")),
        "86400|1800",
    ],
)
def test_charts_are_drawn_over_every_period(page: ManagementPage, broker: Broker, period: str) -> None:
    page.open("")
    page.page.evaluate("period => store_pref('chart-range', period)", period)
    page.refresh()
    charts = page.charts()
    assert charts
    assert all(charts.values())
    assert page.faults() == []


def test_lists_are_sorted_filtered_and_paged(page: ManagementPage, broker: Broker) -> None:
    page.open("queues")
    assert page.column("Name") == ["classic", "owned", "quorum", "stream", "elsewhere"]
    page.page.locator("th a[sort=messages]").click()
    page.refresh()
    page.page.locator("th a[sort=messages]").click()
    page.refresh()
    assert page.column("Name")[0] == "stream"
    page.page.locator("th a[sort=name]").click()
    page.refresh()
    page.page.fill("#queues-name", "r")
    page.page.press("#queues-name", "Enter")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(3)
    assert page.column("Name") == ["elsewhere", "quorum", "stream"]
    page.page.fill("#queues-name", "^[cq]")
    page.page.check("#queues-filter-regex-mode")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(2)
    # Each change is awaited: the page draws its form anew with every answer, over all that was typed meanwhile.
    page.page.uncheck("#queues-filter-regex-mode")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(0)
    page.page.fill("#queues-name", "")
    page.page.press("#queues-name", "Enter")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(5)
    page.page.fill("#queues-pagesize", "2")
    page.page.press("#queues-pagesize", "Enter")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(2)
    page.page.select_option("#queues-page", "3")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(1)
    assert page.column("Name") == ["stream"]
    page.page.fill("#queues-pagesize", "100")
    page.page.press("#queues-pagesize", "Enter")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(5)
    page.visit.check()


def test_a_virtual_host_that_is_chosen_is_the_only_one_shown(page: ManagementPage, broker: Broker) -> None:
    page.open("queues")
    page.page.select_option("#show-vhost", "other")
    expect(page.page.locator("#main table.list tbody tr")).to_have_count(1)
    assert page.column("Name") == ["elsewhere"]
    page.page.select_option("#show-vhost", "")
    page.visit.check()

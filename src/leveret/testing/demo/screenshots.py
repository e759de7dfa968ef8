"""`python -m leveret.testing.demo.screenshots FOLDER`: pictures of each page of the console, on two real sites.

Each page is taken in light, in dark and on a phone. Among the sites are a standby that follows, unprotected queues, and
a site that does not answer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pika
from playwright.sync_api import Page, expect

from leveret.testing.applications.applications import parameters
from leveret.testing.demo import report
from leveret.testing.network.ports import LOOPBACK, free_ports
from leveret.testing.servers.chromium import Chromium
from leveret.testing.servers.console import ConsoleProcess
from leveret.testing.sites.standby_pair import StandbyPair

PAGES: Final = ("sites", "safety", "plots", "do", "history", "messages")
_LOOKS: Final = {
    "light": ({"width": 1100, "height": 720}, "light"),
    "dark": ({"width": 1100, "height": 720}, "dark"),
    "narrow": ({"width": 380, "height": 760}, "light"),
}
_VHOST: Final = "shop"
_QUEUES: Final = {"orders.new": 48, "orders.paid": 131, "orders.shipped": 20, "audit": 312, "retry": 7}
_PATIENCE_MS: Final = 60_000
_PLOTS_MS: Final = 20_000
"""Enough time for plots to show a line."""


def main() -> int:
    """Write the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=_PATIENCE_MS)
    with (
        tempfile.TemporaryDirectory(prefix="leveret-screenshots-") as home,
        StandbyPair(_VHOST, Path(home)) as pair,
    ):
        report.step("start two sites")
        _prepare(pair)
        [nobody] = free_ports(1)
        ports = {"eu": pair.upstream.management_port, "us": pair.downstream.management_port, "lab": nobody}
        with ConsoleProcess({name: f"http://{LOOPBACK}:{port}" for name, port in ports.items()}) as console:
            _take(console, folder)
    report.step(f"pictures are in {folder}")
    return 0


def _prepare(pair: StandbyPair) -> None:
    pair.start()
    pair.replicate("osr", "^orders")
    _publish(pair, _QUEUES)
    pair.follow()
    # A kept history of some seconds, so that its slider has two ends.
    _publish(pair, {"orders.new": 4})


def _publish(pair: StandbyPair, counts: Mapping[str, int]) -> None:
    with pika.BlockingConnection(parameters(pair.upstream.amqp_port, _VHOST)) as connection:
        channel = connection.channel()
        for name, count in counts.items():
            channel.queue_declare(name, durable=True)
            for number in range(count):
                body = json.dumps({"order": number, "of": name}).encode()
                channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))


def _take(console: ConsoleProcess, folder: Path) -> None:
    with Chromium() as chromium:
        for look, (viewport, scheme) in _LOOKS.items():
            with chromium.visit(viewport=viewport, color_scheme=scheme) as visit:
                page = visit.page
                page.goto(console.url)
                expect(page.get_by_role("button", name="Log in")).to_be_visible()
                page.screenshot(path=folder / f"login-{look}.png")
                page.get_by_label("User").fill("guest")
                page.get_by_label("Password").fill("guest")
                page.keyboard.press("Enter")
                for name in PAGES:
                    _open(page, console, name)
                    page.screenshot(path=folder / f"{name}-{look}.png")
                report.step(f"{look}: {', '.join(PAGES)}")


def _open(page: Page, console: ConsoleProcess, name: str) -> None:
    """Open a page, and wait for its content."""
    page.goto(f"{console.url}#{name}")
    match name:
        case "sites":
            expect(page.locator("svg g.link")).to_contain_text("up to date")
        case "safety":
            expect(page.locator("table.queues")).to_contain_text("✓ safe")
        case "plots":
            expect(page.locator("polyline").first).to_be_attached()
            page.wait_for_timeout(_PLOTS_MS)
        case "do":
            us = page.get_by_role("region", name="us", exact=True)
            us.get_by_role("button", name="Promotion …", exact=True).click()
            expect(us.locator(".forecast")).to_be_visible()
            expect(us.get_by_role("slider")).to_be_visible()
            us.scroll_into_view_if_needed()
        case "history":
            expect(page.locator("ol.line li").first).to_be_visible()
        case "messages":
            page.get_by_label("Virtual host").fill(_VHOST)
            page.get_by_label("Queue", exact=True).fill("audit")
            page.get_by_role("button", name="Look").click()
            expect(page.get_by_role("article").first).to_be_visible()


if __name__ == "__main__":
    sys.exit(main())

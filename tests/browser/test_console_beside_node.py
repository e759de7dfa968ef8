"""A console that a node starts beside itself."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from leveret.testing.network.ports import LOOPBACK, accepts, free_ports, wait_until
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.chromium import Visit


def test_the_first_page_of_a_node_leads_to_its_console_which_ends_with_the_node(visit: Visit) -> None:
    [port] = free_ports(1)
    with LeveretProcess(config={"management.console": "true", "management.console.port": str(port)}) as node:
        url = f"http://{LOOPBACK}:{node.management_port}/"
        elsewhere = httpx.get(url, headers={"host": "eu.example"}, follow_redirects=False)
        assert elsewhere.status_code == 200
        wait_until(lambda: accepts(port), "the console of the node", node.start_timeout_s)
        page = visit.page
        page.goto(url)
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("guest")
        page.keyboard.press("Enter")
        expect(page.locator("section.card")).to_contain_text("✓ alive")
        page.goto("about:blank")
        node.server.signal(9)
        wait_until(lambda: not accepts(port), "the end of the console", node.start_timeout_s)

"""The console and sites that are not as they should be: slow, failing, with a wrong certificate; and over TLS."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from playwright.sync_api import Error, expect

from leveret.testing.network.ports import LOOPBACK, free_ports, wait_until
from leveret.testing.servers import certificates
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.certificates import CertificateAuthority
from leveret.testing.servers.chromium import Chromium, Visit
from leveret.testing.servers.console import ConsoleProcess
from tests.browser.console_visit import fill_login, look_at, press_until

expect.set_options(timeout=20_000)
KNOWN: Final = json.dumps({"name": "guest", "tags": ["administrator"]}).encode()
SLOW_S: Final = 0.5
SILENT_S: Final = 120.0
"""Longer than a page is waited for."""
SCRUBBED_BYTES: Final = 4_000_000
FORGED: Final = """([url, body, kind]) => fetch(url, {method: "POST", credentials: "include",
    headers: {"content-type": kind}, body})"""


@contextlib.contextmanager
def site(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """A server that knows everybody, and answers all else as `answer` says of a path; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(*((200, KNOWN) if self.path == "/api/whoami" else answer(self.path)))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            self._say(*answer(self.path))

        def _say(self, status: int, octets: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(octets)))
            self.end_headers()
            self.wfile.write(octets)

        def log_message(self, *_: object) -> None:
            """Nothing is written."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def failing(_: str) -> tuple[int, bytes]:
    return 500, b'{"error": "internal_server_error", "reason": "the <b>disk</b> is full"}'


class Slow:
    """A node that takes its time, and says nothing while `may_answer` is not set."""

    def __init__(self) -> None:
        self.may_answer = Event()
        self.may_answer.set()

    def __call__(self, path: str) -> tuple[int, bytes]:
        time.sleep(SLOW_S)
        self.may_answer.wait(SILENT_S)
        return (200, b"[]") if path.startswith(("/api/nodes", "/api/queues", "/api/vhosts")) else (404, b"{}")


DIVERGENT: Final = b"".join(
    json.dumps({"report": "r1", "vhost": "/", "queue": "<i>q</i>", "offset": at, "payload": f"{at}"}).encode()
    + b"\n"
    for at in range(3)
)


def quarantining(path: str) -> tuple[int, bytes]:
    """A site with three divergent messages."""
    if path.startswith("/api/replication/divergent/messages"):
        return 200, DIVERGENT
    if path == "/api/replication/divergent":
        queues = [{"vhost": "/", "queue": "<i>q</i>", "messages": 3}]
        return 200, json.dumps(
            [{"id": "r1", "at_ms": 1_700_000_000_000, "messages": 3, "queues": queues}]
        ).encode()
    return (200, b"[]") if path.startswith(("/api/nodes", "/api/queues", "/api/vhosts")) else (404, b"{}")


def standing_by(path: str) -> tuple[int, bytes]:
    """A standby whose upstream was heard 43 s ago."""
    if path == "/api/replication/standby/details":
        row = {"virtual_host": "shop", "state": "connecting", "heard_ago_ms": 43_000, "lag_ms": 43_000}
        return 200, json.dumps({"operating_mode": "downstream", "vhosts": [row]}).encode()
    if path == "/api/replication/node":
        return 200, b'{"role": "leader"}'
    lists = ("/api/nodes", "/api/queues", "/api/vhosts", "/api/replication/standby/moments")
    return (200, b"[]") if path.startswith(lists) else (404, b"{}")


COUNTED: Final = [
    {"virtual_host": "shop", "queue": "<b>a</b>\tb\nc", "message_count": 12, "in_doubt": 0},
    {"virtual_host": "shop", "queue": "\u202eorders", "message_count": 3, "in_doubt": 0},
]


def counting(path: str) -> tuple[int, bytes]:
    """A standby that says of a dry run what it would bring back."""
    if path == "/api/replication/standby/dry-run":
        return 200, json.dumps({"summary": {"queues": COUNTED}}).encode() + b"\n"
    return standing_by(path)


MOST: Final = 2**63 - 1
ABSURD: Final = {
    "/api/replication/standby/details": {
        "operating_mode": "downstream",
        "promotion": {
            "is_running": 1,
            "begun_ms": MOST,
            "vhosts": [None, {"messages": "x"}],
            "step": {"a": 1},
        },
        "vhosts": [{"virtual_host": "orders", "lag_ms": MOST, "lag_records": -1, "heard_ago_ms": -MOST}],
        "operations": [{"kind": "rehearsal", "begun_ms": -MOST, "done": 9, "total": 1}],
    },
    "/api/replication/standby/moments": [{"virtual_host": "orders", "earliest_ms": 0, "newest_ms": MOST}],
    "/api/replication/standby/summary": [{"virtual_host": None, "message_count": "many"}],
    "/api/replication/node": {"role": "leader", "epoch": -1},
    "/api/replication/plots": {
        "names": ["messages"],
        "nodes": [{"node": "", "rows": [[MOST, -1e308], [None], [1, 5]]}],
    },
    "/api/replication/history": [
        {"kind": "promotion", "begun_ms": MOST, "ended_ms": -MOST, "result": {"messages": {}}}
    ],
    "/api/replication/schema/history": [{"stamp": MOST, "puts": -5}],
    "/api/replication/divergent": [{"id": "r", "at_ms": MOST, "messages": -1, "queues": [{"queue": [1]}]}],
    "/api/replication/divergent/messages": {
        "properties": [1],
        "timestamp_ms": MOST,
        "offset": -1,
        "queue": "",
    },
    "/api/nodes": [{"name": "", "uptime": -MOST}],
    "/api/overview": {"queue_totals": {"messages": 10**400}},
    "/api/replication/standby/dry-run": {
        "summary": {"queues": [None, 5, {"message_count": MOST}], "y": [[1]], "z": ""}
    },
}
"""What a site says that keeps to the form of each document, and makes no sense."""


def absurd(path: str) -> tuple[int, bytes]:
    known = ABSURD.get(path.partition("?")[0])
    return (404, b"{}") if known is None else (200, json.dumps(known).encode())


class Scrubbing:
    """A node whose scrub is as far as `done` says, of 4 MB, and ends with that."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, path: str) -> tuple[int, bytes]:
        if path == "/api/replication/scrub":
            self.done = 1
            while self.done < SCRUBBED_BYTES:
                time.sleep(0.05)
            return 200, json.dumps({"chunks": 4_000, "damaged": 1, "repaired": 1, "unrepaired": []}).encode()
        if path == "/api/replication/node":
            is_running = 0 < self.done < SCRUBBED_BYTES
            scrub = {"running": is_running, "octets_done": self.done, "octets_total": SCRUBBED_BYTES}
            return 200, json.dumps({"role": "leader", "scrub": scrub}).encode()
        return (200, b"[]") if path.startswith(("/api/nodes", "/api/queues", "/api/vhosts")) else (404, b"{}")


def test_a_site_that_fails_and_one_that_is_slow_hold_up_neither_the_page_nor_each_other(visit: Visit) -> None:
    slow = Slow()
    with LeveretProcess() as node, site(failing) as broken, site(slow) as tired:
        urls = {"eu": f"http://{LOOPBACK}:{node.management_port}", "broken": broken, "tired": tired}
        with ConsoleProcess(urls) as console:
            look_at(visit.page, console)
            expect(visit.page.get_by_role("region", name="eu", exact=True)).to_contain_text("✓ alive")
            failed = visit.page.get_by_role("region", name="broken", exact=True)
            expect(failed).to_contain_text("the site declines: the <b>disk</b> is full")
            expect(visit.page.get_by_role("region", name="tired", exact=True)).to_contain_text("✓ alive")
            slow.may_answer.clear()
            visit.page.get_by_role("link", name="Am I safe?").click()
            expect(visit.page.get_by_role("heading", name="Am I safe?")).to_be_visible()
            slow.may_answer.set()


@pytest.mark.story
def test_no_answer_of_a_site_stops_a_page(visit: Visit) -> None:
    with site(absurd) as url, ConsoleProcess({"eu": url}) as console:
        page = visit.page
        look_at(page, console)
        for name in ("Sites", "Am I safe?", "Plots", "History", "Messages", "Do"):
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        page.get_by_role("button", name="Promotion …", exact=True).click()
        page.get_by_role("button", name="Preview by queue").click()
        expect(page.locator(".preview tbody tr")).to_have_count(1)
        page.goto(f"{console.url}#messages?source=divergent")
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_role("article")).to_contain_text("unknown")


@pytest.mark.story
def test_a_scrub_shows_how_far_it_is_to_a_second_person_too_and_once_only(
    visit: Visit, chromium: Chromium
) -> None:
    scrubbing = Scrubbing()
    with site(scrubbing) as url, ConsoleProcess({"eu": url}) as console, chromium.visit() as second:
        pages = (visit.page, second.page)
        for page in pages:
            page.goto(f"{console.url}#do")
            fill_login(page)
        eu = visit.page.get_by_role("region", name="eu", exact=True)
        expect(eu).to_contain_text("Scrub stored data …")
        press_until(visit.page, "Tab", "Scrub stored data …")
        visit.page.keyboard.press("Enter")
        expect(eu.locator(".forecast")).to_contain_text("All stored data of the node is read")
        press_until(visit.page, "Tab", "Scrub stored data")
        visit.page.keyboard.press("Enter")
        wait_until(lambda: scrubbing.done > 0, "the site to be asked", 20)
        for megabytes in (1, 3):
            scrubbing.done = megabytes * 1_000_000
            for page in pages:
                job = page.get_by_role("article", name="Scrub stored data at eu")
                expect(job.locator(".progress")).to_contain_text(f"{megabytes}.0 MB of 4.0 MB")
                expect(job).to_contain_text("Begun by guest")
        expect(eu.get_by_role("button", name="Scrub stored data")).to_have_count(0)
        scrubbing.done = SCRUBBED_BYTES
        for page in pages:
            job = page.get_by_role("article", name="Scrub stored data at eu")
            expect(job).to_contain_text("✓ done")
            expect(job).to_contain_text("repaired1")
        expect(eu.get_by_role("button", name="Scrub stored data …")).to_be_visible()


@pytest.mark.story
def test_a_result_is_copied_as_a_table_whatever_the_names_in_it(chromium: Chromium) -> None:
    with site(counting) as url, ConsoleProcess({"us": url}) as console, chromium.visit() as visit:
        page = visit.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=console.url)
        look_at(page, console, "do")
        page.get_by_role("button", name="Dry run of a promotion …", exact=True).click()
        expect(page.locator(".forecast")).to_contain_text("changes nothing")
        page.locator("button.main").click()
        done = page.get_by_role("article", name="Dry run of a promotion at us")
        expect(done).to_contain_text("✓ done")
        expect(done.locator("tbody tr")).to_have_count(2)
        # What is nothing in every row is in the copied text only.
        expect(done.locator("thead")).not_to_contain_text("in doubt")
        done.get_by_role("button", name="Copy as text").click()
        expect(done.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == (
            "virtual_host\tqueue\tmessage_count\tin_doubt\nshop\t<b>a</b> b c\t12\t0\nshop\t\u202eorders\t3\t0"
        )
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
        done.get_by_role("button", name="Copied").click()
        expect(done.get_by_role("button", name="The browser lets nothing be copied")).to_be_visible()


def test_what_is_typed_stays_while_jobs_of_others_begin_and_end(visit: Visit, chromium: Chromium) -> None:
    with site(counting) as url, ConsoleProcess({"us": url}) as console, chromium.visit() as second:
        page = visit.page
        look_at(page, console, "do")
        page.get_by_role("button", name="Promotion …", exact=True).click()
        page.get_by_label("Only these queues").fill("orders")
        page.get_by_label("This cannot be taken back").press_sequentially("u")
        look_at(second.page, console, "do")
        second.page.get_by_role("button", name="Dry run of a promotion …", exact=True).click()
        second.page.locator("button.main").click()
        expect(page.get_by_role("article", name="Dry run of a promotion at us")).to_contain_text("✓ done")
        page.keyboard.type("s")
        expect(page.get_by_label("This cannot be taken back")).to_have_value("us")
        expect(page.get_by_label("Only these queues")).to_have_value("orders")


@pytest.mark.story
def test_a_standby_alone_says_what_is_known_of_queues_that_nobody_can_count(visit: Visit) -> None:
    with site(standing_by) as url, ConsoleProcess({"us": url}) as console:
        page = visit.page
        look_at(page, console, "safety")
        expect(page.locator(".headline")).to_contain_text(
            "Every queue of 1 virtual host is in danger. If upstream of us never returns, an unknown number of messages"
        )
        # The longest texts of the table break, and the page is not wider than its window.
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.get_by_role("link", name="Do", exact=True).click()
        page.get_by_role("button", name="Promotion …", exact=True).click()
        expect(page.locator(".forecast")).to_contain_text(
            "everything is here that the upstream had when it was last heard, 43 s ago. "
            "Its later messages are not here."
        )


@pytest.mark.story
def test_divergent_messages_are_looked_at_by_keyboard_and_exported_as_a_file(
    visit: Visit, tmp_path: Path
) -> None:
    with site(quarantining) as url, ConsoleProcess({"eu": url}) as console:
        page = visit.page
        page.goto(f"{console.url}#history")
        look_at(page, console)
        page.get_by_role("link", name="History").click()
        line = page.locator("ol.line li", has_text="3 divergent messages were quarantined")
        expect(line).to_contain_text("<i>q</i> in /: 3")
        with page.expect_download() as download:
            line.get_by_role("link", name="Export them").click()
        assert download.value.suggested_filename == "divergent-eu.ndjson"
        download.value.save_as(tmp_path / "exported")
        assert (tmp_path / "exported").read_bytes() == DIVERGENT
        line.get_by_role("link", name="Look at them").click()
        press_until(page, "Tab", "report")
        page.keyboard.press("Enter")
        expect(page.get_by_role("article")).to_have_count(3)
        press_until(page, "Tab", "hex")
        page.keyboard.press("Space")
        expect(page.get_by_role("article").nth(1).locator("pre")).to_contain_text("000000  31")
        press_until(page, "Shift+Tab", "Export all as a file")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        download.value.save_as(tmp_path / "exported of one report")
        assert (tmp_path / "exported of one report").read_bytes() == DIVERGENT


@pytest.mark.skipif(certificates.available() is not None, reason=str(certificates.available()))
def test_a_wrong_certificate_is_not_alive_and_the_right_one_is_over_tls_on_both_sides(
    visit: Visit, chromium: Chromium, tmp_path: Path
) -> None:
    for name in ("ours", "strangers"):
        (tmp_path / name).mkdir()
    ours, strangers = CertificateAuthority(tmp_path / "ours"), CertificateAuthority(tmp_path / "strangers")
    issued = ours.issue("server", names=f"IP:{LOOPBACK}")
    [port] = free_ports(1)
    settings = {
        "management.ssl.port": str(port),
        "management.ssl.certfile": str(issued.certfile),
        "management.ssl.keyfile": str(issued.keyfile),
    }
    config = tmp_path / "console.toml"
    config.write_text(
        f'certfile = "{issued.certfile}"\nkeyfile = "{issued.keyfile}"\n'
        f'[sites.good]\nurl = "https://{LOOPBACK}:{port}"\ncacertfile = "{ours.cacertfile}"\n'
        f'[sites.bad]\nurl = "https://{LOOPBACK}:{port}"\ncacertfile = "{strangers.cacertfile}"\n'
    )
    with (
        LeveretProcess(config=settings),
        ConsoleProcess({}, ["--config", str(config)]) as console,
        chromium.visit(ignore_https_errors=True) as trusting,
    ):
        assert console.url.startswith("https://")
        look_at(trusting.page, console)
        expect(trusting.page.get_by_role("region", name="good", exact=True)).to_contain_text("✓ alive")
        bad = trusting.page.get_by_role("region", name="bad", exact=True)
        expect(bad).to_contain_text("certificate verify failed")
        [cookie] = trusting.page.context.cookies()
        assert (cookie["secure"], cookie["name"].startswith("__Host-")) == (True, True)


def test_a_page_of_another_origin_changes_nothing(visit: Visit) -> None:
    with (
        LeveretProcess() as node,
        site(failing) as stranger,
        ConsoleProcess({"eu": f"http://{LOOPBACK}:{node.management_port}"}) as console,
    ):
        page = visit.page
        look_at(page, console)
        expect(page.locator("section.card")).to_contain_text("✓ alive")
        visit.expect("answered|Content Security Policy|CORS|no answer|Failed")
        page.goto(f"{stranger}/api/whoami")
        wanted = json.dumps({"site": "eu", "action": "scrub", "given": {}, "word": ""})
        for kind in ("application/json", "text/plain"):
            with pytest.raises(Error, match="Failed to fetch"):
                page.evaluate(FORGED, [f"{console.url}jobs", wanted, kind])
        page.goto(f"{console.url}#do")
        expect(page.get_by_role("region", name="eu", exact=True)).to_be_visible()
        expect(page.get_by_role("article")).to_have_count(0)

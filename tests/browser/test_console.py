"""The console in a browser: sites and their queues, log-in and its limits, and sites that are not well."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pika
import pytest
from playwright.sync_api import Error, Route, expect

from leveret.testing.applications.applications import parameters
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.chromium import Chromium, Visit
from leveret.testing.servers.console import ConsoleProcess
from tests.browser.console_visit import fill_login, look_at

expect.set_options(timeout=20_000)
HOSTILE = [
    "<img src=x onerror='window.hacked=1'>",
    "<script>window.hacked=1</script>",
    "\u202etxt.exe\u2066",
    "javascript:window.hacked=1",
    "{{7*7}} ${7*7}",
    "q" * 255,
]


class Garbage(BaseHTTPRequestHandler):
    """A site that knows everybody, and whose other answers are no documents."""

    def do_GET(self) -> None:
        known = {"name": "guest", "tags": ["administrator"]}
        answer = json.dumps(known).encode() if self.path == "/api/whoami" else b'[{"name": 5}] <script>'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing is written."""


@pytest.fixture(scope="module")
def node() -> Iterator[LeveretProcess]:
    with LeveretProcess() as node:
        node.ctl("add_user", "looker", "-", input_text="pass")
        node.ctl("set_user_tags", "looker", "management")
        node.ctl("set_permissions", "looker", ".*", ".*", ".*")
        queues = [
            {"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in ("orders", *HOSTILE)
        ]
        node.ctl("import_definitions", "-", input_text=json.dumps({"queues": queues}))
        yield node


@pytest.fixture(scope="module")
def garbage() -> Iterator[str]:
    with ThreadingHTTPServer((LOOPBACK, 0), Garbage) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def console(node: LeveretProcess) -> Iterator[ConsoleProcess]:
    with ConsoleProcess({"eu": f"http://{LOOPBACK}:{node.management_port}"}) as console:
        yield console


def test_no_name_of_a_queue_runs_in_the_browser(visit: Visit, console: ConsoleProcess) -> None:
    page = visit.page
    look_at(page, console)
    page.get_by_role("link", name="Am I safe?").click()
    expect(page.locator("table.queues tbody tr")).to_have_count(1 + len(HOSTILE))
    for name in HOSTILE:
        shown = name.replace("\u202e", r"\u202e").replace("\u2066", r"\u2066")
        expect(page.locator("table.queues bdi.title", has_text=shown)).to_have_count(1)
    assert page.evaluate("window.hacked") is None


def test_a_name_turns_the_direction_of_nothing_and_hides_nothing(
    visit: Visit, console: ConsoleProcess
) -> None:
    page = visit.page
    look_at(page, console, "safety")
    expect(page.locator("table.queues tbody tr")).to_have_count(1 + len(HOSTILE))
    # No page has a mark of direction: an isolate that a name opens would otherwise end that of its element.
    for name in ("safety", "sites", "do", "history", "messages", "plots"):
        page.goto(f"{console.url}#{name}")
        expect(page.locator("h1")).to_be_visible()
        marks = page.evaluate(r"/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)")
        assert (name, marks) == (name, False)


def test_the_policy_of_the_page_lets_no_inline_script_run(visit: Visit, console: ConsoleProcess) -> None:
    visit.expect("Content Security Policy|TrustedScript|trusted type|TrustedHTML")
    page = visit.page
    page.goto(console.url)
    with pytest.raises(Error, match="Trusted"):
        page.evaluate("document.body.innerHTML = '<p>x</p>'")
    with pytest.raises(Error, match="Trusted"):
        page.evaluate(
            "document.head.append(Object.assign(document.createElement('script'), {text: 'window.hacked=1'}))"
        )
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (380, "light"),
        pytest.param(380, "dark", marks=pytest.mark.story),
        pytest.param(3840, "dark", marks=pytest.mark.story),
    ],
)
def test_every_page_fits_from_a_phone_to_a_wall_in_light_and_dark(
    chromium: Chromium, console: ConsoleProcess, width: int, scheme: Any
) -> None:
    with chromium.visit(viewport={"width": width, "height": 900}, color_scheme=scheme) as visit:
        page = visit.page
        look_at(page, console)
        colours = set()
        for name in ("sites", "safety", "plots", "do", "history", "messages"):
            page.goto(f"{console.url}#{name}")
            expect(page.locator("nav [aria-current=page]")).to_have_attribute("href", f"#{name}")
            expect(page.locator("h1")).to_be_visible()
            assert (name, page.evaluate("document.documentElement.scrollWidth")) == (name, width)
            shade = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
            colours.add(int(shade) < 128)
        assert colours == {scheme == "dark"}


def test_a_queue_is_found_by_keyboard_alone(visit: Visit, console: ConsoleProcess) -> None:
    page = visit.page
    look_at(page, console)
    expect(page.locator("nav")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Am I safe?":
            break
    page.keyboard.press("Enter")
    search = page.get_by_role("searchbox")
    expect(search).to_be_visible()
    search.focus()
    page.keyboard.type("ORDERS")
    expect(page.locator("table.queues tbody tr")).to_have_count(1)
    expect(page.locator("table.queues tbody tr")).to_contain_text("The only copy is at this node")
    expect(search).to_have_value("ORDERS")


def test_a_wrong_password_is_refused_and_a_guesser_has_to_wait(
    chromium: Chromium, node: LeveretProcess
) -> None:
    with (
        ConsoleProcess({"eu": f"http://{LOOPBACK}:{node.management_port}"}) as console,
        chromium.visit() as visit,
    ):
        visit.expect("answered (403|429): POST")
        for _ in range(5):
            look_at(visit.page, console, password="wrong")
            expect(visit.page.get_by_role("alert")).to_contain_text("Login failed")
        look_at(visit.page, console)
        expect(visit.page.get_by_role("alert")).to_contain_text("too many failed attempts")


def test_a_user_without_rights_is_shown_less_and_told_so(visit: Visit, console: ConsoleProcess) -> None:
    page = visit.page
    look_at(page, console, user="looker", password="pass")
    expect(page.get_by_role("region", name="eu", exact=True)).to_contain_text(
        "User looker has no tag monitoring"
    )
    page.get_by_role("link", name="Am I safe?").click()
    expect(page.locator("table.queues")).to_contain_text("orders")


def test_a_session_ends_with_the_log_out_and_its_cookie_is_worth_nothing_then(
    visit: Visit, console: ConsoleProcess
) -> None:
    page = visit.page
    look_at(page, console)
    expect(page.locator("nav")).to_be_visible()
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": console.url}])
    page.goto(console.url)
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert page.request.get(f"{console.url}view/sites").status == 401


@pytest.mark.story
def test_an_open_page_says_that_its_session_has_ended_and_a_killed_console_that_nobody_answers(
    visit: Visit, node: LeveretProcess
) -> None:
    visit.expect("answered 401: GET|no answer")
    page = visit.page
    sites = {"eu": f"http://{LOOPBACK}:{node.management_port}"}
    with ConsoleProcess(sites) as console:
        look_at(page, console)
        expect(page.locator("section.card")).to_contain_text("✓ alive")
        page.context.clear_cookies()
        expect(page.get_by_role("alert")).to_have_text("The session has ended.")
        expect(page.locator("section.card")).to_have_count(0)
        look_at(page, console)
        expect(page.locator("section.card")).to_contain_text("✓ alive")
        console.server.kill9()
        expect(page.get_by_role("status")).to_contain_text("The console does not answer.")
        # What was known stays, and is said to be old.
        expect(page.get_by_role("status")).to_contain_text("may be old")
        expect(page.locator("section.card")).to_contain_text("✓ alive")
        port = int(console.url.rstrip("/").rpartition(":")[2])
    with ConsoleProcess(sites, port=port):
        expect(page.get_by_role("alert")).to_have_text("The session has ended.")


def test_passwords_are_in_no_log_and_no_process_list(visit: Visit, console: ConsoleProcess) -> None:
    look_at(visit.page, console, user="looker", password="pass")
    expect(visit.page.locator("nav")).to_be_visible()
    assert "pass" not in console.log_text()
    assert "/session" not in console.log_text()
    assert b"guest" not in Path(f"/proc/{console.server.pid}/cmdline").read_bytes()


def test_messages_are_shown_as_text_json_and_hex_and_nothing_of_them_runs(
    visit: Visit, node: LeveretProcess, console: ConsoleProcess
) -> None:
    bodies = [b'{"a": "<img src=x onerror=window.hacked=1>"}', bytes(range(256)), b"x" * 16_000_000]
    with pika.BlockingConnection(parameters(node.amqp_port, "/")) as connection:
        for body in bodies:
            headers = {"<b>": "<script>window.hacked=1</script>"}
            properties = pika.BasicProperties(delivery_mode=2, headers=headers)
            connection.channel().basic_publish("", "orders", body, properties)
    page = visit.page
    look_at(page, console)
    page.get_by_role("link", name="Messages").click()
    page.get_by_label("Queue", exact=True).fill("orders")
    page.get_by_role("button", name="Look").click()
    letters = page.get_by_role("article")
    expect(letters).to_have_count(3)
    expect(letters.nth(0)).to_contain_text("<script>window.hacked=1</script>")
    expect(letters.nth(2)).to_contain_text("Only the beginning of the body is shown")
    page.get_by_role("button", name="JSON").click()
    expect(letters.nth(0).locator("pre")).to_contain_text('"a": "<img src=x')
    page.get_by_role("button", name="hex").click()
    expect(letters.nth(1).locator("pre")).to_contain_text("000010  10 11 12 13")
    assert page.evaluate("window.hacked") is None
    assert node.ctl("list_queues", "name", "messages", "--formatter", "csv").stdout.count('"orders","3"') == 1
    # The next user of the same page is shown nothing of it.
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("alert")).to_have_text("You are logged out.")
    fill_login(page, "looker", "pass")
    expect(page.locator("header .who")).to_contain_text("looker")
    expect(page.get_by_role("heading", name="Messages")).to_be_visible()
    expect(letters).to_have_count(0)
    expect(page.get_by_label("Queue", exact=True)).to_have_value("")


@pytest.mark.story
def test_two_browsers_are_two_people(chromium: Chromium, console: ConsoleProcess) -> None:
    with chromium.visit() as first, chromium.visit() as second:
        look_at(first.page, console)
        look_at(second.page, console, user="looker", password="pass")
        expect(first.page.locator("section.card")).to_contain_text("guest (administrator)")
        expect(second.page.locator("section.card")).to_contain_text("looker (management)")
        first.page.get_by_role("button", name="Log out").click()
        expect(first.page.get_by_role("button", name="Log in")).to_be_visible()
        second.page.get_by_role("link", name="Am I safe?").click()
        expect(second.page.locator("table.queues")).to_contain_text("orders")


def test_a_refresh_on_its_way_is_taken_back_by_the_log_out(visit: Visit, console: ConsoleProcess) -> None:
    page = visit.page
    look_at(page, console)
    expect(page.locator("section.card")).to_contain_text("✓ alive")
    with page.expect_request("**/view/sites"):
        held: list[Route] = []
        page.route("**/view/sites", lambda route: held.append(route))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert held
    for route in held:
        # The browser may know no such request any more, and then there is nothing to send.
        with contextlib.suppress(Error):
            route.continue_()
    page.unroute("**/view/sites")
    fill_login(page)
    expect(page.locator("section.card")).to_contain_text("✓ alive")


@pytest.mark.story
def test_a_site_that_dies_or_talks_garbage_is_not_shown_as_alive_until_it_is(
    visit: Visit, garbage: str
) -> None:
    with LeveretProcess() as node, LeveretProcess() as other:
        definitions = {"queues": [{"name": "orders", "vhost": "/", "durable": True, "arguments": {}}]}
        node.ctl("import_definitions", "-", input_text=json.dumps(definitions))
        sites = {
            "eu": f"http://{LOOPBACK}:{node.management_port}",
            "us": f"http://{LOOPBACK}:{other.management_port}",
            "mad": garbage,
        }
        with ConsoleProcess(sites) as console:
            page = visit.page
            look_at(page, console)
            card = page.get_by_role("region", name="eu", exact=True)
            expect(card.locator("dl")).to_contain_text("queues1")
            node.kill9()
            expect(card).to_contain_text("✕ not heard of since", timeout=40_000)
            mad = page.get_by_role("region", name="mad", exact=True)
            expect(mad).to_contain_text("the answer is not what the HTTP API promises")
            expect(page.locator("svg g.site.lost")).to_have_count(2)
            expect(page.locator("svg g.site.lost").first).to_contain_text("not heard for")
            expect(page.locator("svg g.site.alive")).to_have_count(1)
            page.get_by_role("link", name="Am I safe?").click()
            expect(page.locator("table.queues tr", has_text="orders")).to_contain_text(
                "Site eu was last heard"
            )
            node.start()
            page.get_by_role("link", name="Sites").click()
            expect(card).to_contain_text("✓ alive", timeout=40_000)
            page.get_by_role("link", name="History").click()
            expect(page.locator("ol.line li", has_text="started.")).to_have_count(2)

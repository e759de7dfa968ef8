"""The time from a log-in until the console's pages are shown, in a real Chromium.

    console-sites    from Enter in the log-in form until page Sites shows all sites, and the number of queues of each
    console-safety   the same until page `Am I safe?` has judged all queues, and shows the first hundred
    console-poll     the cost of a logged-in user for the node with the queues: processor time a second, beyond that of
                     the idle node

Six nodes are six sites. The first one has all 10,000 queues, which is the slowest distribution, because one event loop
makes the whole list. Each round has a new console and a new browser, so no cache helps. The page measures the time,
which ends when the browser has painted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from bench.client import LoadError
from bench.contenders import LEVERET, Node
from bench.management import call
from bench.queues import QUEUES, QUEUES_QUICK, definitions
from bench.rows import Reading, Row, Scenario, Settings, Target
from leveret.testing.network.ports import LOOPBACK
from leveret.testing.servers import chromium
from leveret.testing.servers.broker import LeveretProcess
from leveret.testing.servers.chromium import Chromium
from leveret.testing.servers.console import ConsoleProcess

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession

NODES: Final = 6
LOGIN_S_MAX: Final = 1.0
POLL_MS_MAX: Final = 20.0
POLL_SPANS: Final = 8
"""The span of `console-poll` in the settings' spans: usually 40 s, as the console reads all queues every 10 s or so."""
POLL_WARMUPS: Final = 5
PATIENCE_MS: Final = 60_000
PAGES: Final = {
    "sites": """count => document.querySelectorAll("section.card").length === NODES
        && !document.querySelector("main").textContent.includes("being read")
        && document.querySelector("main").textContent.includes(count)""",
    "safety": """count => document.querySelectorAll("table.queues tbody tr").length > 0
        && document.querySelector(".headline").textContent.includes(count)""",
}
"""By page, a JavaScript predicate that is true when the page is complete."""

_WATCH: Final = """([stands, count]) => {
    const isThere = new Function(`return (${stands})`)();
    const seen = () => {
        if (!isThere(count)) return;
        watcher.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.stoodMs = performance.now(); }));
    };
    const watcher = new MutationObserver(seen);
    watcher.observe(document.body, { subtree: true, childList: true, characterData: true });
    document.addEventListener("submit", () => { window.beganMs = performance.now(); }, { capture: true, once: true });
}"""


class SixSites:
    """Six nodes as one contender (bench.contenders.Node); the first one has all queues."""

    def __init__(self, folder: Path) -> None:
        """Prepare the nodes; nothing runs yet."""
        self.nodes: Sequence[LeveretProcess] = [LeveretProcess(parent_dir=folder) for _ in range(NODES)]
        self.amqp_port = self.nodes[0].amqp_port
        self.management_port = self.nodes[0].management_port
        self.stream_port = 0
        self.queues = 0

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the console's sites, by name."""
        return {
            f"site{at}": f"http://{LOOPBACK}:{each.management_port}" for at, each in enumerate(self.nodes)
        }

    def start(self) -> object:
        """Start all nodes."""
        for node in self.nodes:
            node.start()
        return self

    def declare(self, count: int) -> None:
        """Declare `count` queues at the first node, unless it has them."""
        if self.queues == count:
            return
        call(self, "POST", "/api/definitions", definitions(count))
        self.queues = count

    def stop(self) -> int:
        """End the first node in order."""
        return self.nodes[0].stop()

    def kill9(self) -> None:
        """End the first node as a crash would."""
        self.nodes[0].kill9()

    def close(self) -> None:
        """End all nodes, and remove all data."""
        for node in self.nodes:
            node.close()

    def rss_bytes(self) -> int:
        """Return the present resident memory of all nodes."""
        return sum(node.rss_bytes() for node in self.nodes)

    def cpu_seconds(self) -> float:
        """Return the processor time of all nodes since their start."""
        return sum(node.cpu_seconds() for node in self.nodes)


def _run(node: Node, settings: Settings) -> dict[str, Reading]:
    assert isinstance(node, SixSites)
    if missing := chromium.available():
        raise LoadError(missing)
    count = QUEUES_QUICK if settings.quick else QUEUES
    node.declare(count)
    readings = {f"console-{name}": _in_a_thread(node, name, count) for name in PAGES}
    return readings | {"console-poll": _polled(node, settings)}


def _polled(node: SixSites, settings: Settings) -> Reading:
    """Measure a log-in without a page. The console reads the plots' past at first, before the measured time."""
    idle_ms_s = _spent_ms_s(node.nodes[0], settings)
    with ConsoleProcess(node.urls) as console:
        origin = console.url.rstrip("/")
        credentials = {"user": "guest", "password": "guest"}
        answer = httpx.post(f"{origin}/session", json=credentials, headers={"origin": origin})
        answer.raise_for_status()
        time.sleep(settings.warmup_s * POLL_WARMUPS)
        polled_ms_s = _spent_ms_s(node.nodes[0], settings)
    return Reading(
        max(0.0, polled_ms_s - idle_ms_s), details={"idle_ms_s": idle_ms_s, "polled_ms_s": polled_ms_s}
    )


def _spent_ms_s(node: LeveretProcess, settings: Settings) -> float:
    """Return milliseconds of processor time a second, over several of the console's longest intervals."""
    before_s, began_s = node.cpu_seconds(), time.monotonic()
    time.sleep(settings.seconds * POLL_SPANS)
    return 1000 * (node.cpu_seconds() - before_s) / (time.monotonic() - began_s)


def _in_a_thread(node: SixSites, name: str, count: int) -> Reading:
    """Measure in a thread of its own: Playwright leaves an event loop in its thread, which other rows must not find."""
    found: list[Reading | BaseException] = []

    def measure() -> None:
        try:
            found.append(_log_in(node, name, count))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _log_in(node: SixSites, name: str, count: int) -> Reading:
    """Log in once, at a new console and with a new browser; return the time."""
    with ExitStack() as stack:
        console = stack.enter_context(ConsoleProcess(node.urls))
        page = stack.enter_context(stack.enter_context(Chromium()).visit()).page
        page.goto(f"{console.url}#{name}")
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("guest")
        page.evaluate(_WATCH, [PAGES[name].replace("NODES", str(NODES)), f"{count:,}"])
        # The browser counts from this command on, while the session exists.
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = _spent(console, node, session)
        page.keyboard.press("Enter")
        page.wait_for_function("() => window.stoodMs !== undefined", timeout=PATIENCE_MS)
        after = _spent(console, node, session)
        seconds = page.evaluate("(window.stoodMs - window.beganMs) / 1000")
        return Reading(seconds, details={key: after[key] - before[key] for key in before})


def _spent(console: ConsoleProcess, node: SixSites, session: CDPSession) -> dict[str, float]:
    """Return the processor time so far of the console, of all nodes, and of the page's parts."""
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    page_s = {metric["name"]: float(metric["value"]) for metric in metrics}
    return {
        "console_s": console.server.cpu_seconds(),
        "nodes_s": node.cpu_seconds(),
        "page_s": page_s["TaskDuration"],
        "page_scripts_s": page_s["ScriptDuration"],
        "page_layout_s": page_s["LayoutDuration"] + page_s["RecalcStyleDuration"],
    }


CONSOLE_PAGE: Final = Scenario(
    (
        *(
            Row(
                f"console-{name}",
                f"console: from the log-in until page {title} stands, {NODES} nodes and {QUEUES:,} queues",
                "s",
                False,
                Target("value", LOGIN_S_MAX),
            )
            for name, title in {"sites": "Sites", "safety": "Am I safe?"}.items()
        ),
        Row(
            "console-poll",
            f"console: what a person who is logged in costs a node with {QUEUES:,} queues, processor time",
            "ms/s",
            False,
            Target("value", POLL_MS_MAX),
        ),
    ),
    _run,
    brokers=(LEVERET,),
    makers={LEVERET: SixSites},
)

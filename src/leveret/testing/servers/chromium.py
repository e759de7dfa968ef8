"""The machine's Chromium without a window, driven by Playwright, for tests and pictures of pages.

    with Chromium() as chromium, chromium.visit() as visit:
        visit.page.goto(f"http://127.0.0.1:{port}/")
        visit.page.get_by_role("button", name="Login").click()

A visit is a browser context of its own, without another visit's cookies, storage or log-in. It collects the troubles
that the browser's console would show: failed scripts, requests that were refused or not answered, and requests to
another machine. It ends with an error if there is any, except those that `visit.expect` names.

Playwright runs an event loop in the thread that uses it: no `asyncio.run` works there before the `Chromium` is closed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, Response

PATIENCE_MS: Final = 20_000
"""The longest wait of a click or an expectation for its element; long, because the machine may be busy."""

_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
_LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_REFUSED_FROM: Final = 400
# By default Chromium asks its maker's hosts for updates, lists and the time. Here it is to ask the page's host only.
_FLAGS: Final = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-domain-reliability", "--no-pings",
)  # fmt: skip


def available() -> str | None:
    """Return None if the machine has a Chromium, else the remedy."""
    return None if _program() else "no chromium on the path: `tools/setup test` as root installs it"


def _program() -> str | None:
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


class Visit:
    """One person's browser, with one page open.

    Attributes:
        page: Playwright's page.
        troubles: the troubles so far, a line each.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.troubles: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self._trouble(f"script failed: {error}"))
        page.on("request", self._asked)
        page.on("response", self._answered)
        page.on("requestfailed", self._failed)

    def expect(self, pattern: str) -> None:
        """Accept troubles, earlier and later ones, in whose line this regular expression is found."""
        self._expected.append(re.compile(pattern))

    def check(self) -> None:
        """Check that no unexpected trouble occurred.

        Raises:
            AssertionError: troubles occurred that are not expected; the text has them.
        """
        left = [line for line in self.troubles if not any(one.search(line) for one in self._expected)]
        assert not left, "in the browser's console:\n" + "\n".join(left)

    def _trouble(self, line: str) -> None:
        self.troubles.append(f"{line} (at {self.page.url})")

    def _said(self, message: ConsoleMessage) -> None:
        # `_answered` notes a refused request, with its method; the console would add only its address.
        if message.type in ("error", "assert") and not message.text.startswith("Failed to load resource"):
            self._trouble(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.hostname not in _LOCAL:
            self._trouble(f"asked another machine: {request.method} {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= _REFUSED_FROM:
            request = response.request
            self._trouble(f"answered {response.status}: {request.method} {response.url}")

    def _failed(self, request: Request) -> None:
        # The browser aborts the requests of a page that the user leaves.
        if request.failure != "net::ERR_ABORTED":
            self._trouble(f"no answer, {request.failure}: {request.method} {request.url}")


class Chromium:
    """The browser's process; a context manager that leaves neither process nor profile."""

    def __init__(self) -> None:
        """Prepare; nothing runs yet."""
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def __enter__(self) -> Self:
        # A fifth of a second of imports, also for those who only look whether there is a Chromium.
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=_program(),
                # As root Chromium starts only with its sandbox switched off.
                chromium_sandbox=os.geteuid() != 0,
                args=_FLAGS,
            )
        except BaseException:
            self._playwright.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._browser is not None
        assert self._playwright is not None
        self._browser.close()
        self._playwright.stop()

    @contextmanager
    def visit(self, *, checked: bool = True, **options: Any) -> Iterator[Visit]:
        """Yield a visit, and check its troubles at the end of the block.

        Args:
            checked: False leaves the check to the caller.
            options: options of Playwright's `new_context`, such as `viewport`, `color_scheme`, `ignore_https_errors`.
        """
        assert self._browser is not None
        context = self._browser.new_context(**options)
        try:
            context.set_default_timeout(PATIENCE_MS)
            visit = Visit(context.new_page())
            yield visit
            if checked:
                visit.check()
        finally:
            context.close()

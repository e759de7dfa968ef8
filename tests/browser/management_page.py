"""RabbitMQ's management page in a browser: Debian's files, served by Leveret or by RabbitMQ itself.

page = ManagementPage(visit, f"http://127.0.0.1:{port}")
page.log_in("guest", "guest")
page.open("queues/%2F/q1")
page.submit("Purge Messages")
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import Dialog, Locator, Response, expect

from leveret.testing.servers.chromium import Visit

FILES: Final = os.environ.get(
    "LEVERET_MANAGEMENT_FILES",
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www",
)
"""Where Debian's rabbitmq-server has the page; another release's is tried by the variable, and its forms may differ."""

_NO_VALUE: Final = re.compile(r"\b(NaN|undefined|null|Infinity|\[object Object\])\b")
_MARK: Final = "$('#main').append('<i id=left-behind></i>')"
_IS_NEW: Final = """() => typeof outstanding_reqs != 'undefined' && outstanding_reqs.length == 0
    && !document.querySelector('#left-behind') && document.querySelector('#main h1, #main h2')"""

CELLS: Final = r"""() => {
    const text = each => {
        const copy = each.cloneNode(true);
        copy.querySelectorAll('.help, script, table').forEach(one => one.remove());
        return copy.textContent.replace(/\s+/g, ' ').trim();
    };
    const cells = {};
    const add = (key, cell) => { (cells[key] = cells[key] || []).push(text(cell)); };
    for (const table of document.querySelectorAll('#main table:not(.argument-links)')) {
        const section = table.closest('.section, .section-hidden');
        const title = section ? text(section.querySelector('h2')).replace(/ *\(.*/, '') : '';
        const heads = [...table.querySelectorAll(':scope > thead th:not([colspan], .plus-minus)')].map(text);
        for (const row of table.querySelectorAll(':scope > tbody > tr')) {
            const head = row.querySelector(':scope > th');
            [...row.querySelectorAll(':scope > td')].forEach((cell, index) => {
                if (cell.querySelector('table, form, input, canvas')) return;
                if (heads.length) add([title, heads[index] || index].join(' / '), cell);
                else if (head) add([title, text(head), index].join(' / '), cell);
            });
        }
    }
    return cells;
}"""
"""What stands in the page's tables: texts by section and heading."""


class ManagementPage:
    """A visit to the page.

    Attributes:
        visit: the browser; its `page` is Playwright's.
        questions: what the page asked before it did something, each answered with yes.
    """

    def __init__(self, visit: Visit, base: str) -> None:
        self.visit = visit
        self.page = visit.page
        self.questions: list[str] = []
        self._base = base
        self.page.on("dialog", self._agree)

    def _agree(self, dialog: Dialog) -> None:
        self.questions.append(dialog.message)
        dialog.accept()

    def log_in(self, user: str, password: str) -> None:
        """From the log-in form to the first page."""
        self.page.goto(f"{self._base}/")
        self.type_login(user, password)
        self.page.wait_for_function(_IS_NEW)

    def type_login(self, user: str, password: str) -> None:
        """Fill in and send the log-in form; it need not succeed."""
        self.page.fill("input[name=username]", user)
        self.page.fill("input[name=password]", password)
        self.page.get_by_role("button", name="Login").click()

    def log_out(self) -> None:
        """Back to the log-in form."""
        self.page.get_by_role("button", name="Log out").click()
        expect(self.page.locator("input[name=password]")).to_be_visible()

    def open(self, *path: str) -> None:
        """Go to a page by the parts of its path, such as `queues`, `/`, `q1`, and show all that it hides."""
        address = "#/" + "/".join(quote(part, safe="") for part in path)
        self.page.evaluate(_MARK)
        if self.page.evaluate("location.hash") == address:
            self.page.evaluate("update()")
        else:
            self.page.evaluate("address => { location.hash = address }", address)
        self.page.wait_for_function(_IS_NEW)
        self.page.evaluate("$('.section-invisible h2').click(); $('.hider').finish()")

    def refresh(self) -> None:
        """What the page does by itself every five seconds."""
        self.page.evaluate("partial_update()")
        self.page.wait_for_function(_IS_NEW)

    def form(self, button: str, action: str = "") -> Locator:
        """The first form with this button and, where several have it, with this action."""
        of_action = f"[action='#/{action}']" if action else ""
        return self.page.locator(f"#main form{of_action}:has(input[type=submit][value='{button}'])").first

    def submit(self, button: str, fields: Mapping[str, str] | None = None, *, action: str = "") -> Response:
        """Fill a form in and send it; return the answer, which must not be a refusal."""
        form = self.form(button, action)
        for name, value in (fields or {}).items():
            field = form.locator(f"[name='{name}']:not([type=hidden])").first
            if field.evaluate("each => each.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        with self.page.expect_response(lambda reply: reply.request.method != "GET") as answered:
            form.locator(f"input[value='{button}']").click()
        answer = answered.value
        assert answer.status < 300, f"{button}: {answer.status} {answer.text()}"
        self.page.wait_for_function("() => outstanding_reqs.length == 0")
        return answer

    def argument(
        self, button: str, key: str, value: str, kind: str = "string", *, prefix: str = "arguments"
    ) -> None:
        """Type a row of a form's table of arguments; the last one is empty."""
        row = self.form(button).locator(f"#{prefix} table.mf").last
        typed = row.locator("input[type=text]")
        typed.first.fill(key)
        typed.last.fill(value)
        if row.locator("select").count():
            row.locator("select").select_option(kind)
        typed.last.press("Shift")  # the page looks at what was typed when a key comes up

    def popup(self, kind: str = "info") -> str:
        """What the page says in a window of its own, which is then closed."""
        window = self.page.locator(f".form-popup-{kind}").first
        expect(window).to_be_visible()
        text = window.inner_text().replace("Close", "").strip()
        window.locator("span").last.click()
        expect(self.page.locator(f".form-popup-{kind}")).to_have_count(0)
        return text

    def text(self, selector: str = "#main") -> str:
        """What is shown there."""
        return self.page.locator(selector).first.inner_text()

    def cells(self) -> dict[str, list[str]]:
        """Texts of the tables' cells by section and heading."""
        cells: dict[str, list[str]] = self.page.evaluate(CELLS)
        return cells

    def charts(self) -> dict[str, bool]:
        """Each chart by its name, and whether it is drawn."""
        script = (
            "[...document.querySelectorAll('.chart')].map(each => [each.id, !!each.querySelector('canvas')])"
        )
        return dict(self.page.evaluate(script))

    def faults(self) -> list[str]:
        """Words that stand where a value should, and what the page says of answers that it cannot use."""
        shown = self.text("#outer")
        found = [shown[max(0, each.start() - 60) : each.end() + 20] for each in _NO_VALUE.finditer(shown)]
        return found + [text for text in [self.text("#debug")] if text.strip()]

    def column(self, heading: str) -> list[str]:
        """A list's column, from the top."""
        return next(
            texts for key, texts in self.cells().items() if key.rpartition(" / ")[2].lstrip("△▽ ") == heading
        )

    def picture(self, file: Path) -> None:
        """A picture of the whole page."""
        self.page.screenshot(path=file, full_page=True)


def has_value(text: str) -> bool:
    """Whether a cell says something."""
    return text not in ("", "?") and not _NO_VALUE.search(text)


def values_of(cells: Mapping[str, Any]) -> dict[str, bool]:
    """Whether any cell under each heading says something."""
    return {key: any(map(has_value, texts)) for key, texts in cells.items()}

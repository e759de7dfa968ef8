"""What a person does at the console's page, with a mouse or with keys alone."""

from __future__ import annotations

from playwright.sync_api import Page

from leveret.testing.servers.console import ConsoleProcess

_KEYS_MAX = 60


def look_at(
    page: Page, console: ConsoleProcess, name: str = "sites", user: str = "guest", password: str = "guest"
) -> None:
    """Go to a page of the console, and log in there."""
    page.goto(f"{console.url}#{name}")
    fill_login(page, user, password)


def fill_login(page: Page, user: str = "guest", password: str = "guest") -> None:
    """Fill in and send the log-in form; it need not succeed."""
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def press_until(page: Page, key: str, name: str) -> None:
    """Press a key until the element with this text or name has the focus.

    Raises:
        AssertionError: none of the next elements is it.
    """
    for _ in range(_KEYS_MAX):
        page.keyboard.press(key)
        said = page.evaluate("document.activeElement.textContent + '|' + (document.activeElement.name ?? '')")
        if name in said.split("|"):
            return
    raise AssertionError(f"{key} does not lead to {name}")

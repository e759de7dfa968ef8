"""What tests in a browser share: a Chromium for each module, and a visit for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.testing.servers.chromium import Chromium, Visit, available

HERE = f"{Path(__file__).parent}/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = available()
    for item in items:
        if not str(item.path).startswith(HERE):
            continue
        item.add_marker(pytest.mark.browser)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


# Not for longer than a module: while it lives, `asyncio.run` does not work in this process.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """The browser's process, of the tests of a module."""
    with Chromium() as browser:
        yield browser


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Visit]:
    """A browser without any log-in; an error in its console fails the test."""
    with chromium.visit() as visit:
        yield visit

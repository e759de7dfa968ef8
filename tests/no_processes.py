"""A plugin of `make test-fast`: a test without the marker `process` that starts one fails, and names it.

Property tests take a quarter of their examples, the first ones of `make test`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import settings

EXAMPLES_MIN: Final = 5
STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

SETTINGS: Final = "_hypothesis_internal_use_settings"

_running: str | None = None
"""The test that runs; pytest-xdist starts its workers while none does."""


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _running is not None:
        started = arguments[0] if arguments else event
        raise AssertionError(f"{_running} starts {started}: mark it `process`")


def pytest_configure() -> None:
    sys.addaudithook(_refuse)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Cases of a test share its function.
    found = [getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)]
    for test in {id(each): each for each in found}.values():
        if hasattr(test, "hypothesis"):
            # Hypothesis keeps what `settings` says of a test there, and has no other way to change it.
            asked = getattr(test, SETTINGS, None) or settings()
            setattr(test, SETTINGS, settings(asked, max_examples=max(EXAMPLES_MIN, asked.max_examples // 4)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    global _running
    _running = item.nodeid
    try:
        return (yield)
    finally:
        _running = None

"""A plugin of `make test-fast`: a test without the marker `process` that starts one fails, and names it."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, Final

import pytest

STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

_running: str | None = None
"""The test that runs; pytest-xdist starts its workers while none does."""


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _running is not None:
        started = arguments[0] if arguments else event
        raise AssertionError(f"{_running} starts {started}: mark it `process`")


def pytest_configure() -> None:
    sys.addaudithook(_refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    global _running
    _running = item.nodeid
    try:
        return (yield)
    finally:
        _running = None

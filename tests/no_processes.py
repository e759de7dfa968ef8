"""A plugin of `make test-fast`: a test without the marker `process` that starts one fails, and names it.

Property tests take a sixteenth of their examples, the first ones of `make test`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from functools import wraps
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import settings, stateful

EXAMPLES_MIN: Final = 4
STARTS: Final[tuple[tuple[type | ModuleType, str], ...]] = (
    (subprocess.Popen, "__init__"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
)

SETTINGS: Final = "_hypothesis_internal_use_settings"

_running: str | None = None
"""The test that runs; pytest-xdist starts its workers while none does."""


def _refuse(where: type | ModuleType, name: str) -> None:
    """Have a function of the standard library fail in a test; an audit hook would be called at each `open`, too."""
    original: Callable[..., Any] = getattr(where, name)

    @wraps(original)
    def start(*arguments: Any, **named: Any) -> Any:
        if _running is not None:
            raise AssertionError(f"{_running} starts a process by {original.__qualname__}: mark it `process`")
        return original(*arguments, **named)

    setattr(where, name, start)


def _fewer(asked: settings | None) -> settings:
    """The settings of a property test, with a sixteenth of the examples."""
    asked = asked or settings()
    return settings(asked, max_examples=max(EXAMPLES_MIN, asked.max_examples // 16))


def pytest_configure() -> None:
    for where, name in STARTS:
        _refuse(where, name)
    # State machines say how many examples they take when they run. Tests import it later.
    run: Callable[..., None] = stateful.run_state_machine_as_test

    @wraps(run)
    def run_fewer(machine: Any, *, settings: settings | None = None, **more: Any) -> None:
        run(machine, settings=_fewer(settings), **more)

    stateful.run_state_machine_as_test = run_fewer  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Cases of a test share its function.
    found = [getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)]
    for test in {id(each): each for each in found}.values():
        if hasattr(test, "hypothesis"):
            # Hypothesis keeps what `settings` says of a test there, and has no other way to change it.
            setattr(test, SETTINGS, _fewer(getattr(test, SETTINGS, None)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    global _running
    _running = item.nodeid
    try:
        return (yield)
    finally:
        _running = None

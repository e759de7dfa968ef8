"""A plugin of pytest that makes the bytecode of all sources and tests before they are collected, in several processes.

The process that collects would compile everything of a fresh clone alone, and rewrite the asserts of all tests: ten
seconds of processor time. So would each worker of pytest-xdist, all at the same moment.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)

TESTS: Final = Path(__file__).parent
REWRITTEN: Final = re.compile(r"(test_\w+|conftest)\.py$")
WORTH_PROCESSES: Final = 40
"""So many files take longer than processes to share them."""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile and rewrite what has changed."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    tests = (path for path in TESTS.rglob("*.py") if REWRITTEN.search(path.name))
    changed = [path for path in tests if not is_rewritten(path)]
    processes = os.cpu_count() or 1 if len(changed) >= WORTH_PROCESSES else 1
    context = multiprocessing.get_context("fork")
    shares = [
        context.Process(target=make, args=(changed[number::processes], config, number == 0))
        for number in range(processes)
    ]
    for share in shares:
        share.start()
    for share in shares:
        share.join()


def make(tests: Sequence[Path], config: pytest.Config, with_sources: bool) -> None:
    """Rewrite these tests; compile everything else if asked to. A fault in a file is for its worker to tell."""
    if with_sources:
        for folder in (TESTS.parent / "src", TESTS):
            compileall.compile_dir(folder, quiet=2, rx=REWRITTEN)
    for path in tests:
        try:
            rewrite(path, config)
        except (OSError, SyntaxError, ValueError):
            continue


def is_rewritten(path: Path) -> bool:
    """Whether pytest would find the rewritten bytecode of this file as it is."""
    return _read_pyc(path, _cached(path)) is not None


def rewrite(path: Path, config: pytest.Config) -> None:
    """Write the bytecode of a test as pytest's own import does, which executes it too."""
    stat, code = _rewrite_test(path, config)
    if try_makedirs(get_cache_dir(path)):
        _write_pyc(config.stash[assertstate_key], code, stat, _cached(path))


def _cached(path: Path) -> Path:
    return get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"

"""Inside a suite's pytest: write down how each test ended, as it ends.

One JSON object a line in the file that SUITE_RESULTS names, so that a run which is cut short has told
what it got to: {"test": its node id, "outcome": "passed" | "failed" | "skipped", "text": why}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

TEXT_CHARS: Final = 2000
PASSED: Final = ("passed", "")
_so_far: dict[str, tuple[str, str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Gather the three phases of a test; the first that does not pass decides."""
    ended = _so_far.get(report.nodeid, PASSED)
    if ended == PASSED and report.outcome != "passed":
        ended = (report.outcome, _text(report))
    _so_far[report.nodeid] = ended
    if report.when == "teardown":
        outcome, text = _so_far.pop(report.nodeid)
        line = json.dumps({"test": report.nodeid, "outcome": outcome, "text": text})
        with Path(os.environ["SUITE_RESULTS"]).open("a") as results:
            results.write(line + "\n")


def _text(report: pytest.TestReport) -> str:
    """Why a test did not pass: the reason of a skip, or the error without its traceback."""
    if isinstance(report.longrepr, tuple):
        _file, _line, reason = report.longrepr
        return str(reason)[:TEXT_CHARS]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:TEXT_CHARS]

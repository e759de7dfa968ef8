"""A pipeline process says why it failed, whatever became of the log that it prints to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

_FAILING = """
import sys
from leveret.pipeline import __main__ as process

def run(task, console):
    raise RuntimeError("no more room")

process.run = run
sys.argv = ["leveret.pipeline", "recover"]
process.main()
"""
TIMEOUT_S = 30.0


@pytest.mark.parametrize("log", ["/dev/null", "/dev/full"])
def test_why_it_failed_is_told_although_the_log_cannot_be_written(log: str) -> None:
    with Path(log).open("w") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", _FAILING],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert msgspec.json.decode(done.stdout) == {"event": "failed", "error": "RuntimeError: no more room"}
    assert done.returncode == 1

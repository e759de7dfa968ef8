"""tests.second_run: which failures run again, and how the run ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_run import SECOND_RUNS_MAX

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
CONFIG = "[pytest]\naddopts = -p no:cacheprovider -p xdist\n"

# It fails as often as asked, counted in a file: each run is another process.
FAILS = """
import pathlib
import pytest

def counted(name: str) -> int:
    file = pathlib.Path(__file__).with_name(name)
    times = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(times))
    return times
"""
GROUPED = "\n@pytest.mark.xdist_group('some')\n"


def run_of(folder: Path, *tests: str) -> tuple[int, str]:
    """The end of a run of such tests by two workers, and its output."""
    (folder / "pytest.ini").write_text(CONFIG)
    (folder / "test_it.py").write_text(FAILS + "".join(tests))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup"]
    ended = subprocess.run(
        [*command, "-p", "tests.second_run"],
        cwd=folder,
        # Other plugins take most of a start's time.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ended.returncode, ended.stdout


def fails(name: str, times: int, cases: str = "") -> str:
    return f"{cases}{GROUPED}def test_{name}({'case' if cases else ''}):\n    assert counted('{name}') > {times}\n"


def told(output: str) -> list[tuple[str, str]]:
    return re.findall(r"^failed beside others, (.*) alone: test_it\.py::test_(\S+)$", output, re.MULTILINE)


def test_what_passes_alone_is_told_and_ends_no_run_in_red(tmp_path: Path) -> None:
    """Of a fixture too; and a case has a name of its own."""
    given = "\n@pytest.fixture\ndef given():\n    assert counted('given') > 1\n"
    asks = f"{GROUPED}def test_asks(given):\n    pass\n"
    cases = "\n@pytest.mark.parametrize('case', ['a@b'])"
    status, output = run_of(tmp_path, given, asks, fails("cases", 1, cases=cases), fails("never", 0))
    assert status == 0
    assert sorted(told(output)) == [("passed", "asks"), ("passed", "cases[a@b]")]
    assert "1 failed, 1 passed, 1 error" in output


def test_what_fails_twice_is_red(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, fails("once", 1), fails("twice", 2))
    assert status == 1
    assert sorted(told(output)) == [("failed again", "twice"), ("passed", "once")]


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, *(fails(f"t{index}", 1) for index in range(SECOND_RUNS_MAX + 1)))
    assert (status, told(output)) == (1, [])

"""tests.forked: every test runs once, in one of the processes, and the run ends as pytest's own would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]

# Each test notes that it ran, and in which process.
TESTS = """
import os, pathlib, sys, time
import pytest

def ran(name):
    with open(pathlib.Path(__file__).with_name("ran"), "a") as file:
        file.write(f"{name} {os.getpid()}\\n")

@pytest.fixture(scope="session")
def ending():
    yield
    ran("ended")

@pytest.mark.parametrize("case", range(40))
def test_passes(case, ending, tmp_path, capfd):
    os.write(1, b"%d" % case)
    time.sleep(0.001)
    assert capfd.readouterr().out == str(case)
    ran(f"case{case}")
"""
FAILS = "\ndef test_fails():\n    print('said', 'before')\n    assert 1 == 2\n"
ERROR = "\n@pytest.fixture\ndef broken():\n    raise OSError('no')\n\ndef test_error(broken):\n    pass\n"
SKIPPED = "\ndef test_skipped():\n    pytest.skip('not here')\n"
SLOW = "\n@pytest.mark.timeout(0.2)\ndef test_slow():\n    time.sleep(60)\n"
GROUPED = """
@pytest.mark.parametrize("case", range(20))
@pytest.mark.xdist_group("one")
def test_in_a_group(case):
    ran("grouped")
"""
FAILS_BESIDE = '''
@pytest.mark.xdist_group("one")
def test_waits():
    ran("waiting")
    try:
        time.sleep(60)
    finally:
        ran("let go")

@pytest.mark.xdist_group("one")
def test_behind():
    """Otherwise the process that waits would have taken the next share already, which has the failure."""

@pytest.mark.xdist_group("other")
def test_fails_meanwhile():
    while "waiting" not in pathlib.Path(__file__).with_name("ran").read_text():
        time.sleep(0.01)
    raise OSError
'''
DIES = "\ndef test_dies():\n    os._exit(3)\n"


def run_of(folder: Path, *tests: str, options: str = "") -> tuple[int, str]:
    """The end of a run of such tests by three processes, and its output."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (folder / "test_it.py").write_text(TESTS + "".join(tests))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.forked", "--processes", "3", *options.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_all_run_once_and_are_told_as_by_pytest(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, FAILS, ERROR, SKIPPED, options="-ra --durations 1")
    assert status == 1
    assert "1 failed, 40 passed, 1 skipped, 1 error" in output
    assert "assert 1 == 2" in output
    assert re.search("Captured stdout call -+\nsaid before\n", output)
    assert "SKIPPED [1] test_it.py" in output
    assert "slowest" in output
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    processes = {process for name, process in ran if name != "ended"}
    assert Counter(name for name, _ in ran) == Counter(
        {**{f"case{case}": 1 for case in range(40)}, "ended": len(processes)}
    )
    assert 1 < len(processes) <= 3


def test_a_run_in_which_all_is_well_ends_well(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, options="-q")
    assert (status, "40 passed" in output) == (0, True)


def test_a_process_that_dies_is_told_with_its_test(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, DIES, options="-ra")
    assert status == pytest.ExitCode.INTERRUPTED
    assert "FAILED test_it.py::test_dies" in output
    assert "a process of the tests died in test_it.py::test_dies" in output


def test_a_run_ends_at_the_first_failure_if_it_is_asked_to_and_other_tests_in_order(tmp_path: Path) -> None:
    (tmp_path / "ran").touch()
    status, output = run_of(tmp_path, FAILS_BESIDE, options="-x")
    assert status == 1
    assert "stopping after 1 failures" in output
    assert "let go" in (tmp_path / "ran").read_text()


def test_the_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    status, _ = run_of(tmp_path, GROUPED)
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert (status, [name for name, _ in ran].count("grouped")) == (0, 20)
    assert len({process for name, process in ran if name == "grouped"}) == 1


def test_a_test_that_takes_too_long_fails_as_in_one_process(tmp_path: Path) -> None:
    status, output = run_of(tmp_path, SLOW, options="-p pytest_timeout")
    assert (status, "1 failed, 40 passed" in output, "Timeout" in output) == (1, True, True)


LOGS = """
import logging

def test_leaves_a_logger_that_passes_nothing_on():
    logging.getLogger("kept").propagate = False

def test_sees_the_records_of_each_logger(caplog):
    logging.getLogger("kept").warning("said")
    assert caplog.messages == ["said"]
"""


def test_records_are_captured_whatever_an_earlier_test_left(tmp_path: Path) -> None:
    """So as without forks: the request's log was missing in a process that had run the fuzzer's targets before."""
    status, output = run_of(tmp_path, LOGS)
    assert (status, "42 passed" in output) == (0, True), output

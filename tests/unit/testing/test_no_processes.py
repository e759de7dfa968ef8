"""tests.no_processes: every kind of property test takes a sixteenth of its examples, and no test starts a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
TESTS = """
import subprocess
from collections import Counter
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

taken = Counter()
many = settings(max_examples=320, deadline=None, suppress_health_check=list(HealthCheck))

def machine(name):
    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            taken[name] += 1

        @rule(number=st.integers())
        def step(self, number):
            pass
    return Machine

TestMachine = machine("case").TestCase
TestMachine.settings = many

def test_machine():
    run_state_machine_as_test(machine("called"), settings=many)

@given(st.integers())
@many
def test_given(number):
    taken["given"] += 1

def test_taken():
    # Hypothesis may try one more.
    assert taken.keys() == {"case", "called", "given"}
    assert all(20 <= each <= 22 for each in taken.values()), taken

def test_starts():
    subprocess.run(["true"])
"""


def test_property_tests_take_a_sixteenth_and_a_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    plugins = ["-p", "tests.no_processes", "-p", "_hypothesis_pytestplugin"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 failed, 4 passed" in ended.stdout, ended.stdout
    assert "test_starts starts a process by Popen.__init__: mark it `process`" in ended.stdout

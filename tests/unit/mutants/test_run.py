"""A mutation is put into a copy, and the verdict says what the tests made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutation import PACKAGE, Mutation, MutationError
from tests.mutants.run import FOUND, HUNG, SURVIVED, Runner, Verdict
from tests.mutants.scratch import Scratch

pytestmark = pytest.mark.process

SOURCE = "def add(a, b):\n    return a + b\n"
TEST = """
import os, subprocess, sys
import pytest
from leveret.sums import add

def test_sum():
    assert add(1, 1) == 2

def test_other_sum():
    assert add(2, 1) == 3

@pytest.mark.timeout(1)
def test_end():
    while add(1, 1) < 1:
        pass

def test_processes_see_the_fault():
    code = "from leveret.sums import add; print(add(2, 2))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "4\\n"
"""
MUTATION = Mutation("a sum is a product", "sums.py", "a + b", "a * b", ("test_sums.py::test_sum",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one source file and its tests."""
    root = tmp_path / "root"
    for name, text in (
        (str(PACKAGE / "sums.py"), SOURCE),
        ("tests/test_sums.py", TEST),
        ("pytest.ini", "[pytest]"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / PACKAGE / "__init__.py").touch()
    (root / ".venv").mkdir()
    return root


@pytest.fixture
def runner(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    # A pytest without plugins starts in a fraction of the time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    scratch = Scratch(tmp_path / "copy", root)
    scratch.verify()
    return Runner(scratch)


def verdict(runner: Runner, old: str, new: str, test: str) -> Verdict:
    tests = (f"test_sums.py::{test}",)
    return replace(runner.expected(replace(MUTATION, old=old, new=new, tests=tests)), seconds=0)


def test_a_fault_is_found_by_the_first_red_test(runner: Runner, root: Path) -> None:
    found = Verdict(MUTATION.fault, MUTATION.file, FOUND, "test_sums.py::test_sum", 0, True)
    assert verdict(runner, "a + b", "a * b", "test_sum") == found
    processes = "test_processes_see_the_fault"
    assert verdict(runner, "a + b", "a + b + 1", processes).by == f"test_sums.py::{processes}"
    assert (root / PACKAGE / "sums.py").read_text() == SOURCE


def test_a_fault_that_the_expected_tests_do_not_find_survives_and_the_whole_suite_is_asked(
    runner: Runner,
) -> None:
    mutation = replace(MUTATION, new="a + b if a < 2 else a")
    survived = runner.expected(mutation)
    assert (survived.result, survived.by, survived.expected) == (SURVIVED, "", False)
    whole = runner.whole(mutation, ["tests"])
    assert (whole.result, whole.by, whole.expected) == (FOUND, "test_sums.py::test_other_sum", False)


def test_a_test_that_a_fault_keeps_from_ending_counts_as_found(runner: Runner) -> None:
    hung = verdict(runner, "a + b", "a - b", "test_end")
    assert (hung.result, hung.by) == (HUNG, "test_sums.py::test_end")


def test_tests_that_are_red_without_a_fault_are_told_with_their_output(runner: Runner, root: Path) -> None:
    assert runner.unmutated([MUTATION], jobs=1) == ""
    red = replace(MUTATION, tests=("test_sums.py::test_gone",))
    assert "test_gone" in runner.unmutated([red], jobs=1)
    with pytest.raises(MutationError, match="pytest ended with status 4"):
        runner.expected(red)

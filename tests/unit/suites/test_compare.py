from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.catalogue import SUITES
from tests.suites.compare import compare
from tests.suites.known import KNOWN, Known
from tests.suites.run import Ended

PASSED = Ended("passed")
FAILED = Ended("failed", "AssertionError: 2 != 1")
SKIPPED = Ended("skipped", "no TLS")
DEVIATIONS = Path(__file__).parents[3] / "docs" / "deviations.md"
MEANT = Known("s", "t.py::test_order[*]", "in shares", "consumers in turn")


def test_what_passes_on_both_is_no_difference() -> None:
    row = compare("s", {"a": PASSED}, {"a": PASSED}, ())
    assert (row.tests, row.passed_on_rabbitmq, row.passed_on_leveret, row.differences) == (1, 1, 1, ())
    assert row.met


@pytest.mark.parametrize("ended", [FAILED, SKIPPED])
def test_what_passes_on_rabbitmq_alone_is_a_difference(ended: Ended) -> None:
    row = compare("s", {"a": PASSED, "b": PASSED}, {"a": PASSED, "b": ended}, ())
    assert [(one.test, one.outcome, one.text) for one in row.unlisted] == [("b", ended.outcome, ended.text)]
    assert not row.met


def test_what_leveret_did_not_come_to_is_a_difference() -> None:
    row = compare("s", {"a": PASSED, "b": PASSED}, {"a": PASSED}, ())
    assert [one.test for one in row.unlisted] == ["b"]


def test_what_does_not_pass_on_rabbitmq_decides_nothing() -> None:
    row = compare("s", {"a": FAILED, "b": SKIPPED}, {"a": PASSED, "b": FAILED, "c": PASSED}, ())
    assert (row.tests, row.passed_on_rabbitmq, row.passed_on_leveret) == (3, 0, 2)
    assert row.met


def test_what_passes_when_it_is_run_again_is_unsteady_and_no_difference() -> None:
    again = Ended("passed", "AssertionError: 2 != 1", tries=2)
    row = compare("s", {"a": PASSED, "b": PASSED}, {"a": again, "b": Ended("failed", "why", tries=3)}, ())
    assert row.unsteady == ("a",)
    assert [one.test for one in row.differences] == ["b"]


def test_a_known_difference_comes_with_its_reason() -> None:
    test = "t.py::test_order[10]"
    row = compare("s", {test: PASSED}, {test: FAILED}, (MEANT,))
    assert [one.reason for one in row.differences] == ["in shares"]
    assert row.met


def test_a_known_difference_of_another_suite_excuses_nothing() -> None:
    test = "t.py::test_order[10]"
    assert not compare("other", {test: PASSED}, {test: FAILED}, (MEANT,)).met


def test_a_known_difference_that_is_none_any_more_is_out_of_date() -> None:
    test = "t.py::test_order[10]"
    row = compare("s", {test: PASSED}, {test: PASSED}, (MEANT,))
    assert row.outdated == ("t.py::test_order[*]",)
    assert not row.met


def test_a_known_difference_whose_tests_were_not_run_is_left_in_peace() -> None:
    assert compare("s", {"a": PASSED}, {"a": PASSED}, (MEANT,)).met


def test_every_known_difference_is_of_a_suite_and_stands_among_the_deviations() -> None:
    first_cells = {
        line.split("|")[1].strip() for line in DEVIATIONS.read_text().splitlines() if line.startswith("|")
    }
    assert {known.suite for known in KNOWN} <= {suite.name for suite in SUITES}
    assert {known.deviation for known in KNOWN} <= first_cells

from __future__ import annotations

import json

from tests.suites.run import Ended, read_results


def test_results_are_read_in_the_order_in_which_the_tests_ended() -> None:
    rows = [
        {"test": "b", "outcome": "passed", "text": ""},
        {"test": "a", "outcome": "failed", "text": "line one\nline two"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert list(read_results(text).items()) == [
        ("b", Ended("passed")),
        ("a", Ended("failed", "line one\nline two")),
    ]


def test_a_line_that_was_cut_off_is_no_result() -> None:
    whole = json.dumps({"test": "a", "outcome": "passed", "text": ""})
    assert read_results(f"{whole}\n{whole[:20]}").keys() == {"a"}

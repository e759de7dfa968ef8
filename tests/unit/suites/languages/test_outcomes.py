from __future__ import annotations

import json

from tests.suites.languages.outcomes import of_go, of_junit, of_tap
from tests.suites.run import Ended


def test_nested_suites_of_junit_name_their_tests() -> None:
    text = """<?xml version="1.0"?><testsuites>
      <testsuite name="confirms">
        <testcase name="all" classname="test" time="0.1"/>
        <testsuite name="inner"><testcase name="one"><skipped message="later"/></testcase></testsuite>
        <testcase name="none" classname="test"><failure message="no ack">at line 7</failure></testcase>
      </testsuite>
      <testcase name="alone" classname="test"/>
    </testsuites>"""
    assert of_junit(text) == {
        "confirms > all": Ended("passed"),
        "confirms > inner > one": Ended("skipped", "later"),
        "confirms > none": Ended("failed", "no ack\nat line 7"),
        "alone": Ended("passed"),
    }


def test_a_class_that_is_no_suite_is_a_part_of_the_name_and_a_second_test_of_a_name_is_numbered() -> None:
    case = '<testcase classname="Client" name="opens"/>'
    text = f'<testsuite name="all">{case}{case}</testsuite>'
    assert list(of_junit(f"<testsuites>{text}</testsuites>")) == [
        "all > Client > opens",
        "all > Client > opens (2)",
    ]
    assert list(of_junit(text)) == ["Client > opens", "Client > opens (2)"]


def test_a_test_of_go_that_did_not_end_has_failed() -> None:
    events = [
        {"Action": "run", "Test": "TestA"},
        {"Action": "output", "Test": "TestA", "Output": "said\n"},
        {"Action": "fail", "Test": "TestA"},
        {"Action": "pass", "Test": "TestB"},
        {"Action": "output", "Test": "TestC", "Output": "panic\n"},
        {"Action": "fail"},
    ]
    text = "built\n" + "".join(json.dumps(event) + "\n" for event in events)
    assert of_go(text) == {
        "TestA": Ended("failed", "said\n"),
        "TestB": Ended("passed"),
        "TestC": Ended("failed", "did not end: panic\n"),
    }


def test_lines_of_the_test_anything_protocol_are_read_beside_others() -> None:
    text = (
        "1..4\nok 1 - opens\n# a remark\nnot ok 2 - closes # lost\nok 3 # skip no server\nok - last(Class)\n"
    )
    assert of_tap(text) == {
        "opens": Ended("passed"),
        "closes": Ended("failed", "# lost"),
        "3": Ended("skipped", "# skip no server"),
        "last(Class)": Ended("passed"),
    }

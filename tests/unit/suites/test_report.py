from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.suites import report
from tests.suites.compare import compare
from tests.suites.record import Record, SuiteRun
from tests.suites.run import Ended

ON_RABBITMQ = {"a": Ended("passed"), "b": Ended("passed")}
ON_LEVERET = {"a": Ended("passed"), "b": Ended("failed", "AssertionError: 2 != 1")}
ROW = compare("kombu", ON_RABBITMQ, ON_LEVERET, ())


def test_in_a_pipe_the_table_is_columns_and_every_difference_follows() -> None:
    out = StringIO()
    report.print_table([ROW], Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert lines[0].split("  ")[0] == "suite"
    assert lines[1].split() == ["kombu", "2", "2", "1", "0", "1", "0"]
    assert lines[3:] == ["kombu: b", "    failed: AssertionError: 2 != 1"]


def test_the_json_holds_what_the_table_holds() -> None:
    (row,) = json.loads(report.as_json([ROW]))
    assert (row["suite"], row["tests"], row["met"]) == ("kombu", 2, False)
    assert row["differences"][0]["test"] == "b"


def test_the_documentation_names_versions_and_the_day() -> None:
    record = Record()
    record.put("kombu", "rabbitmq", SuiteRun("2026-11-20 08:00 UTC", "3.10.8", ON_RABBITMQ))
    record.put("kombu", "leveret", SuiteRun("2026-11-21 08:00 UTC", "0.1.0", ON_LEVERET))
    lines = report.markdown([ROW], record, {"kombu": "5.7.0"}).splitlines()
    assert lines[0] == "leveret 0.1.0, rabbitmq 3.10.8; 2026-11-21 08:00 UTC."
    assert lines[-1] == "| kombu | 5.7.0 | 2 | 2 | 1 | 0 | 1 | 0 |"


def test_the_table_goes_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = (
        "<!-- suites: begin -->",
        "<!-- suites: end -->",
        "<!-- languages: begin -->",
        "<!-- languages: end -->",
    )
    page.write_text("above\n{}\nold\n{}\nbetween\n{}\n{}\nbelow\n".format(*marks))
    report.write_docs("new", page)
    report.write_docs("other", page, report.LANGUAGES)
    assert page.read_text() == "above\n{}\nnew\n{}\nbetween\n{}\nother\n{}\nbelow\n".format(*marks)


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n")
    with pytest.raises(ValueError, match="marks"):
        report.write_docs("new", page)
    assert page.read_text() == "above\n"

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.rows import Reading, Row, Target

FASTER = Row("fast", "how fast", "msg/s", True, Target("ratio", 4.0))
HALF = Row("half", "half as fast", "msg/s", True, Target("share", 0.5, of_row="fast"))
SMALLER = Row("small", "how small", "MB", False, Target("value", 200.0))


def record(*rows: dict[str, Any]) -> report.Record:
    return {
        "date": "2026-11-21 12:00 UTC",
        "machine": {
            "processor": "P",
            "cores": 2,
            "memory_gb": 8.0,
            "file_system": "ext4",
            "kernel": "6.1",
            "python": "3.11.7",
        },
        "settings": {"seconds": 5.0, "warmup_s": 1.0, "rounds": 3, "backlog": 1000},
        "versions": {"leveret": "0.1.0", "rabbitmq": "3.10.8"},
        "rows": list(rows),
        "errors": {},
    }


def rounds(*values: float) -> list[Reading]:
    return [Reading(value, cpu_us=2.0) for value in values]


def test_a_row_has_the_median_the_span_and_the_ratio() -> None:
    row = report.row_record(FASTER, {"leveret": rounds(90.0, 100.0, 120.0), "rabbitmq": rounds(20.0)})
    assert row["leveret"]["median"] == 100.0
    assert (row["leveret"]["min"], row["leveret"]["max"]) == (90.0, 120.0)
    assert row["ratio"] == 5.0
    assert row["met"] is True


def test_a_ratio_under_the_target_is_missed() -> None:
    assert report.row_record(FASTER, {"leveret": rounds(60.0), "rabbitmq": rounds(20.0)})["met"] is False


@pytest.mark.parametrize(("value", "met"), [(199.0, True), (201.0, False)])
def test_where_less_is_better_the_target_is_a_ceiling(value: float, met: bool) -> None:
    assert report.row_record(SMALLER, {"leveret": rounds(value)})["met"] is met


def test_without_the_other_broker_there_is_no_ratio_and_no_verdict() -> None:
    row = report.row_record(FASTER, {"leveret": rounds(60.0), "rabbitmq": []})
    assert (row["ratio"], row["met"], row["target"]) == (None, None, ">= 4x")


@pytest.mark.parametrize(("value", "met"), [(50.0, True), (49.0, False)])
def test_a_share_is_of_leverets_own_median_in_another_row_of_the_run(value: float, met: bool) -> None:
    whole = report.row_record(FASTER, {"leveret": rounds(90.0, 100.0, 120.0), "rabbitmq": rounds(20.0)})
    other = report.row_record(SMALLER, {"leveret": rounds(1.0)})
    row = report.row_record(HALF, {"leveret": rounds(value), "rabbitmq": rounds(200.0)}, [other, whole])
    assert (row["met"], row["target"]) == (met, ">= 0.5 of `fast`")


@pytest.mark.parametrize("before", [[], [report.row_record(FASTER, {"rabbitmq": rounds(20.0)})]])
def test_a_share_of_a_row_that_was_not_measured_has_no_verdict(before: list[report.RowRecord]) -> None:
    row = report.row_record(HALF, {"leveret": rounds(50.0)}, before)
    assert (row["met"], row["target"]) == (None, ">= 0.5 of `fast`")


@pytest.mark.parametrize(
    ("value", "text"), [(123456.7, "123,457"), (99.96, "100.0"), (12.34, "12.3"), (0.456, "0.46")]
)
def test_numbers_have_about_three_digits(value: float, text: str) -> None:
    assert report.number(value) == text


def test_in_a_pipe_the_table_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    row = report.row_record(FASTER, {"leveret": rounds(90.0, 100.0, 120.0), "rabbitmq": rounds(20.0)})
    report.print_table(record(row) | {"errors": {"slow on rabbitmq": "it fell over"}})
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("leveret 0.1.0, rabbitmq 3.10.8; 2026-11-21")
    assert lines[2].split("  ")[0] == "how fast"
    assert "100 (90.0-120)" in lines[2]
    assert captured.err == "not measured: slow on rabbitmq: it fell over\n"


def test_the_docs_get_the_table_between_the_marks_and_keep_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.DOCS_BEGIN}\nold\n{report.DOCS_END}\nafter\n")
    row = report.row_record(FASTER, {"leveret": rounds(100.0), "rabbitmq": rounds(20.0)})
    for _ in range(2):
        report.write_docs(record(row), page, Path("performance.svg"))
    text = page.read_text()
    assert text.startswith(f"before\n{report.DOCS_BEGIN}\n")
    assert text.endswith(f"\n{report.DOCS_END}\nafter\n")
    assert "| how fast | msg/s | 100 | 20.0 | 5.00 | 2.00 / 2.00 | >= 4x (met) |" in text
    assert "](performance.svg)\n" in text
    assert "old" not in text


def test_rows_that_a_run_lacks_stay_below_in_the_table_of_their_own_run(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"{report.DOCS_BEGIN}\n{report.DOCS_END}\n")
    other = dataclasses.replace(FASTER, name="other", title="another row")
    for date, values in (("first", {FASTER: 100.0, other: 7.0}), ("second", {FASTER: 200.0})):
        rows = [report.row_record(row, {"leveret": rounds(value)}) for row, value in values.items()]
        report.write_docs(record(*rows) | {"date": date}, page, Path("performance.svg"))
    text = page.read_text()
    assert text.count("| how fast |") == text.count("| another row |") == 1
    order = [
        text.index(each) for each in ("second", "| how fast | msg/s | 200 |", "first", "| another row |")
    ]
    assert order == sorted(order)
    report.write_docs(record(report.row_record(other, {"leveret": rounds(8.0)})), page, Path("p.svg"))
    report.write_docs(record(report.row_record(FASTER, {"leveret": rounds(9.0)})), page, Path("p.svg"))
    text = page.read_text()
    assert "first" not in text
    assert "second" not in text
    assert text.count("| how fast |") == text.count("| another row |") == 1


def test_the_front_page_gets_a_link_to_the_plot_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.DOCS_BEGIN}\n{report.DOCS_END}\nafter\n")
    for _ in range(2):
        report.write_plot_link(page, Path("docs/performance.svg"))
    assert (
        page.read_text().splitlines()[2]
        == "![Rates and times of Leveret by those of RabbitMQ](docs/performance.svg)"
    )
    assert len(page.read_text().splitlines()) == 5


def test_where_lavinmq_was_measured_it_has_a_column() -> None:
    row = report.row_record(
        FASTER, {"leveret": rounds(100.0), "rabbitmq": rounds(20.0), "lavinmq": rounds(50.0)}
    )
    run = record(row)
    run["versions"]["lavinmq"] = "2.9.1"
    heads, cells = report.table(run)
    assert heads[2:6] == ("Leveret", "RabbitMQ", "LavinMQ", "ratio")
    assert cells[2:6] == ("100", "20.0", "50.0", "5.00")


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("nothing here\n")
    with pytest.raises(ValueError, match="marks"):
        report.write_docs(record(), page, Path("performance.svg"))
    assert page.read_text() == "nothing here\n"


def test_json_round_trips(tmp_path: Path) -> None:
    target = tmp_path / "build" / "bench.json"
    report.write_json(record(), target)
    assert report.read_json(target) == record()


def test_a_paired_table_has_the_ratios_of_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    # A slow second round: medians alone would say that this checkout is no faster.
    readings = {
        "before": rounds(100.0, 10.0, 100.0),
        "leveret": [*rounds(200.0, 20.0), Reading(250.0, cpu_us=4.0)],
    }
    paired = record(report.row_record(FASTER, readings))
    paired["versions"] = {"leveret": "0.1.0", "before": "abc1234"}
    report.print_paired(paired)
    heading, rate, cpu = capsys.readouterr().out.splitlines()
    assert heading.startswith("before abc1234; ")
    assert rate.split() == ["fast", "msg/s", "before", "100", "after", "200", "ratio", "2.00", "(2.00-2.50)"]
    assert cpu.split() == ["CPU", "s", "before", "0.20", "after", "0.20", "ratio", "1.00", "(1.00-2.00)"]

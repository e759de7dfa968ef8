from __future__ import annotations

from pathlib import Path

import pytest

from bench import lavinmq, plot, report
from bench.__main__ import FRONT_PAGE, PAGE, PLOT, RECORD, ROW_NAMES, main, parse, settings_of
from bench.report import DOCS_BEGIN, DOCS_END
from bench.workers import ROOT


def test_without_arguments_everything_is_measured_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lavinmq, "available", lambda: "none here")
    options = parse([])
    assert options.rows == ROW_NAMES
    assert options.brokers == ["leveret", "rabbitmq"]
    assert settings_of(options).backlog == 1_000_000
    assert settings_of(options).large_backlog == 5_000_000


def test_what_is_given_wins_over_quick() -> None:
    settings = settings_of(parse(["--quick", "--seconds", "2.5"]))
    assert (settings.seconds, settings.rounds) == (2.5, 1)


@pytest.mark.parametrize("arguments", [["--rows", "publish,nonsense"], ["--brokers", "kafka"]])
def test_an_unknown_name_is_refused_with_those_there_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert "there are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "quick", "reason"),
    [
        (None, False, "there is none"),
        (ROW_NAMES, True, "quick run"),
        (plot.ROWS[1:], False, f"lacks {plot.ROWS[0]}"),
    ],
)
def test_only_a_run_with_the_rows_of_the_plot_gets_into_the_docs(
    rows: list[str] | None,
    quick: bool,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if rows is not None:
        report.write_json({"settings": {"quick": quick}, "rows": [{"name": name} for name in rows]}, RECORD)
    assert main(["--write-docs"]) == 1
    printed = capsys.readouterr().err
    assert reason in printed
    assert "run `python -m bench --rows plot`, or all rows, first" in printed


def test_a_run_gets_into_the_docs_with_its_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for page in (PAGE, FRONT_PAGE):
        page.write_text(f"{DOCS_BEGIN}\n{DOCS_END}\n")
    row = {"title": "t", "unit": "s", "higher_is_better": True, "ratio": None, "target": None, "met": None}
    rows = [row | {"name": name} for name in parse(["--rows", "plot"]).rows]
    machine = dict.fromkeys(("processor", "cores", "memory_gb", "file_system", "kernel", "python"), "x")
    settings = {"quick": False, "rounds": 3, "seconds": 5.0, "backlog": 10}
    record = {
        "settings": settings,
        "rows": rows,
        "versions": {"leveret": "1"},
        "date": "d",
        "machine": machine,
    }
    report.write_json(record, RECORD)
    assert main(["--write-docs"]) == 0
    assert "](performance.svg)" in PAGE.read_text()
    assert "](docs/performance.svg)" in FRONT_PAGE.read_text()
    assert PLOT.read_text().startswith("<svg")


def test_the_rows_of_the_plot_can_be_named_together_beside_others() -> None:
    assert parse(["--rows", "plot,get"]).rows == [*plot.ROWS, "get"]
    assert set(plot.ROWS) <= set(ROW_NAMES)


def test_paired_with_another_checkout_only_leveret_runs() -> None:
    options = parse(["--paired", str(ROOT)])
    assert options.brokers == ["leveret"]
    assert options.before.sources == ROOT / "src"


def test_paired_with_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--paired", str(tmp_path)])
    assert "no checkout of Leveret" in capsys.readouterr().err


def test_the_page_has_the_marks_and_names_every_row() -> None:
    for page in (PAGE, FRONT_PAGE):
        text = (ROOT / page).read_text()
        assert text.index(DOCS_BEGIN) < text.index(DOCS_END)
    text = (ROOT / PAGE).read_text()
    assert [name for name in ROW_NAMES if f"`{name}`" not in text] == []

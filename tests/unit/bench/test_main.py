from __future__ import annotations

from pathlib import Path

import pytest

from bench import report
from bench.__main__ import PAGE, RECORD, ROW_NAMES, main, parse, settings_of
from bench.report import DOCS_BEGIN, DOCS_END
from bench.workers import ROOT


def test_without_arguments_everything_is_measured_on_both() -> None:
    reported = parse([])
    assert reported.rows == ROW_NAMES
    assert reported.brokers == ["leveret", "rabbitmq"]
    assert settings_of(reported).backlog == 1_000_000
    assert settings_of(reported).large_backlog == 5_000_000


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
        (ROW_NAMES[1:], False, f"lacks {ROW_NAMES[0]}"),
    ],
)
def test_only_a_full_run_gets_into_the_docs(
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
    reported = capsys.readouterr().err
    assert reason in reported
    assert "run `python -m bench` first" in reported


def test_paired_with_another_checkout_only_leveret_runs() -> None:
    reported = parse(["--paired", str(ROOT)])
    assert reported.brokers == ["leveret"]
    assert reported.before.sources == ROOT / "src"


def test_paired_with_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["--paired", str(tmp_path)])
    assert "no checkout of Leveret" in capsys.readouterr().err


def test_the_page_has_the_marks_and_names_every_row() -> None:
    text = (ROOT / PAGE).read_text()
    assert text.index(DOCS_BEGIN) < text.index(DOCS_END)
    assert [name for name in ROW_NAMES if f"`{name}`" not in text] == []

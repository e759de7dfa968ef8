from __future__ import annotations

import json

import pytest

from leveret.cli.output.formatters import as_csv, as_json, as_pretty_table, as_table
from leveret.cli.output.values import MessageLine, ReportLines, Sections, Table, TextDocument

TABLE = Table(
    ("name", "tags", "n", "on", "what"), [["a", ["x", "y"], 3, True, {"k": 1}], ["b", [], 0, False, None]]
)
REPORT = ReportLines([("Mode", "upstream"), ("Last", None)], {"mode": "upstream"}, Table(("v",), [["/"]]))


def test_a_table_has_tabs_between_its_columns_as_in_rabbitmqctl() -> None:
    expected = 'name\ttags\tn\ton\twhat\na\t[x, y]\t3\ttrue\t[{"k",1}]\nb\t[]\t0\tfalse\t\n'
    assert as_table(TABLE, headers=True) == expected
    assert as_table(TABLE, headers=False) == expected.partition("\n")[2]


def test_an_empty_table_is_nothing_at_all() -> None:
    assert as_table(Table(("name",), []), headers=True) == ""
    assert as_pretty_table(Table(("name",), []), headers=True) == ""


def test_a_list_of_names_has_no_header() -> None:
    assert as_table(Table(("vhost",), [["/"]], headless=True), headers=True) == "/\n"


def test_a_value_stays_on_its_line() -> None:
    assert as_table(Table(("a",), [["x\ty\nz"]]), headers=False) == "x\\ty\\nz\n"


def test_json_is_an_array_of_objects() -> None:
    assert json.loads(as_json(TABLE, headers=True))[0] == {
        "name": "a",
        "tags": ["x", "y"],
        "n": 3,
        "on": True,
        "what": {"k": 1},
    }
    assert json.loads(as_json(Table(("name",), []), headers=True)) == []


def test_csv_quotes_every_value() -> None:
    assert as_csv(Table(("a", "b"), [['say "hi"', None]]), headers=True) == '"a","b"\n"say ""hi""",""\n'


def test_a_report_has_lines_for_people_and_a_document_for_programs() -> None:
    assert as_table(REPORT, headers=True) == "Mode: upstream\nLast: \nv\n/\n"
    assert json.loads(as_json(REPORT, headers=True)) == {"mode": "upstream"}
    assert as_csv(REPORT, headers=True) == '"v"\n"/"\n'


def test_a_pretty_table_shows_every_value_as_it_is() -> None:
    shown = as_pretty_table(Table(("name", "pattern"), [["[red]a", "^.*"]]), headers=True)
    assert "[red]a" in shown
    assert "pattern" in shown
    assert "pattern" not in as_pretty_table(Table(("name", "pattern"), [["a", "b"]]), headers=False)


def test_a_pretty_table_cuts_nothing_off() -> None:
    long = json.dumps({f"key-{index}": "value" for index in range(50)})
    assert long in as_pretty_table(Table(("vhost", "definition"), [["/", long]]), headers=True)


def test_a_message_is_a_line_or_its_fields() -> None:
    message = MessageLine("done with 3", {"messages": 3})
    assert as_table(message, headers=True) == "done with 3\n"
    assert json.loads(as_json(message, headers=True)) == {"messages": 3}
    assert json.loads(as_json(MessageLine("ok"), headers=True)) == {"message": "ok"}
    assert as_csv(message, headers=True) == '"messages"\n"3"\n'


def test_a_document_goes_out_as_it_is_in_every_format() -> None:
    assert {
        format(TextDocument("{}"), headers=True) for format in (as_table, as_json, as_csv, as_pretty_table)
    } == {"{}\n"}


def test_no_value_is_no_output() -> None:
    assert {format(None, headers=True) for format in (as_table, as_json, as_csv, as_pretty_table)} == {""}


def test_sections_have_headings_for_people_and_a_document_for_programs() -> None:
    sections = Sections([("Runtime", ["OS PID: 1"]), ("Alarms", ["(none)"])], {"pid": 1})
    assert as_table(sections, headers=True) == "Runtime\n\nOS PID: 1\n\nAlarms\n\n(none)\n"
    assert json.loads(as_json(sections, headers=True)) == {"pid": 1}
    assert as_csv(sections, headers=True) == '"Runtime","OS PID: 1"\n"Alarms","(none)"\n'


def test_what_is_not_known_is_an_empty_text_as_in_rabbitmqctl() -> None:
    table = Table.of(("name", "policy"), [{"name": "q", "policy": None}])
    assert json.loads(as_json(table, headers=True)) == [{"name": "q", "policy": ""}]


@pytest.mark.parametrize(("width", "in_blocks"), [(80, True), (200, False)])
def test_no_header_is_cut_on_a_narrow_terminal(
    width: int, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [f"a_long_column_name_{number}" for number in range(5)]
    shown = as_pretty_table(Table(columns, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), headers=True)
    assert all(column in shown for column in columns)
    assert ("a_long_column_name_4: 10" in shown) == in_blocks

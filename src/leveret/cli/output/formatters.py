"""Values -> text: `table` as rabbitmqctl prints it, `pretty_table` with lines, `json`, `csv`.

Only tables are for people and have banners; the others are for programs and have nothing else.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from leveret.cli.output.terms import cell, printable, printable_json
from leveret.cli.output.values import MessageLine, ReportLines, Sections, Table, TextDocument, Value

FOR_PEOPLE: Final = ("table", "pretty_table")
_WIDTH_MAX: Final = 1 << 20


def as_table(value: Value, *, headers: bool) -> str:
    """Tab-separated lines, as in rabbitmqctl; an empty table has no header either."""
    match value:
        case Table(columns, rows, headless):
            head = [list(columns)] if headers and rows and not headless else []
            return "".join("\t".join(map(cell, row)) + "\n" for row in [*head, *rows])
        case ReportLines(lines, _, table):
            return _lines(lines) + as_table(table, headers=headers)
        case Sections(parts):
            return "\n".join(_section(title, lines) for title, lines in parts)
        case MessageLine(text):
            return printable(text) + "\n"
        case TextDocument(text):
            return text + "\n"
        case None:
            return ""


def as_pretty_table(value: Value, *, headers: bool) -> str:
    """A table with lines; other values as in `as_table`."""
    if isinstance(value, ReportLines) and value.table is not None:
        return _lines(value.lines) + as_pretty_table(value.table, headers=headers)
    if not isinstance(value, Table) or not value.rows:
        return as_table(value, headers=headers)
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    terminal = sys.stdout.isatty()
    if terminal and headers and not value.headless and _least_width(value) > Console().width:
        return _blocks(value)
    pretty = RichTable(show_header=headers and not value.headless)
    for column in value.columns:
        pretty.add_column(str(column), overflow="fold")
    for row in value.rows:
        pretty.add_row(*(RichText(cell(each)) for each in row))
    out = io.StringIO()
    # Nothing is cut off: on a terminal long cells wrap, elsewhere no line is too long.
    Console(file=out, force_terminal=terminal, width=None if terminal else _WIDTH_MAX).print(pretty)
    return out.getvalue()


def _least_width(table: Table) -> int:
    """The smallest width of a terminal that cuts no header of a table."""
    return sum(len(str(column)) + 3 for column in table.columns) + 1


def _blocks(table: Table) -> str:
    """A row as lines `column: value`, for a terminal that is too narrow for the table."""
    width = max(len(str(column)) for column in table.columns)
    names = [str(column).rjust(width) for column in table.columns]
    rows = [
        "".join(f"{name}: {cell(each)}\n" for name, each in zip(names, row, strict=True))
        for row in table.rows
    ]
    return "\n".join(rows)


def as_json(value: Value, *, headers: bool) -> str:
    """An array of objects, or one object."""
    match value:
        case Table(columns, rows):
            document: Any = [dict(zip(columns, row, strict=True)) for row in rows]
        case ReportLines(_, document) | Sections(_, document):
            pass
        case MessageLine(text, fields):
            document = dict(fields) or {"message": text}
        case TextDocument(text):
            return text + "\n"
        case None:
            return ""
    return printable_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()) + "\n"


def as_csv(value: Value, *, headers: bool) -> str:
    """Quoted values with commas in between."""
    match value:
        case Table(columns, rows):
            return _csv([list(columns), *rows] if headers else rows)
        case ReportLines(lines, _, table):
            return as_csv(table, headers=headers) if table is not None else _csv(lines)
        case Sections(parts):
            return _csv([[title, line] for title, lines in parts for line in lines])
        case MessageLine(text, fields):
            return _csv([list(fields), list(fields.values())] if fields else [[text]])
        case _:
            return as_table(value, headers=headers)


FORMATTERS: Final[dict[str, Callable[..., str]]] = {
    "table": as_table,
    "pretty_table": as_pretty_table,
    "json": as_json,
    "csv": as_csv,
}


def _csv(rows: Any) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([map(cell, row) for row in rows])
    return out.getvalue()


def _section(title: str, lines: Any) -> str:
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    return f"{bold}{title}{plain}\n\n" + "".join(f"{printable(str(line))}\n" for line in lines)


def _lines(lines: Any) -> str:
    return "".join(f"{name}: {cell(value)}\n" for name, value in lines)

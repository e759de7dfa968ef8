"""The table of the suites: on a terminal, in a pipe, as JSON, and in the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.suites.brokers import LEVERET, RABBITMQ
from tests.suites.compare import Comparison
from tests.suites.record import Record

COLUMNS: Final = ("suite", "tests", "pass on RabbitMQ", "pass on Leveret", "unsteady", "differences", "known")
TEXT_CHARS: Final = 400
PYTHON: Final = "suites"
LANGUAGES: Final = "languages"
"""The names of the two tables in the documentation."""


def cells(row: Comparison) -> tuple[str, ...]:
    """Return one row of the table."""
    known = len(row.differences) - len(row.unlisted)
    passed = (row.passed_on_rabbitmq, row.passed_on_leveret)
    numbers = (row.tests, *passed, len(row.unsteady), len(row.differences), known)
    return (row.suite, *map(str, numbers))


def print_table(rows: Sequence[Comparison], console: Console) -> None:
    """Write the table, then every difference that is not known with its reason."""
    if console.is_terminal:
        table = Table(*COLUMNS)
        for row in rows:
            table.add_row(*cells(row))
        console.print(table)
    else:
        lines = [COLUMNS, *map(cells, rows)]
        widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
        for line in lines:
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            console.out(text.rstrip(), highlight=False)
    for row in rows:
        for one in row.unlisted:
            text = one.text.strip()[-TEXT_CHARS:]
            console.out(f"\n{row.suite}: {one.test}\n    {one.outcome}: {text}", highlight=False)
        for test in row.outdated:
            console.out(
                f"\n{row.suite}: {test}\n    passes on both brokers: strike it off `known`", highlight=False
            )


def as_json(rows: Sequence[Comparison]) -> str:
    """Return everything that was compared."""
    return json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=1)


def markdown(rows: Sequence[Comparison], record: Record, versions: dict[str, str]) -> str:
    """Return the table for the documentation; `versions` are those of the suites."""
    runs = [run for row in rows for run in record.runs[row.suite].values()]
    brokers = ", ".join(
        f"{broker} {' and '.join(sorted({record.runs[row.suite][broker].version for row in rows}))}"
        for broker in (LEVERET, RABBITMQ)
    )
    heads = (COLUMNS[0], "version", *COLUMNS[1:])
    lines = [
        f"{brokers}; {max(run.ended_at for run in runs)}.",
        "",
        _pipes(heads),
        _pipes(["---"] * len(heads)),
    ]
    for row in rows:
        name, *rest = cells(row)
        lines.append(_pipes([name, versions[row.suite], *rest]))
    return "\n".join(lines)


def write_docs(table: str, page: Path, name: str = PYTHON) -> None:
    """Put the table between the two marks of the page that have its name.

    Raises:
        ValueError: the page lacks a mark.
    """
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page}: the marks {first} and {last} must stand in it, in order")
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}")


def _pipes(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"

"""The table of verdicts: on a terminal, in a pipe, for the documentation and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.mutants.run import HUNG, SURVIVED, Verdict

COLUMNS: Final = ("file", "fault", "found by", "seconds")


def cells(verdict: Verdict) -> tuple[str, ...]:
    """Return one row of the table."""
    by = verdict.by
    if verdict.result == SURVIVED:
        by = "nothing: it survived"
    elif verdict.result == HUNG:
        by = f"{by}, which did not end".lstrip(", ")
    if verdict.result != SURVIVED and not verdict.expected:
        by = f"{by} (the whole suite)"
    return verdict.file, verdict.fault, by, f"{verdict.seconds:.1f}"


def print_table(verdicts: Sequence[Verdict], console: Console) -> None:
    """Write the table, in plain columns where the output is no terminal."""
    rows = [cells(verdict) for verdict in verdicts]
    if console.is_terminal:
        table = Table(*COLUMNS)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(row[at]) for row in [COLUMNS, *rows]) for at in range(len(COLUMNS))]
    for row in [COLUMNS, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.out(line.rstrip(), highlight=False)


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the table for the documentation."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, verdicts)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_json(verdicts: Sequence[Verdict]) -> str:
    """Return all verdicts."""
    return json.dumps([asdict(verdict) for verdict in verdicts], indent=1)


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return one line that counts."""
    survived = sum(verdict.result == SURVIVED for verdict in verdicts)
    unexpected = sum(verdict.result != SURVIVED and not verdict.expected for verdict in verdicts)
    text = f"{len(verdicts) - survived} of {len(verdicts)} mutations found, {survived} survived"
    return text + (f"; {unexpected} found by the whole suite only" if unexpected else "")

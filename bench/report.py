"""The output of a run: a table on the terminal, build/bench.json, and the table in docs/performance.md.

bench.json
    {"date", "machine": {...}, "settings": {...}, "versions": {broker: version},
     "rows": [{"name", "title", "unit", "higher_is_better", "ratio", "target", "met",
               "leveret": {"median", "min", "max", "rounds": [...], "cpu_us", "cpu_rounds": [...], "details": [...]},
               "rabbitmq": {... the same} }],
     "errors": {"scenario or row on broker": "text"}}

A row lacks the brokers without a reading in it. `ratio` is Leveret's median divided by RabbitMQ's.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.contenders import BEFORE, LAVINMQ, LEVERET, RABBITMQ
from bench.rows import Reading, Row

ERROR_CHARS: Final = 400
CPU_S_OF_US: Final = 0.1
"""Microseconds a message as seconds for 100,000 messages."""
_COLUMNS: Final = ("row", "unit", "Leveret", "RabbitMQ", "ratio", "CPU us/msg", "target")
_LAVINMQ_AT: Final = 4
"""The column of LavinMQ, in a run that had one."""
DOCS_BEGIN: Final = "<!-- bench: begin -->"
DOCS_END: Final = "<!-- bench: end -->"

RowRecord = dict[str, Any]
Record = dict[str, Any]


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the record of one broker's rounds in one row."""
    values = [reading.value for reading in readings]
    cpu = [reading.cpu_us for reading in readings if reading.cpu_us is not None]
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "rounds": values,
        "cpu_us": statistics.median(cpu) if cpu else None,
        "cpu_rounds": cpu,
        "details": [reading.details for reading in readings],
    }


def row_record(row: Row, readings: dict[str, list[Reading]], before: Sequence[RowRecord] = ()) -> RowRecord:
    """Return one row of bench.json from the rounds of each broker; `before` has the rows above it."""
    record: RowRecord = {
        "name": row.name,
        "title": row.title,
        "unit": row.unit,
        "higher_is_better": row.higher_is_better,
    }
    record |= {broker: summary(rounds) for broker, rounds in readings.items() if rounds}
    record["ratio"] = _quotient(_median(record, LEVERET), _median(record, RABBITMQ))
    return record | _verdict(row, record, before)


def _verdict(row: Row, record: RowRecord, before: Sequence[RowRecord]) -> dict[str, Any]:
    """Compare the row with its target; `met` is None without a target or a reading."""
    target = row.target
    if target is None:
        return {"target": None, "met": None}
    value, unit = _median(record, LEVERET), f" {row.unit}"
    if target.of == "ratio":
        value, unit = record["ratio"], "x"
    elif target.of == "share":
        whole = next((_median(one, LEVERET) for one in before if one["name"] == target.of_row), None)
        value, unit = _quotient(value, whole), f" of `{target.of_row}`"
    text = f"{'>=' if row.higher_is_better else '<='} {target.limit:,g}{unit}"
    if value is None:
        return {"target": text, "met": None}
    return {"target": text, "met": value >= target.limit if row.higher_is_better else value <= target.limit}


def _median(record: RowRecord, broker: str) -> float | None:
    return record[broker]["median"] if broker in record else None


def _quotient(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def number(value: float) -> str:
    """Return a number with about three significant digits, and without fractions from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(record: Record) -> list[tuple[str, ...]]:
    """Return the rows of the table as text, the heads first."""
    lines = [_COLUMNS, *(cells(one) for one in record["rows"])]
    if LAVINMQ not in record["versions"]:
        return lines
    own = ["LavinMQ", *(_span(one.get(LAVINMQ)) for one in record["rows"])]
    return [(*line[:_LAVINMQ_AT], cell, *line[_LAVINMQ_AT:]) for line, cell in zip(lines, own, strict=True)]


def cells(record: RowRecord) -> tuple[str, ...]:
    """Return one row of the table as text, a cell a column."""
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.2f}"
    cpu = [record[one]["cpu_us"] for one in (LEVERET, RABBITMQ) if one in record]
    spent = " / ".join(number(one) for one in cpu if one is not None)
    mark = {True: " (met)", False: " (MISSED)", None: ""}[record["met"]]
    target = "" if record["target"] is None else record["target"] + mark
    brokers = (_span(record.get(LEVERET)), _span(record.get(RABBITMQ)))
    return (record["title"], record["unit"], *brokers, ratio, spent, target)


def _span(broker: dict[str, Any] | None) -> str:
    """Return a median as text, with the smallest and the largest round."""
    if broker is None:
        return "-"
    if broker["min"] == broker["max"]:
        return number(broker["median"])
    return f"{number(broker['median'])} ({number(broker['min'])}-{number(broker['max'])})"


def heading(record: Record) -> str:
    """Return the brokers, the date, the machine and the settings of a run as one line."""
    machine, versions = record["machine"], record["versions"]
    against = ", ".join(f"{name} {version}" for name, version in versions.items())
    settings = record["settings"]
    rounds = f"{settings['rounds']} {'round' if settings['rounds'] == 1 else 'rounds'}"
    return (
        f"{against}; {record['date']}; {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {machine['file_system']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}; median (smallest-largest) of {rounds} of "
        f"{settings['seconds']:g} s, backlog {settings['backlog']:,} messages"
    )


def print_table(record: Record) -> None:
    """Print the table: with lines on a terminal, as plain columns in a pipe."""
    heads, *rows = table(record)
    console = Console()
    if console.is_terminal:
        drawn = Table(*heads, caption=heading(record))
        for row in rows:
            drawn.add_row(*row)
        console.print(drawn)
    else:
        print(heading(record))
        widths = [max(len(one[at]) for one in [heads, *rows]) for at in range(len(heads))]
        for row in [heads, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    _print_errors(record)


def _print_errors(record: Record) -> None:
    for where, text in record["errors"].items():
        # bench.json has the whole text, which is often the end of a log.
        print(f"not measured: {where}: {text[:ERROR_CHARS]}", file=sys.stderr)


def print_paired(record: Record) -> None:
    """Print the rows of a paired run: rates, and seconds of the node's processor for 100,000 messages.

    A ratio is the median of the rounds' ratios, this checkout divided by the other one, because a slow minute is slow
    for both.
    """
    print(f"before {record['versions'][BEFORE]}; {heading(record)}")
    for row in record["rows"]:
        if LEVERET not in row or BEFORE not in row:
            continue
        before, after = row[BEFORE], row[LEVERET]
        print(f"{row['name']:24} {row['unit']:6} {_paired(before['rounds'], after['rounds'])}")
        if before["cpu_us"] is not None and after["cpu_us"] is not None:
            cpu = [[one * CPU_S_OF_US for one in each["cpu_rounds"]] for each in (before, after)]
            print(f"{'':24} {'CPU s':6} {_paired(*cpu)}")
    _print_errors(record)


def _paired(before: Sequence[float], after: Sequence[float]) -> str:
    ratios = [_quotient(new, old) or 0.0 for old, new in zip(before, after, strict=False)]
    medians = (number(statistics.median(one)) for one in (before, after, ratios))
    old, new, ratio = (each.rjust(10) for each in medians)
    return f"before {old}  after {new}  ratio {ratio} ({number(min(ratios))}-{number(max(ratios))})"


def write_json(record: Record, target: Path) -> None:
    """Write build/bench.json."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")


def read_json(source: Path) -> Record:
    """Read build/bench.json back."""
    record: Record = json.loads(source.read_text())
    return record


def write_docs(record: Record, page: Path, plot: Path) -> None:
    """Put a link to the plot, and the table of a run, between the two marks in the page.

    Rows that the run lacks stay below them, in the tables of earlier runs.

    Raises:
        ValueError: the page lacks a mark.
    """
    tables = [markdown(record), *_earlier(page, {row["title"] for row in record["rows"]})]
    _put_between_marks(page, "\n\n".join([_plot_link(plot), *tables]))


def _earlier(page: Path, titles: set[str]) -> list[str]:
    """Return the tables between the marks in the page, without the rows of these titles, and without empty tables."""
    _, _, rest = page.read_text().partition(DOCS_BEGIN)
    paragraphs = rest.partition(DOCS_END)[0].strip().split("\n\n")
    found: list[str] = []
    for above, paragraph in pairwise(paragraphs):
        head, line, *rows = [*paragraph.split("\n"), ""]
        kept = [row for row in rows if row and row.split(" | ")[0].removeprefix("| ") not in titles]
        if head.startswith("| ") and kept:
            found.append("\n".join([above, "", head, line, *kept]))
    return found


def write_plot_link(page: Path, plot: Path) -> None:
    """Put a link to the plot between the two marks in the page.

    Raises:
        ValueError: the page lacks a mark.
    """
    _put_between_marks(page, _plot_link(plot))


def _plot_link(plot: Path) -> str:
    return f"![Rates and times of Leveret by those of RabbitMQ]({plot})"


def _put_between_marks(page: Path, content: str) -> None:
    before, begin, rest = page.read_text().partition(DOCS_BEGIN)
    _, end, after = rest.partition(DOCS_END)
    if not begin or not end:
        raise ValueError(f"{page}: the marks {DOCS_BEGIN} and {DOCS_END} must stand in it, in order")
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}")


def markdown(record: Record) -> str:
    """Return the table in Markdown, below its heading."""
    heads, *rows = table(record)
    lines = [heading(record) + ".", "", _pipes(heads), _pipes(["---"] * len(heads))]
    lines += [_pipes(row) for row in rows]
    return "\n".join(lines)


def _pipes(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"

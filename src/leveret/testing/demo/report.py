"""The output of the demo: lines, progress bars on a terminal (none in a pipe), the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from leveret.testing.applications.audit import Audit

_console: Final = Console(highlight=False, soft_wrap=True)
_began: Final = time.monotonic()
Bar = Callable[[int], None]

_COLUMNS: Final = ("confirmed", "acked", "transferred", "recovered", "lost", "resurrected", "duplicated")


def say(text: str) -> None:
    """Print one line."""
    _console.print(text)


def step(text: str) -> None:
    """Print one line with the seconds since the begin."""
    _console.print(f"{time.monotonic() - _began:4.0f} s  {text}")


def detail(text: str) -> None:
    """Print one line that belongs to the step before it."""
    _console.print(f"        {text}")


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Bar]:
    """Show a bar on a terminal; yield a function that takes the present count."""
    columns = (TextColumn("    {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console, transient=True, disable=not _console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, completed=done)


def show(result: Audit) -> None:
    """Print the table, the messages within the lag, and the verdict."""
    rows = [
        (line.queue, [getattr(line, name) for name in _COLUMNS]) for line in (*result.lines, result.total)
    ]
    table(_COLUMNS, rows)
    say(
        f"lag at the kill: {result.lag_messages:,} messages, {result.lag_ms:,} ms; "
        "only what was confirmed within it can be lost"
    )
    if again := result.total.acked_in_lag:
        say(
            f"{again:,} messages were acked within the lag and are delivered once more: "
            "their acks went down with the upstream"
        )
    verdict(result)


def table(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Print one line a queue, and the total."""
    shown = Table("queue", *columns, box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in shown.columns[1:]:
        column.justify = "right"
    for number, (name, values) in enumerate(rows, 1):
        shown.add_row(
            name, *(f"{value:,}" for value in values), style="bold" if number == len(rows) else None
        )
    _console.print(shown)


def verdict(result: Audit) -> None:
    """Print every forbidden outcome that occurred, and whether the books balance."""
    for name, meaning in _FAULTS.items():
        if count := getattr(result.total, name):
            say(f"FAULT: {count:,} {meaning}")
    say("the books balance" if result.balances else "THE BOOKS DO NOT BALANCE")


_FAULTS: Final = {
    "lost_unlawfully": "lost although their confirm had got through",
    "resurrected": "back although their ack had got through",
    "duplicated": "more than once",
    "altered": "with another exchange, routing key, property or body",
    "disordered": "out of the queue's order",
}

"""Runs scenarios on each broker, and collects their readings.

The speed of a machine drifts, so the brokers take turns, round by round: a slow minute is slow for each of them. If a
scenario fails on a broker, the run notes the error and continues.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import httpx

from bench import contenders, machine, report
from bench.client import LoadError
from bench.contenders import BEFORE, LEVERET, Checkout, Node
from bench.report import Record, RowRecord
from bench.rows import Reading, Row, Scenario, Settings
from leveret.model.errors import LeveretError
from leveret.testing.network.ports import NotReady

Readings = dict[str, dict[str, list[Reading]]]
FAILURES = (
    LoadError,
    LeveretError,
    NotReady,
    OSError,
    subprocess.SubprocessError,
    ValueError,
    httpx.HTTPError,
)


def run(
    scenarios: Sequence[Scenario],
    brokers: Sequence[str],
    settings: Settings,
    wanted: Callable[[Row], bool],
    say: Callable[[str], None],
    before: Checkout | None = None,
) -> Record:
    """Run the scenarios; return the record for bench.json. `say` is called with the name of each step.

    With `before`, the nodes of that checkout are one more broker, the first of each round.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(settings.folder)
    errors = {name: why for name in brokers if (why := contenders.unavailable(name))}
    present = [name for name in brokers if name not in errors]
    versions = {name: contenders.version(name) for name in present}
    if before is not None:
        present.insert(0, BEFORE)
        versions[BEFORE] = before.version()
    rows: list[RowRecord] = []
    for scenario in scenarios:
        readings = _scenario(scenario, present, settings, errors, say, before)
        for row in scenario.rows:
            if wanted(row) and any(readings[row.name].values()):
                # Its target may be a share of a row above it in the same scenario.
                rows.append(report.row_record(row, readings[row.name], rows))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": facts,
        "settings": {
            "seconds": settings.seconds,
            "warmup_s": settings.warmup_s,
            "rounds": settings.rounds,
            "backlog": settings.backlog,
            "large_backlog": settings.large_backlog,
            "quick": settings.quick,
        },
        "versions": versions,
        "rows": rows,
        "errors": errors,
    }


def _scenario(
    scenario: Scenario,
    present: Sequence[str],
    settings: Settings,
    errors: dict[str, str],
    say: Callable[[str], None],
    before: Checkout | None,
) -> Readings:
    """Run one scenario in turns on a fresh node of each broker."""
    title = scenario.rows[0].name
    makers = scenario.makers or contenders.MAKERS
    brokers = [name for name in present if _kind(name) in scenario.brokers and _kind(name) in makers]
    readings: Readings = {row.name: {name: [] for name in brokers} for row in scenario.rows}
    with contextlib.ExitStack() as stack:
        nodes: dict[str, Node] = {}
        for name in brokers:
            say(f"{title}: starting {name}")
            with _noting(errors, f"{title} on {name}"):
                node = makers[_kind(name)](settings.folder)
                stack.callback(node.close)
                with _sources(name, before):
                    node.start()
                nodes[name] = node
        for turn in range(1 if scenario.once else settings.rounds):
            for name, node in list(nodes.items()):
                say(f"{title}: {name}, round {turn + 1}")
                with _noting(errors, f"{title} on {name}"), _sources(name, before):
                    for row, reading in scenario.run(node, settings).items():
                        readings[row][name].append(reading)
                if f"{title} on {name}" in errors:
                    del nodes[name]
    return readings


def _kind(name: str) -> str:
    return LEVERET if name == BEFORE else name


def _sources(name: str, before: Checkout | None) -> contextlib.AbstractContextManager[None]:
    return before.running() if before is not None and name == BEFORE else contextlib.nullcontext()


@contextlib.contextmanager
def _noting(errors: dict[str, str], where: str) -> Iterator[None]:
    """Store a failure as text, so that the run continues."""
    try:
        yield
    except subprocess.CalledProcessError as failed:
        errors[where] = f"{failed.stderr.strip()} ({failed})"
    except FAILURES as failed:
        errors[where] = str(failed)

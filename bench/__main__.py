"""`python -m bench`: measure Leveret beside RabbitMQ, and print one table.

The exit status is 0, or 1 if a measurement failed or a target was missed with full settings, or 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import compileall
import json
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

import leveret
from bench import plot, report, runner, selftest
from bench.archive_looks import ARCHIVE_LOOKS
from bench.backlog import BACKLOG, LARGE_BACKLOG
from bench.beside import BESIDE
from bench.both_sites import BOTH_SITES
from bench.console_page import CONSOLE_PAGE
from bench.contenders import LEVERET, MAKERS, RABBITMQ, Checkout, present
from bench.disk import DRAINED, STRAGGLER
from bench.failover import FAILOVER
from bench.followers import FOLLOWER, JOIN
from bench.many import MANY
from bench.mirrors import MIRRORED, MIRRORED_FAILOVER, MIRRORED_STREAM, MIRRORED_SYNC
from bench.mixed import MIXED
from bench.operated import OPERATED
from bench.queues import QUEUES_SCENARIO
from bench.report import Record
from bench.round_trips import ROUND_TRIPS
from bench.rows import LATENCY, PUBLISH, SMALL, TOGETHER, Scenario, Settings
from bench.schema import SCHEMA
from bench.settled import SETTLED
from bench.sites import SITES, SMALL_QUEUES, VHOSTS_IDLE
from bench.standby import COLLECTION, MIXED_STANDBY, RTO, RTO_LARGE, STANDBY
from bench.streams import STREAMS

BUILD: Final = Path("build")
RECORD: Final = BUILD / "bench.json"
PAIRED_RECORD: Final = BUILD / "bench-paired.json"
PAGE: Final = Path("docs/performance.md")
PLOT: Final = Path("docs/performance.svg")
FRONT_PAGE: Final = Path("README.md")
SCENARIOS: Final[tuple[Scenario, ...]] = (
    PUBLISH,
    TOGETHER,
    MANY,
    SMALL,
    *MIXED,
    LATENCY,
    *ROUND_TRIPS,
    *BESIDE,
    STREAMS,
    BACKLOG,
    LARGE_BACKLOG,
    QUEUES_SCENARIO,
    DRAINED,
    STRAGGLER,
    SCHEMA,
    COLLECTION,
    STANDBY,
    BOTH_SITES,
    MIXED_STANDBY,
    RTO,
    RTO_LARGE,
    SETTLED,
    SITES,
    VHOSTS_IDLE,
    SMALL_QUEUES,
    ARCHIVE_LOOKS,
    FOLLOWER,
    JOIN,
    FAILOVER,
    MIRRORED,
    MIRRORED_STREAM,
    MIRRORED_FAILOVER,
    MIRRORED_SYNC,
    OPERATED,
    CONSOLE_PAGE,
)
PLOTTED: Final = "plot"
ROW_NAMES: Final = [row.name for scenario in SCENARIOS for row in scenario.rows]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; end the process with status 2 if it is wrong."""
    parser = argparse.ArgumentParser("python -m bench", description="Leveret beside RabbitMQ, in one table.")
    parser.add_argument("--quick", action="store_true", help="one short round of each: shows that it runs")
    parser.add_argument(
        "--rows",
        metavar="A,B",
        help=f"only these rows: {', '.join(ROW_NAMES)}; or {PLOTTED}: those that the plot shows",
    )
    parser.add_argument("--seconds", type=float, help="measured span of a round (default 5, quick 1)")
    parser.add_argument("--rounds", type=int, help="rounds on each broker, in turns (default 3, quick 1)")
    parser.add_argument("--backlog", type=int, help="messages of the backlog (default 1000000, quick 50000)")
    parser.add_argument(
        "--brokers", help=f"default: {LEVERET},{RABBITMQ}, and lavinmq where one is on the PATH"
    )
    parser.add_argument(
        "--paired",
        metavar="DIR",
        help="compare with the checkout in DIR, round by round, instead of with RabbitMQ",
    )
    parser.add_argument("--formatter", choices=("table", "json"), default="table")
    parser.add_argument("--selftest", action="store_true", help="show what the load generator can do")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"put the last run's table into {PAGE}, above the rows that it lacks, and its plot beside it; "
        "measures nothing",
    )
    given = parser.parse_args(arguments)
    given.rows = given.rows.split(",") if given.rows else ROW_NAMES
    if PLOTTED in given.rows:
        given.rows = [*plot.ROWS, *(name for name in given.rows if name != PLOTTED)]
    given.brokers = given.brokers.split(",") if given.brokers else present()
    if given.paired:
        given.brokers = [LEVERET]
    try:
        given.before = Checkout(Path(given.paired)) if given.paired else None
    except ValueError as missing:
        parser.error(f"--paired: {missing}")
    for option, values, known in (
        ("rows", given.rows, ROW_NAMES),
        ("brokers", given.brokers, list(MAKERS)),
    ):
        unknown = [value for value in values if value not in known]
        if unknown:
            parser.error(f"--{option}: no {', '.join(unknown)}; there are {', '.join(known)}")
    return given


def settings_of(given: argparse.Namespace) -> Settings:
    """Return the settings, with the defaults of a quick or a full run."""
    quick = given.quick
    return Settings(
        seconds=given.seconds or (1.0 if quick else 5.0),
        warmup_s=0.3 if quick else 1.0,
        rounds=given.rounds or (1 if quick else 3),
        backlog=given.backlog or (50_000 if quick else 1_000_000),
        large_backlog=100_000 if quick else 5_000_000,
        folder=BUILD / "bench",
        quick=quick,
    )


def measure(given: argparse.Namespace) -> Record:
    """Run the scenarios of the wanted rows, with a line on stderr for each step."""
    chosen = [one for one in SCENARIOS if any(row.name in given.rows for row in one.rows)]
    # An installed package is compiled. Without this, starts would include the compiler, each one if it may not write.
    compileall.compile_dir(Path(leveret.__file__).parent, quiet=2)
    console = Console(stderr=True)
    with console.status("") as status:

        def say(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            else:
                print(text, file=sys.stderr)

        return runner.run(
            chosen,
            given.brokers,
            settings_of(given),
            lambda row: row.name in given.rows,
            say,
            given.before,
        )


def write_docs() -> int:
    """Put the last run's table and plot into the documentation, if it has all the plot's rows; return the status."""
    wrong = "there is none"
    if RECORD.exists():
        record = report.read_json(RECORD)
        missing = set(plot.ROWS) - {row["name"] for row in record["rows"]}
        wrong = f"it lacks {', '.join(sorted(missing))}" if missing else ""
        if record["settings"]["quick"]:
            wrong = "it is of a quick run"
        if not wrong:
            plot.write(record, PLOT)
            report.write_docs(record, PAGE, PLOT.relative_to(PAGE.parent))
            report.write_plot_link(FRONT_PAGE, PLOT)
            return 0
    print(f"{RECORD}: {wrong}; run `python -m bench --rows plot`, or all rows, first", file=sys.stderr)
    return 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    given = parse(arguments)
    if given.selftest:
        settings = settings_of(given)
        return selftest.main(settings.seconds, settings.warmup_s)
    if given.write_docs:
        return write_docs()
    record = measure(given)
    report.write_json(record, PAIRED_RECORD if given.paired else RECORD)
    if given.formatter == "json":
        print(json.dumps(record, indent=1))
    elif given.paired:
        report.print_paired(record)
    else:
        report.print_table(record)
    asked = not given.quick and not given.paired
    missed = asked and any(row["met"] is False for row in record["rows"])
    return 1 if missed or record["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())

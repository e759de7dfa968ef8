"""`python -m leveret.testing.simulation`: run simulated worlds, seed by seed, for a time.

SIGINT and SIGTERM end it with the counts of the runs so far. Where its errors do not go to a terminal, each run gets a
line there: a run takes between one second and two minutes of processor time.

Exit status: 0 if the books of all runs balance, 1 if a run fails (its story is printed, with as few faults as
possible), 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Final

from rich.console import Console
from rich.progress import Progress

from leveret.testing.simulation.applications.publishers import FAST_COPIES
from leveret.testing.simulation.hunt import WORLDS, RunOutcome, play, shrink

_HASH_SEED: Final = "PYTHONHASHSEED"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; end the process with status 2 if it is invalid."""
    parser = argparse.ArgumentParser(
        "python -m leveret.testing.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--world", choices=sorted(WORLDS), default="cluster")
    parser.add_argument("--seed", type=int, help="the first seed (default: by chance; it is printed)")
    parser.add_argument("--runs", type=int, help="how many seeds (default: as many as the time allows)")
    parser.add_argument(
        "--cpu-seconds", type=float, default=60.0, help="processor time for all runs (default: 60)"
    )
    parser.add_argument(
        "--seconds", type=float, default=40.0, help="virtual time of faults in each run (default: 40)"
    )
    parser.add_argument(
        "--often", default="", metavar="FAULT", help="a kind of fault that happens most of the time"
    )
    parser.add_argument(
        "--copies",
        type=int,
        default=FAST_COPIES,
        help=f"copies of messages in a run after which publishers are ten times slower (default: {FAST_COPIES})",
    )
    parser.add_argument("--formatter", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.cpu_seconds <= 0:
        parser.error("times are above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worlds that the command line names; return the exit status."""
    options = parse(arguments)
    if os.environ.get(_HASH_SEED) != "0":
        # The order of sets of names depends on the hash seed: a run must depend on its own seed only.
        os.environ[_HASH_SEED] = "0"
        os.execv(
            sys.executable, [sys.executable, "-m", "leveret.testing.simulation", *(arguments or sys.argv[1:])]
        )
    first = options.seed if options.seed is not None else random.randrange(1_000_000_000)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = _play_all(options, first)
    print(_summary(options, first, runs))
    if not runs or runs[-1].failure is None:
        return 0
    began_s = time.process_time()
    skip, smallest = shrink(options.world, runs[-1], options.seconds, options.often, options.copies)
    print(smallest, file=sys.stderr)
    left = sorted(set(range(smallest.count)) - skip)
    print(f"faults {left} are enough; found in {time.process_time() - began_s:.0f} s", file=sys.stderr)
    return 1


def _play_all(options: argparse.Namespace, first: int) -> list[RunOutcome]:
    """Play one seed after the other until all are played, the time is over, a run fails or a signal comes."""
    runs: list[RunOutcome] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"{options.world} from seed {first}", total=options.runs or options.cpu_seconds)
        for seed in count(first) if options.runs is None else range(first, first + options.runs):
            try:
                runs.append(
                    play(options.world, seed, options.seconds, often=options.often, copies=options.copies)
                )
            except KeyboardInterrupt:
                print(f"{options.world}: broken off in seed {seed}", file=sys.stderr)
                break
            bar.advance(task, 1 if options.runs else runs[-1].cpu_s)
            if not sys.stderr.isatty():
                # A seed may take a second or two minutes, and a run of a hundred hours must not look dead.
                print(_progress(options.world, runs[-1]), file=sys.stderr, flush=True)
            spent_s = sum(run.cpu_s for run in runs)
            if runs[-1].failure is not None or (options.runs is None and spent_s >= options.cpu_seconds):
                break
    return runs


def _progress(world: str, run: RunOutcome) -> str:
    confirmed = "failed" if run.report is None else f"{run.report.confirmed} confirmed"
    return f"{world}: seed {run.seed}, {confirmed}, {run.cpu_s:.1f} s of processor time"


def _summary(options: argparse.Namespace, first: int, runs: Sequence[RunOutcome]) -> str:
    reports = [run.report for run in runs if run.report is not None]
    faults: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
    row = {
        "world": options.world,
        "first_seed": first,
        "runs": len(runs),
        "failed": sum(run.failure is not None for run in runs),
        "cluster_hours": round(sum(report.seconds for report in reports) / 3600, 3),
        "cpu_s": round(sum(run.cpu_s for run in runs), 1),
        "confirmed": sum(report.confirmed for report in reports),
        "settled": sum(report.settled for report in reports),
        "decisions": sum(report.decisions for report in reports),
        "faults": faults,
    }
    if options.formatter == "json":
        return json.dumps(row)
    kinds = ", ".join(f"{times} {kind}" for kind, times in sorted(faults.items()))
    return (
        f"{row['world']}: {row['runs']} runs from seed {first}, {row['failed']} failed; {row['cluster_hours']} h in "
        f"{row['cpu_s']} s of processor time; {row['confirmed']} confirmed, {row['settled']} settled, "
        f"{row['decisions']} decisions; {kinds}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.mutants`: put faults into a copy of the product, one at a time, and see the tests find them.

Exit status: 0 if each fault was found; 1 if one survived, or with `--check` if one does not fit the tree or a room
has none; 2 if the tests are red without any fault, or for wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import queue
import shlex
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from leveret.cli.output.progress_bar import ProgressBar
from tests.mutants import report
from tests.mutants.mutation import PACKAGE, Mutation, MutationError, problems, read_mutations, rooms_without
from tests.mutants.run import SURVIVED, Runner, Verdict
from tests.mutants.scratch import Scratch


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; end the process with status 2 if it makes no sense."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only mutations whose fault or file contains this"
    )
    parser.add_argument("--room", metavar="ROOM", default="", help="only this room, for example core/queues")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="mutations at a time (default: the cores)"
    )
    parser.add_argument(
        "--whole-suite",
        metavar="ARGUMENTS",
        default="",
        help="pytest's arguments that select the whole suite, for what survives the expected tests (default: none)",
    )
    parser.add_argument("--formatter", choices=("table", "json", "markdown"), default="table")
    parser.add_argument(
        "--check", action="store_true", help="only see that each mutation fits the tree; runs nothing"
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs: at least 1")
    return options


def selected(mutations: Sequence[Mutation], options: argparse.Namespace) -> list[Mutation]:
    """Return the mutations that the command line asks for, of those that tests are expected to find."""
    return [
        mutation
        for mutation in mutations
        if mutation.tests
        and f"{mutation.room}/".startswith(f"{options.room}/".lstrip("/"))
        and (options.only in mutation.fault or options.only in mutation.file)
    ]


def run_all(mutations: Sequence[Mutation], options: argparse.Namespace) -> list[Verdict]:
    """Run the expected tests of each mutation, then the whole suite for what survived; return a verdict for each.

    Raises:
        MutationError: the tests are red without any fault, or a mutation cannot be tried.
    """
    with tempfile.TemporaryDirectory(prefix="leveret-mutants-") as folder:
        jobs = min(options.jobs, len(mutations))
        runners: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for number in range(jobs):
            scratch = Scratch(Path(folder) / str(number))
            scratch.verify()
            runners.put(Runner(scratch))
        with _bar(len(mutations) + 1) as bar, ThreadPoolExecutor(jobs) as pool:

            def expected(mutation: Mutation) -> Verdict:
                runner = runners.get()
                try:
                    return runner.expected(mutation)
                finally:
                    runners.put(runner)
                    bar.advance(1)

            runner = runners.get()
            if output := runner.unmutated(mutations, jobs):
                raise MutationError(f"the expected tests are red without any fault:\n{output[-4000:]}")
            runners.put(runner)
            bar.update(description="mutations")
            bar.advance(1)
            verdicts = list(pool.map(expected, mutations))
            unsettled = [at for at, verdict in enumerate(verdicts) if verdict.result == SURVIVED]
            if options.whole_suite and unsettled:
                bar.begin_again(total=len(unsettled), description="the whole suite")
                for at in unsettled:
                    verdicts[at] = runner.whole(mutations[at], shlex.split(options.whole_suite))
                    bar.advance(1)
    return verdicts


def _bar(total: int) -> ProgressBar:
    from rich.progress import MofNCompleteColumn

    bar = ProgressBar(sys.stderr.isatty(), "without any fault", lambda: [MofNCompleteColumn()])
    bar.update(total=total)
    return bar


def check(mutations: Sequence[Mutation]) -> int:
    """Name the mutations that do not fit the tree, and the rooms without one; return the exit status."""
    found = [
        *problems(mutations),
        *(f"no mutation is of a file in {PACKAGE / room}: add one" for room in rooms_without(mutations)),
    ]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"mutants: {len(mutations)} mutations, {len(found)} to bring up to date in tests/mutants/mutations")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    options = parse(arguments)
    try:
        mutations = read_mutations()
        if options.check:
            return check(mutations)
        mutations = selected(mutations, options)
        if not mutations:
            raise MutationError("no mutation is selected")
        verdicts = run_all(mutations, options)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2
    if options.formatter == "json":
        print(report.as_json(verdicts))
    elif options.formatter == "markdown":
        print(report.as_markdown(verdicts))
    else:
        report.print_table(verdicts, Console())
        print(report.summary(verdicts))
    return 1 if any(verdict.result == SURVIVED for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.suites`: run what others wrote on Leveret and on RabbitMQ, and compare.

Exit status: 0; 1 if something that passes on RabbitMQ does not pass on Leveret and is no known
difference, or a suite could not be run; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Final

from rich.console import Console

from leveret.testing.network.ports import NotReady
from leveret.testing.servers import rabbitmq
from leveret.testing.sites import network_hosts
from tests.suites import report
from tests.suites.brokers import LEVERET, RABBITMQ, Certificates, running
from tests.suites.catalogue import CLIENTS, SUITES, Suite
from tests.suites.compare import Comparison, compare, differing_tests
from tests.suites.fetch import ROOM, ROOT, FetchError, Workshop
from tests.suites.known import KNOWN
from tests.suites.languages import catalogue as languages
from tests.suites.languages.catalogue import ForeignSuite
from tests.suites.lock import LockError
from tests.suites.record import Record, SuiteRun, read_record
from tests.suites.run import Ended, Results, SuiteError, read_results, run

RECORD: Final = ROOM / "results.json"
PAGE: Final = ROOT / "docs" / "conformance.md"
ALL: Final[tuple[Suite | ForeignSuite, ...]] = (*SUITES, *languages.SUITES)
NAMES: Final = [suite.name for suite in ALL]
Say = Callable[[str], None]
TRIES: Final = 3
RUN_AGAIN_MAX: Final = 20
"""More than that are no races."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ends the process with status 2 if it makes no sense."""
    parser = argparse.ArgumentParser("python -m tests.suites", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", choices=(LEVERET, RABBITMQ, "both"), default="both")
    parser.add_argument("--suite", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument(
        "-k",
        dest="select",
        default="",
        metavar="EXPRESSION",
        help="as pytest's, for suites in Python; is not recorded",
    )
    parser.add_argument("--formatter", choices=("table", "json"), default="table")
    parser.add_argument("--compare", action="store_true", help="show the last runs again; runs nothing")
    parser.add_argument(
        "--write-docs", action="store_true", help=f"put the result into {PAGE.relative_to(ROOT)}"
    )
    options = parser.parse_args(arguments)
    options.suites = [suite for suite in ALL if options.suite is None or suite.name in options.suite]
    options.brokers = [RABBITMQ, LEVERET] if options.broker == "both" else [options.broker]
    return options


class Runner:
    """Runs suites on fresh brokers and keeps the record."""

    def __init__(self, workshop: Workshop, record: Record, select: str, say: Say) -> None:
        self.workshop = workshop
        self.record = record
        self.select = select
        self.say = say
        self.certificates = workshop.certificates(say)

    def run(self, suite: Suite | ForeignSuite, brokers: Sequence[str]) -> list[str]:
        """Run a suite on these brokers at the same time; return what could not be run and why.

        What differs is run again on Leveret, so that a race in a test does not count as a difference.
        """
        try:
            folder = self._folder(suite)
        except (FetchError, LockError) as error:
            return [f"{suite.name}: {error}"]
        with ThreadPoolExecutor(len(brokers)) as pool:
            errors = [error for error in pool.map(partial(self._run_on, suite, folder), brokers) if error]
        if LEVERET in brokers and not errors:
            errors = self._run_again(suite, folder)
        return errors

    def _folder(self, suite: Suite | ForeignSuite) -> Path:
        """Bring a suite; return the folder of its tests. Raises FetchError, LockError."""
        if isinstance(suite, ForeignSuite):
            self.say(f"{suite.name}: bringing it")
            return suite.bring(self.workshop.room / "languages" / suite.folder)
        folder = self.workshop.sdist(suite.package, self.say) if suite.package else CLIENTS
        suite.prepare(folder, self.certificates)
        return folder

    def _run_on(self, suite: Suite | ForeignSuite, folder: Path, broker: str) -> str:
        """Run a suite on one broker and put its results into the record; return what went wrong."""
        try:
            results = self._results(suite, folder, broker)
        except (NotReady, SuiteError) as error:
            return f"{suite.name} on {broker}: {error}"
        ended_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        version = rabbitmq.version() if broker == RABBITMQ else version_of("leveret")
        self.record.put(suite.name, broker, SuiteRun(ended_at, version, results))
        return ""

    def _run_again(self, suite: Suite | ForeignSuite, folder: Path) -> list[str]:
        """Run what differs up to `TRIES` times in all, by itself; return what went wrong."""
        runs = self.record.runs[suite.name]
        results = runs[LEVERET].results
        for tries in range(2, TRIES + 1):
            differing = differing_tests(runs[RABBITMQ].results, results) if RABBITMQ in runs else []
            differing = [test for test in differing if test in results]
            if not 0 < len(differing) <= RUN_AGAIN_MAX:
                break
            try:
                again = self._results(suite, folder, LEVERET, tests=differing)
            except (NotReady, SuiteError) as error:
                return [f"{suite.name} on {LEVERET}, again: {error}"]
            for test in differing:
                outcome = again[test].outcome if test in again else results[test].outcome
                results[test] = Ended(outcome, results[test].text, tries)
        return []

    def _results(
        self, suite: Suite | ForeignSuite, folder: Path, broker: str, tests: Sequence[str] = ()
    ) -> Results:
        """Run a suite, or some of its tests, on a fresh broker; one in another language is always run whole.

        Raises:
            NotReady: the broker did not start, or the suite took too long.
            SuiteError: the suite ran no test.
        """
        name = suite.folder if isinstance(suite, ForeignSuite) else suite.name
        room = self.workshop.room / "runs" / f"{name}-{broker}{'-again' if tests else ''}"
        room.mkdir(parents=True, exist_ok=True)
        if isinstance(suite, ForeignSuite):
            return self._results_in_world(suite, folder, broker, room)
        self.say(f"{suite.name} on {broker}: starting the broker")

        def count(ended: int) -> None:
            self.say(f"{suite.name} on {broker}: {ended} tests")

        with running(broker, self._certificates_for(suite, folder), room / "broker.log") as listeners:
            python = self.workshop.python
            return run(suite, listeners, python, folder, room, count, select=self.select, tests=tests)

    def _results_in_world(self, suite: ForeignSuite, folder: Path, broker: str, room: Path) -> Results:
        """As `_results`, for a suite in another language, whose broker has the usual ports."""
        if folder.is_relative_to(self.workshop.room):
            # Two brokers' runs at a time write into the folder.
            own = folder.with_name(f"{folder.name}-{broker}")
            shutil.rmtree(own, ignore_errors=True)
            folder = Path(shutil.copytree(folder, own, symlinks=True))
        self.say(f"{suite.name} on {broker}: running")
        results, log = room / "results.jsonl", room / "world.log"
        results.write_text("")
        log.unlink(missing_ok=True)
        paths = (self.certificates.ca, self.certificates.certificate, self.certificates.key)
        given = (suite.name, broker, *map(str, (folder, room, *paths)))
        status = network_hosts.run_in_world(
            "tests.suites.languages.world", *given, folder=ROOT, log_file=log, timeout_s=suite.timeout_s
        )
        ended = read_results(results.read_text())
        if status or not ended:
            raise SuiteError(
                f"{suite.name} ended with status {status}, {len(ended)} tests:\n{log.read_text()[-2000:]}"
            )
        return ended

    def _certificates_for(self, suite: Suite, folder: Path) -> Certificates:
        own = folder / suite.own_certificates
        if not suite.own_certificates:
            return self.certificates
        return Certificates(own / "ca.pem", own / "server.pem", own / "server.key")


def run_suites(options: argparse.Namespace, record: Record, say: Say) -> list[str]:
    """Run what was asked for and keep it on disk; return what could not be run and why."""
    workshop = Workshop()
    workshop.install(say)
    runner = Runner(workshop, record, options.select, say)
    errors = []
    for suite in options.suites:
        reason = suite.lacking() if isinstance(suite, ForeignSuite) else ""
        if reason:
            print(f"left out: {suite.name}: {reason}", file=sys.stderr)
            continue
        errors += runner.run(suite, options.brokers)
        if not options.select:
            record.merge_into(RECORD, suite.name, options.brokers)
    return errors


def compared(options: argparse.Namespace, record: Record) -> list[Comparison]:
    """Compare every wanted suite that has been run on both brokers."""
    rows = []
    for suite in options.suites:
        runs = record.runs.get(suite.name, {})
        if RABBITMQ in runs and LEVERET in runs:
            on_rabbitmq, on_leveret = (
                {test: ended for test, ended in runs[broker].results.items() if test not in suite.left_out}
                for broker in (RABBITMQ, LEVERET)
            )
            if options.select:  # the other broker's last run may hold the whole suite
                both = on_rabbitmq.keys() & on_leveret.keys()
                on_rabbitmq, on_leveret = (
                    {test: ended for test, ended in one.items() if test in both}
                    for one in (on_rabbitmq, on_leveret)
                )
            rows.append(compare(suite.name, on_rabbitmq, on_leveret, KNOWN))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    options = parse(arguments)
    record, errors = read_record(RECORD), []
    if not options.compare:
        errors = _run_with_a_line(options, record)
    rows = compared(options, record)
    if options.formatter == "json":
        print(report.as_json(rows))
    else:
        report.print_table(rows, Console())
    for error in errors:
        print(f"not run: {error}", file=sys.stderr)
    if options.write_docs and not errors:
        packages = Workshop().packages
        versions = {suite.name: packages[suite.package or suite.name].version for suite in SUITES}
        versions |= {suite.name: suite.version for suite in languages.SUITES}
        for name, suites in ((report.PYTHON, SUITES), (report.LANGUAGES, languages.SUITES)):
            listed = [row for row in rows if row.suite in {suite.name for suite in suites}]
            if listed:
                report.write_docs(report.markdown(listed, record, versions), PAGE, name)
    return 0 if not errors and all(row.met for row in rows) else 1


def _run_with_a_line(options: argparse.Namespace, record: Record) -> list[str]:
    """Run with one line on stderr that says what is being done; in a pipe one line a step."""
    console = Console(stderr=True)
    with console.status("") as status:

        def say(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            elif not text.endswith(" tests"):
                print(text, file=sys.stderr)

        try:
            return run_suites(options, record, say)
        except (FetchError, LockError) as error:
            return [str(error)]


if __name__ == "__main__":
    sys.exit(main())

"""Running one suite against one broker, bounded in time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from leveret.testing.servers.process import ServerProcess
from tests.suites.brokers import Doors
from tests.suites.catalogue import INSIDE, Suite

Outcome = Literal["passed", "failed", "skipped"]
TEST_TIMEOUT_S: Final = 60
POLL_INTERVAL_S: Final = 0.5
# What a suite may see of our environment; anything else could change what it does.
KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one test ended.

    Attributes:
        outcome: of its last try.
        text: why it did not pass, the first time.
        tries: how often it was run.
    """

    outcome: Outcome
    text: str = ""
    tries: int = 1


Results = dict[str, Ended]


class SuiteError(Exception):
    """The suite ran no test; the text ends with what its pytest said."""


def run(
    suite: Suite,
    listeners: Doors,
    python: Path,
    folder: Path,
    room: Path,
    say: Callable[[int], None],
    *,
    select: str = "",
    tests: Sequence[str] = (),
) -> Results:
    """Run a suite and return how each test ended, in the order in which they ended.

    Args:
        suite: what to run.
        listeners: the broker.
        python: interpreter of the suites' environment.
        folder: where the suite is unpacked.
        room: where `results.jsonl` and `output.log` of this run are kept.
        say: told the number of tests that have ended, twice a second.
        select: an expression for pytest's `-k`.
        tests: only these, by node id.

    Raises:
        SuiteError: not one test ended.
    """
    room.mkdir(parents=True, exist_ok=True)
    results, log = room / "results.jsonl", room / "output.log"
    results.write_text("")
    log.unlink(missing_ok=True)
    process = ServerProcess(log)
    try:
        process.launch(
            _command(suite, python, folder, select, tests),
            _environment(suite, listeners, results),
            cwd=folder,
        )
        deadline = time.monotonic() + suite.timeout_s
        while process.alive and time.monotonic() < deadline:
            say(results.read_text().count("\n"))
            time.sleep(POLL_INTERVAL_S)
    finally:
        process.close()
    ended = read_results(results.read_text())
    if not ended:
        raise SuiteError(f"{suite.name} ran no test:\n{process.log_tail()}")
    return ended


def read_results(text: str) -> Results:
    """Read what `suite_results` wrote; a line that was cut off by the end of the process is no result."""
    lines = text.split("\n")[:-1]
    rows = [json.loads(line) for line in lines]
    return {row["test"]: Ended(row["outcome"], row["text"]) for row in rows}


def _command(suite: Suite, python: Path, folder: Path, select: str, tests: Sequence[str]) -> list[str | Path]:
    plugins = ("suite_results", "suite_doors", *suite.plugins)
    return [
        *(python, "-m", "pytest", "-c", INSIDE / "pytest.ini", "--rootdir", folder, "--confcutdir", folder),
        *(part for name in plugins for part in ("-p", name)),
        *("-p", "no:cacheprovider", "--tb", "short", "--timeout", str(TEST_TIMEOUT_S)),
        *(part for test in suite.left_out for part in ("--deselect", test)),
        *(("-k", select) if select else ()),
        *(tests or suite.tests),
    ]


def _environment(suite: Suite, listeners: Doors, results: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "PYTHONPATH": str(INSIDE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SUITE_RESULTS": str(results),
        "SUITE_DOORS": listeners.usual() if suite.redirected else "",
        **suite.environment(listeners),
    }

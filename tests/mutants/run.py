"""Runs tests against one mutation until the first is red."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.mutants.mutation import Mutation, MutationError
from tests.mutants.scratch import Scratch

FOUND: Final = "found"
HUNG: Final = "hung"
SURVIVED: Final = "survived"

TEST_TIMEOUT_S: Final = 60
"""Of a test without a longer one of its own."""
EXPECTED_TIMEOUT_S: Final = 300
WHOLE_TIMEOUT_S: Final = 3600
_RED: Final = re.compile(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)(.*)", re.MULTILINE)
_TIMEOUT: Final = re.compile(r"Timeout \(?>")
_NO_TESTS_FAILED: Final = 0
_TESTS_FAILED: Final = 1
_INTERRUPTED: Final = 2
"""By an error while tests were collected, or as a worker of pytest-xdist ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutation.

    Attributes:
        fault: see `Mutation.fault`.
        file: see `Mutation.file`.
        result: `FOUND`; `HUNG`, if the tests found it only because they did not end in time; or `SURVIVED`.
        by: node id of the first red test, without parameters; empty if there was none.
        seconds: how long the tests ran.
        expected: whether one of the tests that are expected to find it did.
    """

    fault: str
    file: str
    result: str
    by: str
    seconds: float
    expected: bool


class Runner:
    """Runs pytest in one copy of the tree."""

    def __init__(self, scratch: Scratch) -> None:
        """A runner has its copy to itself."""
        self._scratch = scratch

    def unmutated(self, mutations: Sequence[Mutation], jobs: int) -> str:
        """Run all tests that are expected to find something in the tree as it is; return the output if one is red."""
        tests = sorted({test for mutation in mutations for test in mutation.tests})
        workers = ["-n", str(jobs), "--dist", "loadgroup"] if jobs > 1 else []
        status, output = self._pytest([*workers, *_nodes(tests)], WHOLE_TIMEOUT_S)
        return "" if status == _NO_TESTS_FAILED else output

    def expected(self, mutation: Mutation) -> Verdict:
        """Run the tests that are expected to find a mutation."""
        return self._verdict(mutation, _nodes(mutation.tests), EXPECTED_TIMEOUT_S, expected=True)

    def whole(self, mutation: Mutation, arguments: Sequence[str]) -> Verdict:
        """Run the whole suite against a mutation that survived; `arguments` are what pytest selects it by."""
        return self._verdict(mutation, arguments, WHOLE_TIMEOUT_S, expected=False)

    def _verdict(
        self, mutation: Mutation, arguments: Sequence[str], limit_s: float, *, expected: bool
    ) -> Verdict:
        """Put the fault in and run pytest.

        Raises:
            MutationError: pytest itself failed, for example because it knows no such test.
        """
        begun = time.monotonic()
        with self._scratch.mutated(mutation):
            status, output = self._pytest(arguments, limit_s)
        seconds = round(time.monotonic() - begun, 1)
        red = _RED.search(output)
        if status is None or status < 0:
            result, by = HUNG, ""
        elif status == _NO_TESTS_FAILED:
            result, by = SURVIVED, ""
        elif status in (_TESTS_FAILED, _INTERRUPTED) and red:
            result, by = HUNG if _TIMEOUT.search(red[2]) else FOUND, red[1].partition("[")[0]
        else:
            raise MutationError(f"{mutation.fault!r}: pytest ended with status {status}\n{output[-2000:]}")
        return Verdict(mutation.fault, mutation.file, result, by, seconds, expected and result != SURVIVED)

    def _pytest(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Run pytest up to the first red test; return its exit status, None if it had to be killed, and its output."""
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
        argv += [f"--timeout={TEST_TIMEOUT_S}", "--tb=no", *arguments]
        process = subprocess.Popen(
            argv,
            cwd=self._scratch.folder,
            env=self._scratch.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            # Processes that a red test left behind would hold the output open, and the next run's ports.
            _kill_group(process)
        return process.returncode, output


def _nodes(tests: Sequence[str]) -> list[str]:
    return [f"tests/{test}" for test in tests]


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()

"""A plugin of `make test`: a test that failed beside others runs once more, alone.

    make test TEST_ARGS="-p no:tests.second_run"          # without it

Five workers share two cores with the nodes, clusters and Sparks that they start, so a wait may end for want of a
processor. Alone, the test has the machine. A test that fails twice is red, and so are more failures than
`SECOND_RUNS_MAX`. Both results are shown: the end of the run names each test that passed the second time only, and its
first failure stands above. Such a failure may also be a race; `make torture` is the place to look for it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

SECOND_RUNS_MAX: Final = 8


class SecondRun:
    """Notes the failures of a run, and has them run again at its end."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}
        self._passed_alone: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test, or of a fixture."""
        if report.failed:
            self._failed[without_group(report.nodeid)] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run again the tests that failed, unless the run was cut or something else went wrong."""
        was_cut = session.shouldstop or session.shouldfail
        if exitstatus != pytest.ExitCode.TESTS_FAILED or was_cut or len(self._failed) > SECOND_RUNS_MAX:
            return
        for test in self._failed:
            command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:tests.second_run", test]
            ended = subprocess.run(command, cwd=session.config.rootpath, check=False)
            self._passed_alone[test] = ended.returncode == 0
        if self._passed_alone and all(self._passed_alone.values()):
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the tests that ran twice, with their second result."""
        for test, passed in self._passed_alone.items():
            result = "passed" if passed else "failed again"
            terminalreporter.write_line(f"failed beside others, {result} alone: {test}", red=not passed)


def without_group(test: str) -> str:
    """Return a test's own name: pytest-xdist appends `@` and its group."""
    return test if test.endswith("]") else test.rpartition("@")[0] or test


def pytest_configure(config: pytest.Config) -> None:
    # Workers report to the process that started them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRun(), "second run")

"""A plugin of pytest that tells where a run's time goes: processor time by file, and how long each worker was busy.

    make test TEST_ARGS="-p tests.processor_time"

The processor time is that of the test, of all processes it started, and of theirs. Not counted is what the orphans of a
killed process use afterwards. What is made for several files (a server, a session of Spark) counts for the first.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.servers.process import descendants

SHOWN: Final = 60
LAST: Final = 3
STRETCH: Final = "stretch"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Stretch:
    """Tests of one file that a worker ran one after the other; times are in seconds."""

    file: str
    tests: int
    processor_s: float
    wall_s: float


def spent_s() -> float:
    """The processor time by now of this process, of those that it ended, and of those that still run."""
    own = os.times()
    ticks = sum(_ticks(pid) for pid, _ in descendants(os.getpid()))
    return own.user + own.system + own.children_user + own.children_system + ticks / _TICKS_PER_S


def _ticks(pid: int) -> int:
    """Of a process, and of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))


class Clock:
    """Notes stretches: a worker tells each with the report of its last test, and whoever shows them keeps them."""

    def __init__(self) -> None:
        self._begun: tuple[str, float, float] | None = None
        self._tests = 0
        self._is_last = False
        self.workers: dict[str, list[Stretch]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """A test begins, perhaps the last of its file."""
        if self._begun is None:
            self._begun = (item.nodeid.partition("::")[0], spent_s(), time.monotonic())
        self._tests += 1
        self._is_last = nextitem is None or nextitem.path != item.path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell a stretch that has ended."""
        report = yield
        if call.when == "teardown" and self._is_last and self._begun is not None:
            file, processor_s, at_s = self._begun
            stretch = [file, self._tests, spent_s() - processor_s, time.monotonic() - at_s]
            report.user_properties.append((STRETCH, [f"process {os.getpid()}", *stretch]))
            self._begun, self._tests = None, 0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a stretch."""
        told: Any
        for name, told in report.user_properties:
            if name == STRETCH:
                self.workers[told[0]].append(Stretch(*told[1:]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the files by their processor time, and the workers."""
        files: dict[str, Stretch] = defaultdict(lambda: Stretch("", 0, 0.0, 0.0))
        for each in (each for stretches in self.workers.values() for each in stretches):
            total = files[each.file]
            total.tests += each.tests
            total.processor_s += each.processor_s
            total.wall_s += each.wall_s
        say = terminalreporter.write_line
        say(f"{sum(each.processor_s for each in files.values()):9.1f} s of processor time, by file:")
        costly = sorted(files.items(), key=lambda item: -item[1].processor_s)
        for file, total in costly[:SHOWN]:
            say(f"{total.processor_s:9.1f} s in {total.wall_s:7.1f} s, {total.tests:4} tests: {file}")
        for worker, stretches in sorted(self.workers.items()):
            last = ", ".join(f"{Path(each.file).name} {each.wall_s:.0f} s" for each in stretches[-LAST:])
            say(f"{worker} was busy for {sum(each.wall_s for each in stretches):.0f} s, at last with {last}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Clock(), "processor time")

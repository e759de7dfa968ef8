"""A plugin of pytest that tells where a run's time goes: processor time by file, and how long each worker was busy.

    make test TEST_ARGS="-p tests.processor_time"

The processor time is that of the test, of all processes it started, and of theirs. Not counted is what the orphans of a
killed process use afterwards. What is made for several files (a server, a session of Spark) counts for the first.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from leveret.testing.servers.process import descendants

SHOWN: Final = 60
LAST: Final = 3
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
    """Notes stretches; whoever runs no test of its own gets them from the workers."""

    def __init__(self) -> None:
        self._begun: tuple[str, float, float] | None = None
        self._tests = 0
        self.stretches: list[Stretch] = []
        self.workers: dict[str, list[Stretch]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """A test begins; the stretch of another file has ended."""
        file = item.nodeid.partition("::")[0]
        if self._begun is None or self._begun[0] != file:
            self._end()
            self._begun = (file, spent_s(), time.monotonic())
        self._tests += 1

    def _end(self) -> None:
        if self._begun is not None:
            file, processor_s, at_s = self._begun
            self.stretches.append(
                Stretch(file, self._tests, spent_s() - processor_s, time.monotonic() - at_s)
            )
        self._begun, self._tests = None, 0

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker hands over its stretches."""
        self._end()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["stretches"] = [list(vars(each).values()) for each in self.stretches]
        elif self.stretches:
            self.workers["main"] = self.stretches

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that died handed over nothing."""
        output = getattr(node, "workeroutput", {})
        self.workers[node.gateway.id] = [Stretch(*each) for each in output.get("stretches", [])]

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

"""A plugin of `make test` and `make test-fast`: the tests are collected once, and forked processes then share them.

Each worker of pytest-xdist imports and collects all tests itself, and its scheduler that keeps groups counts all tests
that a worker ever had after each one. Here the workers are forks of the process that has collected. They take the next
few tests in turns, and send back the reports that say something. One of them takes all tests of a group
(`pytest.mark.xdist_group`): the groups of several files first, as they take longest, then the largest ones.

    make test-fast TEST_ARGS="--processes 4"
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final, NoReturn

import pytest
from _pytest._io import TerminalWriter

from leveret.testing.servers import warm_start

TESTS_AT_ONCE: Final = 8
"""Tests of one file that a process takes at once: what is made for a file is then made in few of them."""
END_S: Final = 30.0
"""The time in which a process ends what its test has begun, when the run is cut."""
_LENGTH: Final = struct.Struct("=I")


def pytest_addoption(parser: pytest.Parser) -> None:
    # One more than there are cores, as some tests wait for a thread, a socket or a moment.
    processes = (os.cpu_count() or 1) + 1
    parser.addoption("--processes", type=int, default=processes, help="Processes that share the tests.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; None leaves them to pytest, or to pytest-xdist."""
    config = session.config
    count = config.getoption("processes")
    others = hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"
    if count < 2 or others or config.option.collectonly or session.testsfailed:
        return None
    # Where processor time is counted, each worker has its own: what is forked from another's counts for nobody.
    is_counted = config.pluginmanager.hasplugin("tests.processor_time")
    if not is_counted and any(item.get_closest_marker("process") for item in session.items):
        warm_start.share()
    taken, offered = os.pipe()
    shares = shares_of(session.items)
    for number in range(len(shares)):
        os.write(offered, _LENGTH.pack(number))
    os.close(offered)
    # Made before the forks, so that it goes with the directories of other runs.
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    workers = [Worker(session, shares, taken, folder / f"process{number}") for number in range(count)]
    try:
        follow(session, workers)
    finally:
        for worker in workers:
            worker.cut()
        for worker in workers:
            worker.end()
    return True


def shares_of(items: Sequence[pytest.Item]) -> list[Sequence[pytest.Item]]:
    """Cut the tests into shares: groups, then a few tests of one file each, in their order."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    shares: list[list[pytest.Item]] = []
    for item in items:
        if (mark := item.get_closest_marker("xdist_group")) is not None:
            groups[mark.args[0]].append(item)
            continue
        if not shares or len(shares[-1]) == TESTS_AT_ONCE or shares[-1][0].path != item.path:
            shares.append([])
        shares[-1].append(item)
    files = {name: len({item.path for item in group}) for name, group in groups.items()}
    first = sorted(groups, key=lambda name: (-files[name], -len(groups[name])))
    return [*(groups[name] for name in first), *shares]


class Worker:
    """A fork, seen from its parent.

    Attributes:
        running: the test that it runs.
        reports: the end of the pipe from which its messages come.
    """

    def __init__(
        self, session: pytest.Session, shares: Sequence[Sequence[pytest.Item]], taken: int, folder: Path
    ) -> None:
        """Fork; the child runs tests until none is left, with a folder for their files, and never returns."""
        self.running = "the start of a process"
        self.reports, sent = os.pipe()
        self._buffer = bytearray()
        self._pid = os.fork()
        if not self._pid:
            os.close(self.reports)
            run(session, shares, taken, folder, sent)
        os.close(sent)

    def messages(self) -> list[tuple[str, Any]] | None:
        """What has come; None at the end."""
        octets = os.read(self.reports, 1 << 16)
        if not octets:
            return None
        self._buffer += octets
        found = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                break
            found.append(pickle.loads(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return found

    def has_died(self) -> bool:
        """Wait for its end, which has begun; whether it had not run all of its tests."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return status != 0

    def cut(self) -> None:
        """Have it end what its test has begun, and itself, if it is not over."""
        os.close(self.reports)
        if self._pid:
            os.kill(self._pid, signal.SIGINT)

    def end(self) -> None:
        """Wait for the end of one that was cut; kill it if that takes too long."""
        deadline_s = time.monotonic() + END_S
        while self._pid and not os.waitpid(self._pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline_s:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            time.sleep(0.01)


def follow(session: pytest.Session, workers: Sequence[Worker]) -> None:
    """Pass on what the workers report, until all are over.

    Raises:
        Session.Interrupted: a worker died, or the run is to stop. Session.Failed: there were failures enough.
    """
    hook, config = session.config.hook, session.config
    with DefaultSelector() as selector:
        for each in workers:
            selector.register(each.reports, EVENT_READ, each)
        while selector.get_map():
            for key, _ in selector.select():
                worker: Worker = key.data
                messages = worker.messages()
                if messages is None:
                    selector.unregister(worker.reports)
                    if worker.has_died():
                        said = f"a process of the tests died in {worker.running}"
                        place = (worker.running.partition("::")[0], None, worker.running)
                        died = pytest.TestReport(worker.running, place, {}, "failed", said, "call")
                        hook.pytest_runtest_logreport(report=died)
                        raise session.Interrupted(said)
                for kind, value in messages or ():
                    if kind == "begins":
                        worker.running = value
                    elif kind == "ends":
                        hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
                    else:
                        report = hook.pytest_report_from_serializable(config=config, data=value)
                        hook.pytest_runtest_logreport(report=report)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


# -- in a fork ------------------------------------------------------------------------------------


def run(
    session: pytest.Session, shares: Sequence[Sequence[pytest.Item]], taken: int, folder: Path, sent: int
) -> NoReturn:
    """Run shares until none is left, and end the process, with status 0 if nothing went wrong but tests."""
    status = 1
    try:
        plugins = session.config.pluginmanager
        # Others write by it, so it has to be there: into nothing, as its parent tells what it would.
        terminal: Any = plugins.getplugin("terminalreporter")
        terminal._tw = TerminalWriter(open(os.devnull, "w"))  # noqa: SIM115
        capture: Any = plugins.getplugin("capturemanager")
        # The files of the parent, with their positions, are those of all forks.
        capture.stop_global_capturing()
        capture.start_global_capturing()
        plugins.register(Reporting(session.config, sent))
        folder.mkdir(mode=0o700)
        session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        # Which hooks are those of a test's folder is found out anew many times for each test.
        setattr(session, "gethookproxy", cache(session.gethookproxy))  # noqa: B010
        tests = chain.from_iterable(shares[number] for number in numbers(taken))
        try:
            for item, following in pairwise(chain(tests, (None,))):
                assert item is not None
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            status = 0
        except (KeyboardInterrupt, BrokenPipeError):
            # The run is cut, and nobody listens any more.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            session._setupstate.teardown_exact(None)
    finally:
        os._exit(status)


def numbers(taken: int) -> Iterator[int]:
    """The numbers of the shares that this process gets."""
    while octets := os.read(taken, _LENGTH.size):
        yield _LENGTH.unpack(octets)[0]


class Reporting:
    """A plugin of a fork: sends what happens to the parent."""

    def __init__(self, config: pytest.Config, sent: int) -> None:
        """With `--durations`, reports without a word count too."""
        self._config = config
        self._sent = sent
        self._sends_all = config.getoption("durations") is not None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send("begins", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._sends_all or report.when == "call" or not report.passed or report.user_properties:
            hook = self._config.hook
            self._send("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("ends", (nodeid, location))

    def _send(self, kind: str, value: object) -> None:
        octets = pickle.dumps((kind, value))
        octets = _LENGTH.pack(len(octets)) + octets
        while octets:
            octets = octets[os.write(self._sent, octets) :]

"""What every test gets: Hypothesis profiles, an event loop, a worker for what is shared, no run of nothing."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis.errors import HypothesisException

from leveret.testing.servers import warm_start
from tests.endings import with_endings

TESTS = Path(__file__).parent
RABBITMQ_SERVER = shutil.which("rabbitmq-server", path="/usr/sbin:/usr/lib/rabbitmq/bin")

# A run is the same every time, so a red test is the change's fault; new cases are `make fuzz`'s task.
settings.register_profile("quick", max_examples=40, derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "fuzz", max_examples=5_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")

# Fixtures behind which a server runs.
SERVERS = frozenset({"object_store", "any_store", "hdfs", "spark", "sink", "sinks", "tls", "authority"})

# It takes twenty seconds of processor time; other workers wait for the one that makes it.
CLASS_ARCHIVE_TIMEOUT_S = 300.0

# What `make fuzz` gives all property tests together; each has its share of it.
FUZZ_SECONDS = os.environ.get("FUZZ_SECONDS")
SHARE_S = pytest.StashKey[float]()


# First, because pytest-xdist reads the groups and pytest the markers in this same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        part = part_of(item.path)
        if part == "conformance":
            item.add_marker(pytest.mark.conformance)
        if starts_processes(item):
            item.add_marker(pytest.mark.process)
        if item.get_closest_marker("spark"):
            # Nodes start Spark in e2e, each its own: one test at a time, beside the one Spark that others share.
            item.add_marker(pytest.mark.xdist_group("stories" if part == "e2e" else "spark"))
        elif (module := module_shared(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(module))
        if item.get_closest_marker("rabbitmq") and RABBITMQ_SERVER is None:
            item.add_marker(
                pytest.mark.skip(reason="no rabbitmq-server: `tools/setup test` as root installs it")
            )


@cache
def part_of(path: Path) -> str:
    """The folder of `tests` that a file is in; asked for each of ten thousand tests."""
    return path.relative_to(TESTS).parts[0]


def starts_processes(item: pytest.Item) -> bool:
    """Whether this is known of the test without a marker of its own: `tests/no_processes.py` holds the others to it."""
    called_with = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    return (
        bool(SERVERS.intersection(getattr(item, "fixturenames", ())))
        or called_with.get("data_dir") == "store"
        or any(item.get_closest_marker(name) for name in ("spark", "rabbitmq"))
        or part_of(item.path) not in ("unit", "tools")
    )


def module_shared(item: pytest.Item) -> str | None:
    """The module, if something is made once for it that takes a process: one worker makes it then, and not each."""
    if not item.get_closest_marker("process") or any(item.iter_markers("xdist_group")):
        return None
    fixtures = getattr(item, "_fixtureinfo", None)
    made = () if fixtures is None else (each[-1] for each in fixtures.name2fixturedefs.values())
    return item.path.name if any(each.scope == "module" for each in made) else None


def pytest_configure(config: pytest.Config) -> None:
    # Nothing of what is collected goes before the end: to look for garbage takes each worker a third of the time. What
    # only starts workers collects nothing.
    if config.getoption("dist", "no") == "no":
        gc.disable()
    # Two thousand starts of nodes and commands, which else import for longer than they run.
    warm_start.enable()
    # httpx lays out all authorities that it knows for each client it makes, also for plain HTTP: 20 ms of processor
    # time, for tens of thousands of requests on loopback.
    os.environ["SSL_CERT_FILE"] = str(TESTS / "nobodys_authority.pem")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    tests = sum(hasattr(getattr(item, "obj", None), "hypothesis") for item in session.items)
    if FUZZ_SECONDS and tests:
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        session.config.stash[SHARE_S] = float(FUZZ_SECONDS) * workers / tests
    if (
        any(item.get_closest_marker("spark") for item in session.items)
        and not session.config.option.collectonly
    ):
        make_class_archive()


def make_class_archive() -> None:
    """Have Spark start in half of the time, once for this clone.

    The nodes of tests would each begin to, at the lowest priority, and be killed with their test before there is one.
    """
    code = (
        "import sys; from leveret.pipeline.transfer.class_archive import make_archive; "
        "make_archive(float(sys.argv[1]))"
    )
    # Where there is no Java, the tests that need it say so.
    subprocess.run(
        [sys.executable, "-c", code, str(CLASS_ARCHIVE_TIMEOUT_S)], capture_output=True, check=False
    )


class _TimeIsOver(SkipTest):  # which Hypothesis lets through at once
    """A property test has held for as long as it was given."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Take no more examples when a property test's share is used up; one that failed is shrunk in peace."""
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    share_s = pyfuncitem.config.stash.get(SHARE_S, None)
    if handle is None or share_s is None:
        return (yield)
    test, deadline = handle.inner_test, time.monotonic() + share_s

    @wraps(test)
    def bounded(*arguments: Any, **named: Any) -> None:
        nonlocal deadline
        try:
            test(*arguments, **named)
        except HypothesisException:
            raise
        except Exception:
            deadline = float("inf")
            raise
        # Not before the test: Hypothesis minds when less is drawn than the last time.
        if time.monotonic() > deadline:
            raise _TimeIsOver("its share of the time is used up")

    handle.inner_test = bounded
    try:
        return (yield)
    except _TimeIsOver:
        return True
    finally:
        handle.inner_test = test


@pytest.hookimpl(tryfirst=True, specname="pytest_pyfunc_call")
def pytest_run_coroutine(pyfuncitem: pytest.Function) -> bool | None:
    """Give a test that is a coroutine an event loop of its own, of a node's kind if it is marked so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    factory = uvloop.new_event_loop if pyfuncitem.get_closest_marker("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(with_endings(pyfuncitem.obj(**arguments)))
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line("Not one test was selected, and that counts as a failure.", red=True)


@pytest.fixture(scope="session")
def object_store() -> Iterator[Any]:
    """A server that speaks S3 (`ObjectStore`), found by what is in the environment."""
    # Half a second of imports, for the few tests that ask.
    from leveret.testing.servers.object_store import ObjectStore

    with ObjectStore() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Any]:
    """A namenode and a datanode (`Hdfs`)."""
    from leveret.testing.servers.hdfs import Hdfs, available

    if reason := available():
        pytest.skip(reason)
    with Hdfs() as hdfs:
        yield hdfs


# With Spark's tests, so that it starts once.
@pytest.fixture(params=["object_store", pytest.param("hdfs", marks=pytest.mark.xdist_group("spark"))])
def any_store(request: pytest.FixtureRequest) -> Any:
    """Each kind of store that is no disk; both have `new_place` and `outage`."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["disk", "store"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An archive's place (`Place`) on this machine, and one in an object store."""
    from leveret.pipeline.files.files import place_of

    if request.param == "disk":
        return tmp_path
    return place_of(request.getfixturevalue("object_store").new_place())

"""Spark, once for all tests of this folder; pipeline processes; a promoted node's stand-in."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from pyspark.sql import SparkSession

from leveret.pipeline.jobs.job import RecoverJob, SparkSettings
from leveret.pipeline.recovery.driver import run_recovery
from leveret.pipeline.spark.session import start_session
from leveret.testing.network.ports import NotReady
from leveret.testing.servers.process import cpu_seconds, descendants

OF_THEIR_OWN = pytest.mark.xdist_group("processes")
"""Of tests whose processes start Spark: a worker of their own runs them, beside the one Spark of the others."""
PATIENCE_S = 90.0
OF_EXECUTORS = "7hG0-known-to-executors-alone"
PATIENCE_CPU_S = 40.0
"""Starting Spark takes fifteen, however long they last on a machine that is busy."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, object_store: object) -> Iterator[SparkSession]:
    """One session of two threads, whose tasks retry and find the object store."""
    scratch = tmp_path_factory.mktemp("spark")
    conf = {"spark.sql.shuffle.partitions": "1", "spark.executorEnv.AWS_SECRET_ACCESS_KEY": OF_EXECUTORS}
    settings = SparkSettings(master="local[2,4]", conf=conf)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"):
            if name in os.environ:
                patch.setenv(name, os.environ[name])
            else:
                patch.delenv(name, raising=False)
        session = start_session("tests", settings, scratch)
        yield session
        session.stop()


class Patience:
    """Is over when a process has brought nothing new, neither for long nor with the processor time to do so."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since_s, self._since_cpu_s = time.monotonic(), self._cpu_s()

    def renew(self) -> None:
        """There is something new."""
        self._since_s, self._since_cpu_s = time.monotonic(), self._cpu_s()

    @property
    def is_over(self) -> bool:
        """If it is not, and nothing ever happens, the test's own time limit ends it."""
        if time.monotonic() - self._since_s < PATIENCE_S:
            return False
        return self._cpu_s() - self._since_cpu_s > PATIENCE_CPU_S

    def _cpu_s(self) -> float:
        used = 0.0
        for pid in [self._pid, *(child for child, _ in descendants(self._pid))]:
            with suppress(NotReady):
                used += cpu_seconds(pid)
        return used


class PipelineChild:
    """A pipeline process and what it has said."""

    def __init__(self, task: str, job: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leveret.pipeline", task], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.send(job)

    def send(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def end_input(self) -> None:
        """Nothing more is to be done."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event from now on for which `holds`."""
        patience = Patience(self.process.pid)
        said: set[str] = set()
        while True:
            try:
                event: dict[str, Any] = json.loads(self._lines.get(timeout=1.0))
            except queue.Empty:
                assert not patience.is_over, f"nothing new; it said {self.events[-5:]}"
                continue
            self.events.append(event)
            if holds(event):
                return event
            progress = repr({key: value for key, value in event.items() if key not in ("at_ms", "after_ms")})
            if progress not in said:
                said.add(progress)
                patience.renew()
            assert not patience.is_over, f"nothing new; it said {self.events[-5:]}"

    def kill9(self) -> None:
        """Kill the driver, and nothing else: its children have to notice."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def wait(self) -> int:
        """Its exit status; events up to the end are in `events`."""
        patience = Patience(self.process.pid)
        while True:
            try:
                status = self.process.wait(1.0)
                break
            except subprocess.TimeoutExpired:
                assert not patience.is_over, f"it does not end; it said {self.events[-5:]}"
        self._reader.join(10)
        with suppress(queue.Empty):
            while True:
                self.events.append(json.loads(self._lines.get_nowait()))
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill9()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):
            for line in self.process.stdout:
                self._lines.put(line)


@pytest.fixture
def start_pipeline() -> Iterator[Callable[[str, dict[str, Any]], PipelineChild]]:
    """Start a pipeline process; none outlives the test."""
    children: list[PipelineChild] = []

    def start(task: str, job: dict[str, Any]) -> PipelineChild:
        children.append(PipelineChild(task, job))
        return children[-1]

    yield start
    for child in children:
        child.close()


class Said:
    """Stands for a recovery's console: keeps the events, and hands each to a caller that listens."""

    def __init__(self, listener: Callable[[dict[str, Any]], None] | None) -> None:
        self.events: list[dict[str, Any]] = []
        self._listener = listener

    def say(self, event: str, **details: Any) -> None:
        self.pass_on({"event": event, **details})

    def pass_on(self, event: dict[str, Any]) -> None:
        # As a parent process reads it.
        self.events.append(msgspec.json.decode(msgspec.json.encode(event)))
        if self._listener is not None:
            self._listener(self.events[-1])


class Recover(Protocol):
    """Do a recovery's job on the tests' own session; returns the events, the last of them `done`."""

    def __call__(
        self, job: dict[str, Any] | RecoverJob, listener: Callable[[dict[str, Any]], None] | None = None
    ) -> list[dict[str, Any]]: ...


@pytest.fixture
def recover(spark: SparkSession) -> Recover:
    """For tests that kill nothing: a process of its own starts Spark for five seconds of processor time."""

    def run(
        job: dict[str, Any] | RecoverJob, listener: Callable[[dict[str, Any]], None] | None = None
    ) -> list[dict[str, Any]]:
        said = Said(listener)
        decoded = job if isinstance(job, RecoverJob) else msgspec.convert(job, RecoverJob)
        run_recovery(decoded, said, spark)  # type: ignore[arg-type]  # a stand-in
        return said.events

    return run


@pytest.fixture
def transfer_job(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A transfer's job from upstreams on these loopback ports."""

    def job(*ports: int, **changes: Any) -> dict[str, Any]:
        return {
            "data_dir": str(tmp_path / "standby"),
            "reference": "eu.2",
            "endpoints": [f"127.0.0.1:{port}" for port in ports],
            "credentials": {"username": "standby", "password": "secret"},
            "vhosts": ["/"],
            "batch_interval_ms": 50,
            "timeout_s": 2.0,
        } | changes

    return job


@pytest.fixture
def recover_job(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A recovery's job into a node on this loopback port."""

    def job(port: int, **changes: Any) -> dict[str, Any]:
        return {
            "data_dir": str(tmp_path / "standby"),
            "endpoint": f"127.0.0.1:{port}",
            "credentials": {"username": "guest", "password": "guest"},
        } | changes

    return job

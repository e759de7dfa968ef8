"""Starts the load generator's processes together, and computes rates from their samples.

Throughput is the number of messages between two moments after the warm-up: delivered ones, or confirmed ones if there
is no consumer. The broker's processor time is read at the same two moments. Every run ends with a comparison of
counts: a message that was lost or delivered twice makes the run an error without a figure.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self

from bench.client import Connection, LoadError
from bench.contenders import Node
from bench.load import ConsumeJob, PublishJob
from bench.process import Result

ROOT: Final = Path(__file__).resolve().parent.parent
RESULT_TIMEOUT_S: Final = 120.0
_OWN_ENVIRONMENT: Final = dict(os.environ)
"""The environment of workers, which must not change with that of the nodes (bench.contenders.Checkout)."""
QUEUE: Final = "bench"


@dataclass(frozen=True)
class Throughput:
    """The outcome of one run.

    Attributes:
        rate: messages a second.
        broker_cpu_us: the broker's processor time for a message, in microseconds.
        load_cpu_us: the load generator's processor time for a message, in microseconds.
        published: the number of messages of the whole run, warm-up included.
        behind: the number of published messages that were not yet delivered at the end of the measured span.
        ages_us: percentiles of the messages' age, by name; empty without stamps.
    """

    rate: float
    broker_cpu_us: float
    load_cpu_us: float
    published: int
    behind: int
    ages_us: dict[str, float] = field(default_factory=dict)


class Job(Protocol):
    """The job of a process, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    role: str


class Worker:
    """One process of the load generator; a context manager that leaves none behind."""

    def __init__(self, job: Job, module: str = "bench.load") -> None:
        """Start `module` with a job."""
        self._role = job.role
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dataclasses.asdict(job))],
            cwd=ROOT,
            env=_OWN_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        # Closes the pipes, too.
        with self._process:
            self._process.wait()

    def ready(self) -> Self:
        """Wait until the process has connected and encoded its messages."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise self._failure()
        return self

    def go(self) -> None:
        """Let the process work."""
        self._write("go\n")

    def report(self, total: int) -> None:
        """Send a consumer the total number of messages, at which it ends."""
        self._write(f"{total}\n")

    def end(self) -> None:
        """Order a process without an end of its own to end."""
        self._write("end\n")

    def result(self, timeout_s: float = RESULT_TIMEOUT_S) -> Result:
        """Wait for the end of the work; return its result.

        Raises:
            LoadError: the process failed, or took longer.
        """
        try:
            text, error = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LoadError(f"{self._role}: no end after {timeout_s:g} s") from None
        if self._process.returncode != 0:
            raise LoadError(error.strip() or f"{self._role}: status {self._process.returncode}")
        result = json.loads(text)
        result["samples"] = [(moment, count) for moment, count in result["samples"]]
        return Result(**result)

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> LoadError:
        error = self._process.communicate()[1]
        return LoadError(error.strip() or f"{self._role}: ended with {self._process.returncode}")


def count_at(samples: list[tuple[float, int]], moment: float) -> float:
    """Return the count at a moment, interpolated linearly between two samples."""
    after = bisect.bisect_left(samples, (moment, 0))
    if after == 0:
        return 0.0
    if after == len(samples):
        return float(samples[-1][1])
    (left, low), (right, high) = samples[after - 1], samples[after]
    return low + (high - low) * (moment - left) / (right - left)


def rate_between(samples: list[tuple[float, int]], start: float, end: float) -> float:
    """Return the messages a second between two moments."""
    return (count_at(samples, end) - count_at(samples, start)) / (end - start)


def sleep_until(moment: float) -> None:
    """Sleep until this time of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def publish_only(node: Node, job: PublishJob, warmup_s: float) -> Throughput:
    """Publish for `warmup_s` and `job.seconds` into a queue without consumers; then delete the queue."""
    connection = Connection(node.amqp_port)
    connection.declare_queue(job.queue)
    job = dataclasses.replace(job, seconds=warmup_s + job.seconds)
    try:
        with Worker(job) as publisher:
            run = alone(node, publisher, warmup_s, job.seconds - warmup_s)
        _expect(run.published, connection.ready_messages(job.queue), "in the queue")
    finally:
        connection.delete_queue(job.queue)
        connection.close()
    return run


def together(
    node: Node, job: PublishJob, consume: ConsumeJob, warmup_s: float, *, durable: bool = True
) -> Throughput:
    """Publish and consume at the same time for `warmup_s` and `job.seconds`; then drain and delete the queue."""
    connection = Connection(node.amqp_port)
    connection.declare_queue(job.queue, durable=durable)
    job = dataclasses.replace(job, seconds=warmup_s + job.seconds)
    try:
        with Worker(consume) as consumer, Worker(job) as publisher:
            return measured(node, publisher, consumer, warmup_s, job.seconds - warmup_s)
    finally:
        connection.delete_queue(job.queue)
        connection.close()


def alone(node: Node, publisher: Worker, warmup_s: float, seconds: float) -> Throughput:
    """Run a publisher without a consumer, and measure `seconds` after the warm-up."""
    publisher.ready().go()
    start, end, cpu_s = _watch(node, warmup_s, seconds)
    result = publisher.result()
    return _throughput(result, result, start, end, cpu_s)


def drained(node: Node, consumer: Worker, count: int) -> Throughput:
    """Have a consumer read the queue's `count` messages; measure from its first to its last."""
    before_s = node.cpu_seconds()
    consumer.ready().go()
    consumer.report(count)
    result = consumer.result()
    _expect(count, result.count, "delivered")
    last = next(moment for moment, seen in result.samples if seen == count)
    return Throughput(
        rate=rate_between(result.samples, result.samples[0][0], last),
        broker_cpu_us=(node.cpu_seconds() - before_s) / count * 1e6,
        load_cpu_us=result.cpu_s / count * 1e6,
        published=count,
        behind=0,
    )


def measured(
    node: Node, publisher: Worker, consumer: Worker, warmup_s: float, seconds: float, copies: int = 1
) -> Throughput:
    """Run both workers, measure `seconds` after the warm-up, and check that each message came out `copies` times."""
    consumer.ready().go()
    publisher.ready().go()
    start, end, cpu_s = _watch(node, warmup_s, seconds)
    published = publisher.result()
    consumer.report(copies * published.count)
    consumed = consumer.result()
    _expect(copies * published.count, consumed.count, "delivered")
    return _throughput(published, consumed, start, end, cpu_s)


def _watch(node: Node, warmup_s: float, seconds: float) -> tuple[float, float, float]:
    """Wait while the workers work; return the begin and the end of the measured span, and the broker's time in it."""
    start = time.monotonic() + warmup_s
    sleep_until(start)
    before_s = node.cpu_seconds()
    end = start + seconds
    sleep_until(end)
    return start, end, node.cpu_seconds() - before_s


def _throughput(published: Result, counted: Result, start: float, end: float, cpu_s: float) -> Throughput:
    rate = rate_between(counted.samples, start, end)
    if rate <= 0:
        raise LoadError("not one message in the measured span")
    load_s = published.cpu_s + (counted.cpu_s if counted is not published else 0.0)
    return Throughput(
        rate=rate,
        broker_cpu_us=cpu_s / (rate * (end - start)) * 1e6,
        load_cpu_us=load_s / published.count * 1e6,
        published=published.count,
        behind=round(count_at(published.samples, end) - count_at(counted.samples, end)),
        ages_us=counted.ages_us,
    )


def _expect(published: int, found: int, where: str) -> None:
    if published != found:
        raise LoadError(f"{published} messages published, {found} {where}")

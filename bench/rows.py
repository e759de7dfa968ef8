"""Scenarios, their rows and their readings; the rows of one queue on one node.

A scenario runs on one broker. It gets a running node, returns one reading for each of its rows, and deletes its queues.
It knows neither the other brokers nor the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bench.client import LoadError
from bench.contenders import LAVINMQ, LEVERET, RABBITMQ, Node
from bench.load import ConsumeJob, PublishJob
from bench.workers import QUEUE, Throughput, publish_only, together

LATENCY_RATE: Final = 5_000
WINDOW: Final = 1_000
RATIO_MIN: Final = 5.0
LATENCY_P99_MS_MAX: Final = 10.0


@dataclass(frozen=True)
class Target:
    """A limit for Leveret's figure in a row.

    Attributes:
        of: the compared figure: `value` is Leveret's median, `ratio` is Leveret's median divided by RabbitMQ's, and
            `share` is Leveret's median divided by its median in `of_row`, an earlier row of the run.
        limit: the lowest figure that meets the target if higher is better, else the highest.
    """

    of: Literal["value", "ratio", "share"]
    limit: float
    of_row: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    target: Target | None = None


@dataclass(frozen=True)
class Reading:
    """The outcome of one round in one row.

    Attributes:
        value: the figure, in the row's unit.
        cpu_us: the broker's processor time for a message, in microseconds; None in rows where it means nothing.
        details: more figures for bench.json.
    """

    value: float
    cpu_us: float | None = None
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """The lengths and sizes of a run.

    Attributes:
        seconds: the measured span of a throughput or latency run, after `warmup_s`.
        rounds: the number of rounds of each scenario on each broker; the brokers take turns.
        backlog: the number of messages of the backlog scenario.
        large_backlog: the number of messages for the start with a larger backlog.
        folder: the folder of the nodes' data.
        quick: a quick run only shows that each row works; its figures are not for publication.
    """

    seconds: float
    warmup_s: float
    rounds: int
    backlog: int
    folder: Path
    large_backlog: int = 5_000_000
    quick: bool = False


@dataclass(frozen=True)
class Scenario:
    """A load that fills one row or more.

    Attributes:
        run: runs one round on a started node; returns a reading for each row.
        once: whether it runs one round only, because a round takes long and moves gigabytes.
        brokers: the brokers on which it can run.
        makers: by broker, makes the node on which it runs; None for a single node.
    """

    rows: tuple[Row, ...]
    run: Callable[[Node, Settings], dict[str, Reading]]
    once: bool = False
    brokers: tuple[str, ...] = (LEVERET, RABBITMQ, LAVINMQ)
    makers: Mapping[str, Callable[[Path], Node]] | None = None


def run_publish(node: Node, settings: Settings) -> Throughput:
    """Publish as fast as the broker confirms."""
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.seconds)
    return publish_only(node, job, settings.warmup_s)


def run_together(node: Node, settings: Settings) -> Throughput:
    """Publish as fast as the broker confirms, and consume at the same time."""
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.seconds)
    return together(node, job, ConsumeJob(node.amqp_port, QUEUE), settings.warmup_s)


def _small(node: Node, settings: Settings) -> dict[str, Reading]:
    port = node.amqp_port
    job = PublishJob(port, QUEUE, body_bytes=16, persistent=False, window=0, seconds=settings.seconds)
    run = together(node, job, ConsumeJob(port, QUEUE), settings.warmup_s, durable=False)
    return {"small": reading(run)}


def _latency(node: Node, settings: Settings) -> dict[str, Reading]:
    run = paced(node, settings)
    return {
        f"latency-{name}": Reading(run.ages_us[name] / 1000, run.broker_cpu_us, run.ages_us)
        for name in ("p50", "p99")
    }


def paced(node: Node, settings: Settings) -> Throughput:
    """Publish at a steady rate and consume; return the run with the messages' ages.

    Raises:
        LoadError: the broker did not keep up.
    """
    port = node.amqp_port
    job = PublishJob(port, QUEUE, window=WINDOW, seconds=settings.seconds, rate=LATENCY_RATE)
    # The consumer acks with every read, so that the prefetch never delays a delivery.
    consume = ConsumeJob(port, QUEUE, ack_every=1, stamped=True, warmup_s=settings.warmup_s)
    run = together(node, job, consume, settings.warmup_s)
    if run.rate < 0.98 * LATENCY_RATE and not settings.quick:
        raise LoadError(f"{run.rate:.0f} messages/s came out where {LATENCY_RATE} went in")
    return run


def reading(run: Throughput) -> Reading:
    """Return a throughput run as a row's reading."""
    details = {
        "load_cpu_us": run.load_cpu_us,
        "published": float(run.published),
        "behind": float(run.behind),
    }
    return Reading(run.rate, run.broker_cpu_us, details)


PUBLISH: Final = Scenario(
    (Row("publish", "publish, 1000 B persistent, confirms, window 1000", "msg/s", True),),
    lambda node, settings: {"publish": reading(run_publish(node, settings))},
)
TOGETHER: Final = Scenario(
    (
        Row(
            "together",
            "publish and consume together, 1000 B persistent, confirms, window 1000",
            "msg/s",
            True,
            Target("ratio", RATIO_MIN),
        ),
    ),
    lambda node, settings: {"together": reading(run_together(node, settings))},
)
SMALL: Final = Scenario(
    (
        Row(
            "small",
            "publish and consume together, 16 B transient, no confirms",
            "msg/s",
            True,
            Target("ratio", RATIO_MIN),
        ),
    ),
    _small,
)
LATENCY: Final = Scenario(
    (
        Row("latency-p50", f"end-to-end latency at {LATENCY_RATE:,}/s, p50", "ms", False),
        Row(
            "latency-p99",
            f"end-to-end latency at {LATENCY_RATE:,}/s, p99",
            "ms",
            False,
            Target("value", LATENCY_P99_MS_MAX),
        ),
    ),
    _latency,
)

"""What is measured on one node: each scenario runs on one broker and fills one row or more.

A scenario knows nothing of the other broker and nothing of rounds; it gets a running node, leaves
no queue behind, and returns one reading for each of its rows.
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
    """What issue and design ask of Leveret.

    Attributes:
        of: `value` compares Leveret's own median, `ratio` its relation to RabbitMQ's, `share` its relation
            to Leveret's own in `of_row`, a row before this one in the same run.
        limit: at least this where higher is better, at most this where lower is.
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
    """One round's outcome of one row.

    Attributes:
        value: in the row's unit.
        cpu_us: processor time of the broker a message, where that means something.
        details: more numbers, for bench.json.
    """

    value: float
    cpu_us: float | None = None
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How long and how much.

    Attributes:
        seconds: measured span of a throughput or latency run, after `warmup_s`.
        rounds: how often each scenario runs on each broker, in turns.
        backlog: messages of the backlog scenario.
        large_backlog: messages that a restart is to be quick with.
        folder: where nodes keep their data.
        quick: the run is to show that it runs; its figures are not for publication.
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
    """One kind of run.

    Attributes:
        once: runs one round only, because a round takes long and moves gigabytes.
        brokers: those it can run on.
        makers: makes what it runs on, of each broker, where that is not a single node.
        run: runs it on a node that was started for it.
    """

    rows: tuple[Row, ...]
    run: Callable[[Node, Settings], dict[str, Reading]]
    once: bool = False
    brokers: tuple[str, ...] = (LEVERET, RABBITMQ, LAVINMQ)
    makers: Mapping[str, Callable[[Path], Node]] | None = None


def _publish(node: Node, settings: Settings) -> dict[str, Reading]:
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.seconds)
    return {"publish": reading(publish_only(node, job, settings.warmup_s))}


def _together(node: Node, settings: Settings) -> dict[str, Reading]:
    job = PublishJob(node.amqp_port, QUEUE, window=WINDOW, seconds=settings.seconds)
    consume = ConsumeJob(node.amqp_port, QUEUE)
    return {"together": reading(together(node, job, consume, settings.warmup_s))}


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
    """Publish at a steady rate and consume, with the messages' ages.

    Raises:
        LoadError: the broker did not keep up.
    """
    port = node.amqp_port
    job = PublishJob(port, QUEUE, window=WINDOW, seconds=settings.seconds, rate=LATENCY_RATE)
    # Acknowledged with every read: a slow ack must not hold back what the prefetch allows.
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
    (Row("publish", "publish, 1000 B persistent, confirms, window 1000", "msg/s", True),), _publish
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
    _together,
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

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.client import LoadError
from bench.load import ConsumeJob, PublishJob
from bench.selftest import SinkNode
from bench.workers import Worker, count_at, publish_only, rate_between, together
from leveret.testing.network.ports import free_port

SAMPLES = [(10.0, 0), (11.0, 100), (12.0, 300)]


@pytest.fixture(scope="module")
def sink() -> Iterator[SinkNode]:
    with SinkNode() as node:
        yield node


@pytest.mark.parametrize(
    ("moment", "count"), [(9.0, 0.0), (10.0, 0.0), (10.5, 50.0), (11.5, 200.0), (12.0, 300.0), (99.0, 300.0)]
)
def test_a_count_is_read_off_the_line_between_two_samples(moment: float, count: float) -> None:
    assert count_at(SAMPLES, moment) == count


def test_a_rate_is_the_difference_over_the_span() -> None:
    assert rate_between(SAMPLES, 10.5, 11.5) == 150.0


def test_what_is_published_is_confirmed_and_counted(sink: SinkNode) -> None:
    outcome = publish_only(sink, PublishJob(sink.amqp_port, "q", seconds=0.3), 0.1)
    assert outcome.rate > 0
    assert outcome.published >= 0.9 * outcome.rate * 0.3
    assert outcome.broker_cpu_us > 0


def test_what_is_published_is_delivered(sink: SinkNode) -> None:
    job = PublishJob(sink.amqp_port, "q", body_bytes=16, seconds=0.3)
    outcome = together(sink, job, ConsumeJob(sink.amqp_port, "q"), 0.1)
    assert outcome.rate > 0


def test_a_paced_publisher_keeps_its_pace(sink: SinkNode) -> None:
    job = PublishJob(sink.amqp_port, "q", seconds=0.5, rate=2000)
    outcome = publish_only(sink, job, 0.2)
    assert outcome.published == 1400
    assert outcome.rate == pytest.approx(2000, rel=0.2)


def test_a_counted_publisher_ends_at_its_count(sink: SinkNode) -> None:
    with Worker(PublishJob(sink.amqp_port, "q", count=2500)) as publisher:
        publisher.ready().go()
        assert publisher.result().count == 2500


@pytest.mark.process
def test_a_worker_that_cannot_connect_says_so() -> None:
    nowhere = PublishJob(free_port(), "q", count=1)
    with Worker(nowhere) as publisher, pytest.raises(LoadError, match=r"publish: .*refused"):
        publisher.ready()

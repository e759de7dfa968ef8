from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.client import Connection, LoadError
from bench.pacer import PaceJob, longest_pause_s
from bench.process import Result
from bench.workers import QUEUE, Worker
from leveret.testing.network.ports import wait_until
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process

CONFIRMS = [(100.0, 1), (100.5, 5), (102.0, 6), (102.25, 9), (103.0, 10)]


@pytest.mark.parametrize(
    ("start", "end", "pause_s"),
    [
        (99.0, 110.0, 1.5),
        (100.0, 100.4, 0.5),
        (100.25, 100.75, 1.5),
        (101.0, 101.5, 1.5),
        (102.0, 102.25, 0.25),
        (102.1, 103.0, 0.75),
    ],
)
def test_a_pause_that_reaches_into_the_span_counts_in_whole(start: float, end: float, pause_s: float) -> None:
    assert longest_pause_s(CONFIRMS, start, end) == pytest.approx(pause_s)


@pytest.mark.parametrize("samples", [[], CONFIRMS[:1], CONFIRMS[:2]])
def test_a_span_without_confirms_is_no_short_pause(samples: list[tuple[float, int]]) -> None:
    with pytest.raises(LoadError, match=r"no confirms in a span of 1\.00 s"):
        longest_pause_s(samples, 101.0, 102.0)


@pytest.fixture
def connection(leveret: LeveretProcess) -> Iterator[Connection]:
    """A connection with the queue declared, which is deleted at the end."""
    opened = Connection(leveret.amqp_port)
    opened.declare_queue(QUEUE)
    yield opened
    opened.delete_queue(QUEUE)
    opened.close()


def paced(job: PaceJob, connection: Connection, count: int) -> tuple[Result, float]:
    """Let a pacer work until so many messages are in the queue; its result, and how long it took at most."""
    with Worker(job, "bench.pacer") as pacer:
        started = time.monotonic()
        pacer.ready().go()
        wait_until(lambda: connection.ready_messages(QUEUE) >= count, f"{count} messages", 60.0)
        pacer.end()
        return pacer.result(), time.monotonic() - started


def test_a_pacer_goes_on_until_it_is_told_and_waits_for_every_confirm(
    leveret: LeveretProcess, connection: Connection
) -> None:
    result, _ = paced(PaceJob(leveret.amqp_port, QUEUE, body_bytes=10), connection, 1000)
    assert connection.ready_messages(QUEUE) == result.count
    assert result.samples[-1][1] == result.count
    assert result.samples == sorted(result.samples)
    assert 0 < result.ages_us["p50"] <= result.ages_us["p99"] <= result.ages_us["max"]


def test_a_pacer_is_never_ahead_of_its_rate(leveret: LeveretProcess, connection: Connection) -> None:
    result, took_s = paced(PaceJob(leveret.amqp_port, QUEUE, rate=50, body_bytes=10), connection, 10)
    assert result.count <= took_s * 50 + 1


def test_where_the_broker_is_to_be_lost_the_result_is_what_was_confirmed() -> None:
    with LeveretProcess() as node:
        connection = Connection(node.amqp_port)
        connection.declare_queue(QUEUE)
        with Worker(PaceJob(node.amqp_port, QUEUE, until_lost=True), "bench.pacer") as pacer:
            pacer.ready().go()
            wait_until(lambda: connection.ready_messages(QUEUE) >= 1000, "1000 messages", 60.0)
            node.kill9()
            connection.socket.close()
            result = pacer.result()
        node.start()
        connection = Connection(node.amqp_port)
        assert 0 < result.count <= connection.ready_messages(QUEUE)
        connection.close()


def test_elsewhere_the_loss_of_the_broker_is_an_error() -> None:
    with LeveretProcess() as node:
        connection = Connection(node.amqp_port)
        connection.declare_queue(QUEUE)
        with Worker(PaceJob(node.amqp_port, QUEUE), "bench.pacer") as pacer:
            pacer.ready().go()
            node.kill9()
            connection.socket.close()
            with pytest.raises(LoadError, match="pace: "):
                pacer.result()

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.backlog import BACKLOG, LARGE_BACKLOG
from bench.client import Connection, LoadError
from bench.load import PublishJob
from bench.rows import Scenario, Settings
from bench.workers import QUEUE, Worker
from leveret.testing.broker import LeveretProcess


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    """One of its own: it is ended and started."""
    with LeveretProcess() as started:
        yield started


@pytest.mark.parametrize("scenario", [BACKLOG, LARGE_BACKLOG])
def test_every_row_gets_a_reading(scenario: Scenario, node: LeveretProcess, tiny: Settings) -> None:
    readings = scenario.run(node, tiny)
    assert list(readings) == [row.name for row in scenario.rows]
    assert min(reading.value for reading in readings.values()) > 0


def test_the_larger_backlog_is_all_there_after_both_restarts(node: LeveretProcess, tiny: Settings) -> None:
    LARGE_BACKLOG.run(node, tiny)
    connection = Connection(node.amqp_port)
    assert connection.ready_messages(QUEUE) == tiny.large_backlog
    connection.close()


def test_a_queue_that_had_messages_already_is_not_measured(node: LeveretProcess, tiny: Settings) -> None:
    connection = Connection(node.amqp_port)
    connection.declare_queue(QUEUE)
    connection.close()
    with Worker(PublishJob(node.amqp_port, QUEUE, count=1)) as publisher:
        publisher.ready().go()
        publisher.result()
    with pytest.raises(LoadError, match="1500 messages confirmed, 1501 in the queue"):
        LARGE_BACKLOG.run(node, tiny)

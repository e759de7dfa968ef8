from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.backlog import BACKLOG, LARGE_BACKLOG
from bench.client import Connection, LoadError
from bench.load import PublishJob
from bench.rows import Scenario, Settings
from bench.workers import QUEUE, Worker
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    """One of its own: it is ended and started."""
    with LeveretProcess() as started:
        yield started


def readings_of(scenario: Scenario, node: LeveretProcess, settings: Settings) -> list[float]:
    """Run it; return the values of its rows, each of which must have one."""
    readings = scenario.run(node, settings)
    assert list(readings) == [row.name for row in scenario.rows]
    return [reading.value for reading in readings.values()]


def test_a_backlog_is_filled_restarted_and_taken_off(node: LeveretProcess, tiny: Settings) -> None:
    assert min(readings_of(BACKLOG, node, tiny)) > 0
    connection = Connection(node.amqp_port)
    with pytest.raises(LoadError, match="NOT_FOUND"):
        connection.ready_messages(QUEUE)
    connection.close()


def test_the_larger_backlog_is_all_there_after_both_restarts(node: LeveretProcess, tiny: Settings) -> None:
    assert min(readings_of(LARGE_BACKLOG, node, tiny)) > 0
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

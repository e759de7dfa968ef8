from __future__ import annotations

import dataclasses

import pytest

from bench.client import Connection, LoadError
from bench.round_trips import ROUND_TRIPS
from bench.rows import Scenario, Settings
from bench.workers import QUEUE
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize("scenario", ROUND_TRIPS, ids=lambda one: one.rows[0].name)
def test_on_a_broker_each_has_times_and_leaves_no_queue(
    scenario: Scenario, leveret: LeveretProcess, tiny: Settings
) -> None:
    readings = scenario.run(leveret, dataclasses.replace(tiny, seconds=1.0))
    assert set(readings) == {row.name for row in scenario.rows}
    assert all(0 < reading.value < 10_000 for reading in readings.values())
    connection = Connection(leveret.amqp_port)
    with pytest.raises(LoadError, match="NOT_FOUND"):
        connection.ready_messages(QUEUE)
    connection.close()

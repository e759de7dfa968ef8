from __future__ import annotations

import dataclasses

import pytest

from bench.client import Connection, LoadError
from bench.mixed import MIXED, declared, published_and_consumed
from bench.rows import Scenario, Settings
from bench.traffic import Load, queue_name
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


def test_on_a_broker_a_row_leaves_no_queue(leveret: LeveretProcess, tiny: Settings) -> None:
    (reading,) = MIXED[1].run(leveret, dataclasses.replace(tiny, seconds=1.0)).values()
    assert reading.value > 0
    connection = Connection(leveret.amqp_port)
    with pytest.raises(LoadError, match="NOT_FOUND"):
        connection.ready_messages(queue_name(19))
    connection.close()


@pytest.mark.parametrize("scenario", MIXED[5:], ids=lambda one: one.rows[0].name)
def test_every_other_row_runs_and_leaves_no_queue(
    scenario: Scenario, leveret: LeveretProcess, tiny: Settings
) -> None:
    readings = scenario.run(leveret, dataclasses.replace(tiny, seconds=1.0))
    assert set(readings) == {row.name for row in scenario.rows}
    assert all(reading.value > 0 for reading in readings.values())
    connection = Connection(leveret.amqp_port)
    with pytest.raises(LoadError, match="NOT_FOUND"):
        connection.ready_messages(queue_name(0))
    connection.close()


@pytest.mark.parametrize(
    "load",
    [
        Load(queues=3, kind="fanout", publishers=2, consumers=2),
        Load(consumers=5, prefetch=10, ack_every=1, ordered=False, body_bytes=(500, 500)),
        Load(body_bytes=(300_000, 400_000), window=20),
        Load(mixed=False, queues=2, body_bytes=(16, 16)),
    ],
    ids=["fanout", "several-consumers", "large", "alike"],
)
def test_what_is_published_is_delivered_and_checked(
    load: Load, leveret: LeveretProcess, tiny: Settings
) -> None:
    with declared(leveret.amqp_port, load):
        run = published_and_consumed(leveret, load, dataclasses.replace(tiny, seconds=1.0))
    assert run.rate > 0

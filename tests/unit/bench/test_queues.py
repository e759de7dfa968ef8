from __future__ import annotations

import pytest

from bench import queues
from bench.client import Connection
from bench.queues import QUEUES_SCENARIO, definitions
from bench.rows import Settings
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


def test_there_is_a_binding_for_each_queue_and_no_two_are_alike() -> None:
    found = definitions(300)
    names = [one["name"] for one in found["queues"]]
    assert len(set(names)) == 300
    assert [one["destination"] for one in found["bindings"]] == names
    assert len({one["routing_key"] for one in found["bindings"]}) == 300


def test_the_queues_are_imported_and_there_after_a_restart(
    tiny: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "QUEUES_QUICK", 30)
    with LeveretProcess() as node:
        first = node.pid
        readings = QUEUES_SCENARIO.run(node, tiny)
        connection = Connection(node.amqp_port)
        assert {connection.ready_messages(one["name"]) for one in definitions(30)["queues"]} == {0}
        connection.close()
        assert node.pid != first
    assert list(readings) == [row.name for row in QUEUES_SCENARIO.rows]
    assert min(reading.value for reading in readings.values()) > 0

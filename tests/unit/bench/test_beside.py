from __future__ import annotations

import pytest

from bench import beside
from bench.rows import Scenario, Settings
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize("scenario", beside.BESIDE, ids=lambda one: one.rows[0].name)
def test_messages_are_timed_beside_something_large(
    scenario: Scenario, leveret: LeveretProcess, tiny: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "QUICK_QUEUES", 20)
    monkeypatch.setattr(beside, "OPENS", 200)
    readings = scenario.run(leveret, tiny)
    assert list(readings) == [row.name for row in scenario.rows]
    p99, longest = readings.values()
    assert 0 < p99.value <= longest.value
    assert p99.details["times"] >= 1

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.client import LoadError
from bench.followers import FOLLOWER, JOIN, Follower, lead
from bench.rows import Scenario, Settings
from leveret.testing.servers.broker import LeveretProcess

pytestmark = pytest.mark.process


@pytest.fixture
def node() -> Iterator[LeveretProcess]:
    """One of its own: it becomes a leader."""
    with LeveretProcess() as started:
        yield started


def readings_of(scenario: Scenario, node: LeveretProcess, settings: Settings) -> dict[str, dict[str, float]]:
    """Run it; every row must have a value above zero. Returns their details."""
    readings = scenario.run(node, settings)
    assert sorted(readings) == sorted(row.name for row in scenario.rows)
    assert min(reading.value for reading in readings.values()) > 0
    return {name: reading.details for name, reading in readings.items()}


def test_each_round_has_a_figure_without_a_follower_beside_it(node: LeveretProcess, tiny: Settings) -> None:
    first = readings_of(FOLLOWER, node, tiny)
    pid = node.pid
    again = readings_of(FOLLOWER, node, tiny)
    assert node.pid == pid, "the leader is made one once, not every round"
    for details in (first, again):
        assert details["follower-share"].keys() == {"with", "without"}
        assert details["follower"]["follower_cpu_us"] > 0


def test_a_follower_joins_comes_back_and_takes_over(node: LeveretProcess, tiny: Settings) -> None:
    details = readings_of(JOIN, node, tiny)
    assert details["join"]["sent_mb"] >= details["join"]["held_mb"] / 2
    assert details["rejoin"]["sent_bytes"] < details["join"]["sent_mb"] * 1e6 / 10
    assert details["follower-promotion"]["messages"] > tiny.backlog
    assert not node.alive


def test_a_follower_that_had_to_come_back_was_not_in_sync_all_the_time(
    node: LeveretProcess, tiny: Settings
) -> None:
    lead(node)
    tiny.folder.mkdir(exist_ok=True)
    with Follower(node, tiny.folder) as follower:
        follower.start()
        follower.stayed()
        follower.process.stop()
        with pytest.raises(LoadError, match="fell behind"):
            follower.stayed()
        follower.start()
        follower.stayed()

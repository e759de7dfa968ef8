"""Bugs that the messages of a quorum queue meet in a simulated cluster: other nodes lead it, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from leveret.core.queues.queue import Queue
from leveret.testing.simulation.worlds.cluster import ClusterWorld
from leveret.testing.simulation.worlds.world import PossibleFault

pytestmark = pytest.mark.timeout(200)


class PlantedError(Exception):
    """An error that no part of the product expects."""


class BuggyCluster(ClusterWorld):
    """Each of its faults is a bug: the next dispatch of the quorum queue fails, after it has done its work."""

    planted: list[Queue]

    def possible_faults(self) -> Sequence[PossibleFault]:
        self.pause_s = 1.0
        return [PossibleFault("bug", self.plant)]

    def plant(self) -> None:
        brokers = [node.roles.node.broker for node in self.nodes if node.roles is not None]
        led = [queue for broker in brokers for queue in broker.led_queues() if queue.key[1] == "quorum"]
        for queue in led:
            queue.dispatch = partial(_fail, queue.dispatch)  # type: ignore[method-assign]
        self.planted += led

    async def heal(self) -> None:
        """A bug that no dispatch has met yet would meet the one that empties the queue at the end."""
        for queue in self.planted:
            vars(queue).pop("dispatch", None)
        await super().heal()

    def look(self) -> None:
        if isinstance(self.story.bug, PlantedError):
            self.story.bug = None
        super().look()


def _fail(dispatch: Callable[[int, int], None], now_ms: int, elapsed_ms: int) -> None:
    dispatch(now_ms, elapsed_ms)
    raise PlantedError


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.story)])
@pytest.mark.long
def test_a_quorum_queue_that_meets_a_bug_goes_on_at_a_mirror_with_everything_that_was_confirmed(
    seed: int, tmp_path: Path
) -> None:
    world = BuggyCluster(seed, tmp_path)
    world.planted = []
    report = world.run(seconds=5)
    assert report.faults["bug"] > 1
    assert report.confirmed > 100
    assert "queue_failed" in world.story.text()

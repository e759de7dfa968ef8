"""Priorities over mirrors (`priority_queue_SUITE`): the order of a queue outlives its leader."""

from __future__ import annotations

from typing import Final

from leveret.testing.mirror_scenarios.stage import Case, Stage

QUEUE: Final = "mirror-queue"
HIGHEST: Final = 3
EACH: Final = 20


def _fill(stage: Stage) -> None:
    """Publish twenty messages of each priority, the lowest first, and twenty of one that is too high."""
    for number, priority in enumerate((0, 1, 2, 3, 9)):
        stage.publish(stage.nodes[0], QUEUE, EACH, first=number * EACH, priority=priority)


def mirror_queue_order(stage: Stage) -> None:
    """A mirror that takes over delivers the messages in the order of their priorities."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE, x_max_priority=HIGHEST)
    stage.mirror(".*", "all")
    stage.placed(QUEUE, a, [b, c], [b, c])
    _fill(stage)
    stage.kill(a)
    stage.takes(b, QUEUE)


def mirror_queue_sync_order(stage: Stage) -> None:
    """So does a mirror that was synchronised while unsettled messages were delivered."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE, x_max_priority=HIGHEST)
    stage.mirror(f"^{QUEUE}$", "nodes", [a])
    _fill(stage)
    with stage.holding(c, QUEUE, 2):
        stage.mirror(f"^{QUEUE}$", "nodes", [a, b])
        stage.placed(QUEUE, a, [b], [])
        stage.cluster.act(QUEUE, "sync")
        stage.placed(QUEUE, a, [b], [b])
        stage.kill(a)
        stage.placed(QUEUE, b, [], asked=c)
        stage.takes(c, QUEUE, delivered=(60, 61))


CASES: Final = (Case(mirror_queue_order), Case(mirror_queue_sync_order))

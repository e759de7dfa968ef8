"""Cases of `eager_sync_SUITE`: an operator or the policy synchronises a mirror.

A and B lead and mirror the queues, clients publish and consume at C. A mirror lacks the messages older than itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.testing.mirror_scenarios.stage import Case, Stage
from leveret.testing.sites.mirror_cluster import ClusterNode

QUEUE: Final = "ha.two.test"
MESSAGES: Final = 1000
LARGE: Final = 5000
LARGE_BYTES: Final = 1000
SLOW_BYTES_S: Final = 200_000
"""The limit of a synchronisation that the case cancels on its way, in octets a second."""


def _at(stage: Stage, nodes: Sequence[ClusterNode], mode: str = "manual") -> None:
    stage.mirror(f"^{QUEUE}$", "nodes", nodes, ha_sync_mode=mode, ha_promote_on_shutdown="always")


def eager_sync(stage: Stage) -> None:
    """Unsynchronised messages are lost with their leader; synchronised ones are not, including delivered ones."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    _at(stage, [a])
    stage.publish(c, QUEUE, MESSAGES)
    _at(stage, [a, b])
    stage.placed(QUEUE, a, [b], [])
    stage.stop(a)
    stage.placed(QUEUE, b, [], asked=c)
    stage.takes(c, QUEUE)
    stage.start(a)
    stage.placed(QUEUE, b, [a], [a])

    _at(stage, [b])
    stage.placed(QUEUE, b, [])
    stage.cluster.wait_without_copies(a)
    stage.publish(c, QUEUE, MESSAGES)
    _at(stage, [a, b])
    stage.placed(QUEUE, b, [a], [])
    stage.cluster.act(QUEUE, "sync")
    stage.placed(QUEUE, b, [a], [a])
    stage.stop(b)
    stage.placed(QUEUE, a, [], asked=c)
    stage.takes(c, QUEUE)
    stage.start(b)
    stage.placed(QUEUE, a, [b], [b])

    stage.publish(c, QUEUE, MESSAGES)
    stage.cluster.act(QUEUE, "sync")
    stage.placed(QUEUE, a, [b], [b])
    stage.takes(c, QUEUE)

    _at(stage, [a])
    stage.placed(QUEUE, a, [])
    stage.cluster.wait_without_copies(b)
    stage.publish(c, QUEUE, MESSAGES)
    with stage.holding(c, QUEUE, 2):
        _at(stage, [a, b])
        stage.placed(QUEUE, a, [b], [])
        with stage.holding(c, QUEUE, 3):
            stage.cluster.act(QUEUE, "sync")
            stage.placed(QUEUE, a, [b], [b])
            stage.stop(a)
            stage.placed(QUEUE, b, [], asked=c)
            stage.takes(c, QUEUE, delivered=range(5))


def eager_sync_cancel(stage: Stage) -> None:
    """A synchronisation is cancelled on its way: the mirror does not count as synchronised."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    stage.cluster.act(QUEUE, "cancel_sync")
    stage.say("cancelled what was not begun")
    _at(stage, [a])
    stage.publish(c, QUEUE, LARGE, size=LARGE_BYTES)
    _at(stage, [a, b])
    stage.placed(QUEUE, a, [b], [])
    stage.cluster.act(QUEUE, "sync")

    def state(wanted: str) -> None:
        stage.cluster.wait(
            lambda: (found := stage.cluster.queue(QUEUE)) is not None and found.state == wanted,
            f"{QUEUE} is {wanted}",
        )
        stage.say(f"{QUEUE} is {wanted}")

    state("syncing")
    stage.cluster.act(QUEUE, "cancel_sync")
    state("running")
    stage.placed(QUEUE, a, [b], [])
    stage.stop(a)
    stage.placed(QUEUE, b, [], asked=c)
    stage.takes(c, QUEUE)
    stage.cluster.act(QUEUE, "cancel_sync")
    stage.say("cancelled what was not begun")


def eager_sync_auto(stage: Stage) -> None:
    """With `automatic` each new mirror is synchronised at once, at any leader."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    stage.publish(c, QUEUE, MESSAGES)
    _at(stage, [a, b], "automatic")
    stage.placed(QUEUE, a, [b], [b])
    stage.restart(a)
    stage.placed(QUEUE, b, [a], [a])
    stage.restart(b)
    stage.placed(QUEUE, a, [b], [b])
    stage.takes(c, QUEUE)


def eager_sync_auto_on_policy_change(stage: Stage) -> None:
    """An unsynchronised mirror is synchronised as soon as the policy has `automatic`."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    _at(stage, [a])
    stage.publish(c, QUEUE, MESSAGES)
    _at(stage, [a, b])
    stage.placed(QUEUE, a, [b], [])
    _at(stage, [a, b], "automatic")
    stage.placed(QUEUE, a, [b], [b])


def eager_sync_requeue(stage: Stage) -> None:
    """A message that was delivered before a synchronisation and requeued after it exists once."""
    a, b, c = stage.nodes
    stage.declare(a, QUEUE)
    _at(stage, [a])
    stage.publish(c, QUEUE, 2)
    with stage.holding(c, QUEUE, 2) as (channel, tags):
        channel.basic_reject(tags[0], requeue=True)
        stage.settled(channel)
        _at(stage, [a, b])
        stage.placed(QUEUE, a, [b], [])
        stage.cluster.act(QUEUE, "sync")
        stage.placed(QUEUE, a, [b], [b])
        channel.basic_reject(tags[1], requeue=True)
        stage.settled(channel)
        stage.takes(c, QUEUE, delivered=range(2))
    stage.placed(QUEUE, a, [b], [b])


CASES: Final = (
    Case(eager_sync),
    Case(eager_sync_auto),
    Case(eager_sync_auto_on_policy_change),
    Case(eager_sync_requeue),
    Case(
        eager_sync_cancel,
        config=(
            ("mirroring_sync_batch_size", "1"),
            ("mirroring_sync_max_throughput", str(SLOW_BYTES_S)),
        ),
    ),
)

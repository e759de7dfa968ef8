"""Cases of `sync_detection_SUITE`: when a mirror counts as synchronised without a synchronisation."""

from __future__ import annotations

from typing import Any, Final

from leveret.testing.mirror_scenarios.stage import Case, Stage

QUEUE: Final = "ha.two.test"
DEAD_LETTER_QUEUE: Final = "dlx-queue"
TTL_MS: Final = 3000


def _alone(stage: Stage) -> None:
    """Remove the mirror of the queue, or of the next one."""
    stage.mirror(f"^{QUEUE}$", "nodes", stage.nodes[:1])
    if stage.cluster.queue(QUEUE) is not None:
        stage.cluster.wait_placed(QUEUE, stage.nodes[0], mirrors=[])


def _mirrored(stage: Stage) -> None:
    """Add a mirror at B, which has all messages that are published from now on."""
    a, b, _ = stage.nodes
    stage.mirror(f"^{QUEUE}$", "nodes", [a, b])
    stage.cluster.wait_placed(QUEUE, a, mirrors=[b])


def follower_synchronization(stage: Stage) -> None:
    """A mirror is synchronised as soon as all messages that it lacks are settled, including delivered ones."""
    a = stage.nodes[0]
    stage.declare(a, QUEUE)
    _alone(stage)
    stage.publish(a, QUEUE, 1)
    with stage.holding(a, QUEUE, 1) as (channel, tags):
        _mirrored(stage)
        stage.say("one message, which A has delivered")
        stage.synchronised(QUEUE, 0)
        stage.publish(a, QUEUE, 1, first=1)
        stage.say("one more, which B has as well")
        stage.synchronised(QUEUE, 0)
        channel.basic_ack(tags[0])
        stage.settled(channel)
        stage.say("the first is acked")
        stage.synchronised(QUEUE, 1)
    stage.delete(a, QUEUE)
    _alone(stage)
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, 1, first=1)
    _mirrored(stage)
    stage.publish(a, QUEUE, 1, first=2)
    stage.say("two messages, the first of them only at A")
    stage.synchronised(QUEUE, 0)
    with stage.holding(a, QUEUE, 1) as (channel, tags):
        stage.synchronised(QUEUE, 0)
        channel.basic_reject(tags[0], requeue=True)
        stage.settled(channel)
        stage.say("it was delivered, and came back")
        stage.synchronised(QUEUE, 0)
    with stage.holding(a, QUEUE, 1) as (channel, tags):
        channel.basic_ack(tags[0])
        stage.settled(channel)
        stage.say("it is acked")
        stage.synchronised(QUEUE, 1)
    stage.takes(a, QUEUE)
    stage.synchronised(QUEUE, 1)


def follower_synchronization_ttl(stage: Stage) -> None:
    """The same for messages that expire."""
    a, _, c = stage.nodes
    stage.declare(a, DEAD_LETTER_QUEUE)
    arguments: dict[str, Any] = {
        "x_message_ttl": TTL_MS,
        "x_dead_letter_exchange": "",
        "x_dead_letter_routing_key": DEAD_LETTER_QUEUE,
    }
    _alone(stage)
    stage.declare(a, QUEUE, **arguments)
    stage.publish(a, QUEUE, 2)
    _mirrored(stage)
    stage.say("two messages, both only at A")
    stage.synchronised(QUEUE, 0)
    _expired(stage, 2)
    stage.synchronised(QUEUE, 1)

    # Another queue, because this one had a mirror at B.
    stage.delete(a, QUEUE)
    _alone(stage)
    stage.declare(a, QUEUE, **arguments)
    stage.publish(a, QUEUE, 1, first=2)
    _mirrored(stage)
    stage.publish(a, QUEUE, 1, first=3)
    stage.say("two messages, one of them only at A")
    stage.synchronised(QUEUE, 0)
    _expired(stage, 2)
    stage.synchronised(QUEUE, 1)

    stage.publish(a, QUEUE, 2, first=4)
    stage.say("two messages, B has both")
    stage.synchronised(QUEUE, 1)
    _expired(stage, 2)
    stage.synchronised(QUEUE, 1)
    stage.declares(c, QUEUE, 0, **arguments)


def _expired(stage: Stage, count: int) -> None:
    """Wait until `count` messages are dead letters."""
    stage.cluster.wait_messages(DEAD_LETTER_QUEUE, count)
    stage.takes(stage.nodes[2], DEAD_LETTER_QUEUE)


def returning_mirror(stage: Stage) -> None:
    """A mirror's node comes back after it missed a message. This is no case of the suite, but its premise."""
    a, b, _ = stage.nodes
    stage.declare(a, QUEUE)
    _mirrored(stage)
    stage.publish(a, QUEUE, 1)
    stage.stop(b)
    stage.publish(a, QUEUE, 1, first=1)
    stage.start(b)
    stage.cluster.wait_placed(QUEUE, a, mirrors=[b])
    stage.synchronised(QUEUE, 0 if stage.cluster.begins_empty else 1)
    stage.takes(a, QUEUE)
    stage.synchronised(QUEUE, 1)


CASES: Final = (
    Case(follower_synchronization),
    Case(follower_synchronization_ttl),
    Case(returning_mirror),
)

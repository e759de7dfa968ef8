"""Cases of `simple_ha_SUITE`: clients of a queue that is mirrored everywhere, while its leader ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pika

from leveret.testing.applications.contents import properties_of
from leveret.testing.mirror_scenarios.clients import Producer, ThreadedConsumer
from leveret.testing.mirror_scenarios.stage import Case, Stage

MESSAGES: Final = 3000
BEFORE: Final = 500
"""The least number of messages sent before the leader ends; many more follow."""
REDECLARED: Final = 20
QUEUE: Final = "test"

Death = Callable[[Stage], None]


def _stop(stage: Stage) -> None:
    stage.stop(stage.nodes[0])


def _kill(stage: Stage) -> None:
    stage.kill(stage.nodes[0])


def _policy(stage: Stage) -> None:
    """Remove the leader's node from the policy."""
    stage.mirror(".*", "nodes", stage.nodes[1:])
    stage.say("mirror at B C alone")


def rapid_redeclare(stage: Stage) -> None:
    """A mirrored queue is declared and deleted over and over."""
    a = stage.nodes[0]
    stage.mirror(".*", "all")
    with stage.cluster.channel(a) as channel:
        for _ in range(REDECLARED):
            assert channel.queue_declare(QUEUE, durable=True).method.message_count == 0
            channel.queue_delete(QUEUE)
    for node in stage.nodes:
        stage.queues(node, [])


def declare_synchrony(stage: Stage) -> None:
    """The mirrors exist when a declare is answered: messages confirmed after that outlive the leader."""
    a, b, _ = stage.nodes
    stage.mirror(".*", "all")
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, 1)
    stage.kill(a)
    stage.declares(b, QUEUE, 1)


def clean_up_exclusive_queues(stage: Stage) -> None:
    """An exclusive queue is not mirrored, and its node's end removes it at all nodes for good."""
    a, b, _ = stage.nodes
    stage.mirror(".*", "all")
    with stage.cluster.channel(a, confirms=False) as channel:
        channel.queue_declare("excl", exclusive=True)
        stage.placed("excl", a, None)
        stage.kill(a)
        stage.queues(b, [])
    stage.start(a)
    for node in stage.nodes:
        stage.queues(node, [])


def _consume_survives(stage: Stage, death: Death, *, cancel: bool, knows_cancels: bool = True) -> None:
    """Consume at B, publish at C without confirms, and end the leader A."""
    a, b, c = stage.nodes
    stage.mirror(".*", "all")
    stage.declare(a, QUEUE)
    with (
        ThreadedConsumer(
            stage.cluster, b, QUEUE, MESSAGES, cancel_on_fail_over=cancel, knows_cancels=knows_cancels
        ) as consumer,
        stage.cluster.channel(c, confirms=False) as channel,
    ):
        for number in range(BEFORE):
            _publish(channel, number)
        consumer.wait_seen(BEFORE // 10)
        death(stage)
        for number in range(BEFORE, MESSAGES):
            _publish(channel, number)
        consumer.wait_seen(MESSAGES)
        stage.say(f"B consumed {consumer.seen} of {MESSAGES}, in their order")
        if death is not _policy:
            stage.say(f"told of the fail-over: {consumer.cancels} times")


def _publish(channel: Any, number: int) -> None:
    channel.basic_publish("", QUEUE, b"%d" % number, pika.BasicProperties(**properties_of(number)))


def consume_survives_stop(stage: Stage) -> None:
    """The leader's node is stopped; the consumer asked for cancels, and consumes again."""
    _consume_survives(stage, _stop, cancel=True)


def consume_survives_sigkill(stage: Stage) -> None:
    """The leader's node is killed; the consumer asked for cancels, and consumes again."""
    _consume_survives(stage, _kill, cancel=True)


def consume_survives_policy(stage: Stage) -> None:
    """The policy moves the lead; the consumer asked for cancels, and consumes again."""
    _consume_survives(stage, _policy, cancel=True)


def auto_resume(stage: Stage) -> None:
    """The leader's node is killed; the consumer did not ask for cancels, and goes on."""
    _consume_survives(stage, _kill, cancel=False)


def auto_resume_no_ccn_client(stage: Stage) -> None:
    """The same for a client without support of cancels."""
    _consume_survives(stage, _kill, cancel=False, knows_cancels=False)


def _confirms_survive(stage: Stage, death: Death) -> None:
    """Publish at B with confirms, and end the leader A."""
    a, b, c = stage.nodes
    stage.mirror(".*", "all")
    stage.declare(a, QUEUE)
    stage.publish(a, QUEUE, 1)
    producer = Producer(b, QUEUE, MESSAGES, stage.folder / "books")
    producer.wait_answered(BEFORE)
    death(stage)
    producer.end()
    stage.say(f"{producer.confirmed} confirmed, {producer.refused} refused")
    other = next(each for each in (b, c) if each.node != _leader(stage))
    stage.cluster.wait_placed(QUEUE, [b, c], mirrors=[other], asked=b)
    stage.say("led by one of B C, the other mirrors it")
    stage.declares(b, QUEUE, MESSAGES + 1)


def _leader(stage: Stage) -> str:
    """Return the leader once it is not A."""
    stage.cluster.wait(
        lambda: (
            (found := stage.cluster.queue(QUEUE, asked=stage.nodes[1])) is not None
            and found.leader != stage.nodes[0].node
            and found.state == "running"
        ),
        "another leader",
    )
    found = stage.cluster.queue(QUEUE, asked=stage.nodes[1])
    assert found is not None
    return found.leader


def confirms_survive_stop(stage: Stage) -> None:
    """The leader's node is stopped: all messages are confirmed, and none is lost."""
    _confirms_survive(stage, _stop)


def confirms_survive_sigkill(stage: Stage) -> None:
    """The leader's node is killed: all messages are confirmed, and none is lost."""
    _confirms_survive(stage, _kill)


def confirms_survive_policy(stage: Stage) -> None:
    """The policy moves the lead: all messages are confirmed, and none is lost."""
    _confirms_survive(stage, _policy)


def _rejects_survive(stage: Stage, death: Death, overflow: str) -> None:
    """Publish at B to a full queue of one message, and end the leader A."""
    a, b, _ = stage.nodes
    stage.mirror(".*", "all")
    stage.declare(a, QUEUE, x_max_length=1, x_overflow=overflow)
    stage.publish(a, QUEUE, 1, first=7)
    producer = Producer(b, QUEUE, MESSAGES, stage.folder / "books")
    producer.wait_answered(BEFORE)
    death(stage)
    producer.end()
    stage.say(f"{producer.confirmed} confirmed, {producer.refused} refused")
    stage.takes(b, QUEUE)


def rejects_survive_stop(stage: Stage) -> None:
    """A full queue refuses with `reject-publish` while its leader's node is stopped."""
    _rejects_survive(stage, _stop, "reject-publish")


def rejects_survive_policy(stage: Stage) -> None:
    """A full queue refuses with `reject-publish` while the policy moves the lead."""
    _rejects_survive(stage, _policy, "reject-publish")


def rejects_survive_stop_dlx(stage: Stage) -> None:
    """A full queue refuses with `reject-publish-dlx` while its leader's node is stopped."""
    _rejects_survive(stage, _stop, "reject-publish-dlx")


def rejects_survive_policy_dlx(stage: Stage) -> None:
    """A full queue refuses with `reject-publish-dlx` while the policy moves the lead."""
    _rejects_survive(stage, _policy, "reject-publish-dlx")


CASES: Final = tuple(
    Case(play)
    for play in (
        rapid_redeclare,
        declare_synchrony,
        clean_up_exclusive_queues,
        consume_survives_stop,
        consume_survives_sigkill,
        consume_survives_policy,
        auto_resume,
        auto_resume_no_ccn_client,
        confirms_survive_stop,
        confirms_survive_sigkill,
        confirms_survive_policy,
        rejects_survive_stop,
        rejects_survive_policy,
        rejects_survive_stop_dlx,
        rejects_survive_policy_dlx,
    )
)

"""Cases of `clustering_management_SUITE` about forgotten nodes, and the queues that they led."""

from __future__ import annotations

from typing import Final

from pika.exceptions import ChannelClosedByBroker

from leveret.testing.mirror_scenarios.stage import Case, Stage
from leveret.testing.sites.mirror_cluster import ClusterNode

QUEUE: Final = "mirrored-queue"
UNMIRRORED: Final = "unmirrored-queue"
EXCHANGE: Final = "X"


def _members(stage: Stage, asked: ClusterNode) -> None:
    names = [row["name"] for row in stage.cluster.api("GET", "nodes", at=asked)]
    stage.say(f"{stage.letter(asked)} knows {' '.join(sorted(stage.letter(name) for name in names))}")


def _forget(stage: Stage, lost: ClusterNode, at: ClusterNode) -> None:
    answer = "done" if stage.cluster.forget(lost, at=at) else "refused"
    stage.say(f"{stage.letter(at)} forgets {stage.letter(lost)}: {answer}")


def forget_cluster_node(stage: Stage) -> None:
    """A cluster forgets a node that is down, but no running and no unknown node."""
    a, b, c = stage.nodes
    _forget(stage, a, b)
    assert b.ctl("forget_cluster_node", "non@existent", check=False).returncode != 0
    stage.say("B forgets what is no node: refused")
    _members(stage, b)
    stage.stop(a)
    _forget(stage, a, b)
    _members(stage, b)
    _members(stage, c)


def forget_removes_things(stage: Stage) -> None:
    """A durable queue without mirrors is down with its node, and gone when the node is forgotten."""
    a, b, _ = stage.nodes
    stage.declare(a, UNMIRRORED)
    stage.publish(a, UNMIRRORED, 1)
    stage.stop(a)
    stage.lacks(b, UNMIRRORED)
    _forget(stage, a, b)
    stage.declares(b, UNMIRRORED, 0)


def forget_offline_removes_things(stage: Stage) -> None:
    """All nodes were stopped; one comes back and the others are forgotten: their queues go, with all bindings."""
    a, b, c = stage.nodes
    with stage.cluster.channel(a) as channel:
        channel.queue_declare(UNMIRRORED, durable=True)
        channel.exchange_declare(EXCHANGE, durable=True, auto_delete=True)
        channel.queue_bind(UNMIRRORED, EXCHANGE)
    stage.stop(a)
    stage.lacks(b, UNMIRRORED)
    stage.stop(c)
    stage.stop(b)
    stage.cluster.revive_without(b, a, c)
    stage.say("B starts; A and C are forgotten")
    stage.declares(b, UNMIRRORED, 0)
    try:
        with stage.cluster.channel(b) as channel:
            channel.exchange_declare(EXCHANGE, passive=True)
        stage.say(f"{EXCHANGE} is there")
    except ChannelClosedByBroker as refused:
        stage.say(f"{EXCHANGE}: {refused.reply_code}")


def forget_promotes_offline_follower(stage: Stage) -> None:
    """The leader is lost and forgotten; a mirror whose node was down then leads when its node comes back."""
    a, b, c, d = stage.nodes
    stage.declare(a, QUEUE)
    stage.mirror(f"^{QUEUE}$", "nodes", [a, b, c])
    stage.placed(QUEUE, a, [b, c], [b, c])
    stage.mirror(f"^{QUEUE}$", "nodes", [a, c, d])
    stage.placed(QUEUE, a, [c, d], [c, d])
    stage.publish(a, QUEUE, 1)
    for node in (d, c, b, a):
        node.kill9()
    stage.cluster.start_alone(c)
    stage.say("all are killed, C starts")
    _forget(stage, a, c)
    stage.start(d)
    stage.declares(d, QUEUE, 1)


CASES: Final = (
    Case(forget_cluster_node, alone=True),
    Case(forget_removes_things, alone=True),
    Case(forget_offline_removes_things, alone=True),
    Case(forget_promotes_offline_follower, nodes=4, alone=True),
)

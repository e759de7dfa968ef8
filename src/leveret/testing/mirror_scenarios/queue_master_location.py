"""Cases of `queue_master_location_SUITE`: the leader of a new queue, declared at A. A leads most queues, C fewest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import unescape
from typing import Final

import httpx

from leveret.testing.mirror_scenarios.stage import Case, Stage

QUEUE: Final = "qm.test"
LED: Final = (6, 4, 1)
MIN_MASTERS: Final = "min-masters"
LOCATOR: Final = "queue-master-locator"
BINDINGS: Final = 20


@contextmanager
def _uneven(stage: Stage) -> Iterator[None]:
    """Declare exclusive queues, `LED` at each node, as long as the block runs."""
    with ExitStack() as stack:
        for node, count in zip(stage.nodes, LED, strict=True):
            channel = stack.enter_context(stage.cluster.channel(node, confirms=False))
            for _ in range(count):
                channel.queue_declare("", exclusive=True)

        def counted() -> bool:
            return all(len(stage.cluster.queues(each)) == sum(LED) for each in stage.nodes)

        stage.cluster.wait(counted, "the queues of all nodes")
        yield


def _led(stage: Stage, queue: str = QUEUE) -> None:
    stage.cluster.wait(lambda: stage.cluster.queue(queue) is not None, queue)
    found = stage.cluster.queue(queue)
    assert found is not None
    stage.say(f"{queue}: led by {stage.letter(found.leader)}")


def declare_args(stage: Stage) -> None:
    """The queue's argument is `min-masters`."""
    with _uneven(stage):
        stage.declare(stage.nodes[0], QUEUE, x_queue_master_locator=MIN_MASTERS)
        _led(stage)


def declare_policy(stage: Stage) -> None:
    """The policy has `min-masters`."""
    with _uneven(stage):
        stage.cluster.set_policy("ha", "^qm", {LOCATOR: MIN_MASTERS})
        stage.declare(stage.nodes[0], QUEUE)
        _led(stage)


def declare_invalid_policy(stage: Stage) -> None:
    """A locator does not make an invalid policy valid."""
    definition = {LOCATOR: MIN_MASTERS, "ha-mode": "exactly", "ha-params": "2"}
    # RabbitMQ escapes its reason for HTML.
    try:
        stage.cluster.set_policy("ha", ".*", definition)
    except httpx.HTTPStatusError as refused:
        stage.say(f"{refused.response.status_code} {unescape(refused.response.json()['reason']).strip()!r}")
    else:
        stage.say("taken")


def declare_policy_nodes(stage: Stage) -> None:
    """The policy names nodes: the one of them that leads fewest queues leads."""
    a, b, _ = stage.nodes
    with _uneven(stage):
        definition = {LOCATOR: MIN_MASTERS, "ha-mode": "nodes", "ha-params": [b.node, a.node]}
        stage.cluster.set_policy("ha", "^qm", definition)
        stage.declare(a, QUEUE)
        stage.placed(QUEUE, b, [a], [a])


def declare_policy_all(stage: Stage) -> None:
    """The policy mirrors to all nodes."""
    a, b, c = stage.nodes
    with _uneven(stage):
        stage.cluster.set_policy("ha", "^qm", {LOCATOR: MIN_MASTERS, "ha-mode": "all"})
        stage.declare(a, QUEUE)
        stage.placed(QUEUE, c, [a, b], [a, b])


def declare_policy_exactly(stage: Stage) -> None:
    """The policy mirrors to two nodes."""
    a, b, c = stage.nodes
    with _uneven(stage):
        stage.cluster.set_policy("ha", "^qm", {LOCATOR: MIN_MASTERS, "ha-mode": "exactly", "ha-params": 2})
        stage.declare(a, QUEUE)
        stage.cluster.wait_synchronised(QUEUE, 1)
        _led(stage)
        found = stage.cluster.queue(QUEUE)
        assert found is not None
        assert found.leader == c.node
        assert set(found.mirrors or ()) < {a.node, b.node}
        stage.say("one of A B mirrors it")


def declare_config(stage: Stage) -> None:
    """The configuration has `min-masters`."""
    with _uneven(stage):
        stage.declare(stage.nodes[0], QUEUE)
        _led(stage)


def calculate_min_master_with_bindings(stage: Stage) -> None:
    """Bindings do not count: a bound and an unbound queue both go to the node that leads fewest queues."""
    a = stage.nodes[0]
    with _uneven(stage):
        stage.declare(a, "qm.test_bound", x_queue_master_locator=MIN_MASTERS)
        _led(stage, "qm.test_bound")
        with stage.cluster.channel(a) as channel:
            for number in range(BINDINGS):
                channel.queue_bind("qm.test_bound", "amq.direct", str(number))
        stage.declare(a, "qm.test_unbound", x_queue_master_locator=MIN_MASTERS)
        _led(stage, "qm.test_unbound")


def calculate_random(stage: Stage) -> None:
    """With `random` any node leads."""
    with _uneven(stage):
        stage.declare(stage.nodes[0], QUEUE, x_queue_master_locator="random")
        found = stage.cluster.queue(QUEUE)
        assert found is not None
        assert found.leader in {each.node for each in stage.nodes}
        stage.say("led by one of the nodes")


def calculate_client_local(stage: Stage) -> None:
    """With `client-local` the node of the client leads, for any number of queues that it leads already."""
    a, b, _ = stage.nodes
    with _uneven(stage):
        stage.declare(a, QUEUE, x_queue_master_locator="client-local")
        _led(stage)
        stage.declare(b, f"{QUEUE}.b", x_queue_master_locator="client-local")
        _led(stage, f"{QUEUE}.b")


def declare_with_min_masters_and_some_nodes_under_maintenance(stage: Stage) -> None:
    """A drained node gets no queues, even if it leads fewest."""
    a, _, c = stage.nodes
    with _uneven(stage):
        stage.cluster.drain(c)
        stage.declare(a, QUEUE, x_queue_master_locator=MIN_MASTERS)
        _led(stage)
        stage.cluster.revive(c)


def declare_with_random_and_some_nodes_under_maintenance(stage: Stage) -> None:
    """A drained node gets no queues with `random` either."""
    a, b, c = stage.nodes
    stage.cluster.drain(b)
    stage.cluster.drain(c)
    for number in range(5):
        stage.declare(a, f"{QUEUE}.{number}", x_queue_master_locator="random")
        _led(stage, f"{QUEUE}.{number}")
    stage.cluster.revive(b)
    stage.cluster.revive(c)


CASES: Final = (
    *(
        Case(play)
        for play in (
            declare_args,
            declare_policy,
            declare_invalid_policy,
            declare_policy_nodes,
            declare_policy_all,
            declare_policy_exactly,
            calculate_min_master_with_bindings,
            calculate_random,
            calculate_client_local,
            declare_with_min_masters_and_some_nodes_under_maintenance,
            declare_with_random_and_some_nodes_under_maintenance,
        )
    ),
    Case(declare_config, config=(("queue_master_locator", MIN_MASTERS),)),
)

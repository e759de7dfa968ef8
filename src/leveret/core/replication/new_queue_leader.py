"""The node that leads a new queue: RabbitMQ's strategies, and the settings that choose one of them.

Classic queues and the replicated types have different names for the strategies, and a different precedence. For a
classic queue: the argument `x-queue-master-locator`, then a policy's `queue-master-locator`, then the setting. For a
quorum queue or a stream: a policy's `queue-leader-locator`, then the argument `x-queue-leader-locator`, then the
setting.

The caller makes random choices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from leveret.core.rules.mirror_policy import NODES, NOT_MIRRORED, MirrorPolicy
from leveret.core.rules.validation import CLASSIC, queue_type
from leveret.model.definitions import Arguments
from leveret.model.locators import (
    BALANCED,
    CLIENT_LOCAL,
    LEAST_LEADERS,
    MIN_MASTERS,
    QUEUE_LEADER_LOCATORS,
    QUEUE_MASTER_LOCATORS,
    RANDOM,
)

MASTER_LOCATOR: Final = "queue-master-locator"
LEADER_LOCATOR: Final = "queue-leader-locator"

Choose = Callable[[Sequence[str]], str]
"""Chooses one node of a non-empty list, at random or not."""


class CandidateNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a cluster at the time of a declaration.

    Attributes:
        client: the running node to which the declaring client is connected.
        alive: the running nodes, in an order that is the same on all nodes.
        draining: the nodes of these in maintenance mode.
        led: the number of queues that each node leads; 0 for a missing node.
    """

    client: str
    alive: Sequence[str]
    draining: Collection[str] = ()
    led: Mapping[str, int] = msgspec.field(default_factory=dict)

    def fewest(self, among: Sequence[str]) -> str:
        """Return the node that leads the fewest queues; of equals the first by name."""
        return min(among, key=lambda node: (self.led.get(node, 0), node))


def locator(
    arguments: Arguments,
    applied: Mapping[str, Any],
    *,
    queue_master_locator: str = CLIENT_LOCAL,
    queue_leader_locator: str = CLIENT_LOCAL,
) -> str:
    """Return the strategy for a queue: "client-local", "min-masters" or "random".

    "balanced" and its old names become "min-masters": RabbitMQ counts the queues of one type, Leveret all queues.

    Args:
        arguments: the arguments of the declaration.
        applied: the definition of the effective policy (`EffectivePolicy.definition`).
        queue_master_locator: the setting for classic queues.
        queue_leader_locator: the setting for the other types.
    """
    if queue_type(arguments) == CLASSIC:
        given = (
            arguments.get(f"x-{MASTER_LOCATOR}"),
            applied.get(MASTER_LOCATOR),
            queue_master_locator,
        )
        return next((each for each in given if each in QUEUE_MASTER_LOCATORS), CLIENT_LOCAL)
    given = (
        applied.get(LEADER_LOCATOR),
        arguments.get(f"x-{LEADER_LOCATOR}"),
        queue_leader_locator,
    )
    found = next((each for each in given if each in QUEUE_LEADER_LOCATORS), CLIENT_LOCAL)
    return MIN_MASTERS if found in (BALANCED, RANDOM, LEAST_LEADERS) else CLIENT_LOCAL


def leader_location(
    strategy: str,
    nodes: CandidateNodes,
    choose: Choose,
    *,
    policy: MirrorPolicy = NOT_MIRRORED,
    is_exclusive: bool = False,
) -> str:
    """Return the running node that leads a new queue.

    If a policy lists the nodes of the queue, a running one of those leads it, if any runs. A node in maintenance mode
    leads it only if the client is connected to that node, or no other node is left.

    Args:
        strategy: the result of `locator`.
        nodes: the nodes of the cluster.
        choose: chooses the node for "random".
        policy: the mirror policy of the queue.
        is_exclusive: whether the queue belongs to one connection; the connection's node leads it.
    """
    if is_exclusive:
        return nodes.client
    listed = policy.params if policy.mode == NODES and isinstance(policy.params, tuple) else ()
    allowed = [node for node in listed if node in nodes.alive] or [*nodes.alive] or [nodes.client]
    if strategy == CLIENT_LOCAL and nodes.client in allowed:
        return nodes.client
    candidates = [node for node in allowed if node not in nodes.draining]
    if not candidates:
        return nodes.client if nodes.client in allowed else allowed[0]
    if strategy == RANDOM:
        return choose(candidates)
    return nodes.fewest(candidates) if strategy == MIN_MASTERS else candidates[0]

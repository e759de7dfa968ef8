"""The node that leads a new queue: RabbitMQ's strategies, and the settings that choose one of them.

Classic queues and the replicated types have names of their own for the strategies, and a precedence of their own. For
a classic queue: the argument `x-queue-master-locator`, then a policy's `queue-master-locator`, then the setting. For a
quorum queue or a stream: a policy's `queue-leader-locator`, then the argument `x-queue-leader-locator`, then the
setting.

Random choices are made by the caller.
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
"""One of several nodes, never of none; by chance or not."""


class CandidateNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a cluster as a declaration meets them.

    Attributes:
        client: the node that the declaring client is connected to; it runs.
        alive: the nodes that run, in an order that is the same everywhere.
        draining: those of them that are in maintenance mode.
        led: how many queues each node leads; one that is not named leads none.
    """

    client: str
    alive: Sequence[str]
    draining: Collection[str] = ()
    led: Mapping[str, int] = msgspec.field(default_factory=dict)

    def fewest(self, among: Sequence[str]) -> str:
        """The one that leads the fewest queues; of equals the first by name."""
        return min(among, key=lambda node: (self.led.get(node, 0), node))


def locator(
    arguments: Arguments,
    applied: Mapping[str, Any],
    *,
    queue_master_locator: str = CLIENT_LOCAL,
    queue_leader_locator: str = CLIENT_LOCAL,
) -> str:
    """The strategy for a queue: one of "client-local", "min-masters" and "random".

    "balanced" and its old names are "min-masters": RabbitMQ counts the queues of one type for it, here all count.

    Args:
        arguments: of the queue's declaration.
        applied: the definition of the policies that apply to it, as `EffectivePolicy.definition` has it.
        queue_master_locator: what is configured for classic queues.
        queue_leader_locator: what is configured for the others.
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
    """The node that leads a new queue; it runs.

    A queue that is mirrored to certain nodes is led by one of those that run, if any does. A node in maintenance
    mode is chosen where the client is connected to it, and where there is no other.

    Args:
        strategy: as `locator` found it.
        nodes: what there is.
        choose: takes one for "random".
        policy: what the policies say of the queue's mirrors.
        is_exclusive: whether the queue is one connection's own: such queues are led where that is.
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

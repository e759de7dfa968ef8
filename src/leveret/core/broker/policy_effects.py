"""Effects of changed policies: settings of queues, alternate exchanges, replication to a standby site.

A vhost is replicated to a standby site if it is tagged (`tagged`). A queue of such a vhost is replicated if it is
durable and not exclusive, and its policies ask for replication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from leveret.core.broker.policies import NOTHING_APPLIES, EffectivePolicy
from leveret.core.broker.policy_validation import REPLICATE
from leveret.core.broker.topology import ExchangeState, Topology
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import queue_settings
from leveret.core.rules.validation import queue_type


class StalePolicies:
    """Which queues and exchanges may not have yet what applies to them since policies changed.

    A policy may concern each of many thousands, so they are looked at one by one, with clients served between. A
    queue has what applied before or what applies now, never some of each; one that is declared meanwhile has what
    applies now. How far this is need not be remembered: a policy is one change, to the definitions' log, to followers
    and to the nodes of a cluster, and each of them, as each start, works out anew what follows from it. If policies
    change again meanwhile, all are looked at again: so several that are changed in one go never apply without each
    other.
    """

    def __init__(self) -> None:
        """None is."""
        self._left: dict[str, deque[Queue | ExchangeState] | None] = {}

    def __bool__(self) -> bool:
        """Whether any are left."""
        return bool(self._left)

    def mark(self, vhost: str) -> None:
        """Policies of the vhost changed: all that is in it is to be looked at."""
        self._left[vhost] = None

    def forget(self, vhost: str) -> None:
        """The vhost is gone."""
        self._left.pop(vhost, None)

    def take(self, topologies: Mapping[str, Topology]) -> Iterator[tuple[str, Queue | ExchangeState]]:
        """Each that is left and still there, with its vhost, once; as long as it is iterated."""
        while self._left:
            vhost, left = next(iter(self._left.items()))
            topology = topologies[vhost]
            if left is None:
                left = self._left[vhost] = deque([*topology.queues.values(), *topology.exchanges.values()])
            while left and self._left.get(vhost) is left:
                each = left.popleft()
                if not left:
                    del self._left[vhost]
                if _is_there(topology, each):
                    yield vhost, each


def _is_there(topology: Topology, each: Queue | ExchangeState) -> bool:
    if isinstance(each, ExchangeState):
        return topology.exchanges.get(each.definition.name) is each
    return topology.queues.get(each.definition.name) is each


def refresh_queue(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
    """Let a queue have what applies to it now.

    Returns:
        The queue if it became replicated, or is not any more.
    """
    applied = topology.policies.for_queue(queue.definition.name, queue_type(queue.definition.arguments))
    if applied == policies_of(topology, queue.definition.name):
        return []
    return _apply(topology, queue, applied, tagged=tagged)


def configure_queue(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
    """Give a new queue its settings and its policies; returned as by `refresh_queue`."""
    definition = queue.definition
    applied = topology.policies.for_queue(definition.name, queue_type(definition.arguments))
    return _apply(topology, queue, applied, tagged=tagged)


def refresh_replicated(topology: Topology, *, tagged: bool) -> list[Queue]:
    """The vhost's tags may have changed; returned as by `refresh_queue`."""
    queues = list(topology.queues.values())
    return [each for each in queues if _sets_replicated(each, policies_of(topology, each.key[1]), tagged)]


def policies_of(topology: Topology, name: str) -> EffectivePolicy:
    """The policies that apply to the queue `name`."""
    return topology.queue_policies.get(name, NOTHING_APPLIES)


def _apply(topology: Topology, queue: Queue, applied: EffectivePolicy, *, tagged: bool) -> list[Queue]:
    name = queue.definition.name
    if applied is NOTHING_APPLIES:
        topology.queue_policies.pop(name, None)
    else:
        topology.queue_policies[name] = applied
    queue.policy = applied.policy
    queue.configure(queue_settings(queue.definition.arguments, applied.definition))
    return [queue] if _sets_replicated(queue, applied, tagged) else []


def _sets_replicated(queue: Queue, applied: EffectivePolicy, tagged: bool) -> bool:
    """Whether `replicated` is other than it was."""
    asked = tagged and applied.definition.get(REPLICATE) is True
    was, queue.replicated = queue.replicated, asked and queue.definition.durable and queue.owner is None
    return queue.replicated != was

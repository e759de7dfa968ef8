"""What follows when policies change: settings of queues, alternates of exchanges, who is replicated.

A vhost is replicated to a standby site when it is tagged (`tagged`), a queue of it when its policies
ask for it and it is durable and nobody's own.
"""

from __future__ import annotations

from leveret.core.broker.policies import NOTHING_APPLIES, EffectivePolicy
from leveret.core.broker.policy_validation import REPLICATE
from leveret.core.broker.topology import Topology
from leveret.core.queues.queue import Queue
from leveret.core.queues.queue_settings import queue_settings
from leveret.core.rules.validation import queue_type


def refresh_vhost(topology: Topology, *, tagged: bool) -> list[Queue]:
    """Let all queues and exchanges have what applies to them now; those for whom that is the same are left.

    Returns:
        The queues that became replicated, or are not any more.
    """
    changed: list[Queue] = []
    for name, queue in topology.queues.items():
        applied = topology.policies.for_queue(name, queue_type(queue.definition.arguments))
        if applied != policies_of(topology, name):
            changed += _apply(topology, queue, applied, tagged=tagged)
    for name, state in topology.exchanges.items():
        state.apply_policies(topology.policies.for_exchange(name))
    return changed


def configure_queue(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
    """Give a new queue its settings and its policies; returned as by `refresh_vhost`."""
    definition = queue.definition
    applied = topology.policies.for_queue(definition.name, queue_type(definition.arguments))
    return _apply(topology, queue, applied, tagged=tagged)


def refresh_replicated(topology: Topology, *, tagged: bool) -> list[Queue]:
    """The vhost's tags may have changed; returned as by `refresh_vhost`."""
    queues = list(topology.queues.values())
    return [each for each in queues if _sets_replicated(each, policies_of(topology, each.key[1]), tagged)]


def policies_of(topology: Topology, name: str) -> EffectivePolicy:
    """What applies to the queue `name`."""
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

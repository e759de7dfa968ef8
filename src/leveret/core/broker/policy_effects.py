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
from leveret.core.rules.mirror_policy import MODE, PARAMS, TRANSIENT, why_not_mirrored
from leveret.core.rules.validation import CLASSIC, queue_type


class StalePolicies:
    """The queues and exchanges to which changed policies may not have been applied yet.

    A policy may concern many thousands of them, so they are refreshed one by one, with clients served in between. A
    queue has either the policies from before or the present ones, never a mixture; a queue that is declared meanwhile
    has the present ones. The progress need not be stored: a policy is one change in the definitions log, for
    followers and for the nodes of a cluster, and each node, at each start, derives the effects anew. If policies
    change again meanwhile, all queues and exchanges are refreshed again: so several policies that change at once
    never apply without each other.

    Attributes:
        left: by vhost, what is left; None for everything in it.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.left: dict[str, deque[Queue | ExchangeState] | None] = {}

    def mark(self, vhost: str) -> None:
        """Note that policies of the vhost changed, so that everything in it is refreshed."""
        self.left[vhost] = None

    def forget(self, vhost: str) -> None:
        """Forget a vhost that is gone."""
        self.left.pop(vhost, None)

    def take(self, topologies: Mapping[str, Topology]) -> Iterator[tuple[str, Queue | ExchangeState]]:
        """Yield each queue and exchange that is left and still exists, with its vhost, once."""
        while self.left:
            vhost, left = next(iter(self.left.items()))
            topology = topologies[vhost]
            if left is None:
                left = self.left[vhost] = deque([*topology.queues.values(), *topology.exchanges.values()])
            while left and self.left.get(vhost) is left:
                each = left.popleft()
                if not left:
                    del self.left[vhost]
                if _is_there(topology, each):
                    yield vhost, each


def _is_there(topology: Topology, each: Queue | ExchangeState) -> bool:
    if isinstance(each, ExchangeState):
        return topology.exchanges.get(each.definition.name) is each
    return topology.queues.get(each.definition.name) is each


def refresh_queue(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
    """Apply the present policies to a queue.

    Returns:
        The queue if its `replicated` changed.
    """
    applied = topology.policies.for_queue(queue.definition.name, queue_type(queue.definition.arguments))
    if applied == policies_of(topology, queue.definition.name):
        return []
    return _apply(topology, queue, applied, tagged=tagged)


def configure_queue(topology: Topology, queue: Queue, *, tagged: bool) -> list[Queue]:
    """Give a new queue its settings and its policies; the result is that of `refresh_queue`."""
    definition = queue.definition
    applied = topology.policies.for_queue(definition.name, queue_type(definition.arguments))
    return _apply(topology, queue, applied, tagged=tagged)


def refresh_replicated(topology: Topology, *, tagged: bool) -> list[Queue]:
    """Update `replicated` after a change of the vhost's tags; the results are those of `refresh_queue`."""
    queues = list(topology.queues.values())
    return [each for each in queues if _sets_replicated(each, policies_of(topology, each.key[1]), tagged)]


def policies_of(topology: Topology | None, name: str) -> EffectivePolicy:
    """The policies that apply to the queue `name`; none to one whose vhost is gone."""
    return NOTHING_APPLIES if topology is None else topology.queue_policies.get(name, NOTHING_APPLIES)


def _apply(topology: Topology, queue: Queue, applied: EffectivePolicy, *, tagged: bool) -> list[Queue]:
    name = queue.definition.name
    if applied is NOTHING_APPLIES:
        topology.queue_policies.pop(name, None)
    else:
        topology.queue_policies[name] = applied
    queue.policy = applied.policy
    _note_unmirrored(topology, queue, applied)
    queue.configure(queue_settings(queue.definition.arguments, applied.definition))
    return [queue] if _sets_replicated(queue, applied, tagged) else []


def _note_unmirrored(topology: Topology, queue: Queue, applied: EffectivePolicy) -> None:
    """Note a policy that asks for mirrors of a transient queue, once however many queues it is.

    Exclusive queues are not noted: most policies cover the reply queues of clients, and nobody expects copies of them.
    """
    definition = queue.definition
    why = why_not_mirrored(
        applied.definition, durable=definition.durable, is_exclusive=queue.owner is not None
    )
    if why == TRANSIENT and queue_type(definition.arguments) == CLASSIC:
        named = applied.policy or applied.operator_policy or ""
        asked = (named, str(applied.definition.get(MODE)), str(applied.definition.get(PARAMS)))
        if asked not in topology.unmirrored:
            topology.unmirrored.add(asked)
            topology.notices.append(
                f"policy '{named}' asks for mirrors of queue '{definition.name}' in vhost '{definition.vhost}', which "
                "is transient: it has no copy, and is deleted when its node is lost; declare it durable"
            )


def _sets_replicated(queue: Queue, applied: EffectivePolicy, tagged: bool) -> bool:
    """Update `replicated`; return whether it changed."""
    asked = tagged and applied.definition.get(REPLICATE) is True
    was, queue.replicated = queue.replicated, asked and queue.definition.durable and queue.owner is None
    return queue.replicated != was

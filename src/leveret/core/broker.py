"""The broker's decisions about its schema: what exists, who owns it, what follows from a change.

Two ways in: `apply` takes a `Change` (HTTP, definitions file, schema sync, the log at start), the
verbs (`declare_queue`, `bind`, ...) take what an AMQP method asks and refuse it in RabbitMQ's words.
Both leave behind `changes` for the definitions log. `version` rises whenever a cached route or
permission may have become untrue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leveret.core.policies import (
    ALTERNATE_EXCHANGE,
    REPLICATE,
    check_policy,
    policy_for_exchange,
    policy_for_queue,
)
from leveret.core.queue import Queue, Reader
from leveret.core.queue_settings import queue_settings
from leveret.core.queue_types import make_queue
from leveret.core.routing import ROUTERS, Headers
from leveret.core.topology import PREDECLARED, ExchangeState, Topology
from leveret.core.validation import check_exchange_arguments, check_queue_arguments, equivalent, queue_type
from leveret.model import definitions as d
from leveret.model.errors import InvalidCommand, NotFound, PreconditionFailed

STANDBY_TAG = "standby_replication"


class Connection(Protocol):
    """A client's connection, as the broker needs to know it."""

    vhost: str | None
    user: str | None

    def force_close(self, reason: str) -> None:
        """End the connection, telling the client why."""


class Broker:
    """All vhosts of a node.

    Attributes:
        definitions: every entity but exclusive queues and their bindings.
        changes: what the definitions log must take next; the runtime empties it.
        changes_in_flight: above 0 while changes were taken but are not durable yet; the runtime counts.
        dirty: queues that gathered, settled or may dispatch since the last flush; the runtime empties it.
        deleted: queues whose log must go once `changes` is durable; the runtime empties it.
        replication_changes: queues whose `replicated` changed; the runtime empties it.
        connections: who is connected now.
    """

    def __init__(self, read: Reader) -> None:
        """An empty broker; `read` fetches a queue's messages from its log."""
        self.definitions = d.Definitions()
        self.topologies: dict[str, Topology] = {}
        self.queues: dict[tuple[str, ...], Queue] = {}
        self.changes: list[d.Change] = []
        self.dirty: dict[Queue, None] = {}
        self.changes_in_flight = 0
        self.deleted: list[Queue] = []
        self.replication_changes: list[Queue] = []
        self.connections: set[Connection] = set()
        self.version = 0
        self.last_epoch = 0
        self._read = read
        self._transient_epoch = 0

    # -- changes ------------------------------------------------------------------------------

    def apply(self, change: d.Change) -> None:
        """Put or delete an entity with all that follows; log what is durable.

        Deleting what is not there does nothing. A queue or exchange that exists with other properties is
        not replaced.

        Raises:
            Refusal: the change contradicts what exists, or is not valid.
        """
        self.version += 1
        if isinstance(change, d.Put):
            self._put(change.entity)
        else:
            self._delete(change.kind, change.key)

    def _record(self, change: d.Change, *, durable: bool = True) -> None:
        self.definitions.apply(change)
        if durable:
            self.changes.append(change)

    def _put(self, entity: d.AnyEntity) -> None:
        match entity:
            case d.Vhost(name=name):
                self.topologies.setdefault(name, Topology(name))
                self._record(d.Put(entity))
                self._refresh_policies(name)
            case d.Exchange():
                self._put_exchange(entity)
            case d.Queue():
                self._put_queue(entity, owner=None)
            case d.Binding():
                self._put_binding(entity)
            case d.Policy():
                self.topology(entity.vhost)
                check_policy(entity)
                self._record(d.Put(entity))
                self._refresh_policies(entity.vhost)
            case d.Permission() | d.TopicPermission():
                self.topology(entity.vhost)
                if (entity.user,) not in self.definitions.by_kind["users"]:
                    raise NotFound(f"no user '{entity.user}'")
                self._record(d.Put(entity))
            case d.Parameter():
                self.topology(entity.vhost)
                self._record(d.Put(entity))
            case d.User() | d.GlobalParameter():
                self._record(d.Put(entity))

    def _delete(self, kind: str, key: tuple[str, ...]) -> None:
        entity = self.definitions.by_kind[kind].get(key)
        if entity is None:
            return
        match entity:
            case d.Vhost(name=name):
                self._delete_vhost(name)
            case d.Exchange():
                self.delete_exchange(entity.vhost, entity.name)
            case d.Queue():
                self.delete_queue(self.queues[key])
            case d.Binding():
                self.unbind(entity)
            case d.Policy(vhost=vhost):
                self._record(d.Delete(kind, key))
                self._refresh_policies(vhost)
            case d.User(name=name):
                for other in ("permissions", "topic_permissions"):
                    for held in [k for k in self.definitions.by_kind[other] if k[1] == name]:
                        self._record(d.Delete(other, held))
                self._record(d.Delete(kind, key))
                self._close_connections(lambda c: c.user == name, f"user '{name}' is deleted")
            case _:
                self._record(d.Delete(kind, key))

    def _close_connections(self, chosen: Callable[[Connection], bool], reason: str) -> None:
        for connection in [c for c in self.connections if chosen(c)]:
            connection.force_close(reason)

    # -- vhosts -------------------------------------------------------------------------------

    def topology(self, vhost: str) -> Topology:
        """The exchanges and bindings of a vhost.

        Raises:
            NotFound: there is no such vhost.
        """
        try:
            return self.topologies[vhost]
        except KeyError:
            raise NotFound(f"vhost '{vhost}' does not exist") from None

    def vhost_queues(self, vhost: str) -> list[Queue]:
        """All queues of a vhost, exclusive ones too."""
        return [queue for key, queue in self.queues.items() if key[0] == vhost]

    def _delete_vhost(self, name: str) -> None:
        self._close_connections(lambda c: c.vhost == name, f"vhost '{name}' is deleted")
        for queue in self.vhost_queues(name):
            self.delete_queue(queue)
        for kind in reversed(d.KINDS):
            if kind not in ("users", "vhosts", "global_parameters"):
                for key in [k for k in self.definitions.by_kind[kind] if k[0] == name]:
                    self._record(d.Delete(kind, key))
        del self.topologies[name]
        self._record(d.Delete("vhosts", (name,)))

    # -- exchanges ----------------------------------------------------------------------------

    def exchange(self, vhost: str, name: str) -> d.Exchange:
        """The exchange's definition.

        Raises:
            NotFound: there is none.
        """
        state = self.topology(vhost).exchanges.get(name)
        if state is None:
            raise NotFound(f"no exchange '{name}' in vhost '{vhost}'")
        return state.definition

    def _put_exchange(self, wanted: d.Exchange) -> None:
        topology = self.topology(wanted.vhost)
        held = topology.exchanges.get(wanted.name)
        if held is not None:
            equivalent(
                wanted,
                held.definition,
                ("type", "durable", "auto_delete", "internal"),
                ("alternate-exchange",),
            )
            return
        if wanted.type not in ROUTERS:
            raise InvalidCommand(f"unknown exchange type '{wanted.type}'")
        check_exchange_arguments(wanted)
        state = topology.exchanges[wanted.name] = ExchangeState(wanted)
        _set_alternate(state, policy_for_exchange(self._policies(), wanted.vhost, wanted.name))
        self._record(d.Put(wanted), durable=wanted.durable)

    def declare_exchange(self, wanted: d.Exchange) -> None:
        """Declare an exchange, or check that the one there is equivalent.

        Raises:
            Refusal: another type or other properties, an unknown type.
        """
        self.version += 1
        self._put_exchange(wanted)

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and every binding from and to it; absent is no error, as in RabbitMQ.

        Raises:
            PreconditionFailed: `if_unused` and something is bound to it.
        """
        self.version += 1
        topology = self.topology(vhost)
        state = topology.exchanges.get(name)
        if state is None or name in PREDECLARED:
            return
        if if_unused and state.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost}' in use")
        for binding in [*state.bindings.values(), *topology.bindings_into("exchange", name)]:
            if topology.has_binding(binding):
                self.unbind(binding)
        if topology.exchanges.pop(name, None) is not None:
            self._record(d.Delete("exchanges", (vhost, name)), durable=state.definition.durable)

    # -- queues -------------------------------------------------------------------------------

    def queue(self, vhost: str, name: str) -> Queue:
        """The queue.

        Raises:
            NotFound: there is none.
        """
        queue = self.queues.get((vhost, name))
        if queue is None:
            self.topology(vhost)
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        _check_health(queue)
        return queue

    def _put_queue(self, wanted: d.Queue, owner: object | None) -> Queue:
        topology = self.topology(wanted.vhost)
        held = self.queues.get(wanted.key)
        if held is not None:
            _check_health(held)
            equivalent(wanted, held.definition, ("durable", "auto_delete"), ("x-queue-type",))
            return held
        check_queue_arguments(wanted)
        queue = make_queue(self._with_epoch(wanted), self._read)
        queue.owner = owner
        self.queues[queue.key] = queue
        topology.queue_names.add(queue.definition.name)
        if owner is None:
            self._record(d.Put(queue.definition), durable=queue.definition.durable)
        self._refresh_queue(queue, self._policies())
        return queue

    def _with_epoch(self, wanted: d.Queue) -> d.Queue:
        """A durable queue's epoch is one more than any before it on this node; see the definitions log."""
        if wanted.epoch:
            self.last_epoch = max(self.last_epoch, wanted.epoch)
            return wanted
        if wanted.durable:
            self.last_epoch += 1
            epoch = self.last_epoch
        else:
            self._transient_epoch += 1
            epoch = self._transient_epoch
        return d.Queue(
            name=wanted.name,
            vhost=wanted.vhost,
            durable=wanted.durable,
            auto_delete=wanted.auto_delete,
            arguments=wanted.arguments,
            epoch=epoch,
        )

    def declare_queue(self, wanted: d.Queue, owner: object | None = None) -> Queue:
        """Declare a queue, exclusively for `owner` if given, or check that the one there is equivalent.

        Raises:
            Refusal: other properties, or arguments that are not valid.
        """
        self.version += 1
        return self._put_queue(wanted, owner)

    def delete_queue(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with its bindings; return how many ready messages went with it.

        Raises:
            PreconditionFailed: a condition does not hold.
        """
        vhost, name = queue.key
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' not empty")
        self.version += 1
        count = queue.ready_count
        topology = self.topology(vhost)
        for binding in topology.bindings_into("queue", name):
            self.unbind(binding)
        del self.queues[queue.key]
        topology.queue_names.discard(name)
        self.dirty.pop(queue, None)
        self.deleted.append(queue)
        if queue.owner is None:
            self._record(d.Delete("queues", queue.key), durable=queue.definition.durable)
        for consumer in list(queue.consumers):
            consumer.queue_deleted()
        queue.consumers.clear()
        return count

    # -- bindings -----------------------------------------------------------------------------

    def _put_binding(self, binding: d.Binding) -> None:
        topology = self.topology(binding.vhost)
        self.exchange(binding.vhost, binding.source)
        if binding.destination_type == "queue":
            queue = self.queue(binding.vhost, binding.destination)
            durable, exclusive = queue.definition.durable, queue.owner is not None
        else:
            durable, exclusive = self.exchange(binding.vhost, binding.destination).durable, False
        if topology.has_binding(binding):
            return
        topology.bind(binding)
        durable = durable and topology.exchanges[binding.source].definition.durable
        if not exclusive:
            self._record(d.Put(binding), durable=durable)

    def bind(self, binding: d.Binding) -> None:
        """Bind; doing so twice is no error.

        Raises:
            NotFound: an end is missing.
        """
        self.version += 1
        self._put_binding(binding)

    def unbind(self, binding: d.Binding) -> None:
        """Remove a binding, and its auto-delete source if that was the last; absent is no error."""
        self.version += 1
        topology = self.topology(binding.vhost)
        if not topology.has_binding(binding):
            return
        topology.unbind(binding)
        if binding.key in self.definitions.by_kind["bindings"]:
            self._record(d.Delete("bindings", binding.key))
        source = topology.exchanges[binding.source]
        if source.definition.auto_delete and not source.bindings:
            self.delete_exchange(binding.vhost, binding.source)

    def route(self, vhost: str, exchange: str, routing_key: str, headers: Headers) -> list[Queue]:
        """The queues a message goes to.

        Raises:
            NotFound: no such exchange.
        """
        self.exchange(vhost, exchange)
        names = self.topologies[vhost].route(exchange, routing_key, headers)
        return [self.queues[vhost, name] for name in names]

    # -- policies -----------------------------------------------------------------------------

    def _policies(self) -> list[d.Policy]:
        return [
            policy for policy in self.definitions.by_kind["policies"].values() if isinstance(policy, d.Policy)
        ]

    def _refresh_policies(self, vhost: str) -> None:
        policies = self._policies()
        for queue in self.vhost_queues(vhost):
            self._refresh_queue(queue, policies)
        for state in self.topology(vhost).exchanges.values():
            _set_alternate(state, policy_for_exchange(policies, vhost, state.definition.name))

    def _refresh_queue(self, queue: Queue, policies: list[d.Policy]) -> None:
        vhost, name = queue.key
        policy = policy_for_queue(policies, vhost, name, queue_type(queue.definition.arguments))
        queue.policy = policy.name if policy else None
        definition = policy.definition if policy else {}
        queue.configure(queue_settings(queue.definition.arguments, definition, {}))
        tagged = STANDBY_TAG in getattr(self.definitions.by_kind["vhosts"].get((vhost,)), "tags", ())
        asked = policy is not None and policy.definition.get(REPLICATE) is True
        replicated = tagged and asked and queue.definition.durable and queue.owner is None
        if replicated != queue.replicated:
            queue.replicated = replicated
            self.replication_changes.append(queue)


def _check_health(queue: Queue) -> None:
    if queue.damage is not None:
        vhost, name = queue.key
        raise NotFound(f"queue '{name}' in vhost '{vhost}' is down: {queue.damage}")


def _set_alternate(state: ExchangeState, policy: d.Policy | None) -> None:
    own: str | None = state.definition.arguments.get(ALTERNATE_EXCHANGE)
    state.alternate = own or (policy.definition.get(ALTERNATE_EXCHANGE) if policy else None)

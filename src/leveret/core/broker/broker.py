"""The broker's decisions about its definitions: existence, ownership, and the consequences of a change.

There are two ways in. `apply` takes a `Change` (HTTP, definitions file, schema sync, the log at start). The verbs
(`declare_queue`, `bind`, ...) carry out an AMQP method, or refuse it in RabbitMQ's words. Both add to `changes`, which
go to the definitions log. `version` rises whenever a cached route or permission may have become invalid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from leveret.core.broker.access import check_patterns
from leveret.core.broker.churn import Churn
from leveret.core.broker.deferred_work import DeferredWork
from leveret.core.broker.definitions_lock import DefinitionsLock
from leveret.core.broker.deletions import Deletions, check_deletion
from leveret.core.broker.direct_reply import DirectReply
from leveret.core.broker.entities import check_shareable, with_stored_secrets
from leveret.core.broker.epochs import Epochs, is_next_incarnation
from leveret.core.broker.limits import (
    Connection,
    ConnectionRegistry,
    check_node_queue_limit,
    check_queue_limit,
)
from leveret.core.broker.login_attempts import Logins
from leveret.core.broker.parameters import check_parameter, check_user_limits
from leveret.core.broker.policies import EffectivePolicy
from leveret.core.broker.policy_effects import (
    StalePolicies,
    configure_queue,
    policies_of,
    refresh_queue,
    refresh_replicated,
)
from leveret.core.broker.policy_validation import check_policy
from leveret.core.broker.routing import Headers
from leveret.core.broker.topology import PREDECLARED, ExchangeState, Topology, check_exchange
from leveret.core.queues import queue_types
from leveret.core.queues.confirms import ConfirmingChannel
from leveret.core.queues.counters import Counters
from leveret.core.queues.queue import Queue, Reader
from leveret.core.rules.queue_arguments import ARGUMENTS, AT_LEAST_ONCE, check_queue, with_default_type
from leveret.core.rules.validation import (
    ALTERNATE_EXCHANGE,
    CLASSIC,
    QUORUM,
    STREAM,
    check_binding,
    check_name,
    check_nesting,
    equivalent,
    queue_type,
)
from leveret.model import definitions as d
from leveret.model.errors import InvalidCommand, NotFound, PreconditionFailed
from leveret.wire.content_header import HeaderReader

STANDBY_TAG: Final = "standby_replication"


class Broker:
    """All vhosts of a node.

    Attributes:
        default_queue_type: of vhosts that are made without one.
        definitions: every entity except exclusive queues and their bindings.
        changes: the next changes for the definitions log; the runtime empties it.
        confirming: publishes and commits in several steps that had a step since the last flush; the runtime empties it.
        changes_in_flight: the number of syncs that changes wait for, counted by the runtime.
        dirty: queues with something gathered, settled or to dispatch since the last flush; the runtime empties it.
        deleted: queues whose log must go once `changes` is durable; the runtime empties it.
        nodes: returns the number of nodes of the cluster, on which streams may be.
        fewer_copies, notices: sentences on streams and queues with fewer copies than asked for; the runtime empties it.
        weak_dead_letters: queues that ask for at-least-once, and may lack what else it needs; the runtime empties it.
        refreshing: the last queue or exchange to which `refresh_policies` applied policies, or could not.
        replication_changes: queues whose `replicated` changed; the runtime empties it.
        counters, stream_counters: message counters of the whole node, and of clients of the stream protocol.
        stream_errors: the number of errors sent to these clients, by code.
        direct_replies: by routing key, the clients that consume replies without a queue.
        connections: the open connections.
        logins: the counts of clients' login attempts.
        own_users: the users of the node's own jobs; they have all permissions.
        churn: the counts of opened and closed connections, channels and queues.
        departed: the counters of deleted queues, by queue type.
        dead_lettered: the number of dead-lettered messages, by queue type, strategy and reason.
        dead_letters_confirmed: the number of those, by queue type, that all targets have, with at-least-once.
        refuses_durable: whether too few followers are in sync, so that durable publishes with confirms are refused.
        may_deliver: returns whether no other node can lead by now, and settle what this one would deliver.
        known_routes: the number of routes and destinations that all connections keep, see session.amqp091.publishing.
        headers: reads the headers of all published messages, so that an application's connections share its layouts.
        traced_vhosts: vhosts whose messages are copied to amq.rabbitmq.trace; a restart ends it.
        epochs: the epochs of queues.
        definitions_lock: whether this node may change definitions.
        deferred_work: work too long for one step of the event loop; the runtime goes on with it.
        deletions: deletions that take several steps, or wait for the definitions lock.
        make_queue: makes the object for a declared queue, whether this node or another one leads it.
        shared: the next changes for other nodes, exclusive queues too; None on a single node.
    """

    def __init__(
        self,
        read: Reader,
        *,
        default_queue_type: str = CLASSIC,
        queue_max: int | None = None,
        epochs: Epochs | None = None,
    ) -> None:
        """An empty broker for `queue_max` queues; `read` fetches a queue's messages from its log."""
        self.default_queue_type = default_queue_type
        self._queue_max = queue_max
        self.definitions = d.Definitions()
        self.topologies: dict[str, Topology] = {}
        self.queues: dict[tuple[str, ...], Queue] = {}
        self.changes: list[d.Change] = []
        self.dirty: dict[Queue, None] = {}
        self.confirming: dict[ConfirmingChannel, None] = {}
        self.changes_in_flight = 0
        self.may_deliver: Callable[[], bool] = lambda: True
        self.deleted: list[Queue] = []
        self.fewer_copies, self.notices = list[str](), list[str]()
        self.weak_dead_letters: dict[Queue, None] = {}
        self.nodes: Callable[[], int] = lambda: 1
        self._owned: dict[object, dict[Queue, None]] = {}
        self.replication_changes: list[Queue] = []
        self.connections = ConnectionRegistry()
        self.logins = Logins()
        self.own_users: set[str] = set()
        self.churn = Churn()
        self.counters = Counters()
        self.stream_counters = Counters()
        self.stream_errors: Counter[int] = Counter()
        self.direct_replies: dict[str, DirectReply] = {}
        self.departed: dict[str, Counters] = {}
        self.dead_lettered: Counter[tuple[str, str, str]] = Counter()
        self.dead_letters_confirmed: Counter[str] = Counter()
        self.refuses_durable = False
        self.known_routes = 0
        self.headers = HeaderReader()
        self.traced_vhosts: set[str] = set()
        self.version = 0
        self.epochs = epochs or Epochs()
        self.definitions_lock = DefinitionsLock()
        self.deferred_work = DeferredWork()
        self.make_queue: Callable[[d.Queue, Reader, bool], Queue] = _led_here
        self.shared: list[d.Change] | None = None
        self._read = read
        self._stale = StalePolicies()
        self._deletes_unbound = True
        self.refreshing: Queue | ExchangeState | None = None
        self.deletions = Deletions(
            self.queues,
            self.topologies,
            self.definitions_lock,
            self.deferred_work,
            self.unbind,
            self.delete_queue,
            self._forget_routes,
        )

    # -- changes ------------------------------------------------------------------------------

    def apply(self, change: d.Change) -> None:
        """Put or delete an entity with all consequences; log the change if it is durable.

        Deleting an absent entity does nothing. A queue or exchange that exists with other properties is not replaced.

        Raises:
            Refusal: the change contradicts what exists, or is not valid.
        """
        self.version += 1
        if isinstance(change, d.Put):
            self._check_size(change.entity)
            self._put(change.entity)
        else:
            self._delete(change.kind, change.key)

    def apply_decided(self, change: d.Change) -> None:
        """Apply a change that another node, or this one before, has decided.

        As `apply`, except that an auto-delete exchange stays when its last binding goes: its deletion is a change of
        its own, and changes that were made together may come in another order, so that it has another binding next.

        Raises:
            Refusal: the change contradicts what exists, or is not valid.
        """
        self._deletes_unbound = False
        try:
            self.apply(change)
        finally:
            self._deletes_unbound = True

    def _check_size(self, entity: d.AnyEntity) -> None:
        check_nesting(entity)
        if self.shared is not None:
            check_shareable(entity)

    def _record(self, change: d.Change, *, durable: bool = True) -> None:
        self.definitions.apply(change)
        if durable:
            self.changes.append(change)
        self._share(change)

    def _share(self, change: d.Change) -> None:
        if self.shared is not None:
            self.shared.append(change)

    def _put(self, entity: d.AnyEntity) -> None:
        match entity:
            case d.Vhost():
                self._put_vhost(entity)
            case d.Exchange():
                self._put_exchange(entity)
            case d.Queue():
                self._put_queue(entity, owner=None)
            case d.Binding():
                self._put_binding(entity)
            case d.Policy():
                self.topology(entity.vhost)
                check_policy(entity)
                self._put_policy(entity)
            case d.Permission() | d.TopicPermission():
                self.topology(entity.vhost)
                check_patterns(entity)
                if (entity.user,) not in self.definitions.by_kind["users"]:
                    raise NotFound(f"no user '{entity.user}'")
                self._record(d.Put(entity))
            case d.Parameter():
                self.topology(entity.vhost)
                check_parameter(entity)
                if entity.component == d.OPERATOR_POLICY:
                    self._put_policy(entity)
                else:
                    self._record(d.Put(with_stored_secrets(entity, self.definitions)))
            case d.User():
                check_user_limits(entity.limits)
                self._record(d.Put(entity))
            case d.GlobalParameter():
                self._record(d.Put(with_stored_secrets(entity, self.definitions)))

    def _delete(self, kind: str, key: tuple[str, ...]) -> None:
        entity = self.definitions.by_kind[kind].get(key) or self._exclusive(kind, key)
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
            case d.Policy():
                self._delete_policy(entity)
            case d.Parameter(component=component) if component == d.OPERATOR_POLICY:
                self._delete_policy(entity)
            case d.User(name=name):
                for other in ("permissions", "topic_permissions"):
                    for existing in [k for k in self.definitions.by_kind[other] if k[1] == name]:
                        self._record(d.Delete(other, existing))
                self._record(d.Delete(kind, key))
                self._close_connections(lambda c: c.user == name, f"user '{name}' is deleted")
            case _:
                self._record(d.Delete(kind, key))

    def _exclusive(self, kind: str, key: tuple[str, ...]) -> d.AnyEntity | None:
        """The exclusive queue, or the binding of one, with this key, which is not among the definitions."""
        if kind == "queues":
            queue = self.queues.get(key)
            return queue.definition if queue is not None else None
        topology = self.topologies.get(key[0]) if kind == "bindings" else None
        source = topology.exchanges.get(key[1]) if topology is not None else None
        return source.bindings.get(key) if source is not None else None

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
        topology = self.topologies.get(vhost)
        return list(topology.queues.values()) if topology is not None else []

    def led_queues(self) -> list[Queue]:
        """The queues that this node leads: all queues on a single node."""
        return [queue for queue in self.queues.values() if not queue.is_remote]

    def _put_vhost(self, vhost: d.Vhost) -> None:
        """Make a vhost, or change its metadata; its tags decide whether its queues are replicated."""
        check_name("vhost", vhost.name)
        if vhost.default_queue_type not in ARGUMENTS:
            raise InvalidCommand(f"unsupported queue type '{vhost.default_queue_type}'")
        topology = self.topologies.setdefault(vhost.name, Topology(vhost.name, self.notices))
        was_tagged = self._is_tagged(vhost.name)
        self._record(d.Put(vhost))
        if self._is_tagged(vhost.name) != was_tagged:
            self.replication_changes += refresh_replicated(topology, tagged=not was_tagged)

    def _delete_vhost(self, name: str) -> None:
        self._close_connections(lambda c: c.vhost == name, f"vhost '{name}' is deleted")
        for queue in self.vhost_queues(name):
            self.delete_queue(queue)
        for kind in reversed(d.KINDS):
            if kind not in ("users", "vhosts", "global_parameters"):
                for key in [k for k in self.definitions.by_kind[kind] if k[0] == name]:
                    self._record(d.Delete(kind, key))
        del self.topologies[name]
        self._stale.forget(name)
        self.traced_vhosts.discard(name)
        self._record(d.Delete("vhosts", (name,)))

    # -- exchanges ----------------------------------------------------------------------------

    def exchange(self, vhost: str, name: str) -> d.Exchange:
        """The exchange's definition.

        Raises:
            NotFound: there is no such exchange.
        """
        state = self.find_exchange(vhost, name)
        if state is None:
            raise NotFound(f"no exchange '{name}' in vhost '{vhost}'")
        return state.definition

    def find_exchange(self, vhost: str, name: str) -> ExchangeState | None:
        """The exchange, None if there is none; an unneeded one (see Deletions) is deleted first."""
        state = self.topology(vhost).exchanges.get(name)
        if state is None or not self.deletions.is_unneeded(state):
            return state
        self.delete_exchange(vhost, name)
        return None

    def _put_exchange(self, wanted: d.Exchange) -> None:
        topology = self.topology(wanted.vhost)
        existing = self.find_exchange(wanted.vhost, wanted.name)
        if existing is not None:
            equivalent(
                wanted,
                existing.definition,
                ("type", "durable", "auto_delete", "internal"),
                (ALTERNATE_EXCHANGE,),
            )
            return
        check_exchange(wanted)
        state = topology.exchanges[wanted.name] = ExchangeState(wanted)
        state.apply_policies(topology.policies.for_exchange(wanted.name))
        self._record(d.Put(wanted), durable=wanted.durable)

    def declare_exchange(self, wanted: d.Exchange) -> None:
        """Declare an exchange, or check that the existing one is equivalent.

        Raises:
            Refusal: another type or other properties, an unknown type.
        """
        self.version += 1
        self._check_size(wanted)
        self._put_exchange(wanted)

    def delete_exchange(self, vhost: str, name: str) -> None:
        """Delete an exchange and every binding from and to it; an absent one is no error, as in RabbitMQ."""
        self.version += 1
        self._delete_exchanges(self.topology(vhost), [name])

    def _delete_exchanges(self, topology: Topology, names: list[str]) -> None:
        """Delete exchanges, and the auto-delete exchanges whose last binding goes with them.

        A chain of these may be longer than calls can be nested.
        """
        while names:
            name = names.pop()
            state = topology.exchanges.get(name)
            if state is None or name in PREDECLARED:
                continue
            for binding in [*state.bindings.values(), *topology.bindings_into("exchange", name)]:
                if self._remove_binding(topology, binding) and binding.source != name:
                    names.append(binding.source)
            del topology.exchanges[name]
            change = d.Delete("exchanges", (topology.vhost, name))
            self._record(change, durable=state.definition.durable)

    # -- queues -------------------------------------------------------------------------------

    def queue(self, vhost: str, name: str) -> Queue:
        """The queue.

        Raises:
            NotFound: there is no such queue.
        """
        queue = self.find_queue((vhost, name))
        if queue is None:
            self.topology(vhost)
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        _check_health(queue)
        return queue

    def _put_queue(self, wanted: d.Queue, owner: object | None) -> Queue:
        topology = self.topology(wanted.vhost)
        existing = self.find_queue(wanted.key)
        if existing is not None and is_next_incarnation(wanted, existing.definition):
            self._remove(existing)
        elif existing is not None:
            _check_health(existing)
            kind = queue_type(existing.definition.arguments)
            equivalent(wanted, existing.definition, ("durable", "auto_delete"), ARGUMENTS[kind])
            return existing
        check_queue(wanted, exclusive=owner is not None)
        queue = self.make_queue(self.epochs.stamp(wanted), self._read, owner is not None)
        if owner is not None:
            queue.owner = owner
            self._owned.setdefault(owner, {})[queue] = None
        self.queues[queue.key] = queue
        topology.queues[queue.definition.name] = queue
        if queue.owner is None:
            self._record(d.Put(queue.definition), durable=queue.definition.durable)
        else:
            self._share(d.Put(queue.definition))
        tagged = self._is_tagged(wanted.vhost)
        self.replication_changes += configure_queue(topology, queue, tagged=tagged)
        self._note_strategy(queue)
        missing, less = topology.missing_copies(wanted, self.nodes())
        self.fewer_copies += [less] if missing else []
        return queue

    def owned_by(self, owner: object) -> list[Queue]:
        """The exclusive queues of a connection, in the order of their declaration."""
        return list(self._owned.get(owner, ()))

    def exclusive_queues(self) -> list[Queue]:
        """The exclusive queues of all connections; in a cluster, of other nodes' connections too."""
        return [queue for queue in self.queues.values() if queue.owner is not None]

    def declare_queue(self, wanted: d.Queue, owner: object | None = None) -> Queue:
        """Declare a queue, exclusively for `owner` if given, or check that the existing one is equivalent.

        A queue without `x-queue-type` gets the vhost's default type. Unlike `apply`, this checks the vhost's and the
        node's limit of queues.

        Raises:
            Refusal: other properties, invalid arguments, or one queue too many.
        """
        self.version += 1
        self._check_size(wanted)
        wanted = self._with_default_type(wanted, exclusive=owner is not None)
        if self.find_queue(wanted.key) is None:
            count = len(self.topology(wanted.vhost).queues)
            check_queue_limit(self.definitions, wanted.vhost, wanted.name, count)
            check_node_queue_limit(self._queue_max, wanted.name, len(self.queues))
        self.churn.queue_declared += 1
        count = len(self.queues)
        queue = self._put_queue(wanted, owner)
        self.churn.queue_created += len(self.queues) - count
        return queue

    def check_server_named(self, wanted: d.Queue, *, exclusive: bool) -> None:
        """Whether a queue of this declaration may leave its name to the server.

        Raises:
            PreconditionFailed: its type, its own or the vhost's default, does not allow it.
        """
        kind = queue_type(self._with_default_type(wanted, exclusive=exclusive).arguments)
        if kind in (QUORUM, STREAM):
            raise PreconditionFailed(f"Cannot declare a server-named queue for type rabbit_{kind}_queue")

    def _with_default_type(self, wanted: d.Queue, *, exclusive: bool) -> d.Queue:
        vhost = self.definitions.by_kind["vhosts"].get((wanted.vhost,))
        if not isinstance(vhost, d.Vhost):
            return wanted
        return with_default_type(wanted, vhost.default_queue_type, exclusive=exclusive)

    def restart_queue(self, queue: Queue) -> Queue:
        """Replace a queue by an empty one of the same name and arguments; its bindings stay.

        For other nodes, and on disk, this is one change: the queue is put with another epoch.
        """
        self.version += 1
        return self._put_queue(self.epochs.stamp(msgspec.structs.replace(queue.definition, epoch=0)), None)

    def delete_queue(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with its bindings; return the number of ready messages deleted with it.

        Raises:
            PreconditionFailed: a condition does not hold.
        """
        check_deletion(queue, if_unused=if_unused, if_empty=if_empty)
        vhost, name = queue.key
        self.version += 1
        count = queue.ready_count
        topology = self.topology(vhost)
        for binding in topology.bindings_into("queue", name):
            self.unbind(binding)
        self.churn.queue_deleted += 1
        if queue.owner is None:
            self._record(d.Delete("queues", queue.key), durable=queue.definition.durable)
        else:
            self._share(d.Delete("queues", queue.key))
            self._disown(queue)
        self._remove(queue)
        return count

    def _forget_routes(self) -> None:
        """Invalidate the routes that publishers keep."""
        self.version += 1

    def _remove(self, queue: Queue) -> None:
        """Remove the queue from all tables; its log goes with the next flush. Its bindings and its definition stay."""
        name = queue.key[1]
        topology = self.topology(queue.key[0])
        del self.queues[queue.key]
        kind = queue_type(queue.definition.arguments)
        self.departed.setdefault(kind, Counters()).add(queue.counters)
        del topology.queues[name]
        topology.queue_policies.pop(name, None)
        self.dirty.pop(queue, None)
        self.deleted.append(queue)
        for consumer in list(queue.consumers):
            consumer.queue_deleted()
        queue.consumers.clear()

    def _disown(self, queue: Queue) -> None:
        owned = self._owned.get(queue.owner, {})
        owned.pop(queue, None)
        if not owned:
            self._owned.pop(queue.owner, None)

    def find_queue(self, key: tuple[str, ...]) -> Queue | None:
        """The queue, None if there is none; looking for a queue that is no longer needed deletes it."""
        queue = self.queues.get(key)
        return queue if queue is None or not self.deletions.delete_if_unneeded(queue) else None

    def replace_queue(self, queue: Queue) -> Queue:
        """Replace the object of a queue whose leader changed; return the object before."""
        before = self.queues[queue.key]
        topology = self.topologies[queue.key[0]]
        self.version += 1
        self.queues[queue.key] = topology.queues[queue.key[1]] = queue
        queue.owner = before.owner
        self.dirty.pop(before, None)
        self.replication_changes += configure_queue(topology, queue, tagged=self._is_tagged(queue.key[0]))
        return before

    # -- bindings -----------------------------------------------------------------------------

    def _put_binding(self, binding: d.Binding) -> None:
        topology = self.topology(binding.vhost)
        source = self.exchange(binding.vhost, binding.source)
        if binding.destination_type == "queue":
            queue = self.queue(binding.vhost, binding.destination)
            durable, exclusive = queue.definition.durable, queue.owner is not None
        else:
            durable, exclusive = self.exchange(binding.vhost, binding.destination).durable, False
        if topology.has_binding(binding):
            return
        check_binding(binding, source.type)
        topology.bind(binding)
        durable = durable and source.durable
        if exclusive:
            self._share(d.Put(binding))
        else:
            self._record(d.Put(binding), durable=durable)

    def bind(self, binding: d.Binding) -> None:
        """Bind; doing so twice is no error.

        Raises:
            NotFound: an end is missing.
        """
        self.version += 1
        self._check_size(binding)
        self._put_binding(binding)

    def unbind(self, binding: d.Binding) -> None:
        """Remove a binding, and its auto-delete source if that was the last; an absent binding is no error."""
        self.version += 1
        topology = self.topology(binding.vhost)
        if self._remove_binding(topology, binding):
            self._delete_exchanges(topology, [binding.source])

    def _remove_binding(self, topology: Topology, binding: d.Binding) -> bool:
        """Remove a binding if it exists; return whether its source is to go, as an auto-delete exchange without any."""
        if not topology.has_binding(binding):
            return False
        topology.unbind(binding)
        if binding.key in self.definitions.by_kind["bindings"]:
            self._record(d.Delete("bindings", binding.key))
        else:
            self._share(d.Delete("bindings", binding.key))
        source = topology.exchanges[binding.source]
        return self._deletes_unbound and source.definition.auto_delete and not source.bindings

    def route(
        self, vhost: str, exchange: str, routing_key: str, headers: Headers, copies: Iterable[str] = ()
    ) -> list[Queue]:
        """The queues a message goes to; `copies` are further routing keys that it has.

        Raises:
            NotFound: no such exchange. TooManyPatterns: see Topology.
        """
        self.exchange(vhost, exchange)
        names = self.topologies[vhost].route(exchange, routing_key, headers, copies)
        queues = [self.queues[vhost, name] for name in names]
        return queues if not self.deletions else [each for each in queues if each not in self.deletions]

    # -- policies -----------------------------------------------------------------------------

    def policies_of_queue(self, queue: Queue) -> EffectivePolicy:
        """The policy and the operator policy that apply to a queue, with their merged definition."""
        vhost, name = queue.key
        return policies_of(self.topologies.get(vhost), name)

    def _put_policy(self, entity: d.Policy | d.Parameter) -> None:
        self.topologies[entity.vhost].policies.put(entity)
        self._record(d.Put(entity))
        self._stale.mark(entity.vhost)

    def _delete_policy(self, entity: d.Policy | d.Parameter) -> None:
        topology = self.topologies[entity.vhost]
        topology.policies.remove(entity)
        topology.unmirrored = {each for each in topology.unmirrored if each[0] != entity.name}
        self._record(d.Delete(entity.kind, entity.key))
        self._stale.mark(entity.vhost)

    @property
    def has_stale_policies(self) -> bool:
        """Whether changed policies are still to be applied."""
        return bool(self._stale.left)

    @property
    def has_chores(self) -> bool:
        """Whether a flush has more to do than queues and definitions: changed policies, or deferred work."""
        return bool(self._stale.left or self.deferred_work.left)

    def refresh_policies(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Apply changed policies to queues and exchanges, one after the other.

        Args:
            is_over: called after each of them; true leaves the rest to the next call.

        Returns:
            Whether any are left.
        """
        for vhost, each in self._stale.take(self.topologies):
            self.refreshing = each
            self._refresh(vhost, each)
            if is_over():
                break
        return self.has_stale_policies

    def _note_strategy(self, queue: Queue) -> None:
        if queue.settings.dead_letter_strategy == AT_LEAST_ONCE and not queue.is_remote:
            self.weak_dead_letters[queue] = None

    def _refresh(self, vhost: str, each: Queue | ExchangeState) -> None:
        topology = self.topologies[vhost]
        if isinstance(each, ExchangeState):
            applied = topology.policies.for_exchange(each.definition.name)
            if applied != each.applied:
                each.apply_policies(applied)
                self.version += 1
            return
        settings = each.settings
        self.replication_changes += refresh_queue(topology, each, tagged=self._is_tagged(vhost))
        if each.settings != settings:
            self._note_strategy(each)
            # Publishers may keep outdated properties of the queue, such as its room.
            self.version += 1
            self.dirty[each] = None

    def _is_tagged(self, vhost: str) -> bool:
        return STANDBY_TAG in getattr(self.definitions.by_kind["vhosts"].get((vhost,)), "tags", ())


def _led_here(definition: d.Queue, read: Reader, exclusive: bool) -> Queue:
    """The object for a queue of a single node, which leads every queue."""
    return queue_types.make_queue(definition, read)


def _check_health(queue: Queue) -> None:
    if queue.damage is not None:
        vhost, name = queue.key
        raise NotFound(f"queue '{name}' in vhost '{vhost}' is down: {queue.damage}")

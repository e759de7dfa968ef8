"""Operations of a user on the exchanges, queues and bindings of a vhost.

Every listener - AMQP 0-9-1, HTTP, streams - passes a change of its caller to one of these operations. Each operation
checks the permissions that it needs, in RabbitMQ's order and words, before it touches the broker; so no listener can
forget a check. `tools/tidy` keeps listeners from calling the broker's own verbs. For publishing, consuming and reading,
which are no changes of definitions, listeners ask with `require` and `require_topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.broker.access import Operation, is_allowed, matches, permission_of, topic_pattern
from leveret.core.broker.topology import check_exchange_type
from leveret.core.queues.confirms import ConfirmParts
from leveret.core.queues.queue import Queue
from leveret.core.rules.queue_arguments import DEAD_LETTER_EXCHANGE
from leveret.core.rules.super_streams import is_super_stream
from leveret.core.rules.validation import ALTERNATE_EXCHANGE, RESERVED_PREFIX
from leveret.model import definitions as d
from leveret.model.errors import AccessRefused, NotFound, PreconditionFailed, Refusal, ResourceLocked
from leveret.model.reasons import Reason

if TYPE_CHECKING:
    from leveret.core.broker.broker import Broker


class Actor:
    """One user in one vhost.

    Attributes:
        before_change: called when an operation is allowed and before it changes definitions; it may refuse.
    """

    def __init__(self, broker: Broker, user: str, vhost: str, owner: object | None = None) -> None:
        """`owner` is the user's connection, which may use its exclusive queues; None without one."""
        self.before_change: Callable[[], None] = _do_nothing
        self._broker = broker
        self._user = user
        self._vhost = vhost
        self._owner = owner

    # -- permissions --------------------------------------------------------------------------

    def may(self, operation: Operation, name: str) -> bool:
        """Whether the user's pattern for the operation covers the exchange or queue."""
        permission = permission_of(self._broker.definitions, self._user, self._vhost)
        return is_allowed(permission, operation, name) or self._user in self._broker.own_users

    def require(self, operation: Operation, kind: str, name: str) -> None:
        """Check a permission, and refuse in RabbitMQ's words.

        Raises:
            AccessRefused: `may` is false.
        """
        if not self.may(operation, name):
            shown = name or "amq.default"
            raise AccessRefused(
                f"access to {kind} '{shown}' in vhost '{self._vhost}' refused for user '{self._user}'"
            )

    def require_topic(self, operation: Operation, exchange: str, routing_key: str) -> None:
        """Check the user's topic permission, if one is set for the exchange.

        Raises:
            AccessRefused: its pattern does not cover the routing key.
        """
        existing = self._broker.definitions.by_kind["topic_permissions"].get(
            (self._vhost, self._user, exchange)
        )
        if not isinstance(existing, d.TopicPermission):
            return
        pattern = existing.write if operation == "write" else existing.read
        if not matches(topic_pattern(pattern, self._user, self._vhost), routing_key):
            raise AccessRefused(
                f"access to topic '{routing_key}' in exchange '{exchange}' in vhost '{self._vhost}' "
                f"refused for user '{self._user}'"
            )

    def _require_target(self, kind: str, name: str, arguments: d.Arguments, target: str) -> None:
        """Check the permissions for an argument that names an exchange, such as a dead letter exchange.

        Messages are read from the declared queue or exchange and written to the named exchange. The broker refuses an
        argument that is no name.
        """
        exchange = arguments.get(target)
        if isinstance(exchange, str):
            self.require("read", kind, name)
            self.require("write", "exchange", exchange)

    def check_lock(self, queue: Queue) -> None:
        """Refuse an exclusive queue of another connection.

        Raises:
            ResourceLocked: the queue is another connection's.
        """
        if queue.owner is not None and queue.owner is not self._owner:
            raise locked(*queue.key)

    # -- exchanges ----------------------------------------------------------------------------

    def declare_exchange(self, wanted: d.Exchange) -> None:
        """Declare an exchange, or check that the existing one is equivalent.

        Raises:
            Refusal: an unknown type, no permission, a reserved name, or see `Broker.declare_exchange`.
        """
        check_exchange_type(wanted.type)
        _check_not_default(wanted.name)
        self.require("configure", "exchange", wanted.name)
        if self._broker.find_exchange(self._vhost, wanted.name) is None:
            if wanted.name.startswith(RESERVED_PREFIX):
                raise AccessRefused(f"exchange name '{wanted.name}' contains reserved prefix 'amq.*'")
            self._require_target("exchange", wanted.name, wanted.arguments, ALTERNATE_EXCHANGE)
            self.before_change()
        self._broker.declare_exchange(wanted)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange; an absent one is no error.

        Raises:
            Refusal: no permission, or a predeclared exchange.
        """
        self._check_exchange_deletion(name)
        self._broker.delete_exchange(self._vhost, name)

    def delete_exchange_in_turns(
        self, name: str, then: Callable[[], None], *, if_unused: bool = False
    ) -> None:
        """As `delete_exchange`, in several steps if it has many bindings; `then` is called when it is gone.

        Raises:
            Refusal: see `delete_exchange`; or something is bound to it, and it was to go `if_unused`.
        """
        self._check_exchange_deletion(name)
        broker, vhost = self._broker, self._vhost

        def delete(is_there: bool) -> None:
            if is_there:
                broker.delete_exchange(vhost, name)
            then()

        broker.deletions.delete_exchange(vhost, name, delete, if_unused=if_unused)

    def _check_exchange_deletion(self, name: str) -> None:
        _check_not_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{self._vhost}' not allowed")
        self.require("configure", "exchange", name)
        if name in self._broker.topology(self._vhost).exchanges:
            self.before_change()

    # -- bindings -----------------------------------------------------------------------------

    def bind(self, binding: d.Binding) -> None:
        """Bind; of two missing ends the error names the source.

        Raises:
            Refusal: no permission on an end or for the topic, a locked queue, or see `Broker.bind`.
        """
        self._require_binding(binding)
        self._broker.exchange(self._vhost, binding.source)
        self._check_destination(binding)
        if not self._broker.topology(self._vhost).has_binding(binding):
            self.before_change()
        self._broker.bind(binding)

    def unbind(self, binding: d.Binding) -> None:
        """Unbind; an absent binding is no error, whoever may use its queue.

        Raises:
            Refusal: no permission on an end or for the topic, or a locked queue.
        """
        self._require_binding(binding)
        if self._broker.topology(self._vhost).has_binding(binding):
            self._check_destination(binding)
            self.before_change()
            self._broker.unbind(binding)

    def _require_binding(self, binding: d.Binding) -> None:
        self.require("write", binding.destination_type, binding.destination)
        if binding.destination_type == "exchange":
            _check_not_default(binding.destination)
        _check_not_default(binding.source)
        self.require("read", "exchange", binding.source)
        source = self._broker.find_exchange(self._vhost, binding.source)
        if source is not None and source.definition.type == "topic":
            self.require_topic("read", binding.source, binding.routing_key)

    def _check_destination(self, binding: d.Binding) -> None:
        existing = self._broker.find_queue((self._vhost, binding.destination))
        if binding.destination_type == "queue" and existing is not None:
            self.check_lock(existing)

    # -- queues -------------------------------------------------------------------------------

    def declare_queue(
        self, wanted: d.Queue, *, exclusive: bool = False, is_server_named: bool = False
    ) -> Queue:
        """Declare a queue, exclusively for the owner if asked, or check that the existing one is equivalent.

        Raises:
            Refusal: a reserved name, also of a queue that is there, no permission, a locked queue, or see
                `Broker.declare_queue`.
        """
        if is_server_named:
            self._broker.check_server_named(wanted, exclusive=exclusive)
        elif wanted.name.startswith(RESERVED_PREFIX):
            raise AccessRefused(f"queue name '{wanted.name}' contains reserved prefix 'amq.*'")
        self.require("configure", "queue", wanted.name)
        existing = self._broker.find_queue(wanted.key)
        if existing is not None:
            self._broker.queue(*wanted.key)
            self.check_lock(existing)
            if exclusive != (existing.owner is not None):
                raise locked(*wanted.key)
        else:
            self._require_target("queue", wanted.name, wanted.arguments, DEAD_LETTER_EXCHANGE)
            self.before_change()
        return self._broker.declare_queue(wanted, self._owner if exclusive else None)

    def delete_queue(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; return the number of ready messages deleted with it.

        Raises:
            Refusal: no permission, a locked queue, or a condition does not hold.
        """
        self._check_queue_deletion(queue)
        return self._broker.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)

    def delete_queue_in_turns(
        self, queue: Queue, then: Callable[[int], None], *, if_unused: bool = False, if_empty: bool = False
    ) -> None:
        """As `delete_queue`, in several steps if it has many bindings; see `Deletions.delete_queue`.

        Raises:
            Refusal: see `delete_queue`.
        """
        self._check_queue_deletion(queue)
        self._broker.deletions.delete_queue(queue, then, if_unused=if_unused, if_empty=if_empty)

    def _check_queue_deletion(self, queue: Queue) -> None:
        self.require("configure", "queue", queue.key[1])
        self.check_lock(queue)
        self.before_change()

    def purge(self, queue: Queue) -> int:
        """Settle all ready messages of a queue; return their number.

        Raises:
            Refusal: no permission, a locked queue, or a queue that cannot be purged.
        """
        self.require("read", "queue", queue.key[1])
        self.check_lock(queue)
        count = queue.drop_ready(Reason.PURGED)
        self._broker.dirty[queue] = None
        return count

    def purge_safely(self, queue: Queue, then: Callable[[int, PreconditionFailed | None], None]) -> None:
        """As `purge`; `then` gets the number, and the error if a disk that would keep a confirm has refused it.

        It is called once no restart, follower or mirror may show the purged messages again; for a refused purge, at
        the next flush.

        Raises:
            Refusal: see `purge`.
        """
        count = self.purge(queue)
        refused = PreconditionFailed(
            f"queue '{queue.key[1]}' in vhost '{queue.key[0]}' was purged, but not every node could store the purge: "
            "messages may come back after a restart"
        )
        parts = ConfirmParts(self._broker.confirming, lambda _, ok: then(count, None if ok else refused))
        batch = parts.batch()
        batch.queues[queue], batch.settles = queue.definition.durable, True
        parts.end()

    # -- super streams ------------------------------------------------------------------------

    def declare_super_stream(
        self, exchange: d.Exchange, streams: Sequence[d.Queue], bindings: Sequence[d.Binding]
    ) -> None:
        """Declare an exchange, streams and their bindings; all of them, or none if one is refused.

        Raises:
            Refusal: no permission on one of them, a reserved name, too many queues, or see `Broker.declare_queue`.
        """
        self.require("configure", "exchange", exchange.name)
        for stream in streams:
            self.require("configure", "queue", stream.name)
        for binding in bindings:
            self._require_binding(binding)
        undo: list[Callable[[], object]] = []
        try:
            for stream in streams:
                is_new = self._broker.find_queue(stream.key) is None
                made = self.declare_queue(stream)
                if is_new:
                    undo.append(partial(self._broker.delete_queue, made))
            if self._broker.find_exchange(self._vhost, exchange.name) is None:
                undo.append(partial(self._broker.delete_exchange, self._vhost, exchange.name))
            self.declare_exchange(exchange)
            for binding in bindings:
                self.bind(binding)
        except Refusal:
            for step in reversed(undo):
                step()
            raise

    def delete_super_stream(self, exchange: str, streams: Mapping[str, Queue]) -> None:
        """Delete an exchange and the streams bound to it; all of them, or none if one is not allowed.

        Raises:
            Refusal: no permission on one of them, a predeclared exchange, or one that is no super stream.
        """
        self._check_exchange_deletion(exchange)
        for name in streams:
            self.require("configure", "queue", name)
        state = self._broker.find_exchange(self._vhost, exchange)
        ends = (
            [(each.destination_type, each.destination) for each in state.bindings.values()] if state else []
        )
        if state is None or not is_super_stream(state.definition.arguments, ends, streams):
            raise NotFound(f"exchange '{exchange}' in vhost '{self._vhost}' is no super stream")
        for stream in streams.values():
            self.delete_queue(stream)
        self.delete_exchange(exchange)


class Unrestricted(Actor):
    """The actor of an operator, and of another node of the cluster, which has checked its client's permissions."""

    def __init__(self, broker: Broker, vhost: str, owner: object | None = None) -> None:
        """See Actor."""
        super().__init__(broker, "", vhost, owner)

    def may(self, operation: Operation, name: str) -> bool:
        """Allow every operation."""
        return True

    def require_topic(self, operation: Operation, exchange: str, routing_key: str) -> None:
        """Allow every routing key."""


def locked(vhost: str, name: str) -> ResourceLocked:
    """The refusal for another connection's exclusive queue, in RabbitMQ's words."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )


def _check_not_default(exchange: str) -> None:
    if exchange == "":
        raise AccessRefused("operation not permitted on the default exchange")


def _do_nothing() -> None:
    """Allow every change."""

"""Deletions of many or large objects, in steps with clients served in between.

The bindings of a queue or an exchange are removed first, and the object itself last: if the node ends in between, the
next start finds the object with its remaining bindings. Until the last step the object is served, with two exceptions:
a queue that is no longer needed, and a queue or exchange that is deleted on a condition. No client finds such an object
from the moment at which the condition held; so the condition still holds when the object goes. In a cluster a deletion
waits while this node does not hold the definitions lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from leveret.core.broker.deferred_work import DeferredWork
from leveret.core.broker.definitions_lock import DefinitionsLock
from leveret.core.broker.topology import PREDECLARED, ExchangeState, Topology
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Binding
from leveret.model.errors import PreconditionFailed


class Deletions:
    """The unfinished deletions; see the module."""

    def __init__(
        self,
        queues: Mapping[tuple[str, ...], Queue],
        topologies: Mapping[str, Topology],
        definitions_lock: DefinitionsLock,
        deferred_work: DeferredWork,
        unbind: Callable[[Binding], None],
        delete_queue: Callable[[Queue], int],
        forget_routes: Callable[[], None],
    ) -> None:
        """Work on a broker's queues and topologies, through its `unbind`, `delete_queue` and `forget_routes`."""
        self._queues = queues
        self._topologies = topologies
        self._definitions_lock = definitions_lock
        self._deferred_work = deferred_work
        self._unbind = unbind
        self._delete_queue = delete_queue
        self._forget_routes = forget_routes
        self._unneeded: dict[Queue, list[Callable[[int], None]]] = {}
        """Hidden queues, each with the functions to call when it is deleted: several clients may wait for that."""
        self._unused: set[ExchangeState] = set()

    def __bool__(self) -> bool:
        """Whether some queues are hidden and not deleted yet."""
        return bool(self._unneeded)

    def __contains__(self, queue: Queue) -> bool:
        """Whether a queue is hidden and not deleted yet."""
        return queue in self._unneeded

    def delete_queue(
        self, queue: Queue, then: Callable[[int], None], *, if_unused: bool = False, if_empty: bool = False
    ) -> None:
        """Delete a queue as `Broker.delete_queue` does.

        With a condition the queue is hidden from now on, so that the condition still holds when it goes.

        Args:
            queue: the queue.
            then: called with the number of ready messages deleted with it; at once, if the bindings are few.
            if_unused: refuse if it has consumers.
            if_empty: refuse if it has ready messages, or keeps dead ones.

        Raises:
            PreconditionFailed: a condition does not hold.
        """
        check_deletion(queue, if_unused=if_unused, if_empty=if_empty)
        if if_unused or if_empty:
            self._delete_unneeded([queue], [then])
            self._forget_routes()
        else:
            self._change(self._queue_deletion(queue, then))

    def delete_exchange(
        self, vhost: str, name: str, delete: Callable[[bool], None], *, if_unused: bool = False
    ) -> None:
        """Remove the bindings from and to an exchange, then call `delete` with whether it is still that exchange.

        Raises:
            PreconditionFailed: `if_unused`, and something is bound to it.
        """
        topology = self._topologies.get(vhost)
        state = topology.exchanges.get(name) if topology is not None else None
        if if_unused and state is not None:
            if state.bindings:
                raise PreconditionFailed(f"exchange '{name}' in vhost '{vhost}' in use")
            self._unused.add(state)
            self._forget_routes()
        self._change(self._exchange_deletion(vhost, name, state, delete))

    def is_unneeded(self, exchange: ExchangeState) -> bool:
        """Whether it is about to go because nothing is bound to it, and may go now."""
        return exchange in self._unused and self._definitions_lock.is_here

    def delete_when_writable(self, queues: Iterable[Queue]) -> None:
        """Delete queues that are no longer needed, when this node holds the definitions lock.

        Until then they are hidden.
        """
        self._delete_unneeded(queues)

    def _delete_unneeded(self, queues: Iterable[Queue], then: Sequence[Callable[[int], None]] = ()) -> None:
        is_under_way = bool(self._unneeded)
        for queue in queues:
            self._unneeded.setdefault(queue, []).extend(then)
        if not is_under_way:
            self._change(self._deletion_of_unneeded())

    def delete_if_unneeded(self, queue: Queue) -> bool:
        """Delete the queue now if it is no longer needed; return whether it was deleted."""
        if queue not in self._unneeded or not self._definitions_lock.is_here:
            return False
        count = self._delete_queue(queue)
        self._unneeded_gone(queue, count)
        return True

    def _deletion_of_unneeded(self) -> Iterator[None]:
        while self._unneeded:
            queue = next(iter(self._unneeded))
            yield from self._queue_deletion(queue, partial(self._unneeded_gone, queue))
            yield

    def _unneeded_gone(self, queue: Queue, count: int) -> None:
        """Call back for a hidden queue that is deleted, unless a lookup deleted it earlier."""
        for then in self._unneeded.pop(queue, ()):
            then(count)

    def _queue_deletion(self, queue: Queue, then: Callable[[int], None]) -> Iterator[None]:
        def is_there() -> bool:
            return self._queues.get(queue.key) is queue

        while is_there():
            bindings = self._topologies[queue.key[0]].bindings_into("queue", queue.key[1])
            if not bindings:
                then(self._delete_queue(queue))
                return
            yield from self._unbinding(bindings, is_there)
        then(0)

    def _exchange_deletion(
        self, vhost: str, name: str, state: ExchangeState | None, delete: Callable[[bool], None]
    ) -> Iterator[None]:
        def is_there() -> bool:
            return vhost in self._topologies and self._topologies[vhost].exchanges.get(name) is state

        while state is not None and name not in PREDECLARED and is_there():
            into = self._topologies[vhost].bindings_into("exchange", name)
            bindings = [*state.bindings.values(), *into]
            if not bindings:
                break
            yield from self._unbinding(bindings, is_there)
        if state is not None:
            self._unused.discard(state)
        delete(is_there())

    def _unbinding(self, bindings: list[Binding], is_there: Callable[[], bool]) -> Iterator[None]:
        """Remove bindings one by one, while the object that they belong to exists."""
        for binding in bindings:
            if not is_there():
                return
            self._unbind(binding)
            yield

    def _change(self, work: Iterator[None]) -> None:
        """Do work while this node holds the definitions lock, and go on when it holds it again."""

        def steps() -> Iterator[None]:
            while self._definitions_lock.is_here:
                if next(work, self) is self:
                    return
                yield
            self._definitions_lock.when_here(lambda: self._change(work))

        self._deferred_work.begin(steps())


def check_deletion(queue: Queue, *, if_unused: bool, if_empty: bool) -> None:
    """Check the conditions of a deletion.

    Raises:
        PreconditionFailed: a condition does not hold.
    """
    vhost, name = queue.key
    if if_unused and queue.consumers:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' in use")
    if if_empty and (queue.ready_count or queue.kept_count or queue.damage is not None):
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' not empty")

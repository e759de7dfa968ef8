"""Deletions of what is large, or many: in turns, with others served between.

The bindings of a queue or an exchange go first, and it is the last: a node that ends meanwhile starts with it, and with
those of its bindings that were left. Until then it is served, but for a queue that nobody needs any more, or that was
to be deleted on a condition: from the moment at which that held nobody finds the queue, and nothing is routed to it, so
it holds until the queue goes. In a cluster a deletion waits where the
definitions lock leaves meanwhile, and goes on when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from leveret.core.broker.chores import Chores
from leveret.core.broker.definitions_lock import DefinitionsLock
from leveret.core.broker.topology import PREDECLARED, Topology
from leveret.core.queues.queue import Queue
from leveret.model.definitions import Binding
from leveret.model.errors import PreconditionFailed


class Deletions:
    """See the module."""

    def __init__(
        self,
        queues: Mapping[tuple[str, ...], Queue],
        topologies: Mapping[str, Topology],
        definitions_lock: DefinitionsLock,
        chores: Chores,
        unbind: Callable[[Binding], None],
        delete_queue: Callable[[Queue], int],
        forget_routes: Callable[[], None],
    ) -> None:
        """Of a broker's queues and topologies; the broker unbinds, deletes a queue, and has routes looked up anew."""
        self._queues = queues
        self._topologies = topologies
        self._definitions_lock = definitions_lock
        self._chores = chores
        self._unbind = unbind
        self._delete_queue = delete_queue
        self._forget_routes = forget_routes
        self._unneeded: dict[Queue, Callable[[int], None]] = {}

    def __bool__(self) -> bool:
        """Whether there are queues that nobody finds, and that are not deleted yet."""
        return bool(self._unneeded)

    def __contains__(self, queue: Queue) -> bool:
        """Whether it is one of these."""
        return queue in self._unneeded

    def delete_queue(
        self, queue: Queue, then: Callable[[int], None], *, if_unused: bool = False, if_empty: bool = False
    ) -> None:
        """Delete a queue as `Broker.delete_queue` does.

        With a condition it is gone for everybody from now on, so that what holds now holds when it goes.

        Args:
            queue: the queue.
            then: called with how many ready messages went with it; at once, if the bindings are few.
            if_unused: refuse if it has consumers.
            if_empty: refuse if it has ready messages.

        Raises:
            PreconditionFailed: a condition does not hold.
        """
        check_deletion(queue, if_unused=if_unused, if_empty=if_empty)
        if if_unused or if_empty:
            self._delete_unneeded({queue: then})
            self._forget_routes()
        else:
            self._change(self._queue_deletion(queue, then))

    def delete_exchange(self, vhost: str, name: str, delete: Callable[[bool], None]) -> None:
        """Remove the bindings from and to an exchange, then call `delete` with whether it is still that exchange."""
        self._change(self._exchange_deletion(vhost, name, delete))

    def delete_when_writable(self, queues: Iterable[Queue]) -> None:
        """Delete queues that nobody needs any more: when this node has the definitions lock.

        Who looks for one of them by its name does not find it.
        """
        self._delete_unneeded(dict.fromkeys(queues, _tell_nobody))

    def _delete_unneeded(self, queues: dict[Queue, Callable[[int], None]]) -> None:
        is_under_way = bool(self._unneeded)
        self._unneeded |= {queue: then for queue, then in queues.items() if queue not in self._unneeded}
        if not is_under_way:
            self._change(self._deletion_of_unneeded())

    def delete_if_unneeded(self, queue: Queue) -> bool:
        """Delete the queue now if nobody needs it any more; whether that is so."""
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
        """Tell who waits for it, unless somebody who looked for the queue had it deleted before its turn."""
        self._unneeded.pop(queue, _tell_nobody)(count)

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

    def _exchange_deletion(self, vhost: str, name: str, delete: Callable[[bool], None]) -> Iterator[None]:
        topology = self._topologies.get(vhost)
        state = topology.exchanges.get(name) if topology is not None else None

        def is_there() -> bool:
            return vhost in self._topologies and self._topologies[vhost].exchanges.get(name) is state

        while topology is not None and state is not None and name not in PREDECLARED and is_there():
            bindings = [*state.bindings.values(), *topology.bindings_into("exchange", name)]
            if not bindings:
                break
            yield from self._unbinding(bindings, is_there)
        delete(is_there())

    def _unbinding(self, bindings: list[Binding], is_there: Callable[[], bool]) -> Iterator[None]:
        """Remove these bindings one by one, as long as that to which they belong is there."""
        for binding in bindings:
            if not is_there():
                return
            self._unbind(binding)
            yield

    def _change(self, work: Iterator[None]) -> None:
        """Go on as long as this node has the definitions lock, and when it has it again."""

        def steps() -> Iterator[None]:
            while self._definitions_lock.is_here:
                if next(work, self) is self:
                    return
                yield
            self._definitions_lock.when_here(lambda: self._change(work))

        self._chores.begin(steps())


def _tell_nobody(count: int) -> None:
    """Nobody waits for it."""


def check_deletion(queue: Queue, *, if_unused: bool, if_empty: bool) -> None:
    """Whether a queue may be deleted under these conditions.

    Raises:
        PreconditionFailed: one does not hold.
    """
    vhost, name = queue.key
    if if_unused and queue.consumers:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' in use")
    if if_empty and (queue.ready_count or queue.damage is not None):
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' not empty")

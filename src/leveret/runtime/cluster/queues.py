"""The queues of a node in a cluster: those it leads have a log and are served; for all others something stands.

`make_queue` is what the broker asks when a queue is declared, here or elsewhere. `lead` and `step_down` are the two
ways in which a queue changes sides while the node runs: a mirror is promoted, or a leader hands over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.queues import queue_types
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.core.replication.cluster import Placement
from leveret.model import definitions as d
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.log_store import LogStore, log_name
from leveret.runtime.replication.identity import STARTS_BITS
from leveret.storage.log import has_segments
from leveret.storage.tree import Tree

_TERM_SHIFT: Final = 32
_STARTS_MASK: Final = (1 << STARTS_BITS) - 1


def first_epoch(term: int) -> int:
    """The lowest epoch of chunks of a term."""
    return term << _TERM_SHIFT


class _Elsewhere:
    """The owner of an exclusive queue whose connection is at another node."""


ELSEWHERE: Final = _Elsewhere()


class ClusterQueues:
    """See the module.

    Attributes:
        on_new: told of a queue that is to be led here and has nothing in it, before anything can be put into it.
    """

    def __init__(
        self,
        me: str,
        broker: Broker,
        stores: LogStore,
        tree: Tree,
        commits: GroupCommit,
        engine: Engine,
        placement_of: Callable[[d.Queue, bool], Placement],
    ) -> None:
        """`placement_of` tells where a queue is, or where a new one is to be; with whether that is exclusive."""
        self._me = me
        self._broker = broker
        self._stores = stores
        self._tree = tree
        self._commits = commits
        self._engine = engine
        self._placement_of = placement_of
        self.on_new: Callable[[d.Queue, Placement], None] = _ignore
        broker.make_queue = self.make_queue

    def make_queue(self, definition: d.Queue, read: Reader, exclusive: bool = False) -> Queue:
        """What serves a queue here, or stands for one that is led elsewhere."""
        placement = self._placement_of(definition, exclusive)
        if placement.leader == self._me:
            queue = queue_types.make_queue(definition, read)
            if definition.durable:
                name = log_name(queue)
                self._tree.epochs[name] = self._stamp(placement.term)
                if not self._tree.path_of(name).exists():
                    self.on_new(definition, placement)
            return queue
        queue = RemoteQueue(definition, placement.leader)
        if placement.exclusive:
            queue.owner = ELSEWHERE
        return queue

    def stand_in(self, queue: Queue, leader: str) -> RemoteQueue:
        """Have something stand for a queue that was served here until now."""
        stands = RemoteQueue(queue.definition, leader)
        self._broker.replace_queue(stands)
        return stands

    def _stamp(self, term: int) -> int:
        """The epoch of chunks of a term: beyond any that this node gave when it was alone, and another each start."""
        return first_epoch(term) | self._tree.epoch & _STARTS_MASK

    def lead(self, queue: Queue, term: int, delivered: int) -> Queue:
        """Serve a queue from its log here, which nothing else writes to any more.

        Messages before the offset `delivered` may have been handed out by the leader before: they are redelivered.
        """
        definition = queue.definition
        led = queue_types.make_queue(definition, self._stores.read)
        name = log_name(led)
        self._tree.epochs[name] = self._stamp(term)
        open_log = self._tree.logs.pop(name, None)
        if open_log is not None:
            self._commits.forget(open_log)
            open_log.close()
        if definition.durable:
            self._stores.recover(led)
        if led.damage is None and not isinstance(led, Stream):
            led.backlog.give_back_before(delivered)
        self._broker.replace_queue(led)
        self._broker.dirty[led] = None
        self._engine.touch()
        return led

    def begin_if_missing(self, name: str) -> None:
        """Have a log of that name, an empty one if there is none. Raises StorageError."""
        directory = self._tree.path_of(name)
        if name not in self._tree.logs and not (directory.exists() and has_segments(directory)):
            self._tree.log(directory).open().make()

    def begin_segment(self, queue: Queue) -> int:
        """See MirrorSources. Raises StorageError."""
        offset = self._stores.queues.begin_segment(queue)
        self._commits.begin()
        return offset

    def step_down(self, queue: Queue) -> None:
        """A queue that something stands for by now was served here: its log is closed, and may be a mirror's."""
        self._stores.step_down(queue)


def _ignore(definition: d.Queue, placement: Placement) -> None:
    """Nobody is told."""

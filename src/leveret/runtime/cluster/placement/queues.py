"""The queues of a cluster's node: queues led here, with a log, and placeholders for queues led elsewhere.

`new` makes the queue of a declaration, at any node. `lead` and `step_down` are the only two ways in which a queue
changes between the two while the node runs: a mirror is promoted, or a leader hands over. Mirroring asks this
module for the owner of a log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from leveret.core.queues import queue_types
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.core.replication.cluster import Placement, first_epoch
from leveret.model import definitions as d
from leveret.model.definitions import QueueKey
from leveret.model.errors import NotFound, StorageError
from leveret.runtime.cluster.placement.complete_copies import CompleteCopies
from leveret.runtime.cluster.placement.due_queues import DueQueues
from leveret.runtime.logs.log_store import epoch_of, log_name, log_name_of
from leveret.storage.segment import has_segments
from leveret.storage.tree import STARTS_BITS

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

_STARTS_MASK: Final = (1 << STARTS_BITS) - 1


class _Elsewhere:
    """The owner of an exclusive queue whose connection is at another node."""


ELSEWHERE: Final = _Elsewhere()


class ClusterQueues:
    """See the module; mirroring.log_table.LogTable.

    Attributes:
        names: the log names, in the tree, of queues that have records here.
        records: the records of queues, as they were last followed.
        handed_over: queues that were led here, and that another node leads as soon as it has all of them.
        complete: the logs that are complete here, for followers beyond the cluster.
    """

    def __init__(self, me: str, node: Node, due: DueQueues) -> None:
        """Serve the node `me`, which has recovered nothing yet; `due` gets queues to follow again."""
        self.names: dict[QueueKey, str] = {}
        self.records: dict[QueueKey, Placement] = {}
        self.handed_over: dict[QueueKey, Queue] = {}
        self._keys: dict[str, QueueKey] = {}
        self._replaced: dict[QueueKey, list[str]] = {}
        """See `take_replaced`."""
        self._me = me
        self._broker = node.broker
        self._stores = node.log_store
        self._tree = node.tree
        self._commits = node.commits
        self._engine = node.engine
        self._due = due
        self.complete = CompleteCopies(node.tree, node.commits)

    # -- the queue of a log -------------------------------------------------------------------

    def name(self, definition: d.Queue) -> str:
        """Register the log that a durable queue has, or may have; return its name in the tree."""
        key, name = definition.key, log_name_of(definition)
        before = self.names.get(key, name)
        if before != name:
            # Declared anew before the end of the earlier queue's record was followed. The engine removes the log of a
            # queue that was led here.
            self._keys.pop(before, None)
            self.complete.discard(before)
            record, was_handed_over = self.records.get(key), self._end_hand_over(key)
            if was_handed_over or (record is not None and record.leader != self._me):
                self.replaced(key, before)
        self.names[key], self._keys[name] = name, key
        return name

    def all_followed(self) -> None:
        """Note that all records were followed once, after a start."""
        self.complete.keep(self._keys)

    def replaced(self, key: QueueKey, before: str) -> None:
        """Note a log for `take_replaced`."""
        self._replaced.setdefault(key, []).append(before)

    def take_replaced(self, key: QueueKey) -> list[str]:
        """Return, once, the logs of earlier queues of that name that the engine does not remove: others led them.

        Or this node was handing them over when they were deleted.
        """
        return self._replaced.pop(key, [])

    def log_of(self, key: QueueKey, placement: Placement) -> str:
        """Return the name of the log that a record belongs to.

        Raises:
            NotFound: the queue was deleted, or declared anew.
        """
        queue = self._broker.queues.get(key)
        if queue is None or queue.epoch != placement.epoch:
            raise NotFound(f"queue '{key[1]}' in vhost '{key[0]}' was deleted, or declared anew")
        return log_name(queue)

    def forget(self, key: QueueKey) -> str | None:
        """Forget a deleted queue and its log; return the log's name, if it has one."""
        name = self.names.pop(key, None)
        self._end_hand_over(key)
        self.records.pop(key, None)
        if name is not None:
            self._keys.pop(name, None)
            self.complete.discard(name)
        return name

    def _end_hand_over(self, key: QueueKey) -> bool:
        """Close the log of a deleted queue that was being handed over; return whether there was one."""
        led = self.handed_over.pop(key, None)
        if led is not None:
            # The engine deletes the placeholder, and knows nothing of this one.
            self.step_down(led)
        return led is not None

    def key_of(self, name: str) -> QueueKey | None:
        """See LogTable."""
        return self._keys.get(name)

    def is_led(self, name: str) -> bool:
        """See LogTable; a queue that is handed over is led here until another node has all of it."""
        key = self._keys.get(name)
        queue = self._broker.queues.get(key) if key is not None else None
        return queue is not None and (not queue.is_remote or key in self.handed_over)

    def begin_segment(self, name: str) -> int:
        """See LogTable; fails for a queue that is handed over, whose log must not grow any more."""
        key = self._keys.get(name)
        queue = self._broker.queues.get(key) if key is not None else None
        if queue is None or queue.is_remote:
            raise StorageError(f"log {name} is not led here")
        offset = self._stores.begin_segment(queue)
        self._commits.begin()
        return offset

    def newest_bytes(self, name: str) -> int:
        """Return the octets of the newest segment of a log; 0 if the log is not open."""
        log = self._tree.logs.get(name)
        return log.newest_bytes if log is not None and log.is_open else 0

    def has_log(self, name: str) -> bool:
        """See LogTable."""
        return self._stores.home_of(name).has_log(epoch_of(name))

    def record_existence(self, name: str) -> None:
        """See LogTable."""
        self._stores.home_of(name).record_existence(epoch_of(name))

    def begins_anew(self, name: str) -> None:
        """See LogTable."""
        self.complete.strike_out(name)

    def copy_again(self, name: str) -> None:
        """See LogTable: the record of the queue is followed again."""
        key = self._keys.get(name)
        if key is not None:
            self._due.follow(key)

    # -- queues and placeholders --------------------------------------------------------------

    def new(self, definition: d.Queue, read: Reader, placement: Placement | None) -> Queue:
        """Make the queue if it is led here, else its placeholder; without a placement it is down until there is one."""
        if placement is None:
            logger.warning("queue_not_placed_yet vhost=%s queue=%s", *definition.key)
            stands = RemoteQueue(definition, "")
            stands.is_down = True
            return stands
        if placement.leader == self._me:
            queue = queue_types.make_queue(definition, read)
            if definition.durable:
                self._tree.epochs[log_name(queue)] = self._stamp(placement.term)
            return queue
        queue = RemoteQueue(definition, placement.leader)
        if placement.exclusive:
            queue.owner = ELSEWHERE
        return queue

    def has_nothing(self, queue: Queue) -> bool:
        """Whether a queue that is led here never had a message: it has no log."""
        return not self._tree.path_of(log_name(queue)).exists()

    def stand_in(self, queue: Queue, leader: str) -> RemoteQueue:
        """Replace a queue that was served here until now by a placeholder, and return that."""
        stands = RemoteQueue(queue.definition, leader)
        self._broker.replace_queue(stands)
        return stands

    def _stamp(self, term: int) -> int:
        """Return the epoch of chunks of a term: above all that this node used alone, and new at each start."""
        return first_epoch(term) | self._tree.epoch & _STARTS_MASK

    def lead(self, queue: Queue, term: int, delivered: int) -> Queue:
        """Serve a queue from its log here, to which nothing else writes any more.

        The previous leader may have delivered messages before the offset `delivered`: they are marked as redelivered.
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

    def commit_recovered(self, queue: Queue, committed_offset: int) -> None:
        """Serve a stream led here up to this offset, and the rest once its mirrors have it. Raises StorageError."""
        if isinstance(queue, Stream) and queue.damage is None:
            self._stores.streams.commit_recovered(queue, committed_offset)

    def begin_if_missing(self, name: str) -> None:
        """Make an empty log of that name if there is none. Raises StorageError."""
        directory = self._tree.path_of(name)
        if name not in self._tree.logs and not (directory.exists() and has_segments(directory)):
            self._tree.log(directory).open().make()

    def step_down(self, queue: Queue) -> None:
        """Close the log of a queue that a placeholder has replaced; it may become a mirror's copy."""
        self._stores.step_down(queue)
        self._engine.stepped_down(queue)

"""Streams that other nodes lead, for this node's clients of the stream protocol.

A reader gets chunks unchanged from the copy's file, up to the committed end: the records that a majority of the
replicas has. The leader sends its mirrors that end with the live records, like the cursor of a queue. So no fail-over
takes back a record that a reader of any replica has seen.

Readers' offsets are stored at the leader, in the stream itself (leader_offsets). Publishes are passed on to the leader
(session.forwarding.stream_outlets); for them this node needs no copy. A publish waits until the leader has stored the
offsets that came before it, so its confirm covers them, as at the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import EmptyLog, StreamBatch
from leveret.model.errors import LedElsewhere, LeveretError
from leveret.runtime.clients.stream_host import OffsetFound, ServedLog, StreamGroups
from leveret.runtime.cluster.forwarding import Forwarding
from leveret.runtime.cluster.leader_offsets import LeaderOffsets, StreamKey
from leveret.runtime.cluster.membership.member import ClusterMember
from leveret.runtime.cluster.placement.queue_locations import QueueLocations
from leveret.runtime.logs.committed_log import CommittedLog
from leveret.runtime.logs.log_store import log_name
from leveret.runtime.mirroring.copies import MirrorCopies
from leveret.storage.log import Log
from leveret.wire.chunk import ChunkType, Header

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

_FUTURE: Final = 1 << 62


class ReplicaLog(CommittedLog):
    """A copy of a stream's log, up to the committed end; copies.CopyReader."""

    def __init__(self, log: Log, committed_offset: int, *, ended: LeveretError) -> None:
        """Read an open log, committed up to an offset that may be behind its end.

        Raises:
            StorageError: the log cannot be read.
        """
        super().__init__(log, -1, gone=str(ended))
        self._known = committed_offset
        self._closing = ended
        self.hold_back(committed_offset)
        self.last_appended_id = self.last_chunk_of_all()

    @property
    def end_offset(self) -> int:
        """Only the leader knows the first future offset; here a reader that asks for one waits for it."""
        return _FUTURE

    def appended(self, header: Header) -> None:
        """See CopyReader."""
        if header.type == ChunkType.USER:
            self.last_appended_id = header.chunk_id
        if self._known > self.committed_offset:
            self._commit_known()

    def delivered(self, offset: int) -> None:
        """See CopyReader."""
        self._known = max(self._known, offset)
        self._commit_known()

    def _commit_known(self) -> None:
        end = min(self._known, self.log.next_offset)
        if end > self.committed_offset:
            is_all = end == self.log.next_offset
            self.commit(end, self.last_appended_id if is_all else self.chunk_before(end))

    def end(self) -> None:
        """See CopyReader."""
        self.stop_serving(self._closing)


class AbsentLog(EmptyLog):
    """runtime.clients.stream_host.ServedLog of a stream without a copy here: its end is that of publishing."""

    def __init__(self, queue: Queue, forwarding: Forwarding) -> None:
        """Watch a stream that another node leads."""
        self._key = queue.key
        self._epoch = queue.epoch
        self._forwarding = forwarding

    @property
    def is_closed(self) -> bool:
        """Whether the stream is deleted, or led here."""
        return self._forwarding.stream_elsewhere(self._key, self._epoch) is None

    @property
    def ended(self) -> LeveretError:
        """See ServedLog."""
        vhost, name = self._key
        return LedElsewhere(
            f"stream '{name}' in vhost '{vhost}' is deleted, or has its leader at this node now"
        )

    def read(self, offset: int, bytes_max: int) -> Sequence[bytes]:
        """Return nothing: there is no copy."""
        return ()

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """See ServedLog."""
        watches = self._forwarding.leaders.streams.watches
        name = object()
        watches.setdefault(self._key, {})[name] = callback

        def release() -> None:
            left = watches.get(self._key, {})
            left.pop(name, None)
            if not left:
                watches.pop(self._key, None)

        return release


class StreamReplica:
    """runtime.clients.stream_host.StreamHandle for a stream that another node leads.

    Attributes:
        log: the copy here, or an AbsentLog.
        groups: the groups at the leader.
    """

    is_replica = True

    def __init__(
        self,
        queue: Queue,
        copy: ReplicaLog | None,
        forwarding: Forwarding,
        offsets: LeaderOffsets,
        groups: StreamGroups,
    ) -> None:
        """Serve a stream, and its readers from this copy."""
        self.log: ServedLog = copy or AbsentLog(queue, forwarding)
        self.groups = groups
        self.is_readable = copy is not None
        self._queue = queue
        self._stream: StreamKey = *queue.key, queue.epoch
        self._forwarding = forwarding
        self._offsets = offsets

    @property
    def is_writable(self) -> bool:
        """See StreamBook."""
        queue = self._forwarding.stream_elsewhere(self._queue.key, self._queue.epoch)
        return queue is not None and not queue.is_down

    def _elsewhere(self) -> LedElsewhere:
        vhost, name = self._queue.key
        return LedElsewhere(f"stream '{name}' in vhost '{vhost}' has its leader at another node")

    def last_sequence(self, reference: str) -> int:
        """See SequenceBook: only the leader knows it. Raises LedElsewhere."""
        raise self._elsewhere()

    def stored_offset(self, reference: str) -> int | None:
        """See StreamBook: only the leader knows it. Raises LedElsewhere."""
        raise self._elsewhere()

    def publish(self, batch: StreamBatch) -> None:
        """See StreamHandle."""
        queue = self._forwarding.stream_elsewhere(self._queue.key, self._queue.epoch)
        if queue is None or queue.is_down:
            batch.done(self._elsewhere())
        else:
            self._forwarding.publish_batch(queue, batch, partial(self._offsets.once_stored, self._stream))

    def store_offset(self, reference: str, offset: int) -> None:
        """See StreamHandle."""
        self._offsets.store(self._stream, reference, offset)

    def ask_offset(self, reference: str, then: OffsetFound) -> None:
        """See StreamHandle."""
        self._offsets.ask(self._stream, reference, then)

    def ask_sequence(self, reference: str, then: OffsetFound) -> None:
        """See StreamHandle."""
        self._offsets.ask_sequence(self._stream, reference, then)


class StreamReplicas:
    """See the module; runtime.clients.stream_host.StreamReplicating.

    Attributes:
        offsets: readers' offsets at the leaders.
    """

    def __init__(
        self,
        member: ClusterMember,
        node: Node,
        copies: MirrorCopies,
        locations: QueueLocations,
        groups: StreamGroups,
        forwarding: Forwarding,
    ) -> None:
        """Start without a reader; `groups` are the groups at the leaders."""
        self.offsets = LeaderOffsets(member.ask, node)
        self._alive = member.state.alive
        self._copies = copies
        self._locations = locations
        self._groups = groups
        self._forwarding = forwarding

    def nodes(self, queue: Queue) -> Sequence[str]:
        """See StreamReplicating."""
        placement = self._locations.known(queue.key)
        if placement is None or placement.epoch != queue.epoch:
            return ()
        return tuple(node for node in placement.synchronised if node in self._alive)

    def handle(self, queue: Queue) -> StreamReplica:
        """See StreamReplicating."""
        return StreamReplica(queue, self._copy(queue), self._forwarding, self.offsets, self._groups)

    def _copy(self, queue: Queue) -> ReplicaLog | None:
        name = log_name(queue)
        reader = self._copies.readers.get(name)
        if reader is None:
            log = self._copies.readable(name)
            if log is None:
                return None
            vhost, stream = queue.key
            ended = LedElsewhere(f"this node has no replica of stream '{stream}' in vhost '{vhost}' any more")
            reader = ReplicaLog(log, self._copies.cursor(name) or 0, ended=ended)
            self._copies.readers[name] = reader
        assert isinstance(reader, ReplicaLog)
        return reader

    async def answer(self, what: str, about: Any) -> dict[str, Any]:
        """Answer a request of a node with a replica.

        Raises:
            LeveretError: this node does not lead the stream.
        """
        key = str(about["vhost"]), str(about["name"])
        if what == "store_offsets":
            await self.offsets.store_safely(key, about.get("epoch"), about["offsets"])
            return {}
        return {"offset": self.offsets.found_here(what, key, str(about["reference"]))}

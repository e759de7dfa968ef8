"""Publishes recovered messages into a queue, through the stream protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leveret.core.broker.broker import Broker
from leveret.core.queues.messages import Run, alike, count_of
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream, StreamBatch, records_of
from leveret.model import definitions as d
from leveret.model.errors import LeveretError, PreconditionFailed, StorageError
from leveret.runtime.clients.stream_host import check_contiguous
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.engine import Engine
from leveret.runtime.logs.stream_store import UNKNOWN_FILTERS
from leveret.session.stored import message_of, runs_of
from leveret.session.stream.messages import entries_of
from leveret.wire.chunk import Attribute, ChunkError, decode_trailer
from leveret.wire.stream.publish import MessageRun
from leveret.wire.stream_entry import pack_entries, unmark_entry, unpack_entry

MARKED_OFFSET_MAX: Final = 2**44
"""A million messages a second for half a year. A chunk without messages takes 2^32 offsets, in one step for all."""
_STORED_OFFSET_MAX: Final = 2**64 - 1
_LENGTH_BYTES: Final = 4
DeletedAt = Callable[[tuple[str, str], str], int]


def never_deleted(key: tuple[str, str], reference: str) -> int:
    """The last number of a reference in a deleted queue of that key: always 0, as if none was deleted."""
    return 0


def never_called(error: LeveretError) -> None:
    """Do nothing: what this node does not store is refused at once."""


class RecoveryIngest:
    """runtime.clients.stream_host.RecoveryQueue: stored messages into a queue, each once.

    The last publishing id of a reference is logged in the trailer of the very chunk that holds its message, so the id
    and the messages agree after any crash.
    """

    def __init__(
        self,
        broker: Broker,
        key: tuple[str, str],
        engine: Engine,
        commit: GroupCommit,
        deleted_at: DeletedAt = never_deleted,
    ) -> None:
        """Publish to the queue of this vhost and name; a missing queue is made after its first messages.

        If the queue was deleted during the recovery, its messages until then are not published again.
        """
        self._broker = broker
        self._key = key
        self._deleted_at = deleted_at
        self._engine = engine
        self._commit = commit

    def check(self) -> None:
        """Check that recovered messages would stay in the queue.

        Raises:
            PreconditionFailed: the queue ends with the node or with a connection.
        """
        queue = self._broker.queues.get(self._key)
        if queue is not None and not (queue.definition.durable and queue.owner is None):
            vhost, name = self._key
            why = "not durable" if queue.owner is None else "exclusive"
            raise PreconditionFailed(
                f"queue '{name}' in vhost '{vhost}' is {why}: it would not keep recovered messages; delete it, and "
                "recover again, which makes it as it was at the upstream"
            )

    def last_sequence(self, reference: str) -> int:
        """See RecoveryQueue."""
        queue = self._broker.queues.get(self._key)
        there = queue.sequences.logged.get(reference.encode(), 0) if queue is not None else 0
        return max(there, self._deleted_at(self._key, reference))

    def ask_sequence(
        self, reference: str, found: Callable[[int], None], failed: Callable[[LeveretError], None]
    ) -> None:
        """See RecoveryQueue."""
        self.check()
        found(self.last_sequence(reference))

    async def all_durable(self) -> None:
        """Return once a queue that was made is durable, and known to all nodes.

        Raises:
            StorageError: the disk refuses it now, or the node ends before.
        """
        self._engine.flush()
        await self._engine.definitions.all_known()

    def append(
        self,
        reference: str,
        runs: list[MessageRun],
        done: Callable[[], None],
        failed: Callable[[LeveretError], None] = never_called,
    ) -> None:
        """See RecoveryQueue."""
        self.check()
        check_contiguous(self._key[1], self.last_sequence(reference), runs)
        queue = self._broker.queues.get(self._key) or self.make_for(runs)
        name = reference.encode()
        is_rehearsed = queue.key[0].startswith(d.REHEARSAL_VHOSTS)
        if not isinstance(queue, Stream) and not is_rehearsed and _are_of_stream(runs):
            # Consumers would get the octets of the entries as bodies. A rehearsal compares just these octets.
            raise PreconditionFailed(
                f"queue '{queue.key[1]}' in vhost '{queue.key[0]}' is no stream, and the recovered messages are a "
                "stream's: delete it, and recover again, which makes it as it was at the upstream"
            )
        if isinstance(queue, Stream):
            if queue.last_sequence(name) < (last := self.last_sequence(reference)):
                queue.advance_sequence(name, last)
            self._publish(queue, name, runs)
        else:
            self._gather(queue, reference, runs)
        # No outcome is reported for messages in removed files: the recovery ends, and is run again.
        # In a cluster also its mirrors have them then: a plan that is done does not bring them again.
        self._engine.when_safe(queue, lambda: done() if queue.damage is None else None)
        self._commit.begin()

    def make_for(self, runs: list[MessageRun]) -> Queue:
        """Make the queue of these messages, which the schema sync had not brought yet.

        It is not declared, so that neither a limit of queues nor a default type prevents it.
        """
        arguments = {"x-queue-type": "stream"} if _are_of_stream(runs) else {}
        vhost, name = self._key
        self._broker.apply(d.Put(d.Queue(name=name, vhost=vhost, arguments=arguments)))
        self._engine.touch()
        return self._broker.queue(vhost, name)

    def _publish(self, stream: Stream, name: bytes, runs: list[MessageRun]) -> None:
        """Publish messages of a stream in their stored form; a marked message is alone in its run."""
        plain: list[MessageRun] = []
        for run in runs:
            marked = _marked(run)
            if marked is None:
                plain.append(run)
                continue
            self._publish_plain(stream, name, plain)
            plain = []
            if run.first > stream.last_sequence(name):
                self._heed(stream, marked[1])
                self._publish_plain(stream, name, [_packed(run, marked[0])])
        self._publish_plain(stream, name, plain)

    def _heed(self, stream: Stream, attributes: bytes) -> None:
        """Apply a mark: the next message's offset, unless the stream is beyond it, and the stored offsets and ids.

        A reader continues at the same message, even if its offset here differs. Readers and publishers never fall
        back behind their stored offsets and ids here.

        Raises:
            PreconditionFailed: no stream gets to that offset; the log has to be written up to it.
        """
        found = list(decode_trailer(attributes))
        offset = next((value for kind, _, value in found if kind == Attribute.QUEUE_OFFSET), 0)
        if offset > MARKED_OFFSET_MAX:
            raise PreconditionFailed(
                f"stream '{stream.key[1]}': a recovered message is to be at offset {offset}, beyond {MARKED_OFFSET_MAX}"
            )
        self._engine.append_now(stream)
        here = stream.align(offset)
        for kind, name, value in found:
            if kind == Attribute.SEQUENCE and value > stream.last_sequence(name):
                stream.advance_sequence(name, value)
            elif kind == Attribute.OFFSET:
                there = min(here + value - offset, _STORED_OFFSET_MAX)
                if there > (stream.offset_of(name) or -1):
                    stream.store_offset(name, there)

    def _publish_plain(self, stream: Stream, name: bytes, runs: list[MessageRun]) -> None:
        """Publish unmarked entries; their filter values are unknown here."""
        if not runs:
            return
        numbered = [message for run in runs for message in run.messages()]
        ids = [sequence for sequence, _ in numbered]
        as_they_were = [self._stream_entry(entry) for _, entry in numbered]
        records = sum(map(records_of, as_they_were))
        stream.publish(StreamBatch(name, ids, as_they_were, records, set(UNKNOWN_FILTERS)))
        self._flush(stream, name, max(ids, default=0))

    def _stream_entry(self, entry: bytes) -> bytes:
        found = unpack_entry(entry)
        if found is None:
            head, body = message_of(entry)
            [found] = entries_of([alike(head, [body])])
        return found

    def _gather(self, queue: Queue, reference: str, runs: list[MessageRun]) -> None:
        name = reference.encode()
        last = before = self.last_sequence(reference)
        new: list[Run] = []
        for run in runs:
            # All entries are checked before the first is taken: a refused run leaves no message.
            marked = _marked(run)
            new += self._new_of(run if marked is None else _packed(run, marked[0]), last)
            last = max(last, run.last)
        if queue.gathered:
            # Other publishers' messages go first, in a chunk of their own: ours and their sequence must share one
            # chunk.
            self._engine.append_now(queue)
        for each in new:
            queue.gathered.add(each.taken())
        if last > before:
            # The lost site's consumers may have had any of them: an ack within the lag is not here.
            queue.gathered_again()
            queue.advance_sequence(name, last)
            self._flush(queue, name, last)

    def _new_of(self, run: MessageRun, last: int) -> list[Run]:
        """The messages after the id `last`; the offsets of these runs are publishing ids."""
        found = runs_of(bytes(run.data), run.first, run.first)
        if count_of(found) != run.records:
            raise ChunkError(
                f"{count_of(found)} recovered messages stand where there are to be {run.records}"
            )
        return [each.cut(max(each.first, last + 1), each.end) for each in found if each.end > last + 1]

    def _flush(self, queue: Queue, name: bytes, last: int) -> None:
        """Have the queue's log take the gathered messages, up to that publishing id."""
        self._broker.dirty[queue] = None
        self._engine.flush()
        if queue.sequences.logged.get(name, 0) < last:
            raise StorageError(
                f"queue '{queue.key[1]}': the disk refused recovered messages; see the node's log"
            )


def _are_of_stream(runs: list[MessageRun]) -> bool:
    """Whether the messages are a stream's entries; all of one queue are, or none is."""
    first = next((message for run in runs for _, message in run.messages()), b"")
    return unpack_entry(first) is not None or unmark_entry(first) is not None


def _marked(run: MessageRun) -> tuple[bytes, bytes] | None:
    """(entry, attributes) of a run that is one marked message."""
    return unmark_entry(bytes(run.data[_LENGTH_BYTES:])) if run.records == 1 else None


def _packed(run: MessageRun, entry: bytes) -> MessageRun:
    """The run without its mark."""
    return MessageRun(run.first, 1, pack_entries(entry)[0])

"""Readers' offsets, and publishers' last ids, of streams that other nodes lead: stored and found at the leaders.

The protocol answers no stored offset. Of each reader only the newest is sent, one request a stream at a time, and
again while there is no leader. A publish that came behind offsets waits for the leader's answer, which says that they
are where a confirm has to have them: so the confirm of the publish covers them, whatever leader it is sent to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.queues.stream import Stream
from leveret.model.definitions import QueueKey
from leveret.model.errors import LedElsewhere, LeveretError, NotFound
from leveret.runtime.clients.stream_host import OffsetFound

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

_ASK_AGAIN_S: Final = 0.2
_ASKED_S: Final = 5.0
"""The time, in seconds, for which the leader is asked for an offset, also while there is no leader."""
_ASKED_MAX: Final = 4096
"""The most questions of clients under way: each may last _ASKED_S, and a client may ask thousands in a second."""
AskNode = Callable[[str, str, Any], Awaitable[Any]]
StreamKey = tuple[str, str, int]
"""Vhost, name and epoch: a stream of the same name that was made since then has offsets of its own."""


class _Unstored:
    """Offsets that the leader of a stream has not stored yet.

    Attributes:
        offsets: by reader.
        behind: calls for the time when they are stored, in order.
    """

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.behind: list[Callable[[], None]] = []


class LeaderOffsets:
    """See the module."""

    def __init__(self, ask_node: AskNode, node: Node) -> None:
        """Start with no offset to store; `ask_node` asks a node of the cluster (membership.member)."""
        self._ask_node = ask_node
        self._broker = node.broker
        self._engine = node.engine
        self._streams = node.log_store.streams
        self._waiting: dict[StreamKey, _Unstored] = {}
        self._sent: dict[StreamKey, _Unstored] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _ask(self, what: str, key: StreamKey, reference: str, then: OffsetFound) -> None:
        if len(self._tasks) < _ASKED_MAX:
            self._begin(self._find(what, key[:2], reference, then))
        else:
            then(LeveretError(f"{_ASKED_MAX} questions wait for the leaders of streams"))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel all requests."""
        for task in tuple(self._tasks):
            task.cancel()

    # -- at the reader's node -----------------------------------------------------------------

    def store(self, key: StreamKey, reference: str, offset: int) -> None:
        """Store an offset at the leader, soon, and repeat while there is no leader."""
        self._waiting.setdefault(key, _Unstored()).offsets[reference] = offset
        if key not in self._sent:
            self._sent[key] = _Unstored()
            self._begin(self._send(key))

    def once_stored(self, key: StreamKey, then: Callable[[], None]) -> None:
        """Call when the offsets that came before are stored, in the order of these calls; at once if they are."""
        unstored = self._waiting.get(key) or self._sent.get(key)
        if unstored is None:
            then()
        else:
            unstored.behind.append(then)

    async def _send(self, key: StreamKey) -> None:
        """Send offsets until all are stored, or their stream is gone; of each reader only the newest."""
        try:
            while unstored := self._waiting.pop(key, None):
                self._sent[key] = unstored
                queue = self._broker.queues.get(key[:2])
                try:
                    if queue is not None and queue.epoch == key[2]:
                        await self._store_at(queue, key, unstored.offsets)
                except LeveretError:
                    later = self._waiting.setdefault(key, _Unstored())
                    later.offsets = unstored.offsets | later.offsets
                    later.behind = unstored.behind + later.behind
                    await asyncio.sleep(_ASK_AGAIN_S)
                else:
                    for call in unstored.behind:
                        call()
        finally:
            del self._sent[key]

    async def _store_at(self, queue: Queue, key: StreamKey, offsets: dict[str, int]) -> None:
        if isinstance(queue, RemoteQueue):
            about = {"vhost": key[0], "name": key[1], "epoch": key[2], "offsets": offsets}
            await self._ask_node(queue.leader, "store_offsets", about)
        else:
            self.store_here(key[:2], key[2], offsets)

    def ask(self, key: StreamKey, reference: str, then: OffsetFound) -> None:
        """Call back with the last offset that a reader stored."""
        for known in (self._waiting.get(key), self._sent.get(key)):
            if known is not None and reference in known.offsets:
                then(known.offsets[reference])
                return
        self._ask("stored_offset", key, reference, then)

    def ask_sequence(self, key: StreamKey, reference: str, then: OffsetFound) -> None:
        """Call back with the last publishing id of a publisher."""
        self._ask("publisher_sequence", key, reference, then)

    async def _find(self, what: str, key: QueueKey, reference: str, then: OffsetFound) -> None:
        found: int | LeveretError | None = None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _ASKED_S
        while True:
            try:
                found = await self._found_at(what, key, reference)
                break
            except LeveretError as error:
                found = error
            if loop.time() > until_s:
                break
            await asyncio.sleep(_ASK_AGAIN_S)
        then(found)

    async def _found_at(self, what: str, key: QueueKey, reference: str) -> int | None:
        queue = self._broker.queues.get(key)
        if not isinstance(queue, RemoteQueue):
            return self.found_here(what, key, reference)
        about = {"vhost": key[0], "name": key[1], "reference": reference}
        offset = (await self._ask_node(queue.leader, what, about))["offset"]
        return None if offset is None else int(offset)

    # -- at the leader ------------------------------------------------------------------------

    def store_here(self, key: QueueKey, epoch: int | None, offsets: dict[str, int]) -> Stream:
        """Store offsets in a stream that this node leads, with its next flush; None: nodes before had no `epoch`.

        Raises:
            LedElsewhere, NotFound: this node does not lead the stream, or one with another epoch.
        """
        stream = self._led(key)
        if epoch not in (None, stream.epoch):
            raise LedElsewhere(f"stream '{key[1]}' in vhost '{key[0]}' was made anew")
        for reference, offset in offsets.items():
            stream.store_offset(reference.encode(), int(offset))
        self._broker.dirty[stream] = None
        self._engine.touch()
        return stream

    async def store_safely(self, key: QueueKey, epoch: int | None, offsets: dict[str, int]) -> None:
        """Store offsets, and return when they are where a confirm has to have them.

        Raises:
            LedElsewhere, NotFound: this node does not lead the stream, or does not any more.
            StorageError: the disk refused them; the next flush tries again.
            LeveretError: too few replicas have them after some time; they may still be stored.
        """
        stream = self.store_here(key, epoch, offsets)
        # Behind the messages so far, in one chunk with the last of them.
        self._engine.append_now(stream)
        self._streams.append_settlements(stream)
        safe = asyncio.Event()
        self._engine.when_confirmable(stream, safe.set)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _ASKED_S
        while not safe.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_S):
                    await safe.wait()
            if self._led(key) is not stream:
                raise LedElsewhere(f"stream '{key[1]}' in vhost '{key[0]}' was made anew")
            if loop.time() > until_s and not safe.is_set():
                raise LeveretError(f"offsets of stream '{key[1]}' in vhost '{key[0]}' are not safe in time")

    def found_here(self, what: str, key: QueueKey, reference: str) -> int | None:
        """Return a reader's stored offset, or a publisher's last id, in a stream that this node leads.

        Raises:
            LedElsewhere, NotFound: this node does not lead the stream.
        """
        stream = self._led(key)
        if what == "publisher_sequence":
            return max(stream.sequences.logged.get(reference.encode(), 0), 0)
        return stream.offset_of(reference.encode())

    def _led(self, key: QueueKey) -> Stream:
        queue = self._broker.queues.get(key)
        if isinstance(queue, Stream):
            return queue
        where = f"stream '{key[1]}' in vhost '{key[0]}'"
        raise NotFound(f"no {where}") if queue is None else LedElsewhere(f"{where} is not led here")

"""Applications of the stream protocol: a publisher that numbers its messages, and a reader that stores its offset.

Both continue after the loss of a connection: a publisher publishes its unconfirmed messages again, under the same ids,
and a reader continues behind its stored offset. They find two faults:

| fault | meaning |
|---|---|
| forgotten | the leader has a lower id of a publisher than was confirmed, or a lower offset than a confirm covers |
| invented | a stored offset that its reader never stored |

The protocol has no answer to a stored offset. So the publisher stores some offsets as well, before it publishes on the
same connection: the confirm of the publish covers both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from leveret.model.stream import OffsetSpec, OffsetType
from leveret.testing.applications.run_books import BookedMessage, BooksFault
from leveret.testing.applications.stream_books import StreamBooks
from leveret.testing.applications.stream_client import StreamAppClient
from leveret.wire.chunk import Header
from leveret.wire.message10 import MessageReader
from leveret.wire.stream import commands as wire
from leveret.wire.stream.codec import Code
from leveret.wire.stream_entry import entries_of, messages_of

UNCONFIRMED_MAX: Final = 100
_PUBLISHER: Final = 1
_SUBSCRIPTION: Final = 1
_CREDIT: Final = 10
_LOOK_S: Final = 0.05
_KEEP_S: Final = 1.5
"""The longest time between two stored offsets of a reader that reads."""
_CONFIRM_TIMEOUT_S: Final = 10.0
_NOTHING: Final = -1
_STORING: Final = 0.2
"""The share of publishes before which a publisher stores an offset."""


class NumberingPublisher:
    """Publishes to a stream under a reference, with ids from 1 on.

    Attributes:
        on_promise: called after each confirm.
    """

    def __init__(self, name: str, stream: StreamBooks, random: Random, pause_s: Callable[[], float]) -> None:
        """Prepare; nothing is published yet. `pause_s` returns the pause after each publish."""
        self.name = name
        self.on_promise: Callable[[], None] = lambda: None
        self._stream, self._random, self._pause_s = stream, random, pause_s
        self._unconfirmed: dict[int, BookedMessage] = {}
        self._last = self._confirmed = 0
        self._stored: set[int] = set()
        self._safe_offset = _NOTHING
        self._stored_before: dict[int, int] = {}

    @property
    def has_all_confirms(self) -> bool:
        """Return whether each published message is confirmed."""
        return not self._unconfirmed

    async def work(self, client: StreamAppClient, is_stopping: Callable[[], bool]) -> None:
        """Publish over a connection to any node, until it ends, or until all is confirmed after `is_stopping`.

        Raises:
            StreamAppClosed: the connection ended.
            BooksFault: see the module.
        """
        self._stored_before.clear()
        await client.ask(
            wire.DeclarePublisherResponse, wire.DeclarePublisher, _PUBLISHER, self.name, self._stream.name
        )
        await self._compare(client)
        client.on_confirm = self._note
        self._publish(client, sorted(self._unconfirmed))
        progress, since_s = self._confirmed, asyncio.get_running_loop().time()
        while not client.is_closed and not (is_stopping() and self.has_all_confirms):
            if not is_stopping() and len(self._unconfirmed) < UNCONFIRMED_MAX:
                ids = self._next()
                if self._random.random() < _STORING:
                    self._store(client, ids[0])
                self._publish(client, ids)
            await asyncio.sleep(_LOOK_S if is_stopping() else self._pause_s())
            now_s = asyncio.get_running_loop().time()
            if self._confirmed > progress or self.has_all_confirms:
                progress, since_s = self._confirmed, now_s
            elif now_s - since_s > _CONFIRM_TIMEOUT_S:
                client.close(f"no confirm within {_CONFIRM_TIMEOUT_S:g} s")

    async def _compare(self, client: StreamAppClient) -> None:
        """Compare the leader's last id and stored offset with the confirms."""
        stream = self._stream.name
        sequence = await client.ask(
            wire.QueryPublisherSequenceResponse, wire.QueryPublisherSequence, self.name, stream
        )
        if sequence.sequence < self._confirmed:
            raise BooksFault(
                f"forgotten: stream {stream} has {sequence.sequence} for the last id of publisher {self.name}, "
                f"and {self._confirmed} was confirmed"
            )
        stored = await stored_offset(client, self.name, stream)
        if stored < self._safe_offset:
            raise BooksFault(
                f"forgotten: stream {stream} has offset {stored} of {self.name}, and {self._safe_offset} was safe"
            )
        if stored != _NOTHING and stored not in self._stored:
            raise BooksFault(f"invented: {self.name} never stored offset {stored} in stream {stream}")

    def _next(self) -> list[int]:
        """Note some messages that are about to be published; return their ids."""
        ids = []
        for _ in range(self._random.choice((1, 1, 1, 3))):
            self._last += 1
            ids.append(self._last)
            [self._unconfirmed[self._last]] = self._stream.books.published([self._stream.name], self.name)
        return ids

    def _store(self, client: StreamAppClient, publishing_id: int) -> None:
        """Store an offset before a message is published for the first time: the id, which rises as offsets do."""
        self._stored.add(publishing_id)
        self._stored_before[publishing_id] = publishing_id
        client.send(wire.StoreOffset(self.name, self._stream.name, publishing_id))

    def _publish(self, client: StreamAppClient, ids: Collection[int]) -> None:
        """Send messages in one frame."""
        entries = [(each, data_section(self._unconfirmed[each].body)) for each in ids]
        if entries:
            client.send(wire.Publish(_PUBLISHER, entries, []))

    def _note(self, ids: list[int]) -> None:
        for each in ids:
            message = self._unconfirmed.pop(each, None)
            if message is not None:
                self._stream.books.confirm([message])
                self._confirmed = max(self._confirmed, each)
            self._safe_offset = max(self._safe_offset, self._stored_before.pop(each, _NOTHING))
        self.on_promise()


class StoringReader:
    """Reads a stream under a name, each message once and in order, from any replica.

    Attributes:
        count: the number of messages that it has read.
    """

    def __init__(self, name: str, stream: StreamBooks, random: Random) -> None:
        """Prepare; nothing is read yet."""
        self.name = name
        self.count = 0
        self._stream, self._random = stream, random
        self._stored: set[int] = set()
        self._before = self._kept = _NOTHING
        self._begin = 0
        self._fault: BooksFault | None = None
        self._client: StreamAppClient

    async def work(self, client: StreamAppClient, is_stopping: Callable[[], bool]) -> None:
        """Read over a connection, from behind the stored offset on, until it ends.

        Raises:
            StreamAppClosed: the connection ended.
            BooksFault: see the module and StreamBooks.
        """
        self._client = client
        kept = await stored_offset(client, self.name, self._stream.name)
        if kept != _NOTHING and kept not in self._stored:
            raise BooksFault(
                f"invented: {self.name} never stored offset {kept} in stream {self._stream.name}"
            )
        self._before = self._kept = kept
        self._begin = kept + 1
        client.on_chunk = self._read
        begin = OffsetSpec(OffsetType.OFFSET, self._begin)
        await client.ask(
            wire.SubscribeResponse, wire.Subscribe, _SUBSCRIPTION, self._stream.name, begin, _CREDIT, {}
        )
        while not client.is_closed and not is_stopping():
            await asyncio.sleep(self._random.uniform(_LOOK_S, _KEEP_S))
            if self._before > self._kept and not client.is_closed:
                await self._keep(client)
        if self._fault is not None:
            raise self._fault

    async def _keep(self, client: StreamAppClient) -> None:
        """Store the offset of the last message, and query it, so that a dead connection is noticed."""
        self._kept = self._before
        self._stored.add(self._kept)
        client.send(wire.StoreOffset(self.name, self._stream.name, self._kept))
        await stored_offset(client, self.name, self._stream.name)

    def _read(self, header: Header, data: bytes) -> None:
        client = self._client
        try:
            for offset, body in messages_in(header, data):
                # A replica that is behind begins at its end, so clients ignore offsets before the requested one.
                if offset >= self._begin or self._before >= self._begin:
                    self._stream.read(offset, body, self._before)
                    self._before = offset
                    self.count += 1
        except BooksFault as fault:
            self._fault = fault
            client.close()
            return
        if not client.is_closed:
            client.send(wire.Credit(_SUBSCRIPTION, 1))


def messages_in(header: Header, data: bytes) -> list[tuple[int, bytes]]:
    """Return the offset and the body of each message of a chunk."""
    messages = [message for entry in entries_of(data) for message in messages_of(entry)]
    reader = MessageReader()
    return [(header.chunk_id + place, reader.read(each).body) for place, each in enumerate(messages)]


def data_section(body: bytes) -> bytes:
    """Return a message of AMQP 1.0 with this body alone."""
    return b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body


async def stored_offset(client: StreamAppClient, reference: str, stream: str) -> int:
    """Return the stored offset of a reader, -1 for none. Raises StreamAppClosed."""
    answer = await client.ask(wire.QueryOffsetResponse, wire.QueryOffset, reference, stream)
    return _NOTHING if answer.code == Code.NO_OFFSET else answer.offset

"""The marks of recovered stream entries: their original offsets, and the stored positions of readers and publishers.

A stream's offsets jump where another record than a message took one, where retention dropped the begin, and behind
batches. Only there does the receiver need an offset; behind it, its own offsets run in step. The first message behind
a jump begins a *stretch*. A reader's stored offset goes with the first message of the stretch that it points into, so
it is in that message's chunk, and exact for any offsets at the receiver. Publishers' stored ids go with the very
first message, because they must be known before any message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from leveret.pipeline.archive.recovery_plan import QueueOrder
from leveret.pipeline.archive.settled_offsets import Int64s
from leveret.pipeline.archive.stored_positions import StoredPositions
from leveret.pipeline.recovery.message_runs import BODY, SHAPE, message_runs
from leveret.wire.chunk import Attribute, encode_attribute
from leveret.wire.stream.publish import MessageRun
from leveret.wire.stream_entry import PROPERTIES, is_entry, mark_entry


class EntryPositions:
    """The marks of one stream's messages, by their publishing ids."""

    def __init__(self, order: QueueOrder, stored_positions: list[StoredPositions]) -> None:
        """Use the `stored_positions` of this stream's incarnations; those of the last one count."""
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (np.diff(order.epochs) != 0) | (np.diff(order.offsets) != 1)
        firsts = np.flatnonzero(begins)
        self._ids: Int64s = firsts + 1
        self._offsets: Int64s = order.offsets[firsts]
        self._stored: defaultdict[int, list[bytes]] = defaultdict(list)
        epoch = int(order.epochs[-1])
        for positions in stored_positions:
            if positions.epoch == epoch:
                self._store(positions, np.flatnonzero(order.epochs[firsts] == epoch))

    def _store(self, positions: StoredPositions, stretches: Int64s) -> None:
        self._stored[1] += [encode_attribute(Attribute.SEQUENCE, *each) for each in positions.sequences]
        for name, offset in positions.offsets:
            at = int(np.searchsorted(self._offsets[stretches], offset, "right")) - 1
            first_id = int(self._ids[stretches[max(0, at)]])
            self._stored[first_id].append(encode_attribute(Attribute.OFFSET, name, offset))

    def runs(self, messages: pa.Table, first_id: int) -> Iterator[MessageRun]:
        """As `message_runs`, for entries of a stream; each marked entry is a run by itself."""
        at = 0
        begin, end = np.searchsorted(self._ids, [first_id, first_id + messages.num_rows])
        for place in range(int(begin), int(end)):
            row = int(self._ids[place]) - first_id
            if not _is_entry(messages, row):
                continue
            yield from message_runs(messages.slice(at, row - at), first_id + at)
            entry = messages.column(BODY)[row].as_py()
            yield MessageRun.of(first_id + row, [mark_entry(entry, self._attributes(place))])
            at = row + 1
        yield from message_runs(messages.slice(at), first_id + at)

    def _attributes(self, place: int) -> bytes:
        offset = encode_attribute(Attribute.QUEUE_OFFSET, b"", int(self._offsets[place]))
        return b"".join([offset, *self._stored.get(int(self._ids[place]), [])])


def is_of_stream(messages: pa.Table) -> bool:
    """Whether the first of these is an entry of a stream: all of one incarnation are, or none is."""
    return messages.num_rows > 0 and _is_entry(messages, 0)


def _is_entry(messages: pa.Table, row: int) -> bool:
    """Whether a message is an entry; an application's lookalike in a queue has an exchange or a routing key."""
    exchange, key, properties, body = (messages.column(name)[row].as_py() for name in (*SHAPE, BODY))
    return not exchange and not key and properties == PROPERTIES and is_entry(body)

"""Converts columns of the archive to messages as the broker's log has them, many at a time.

Neighbours with the same exchange, routing key, properties and size differ in their bodies alone: one pass of numpy
puts the common part in front of each body. For a message that is unlike its neighbours numpy's calls would cost more
than all the rest: its parts are octets, joined once for a whole run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from leveret.wire.record import content_header, message_head
from leveret.wire.stream.publish import RUN_RECORDS_MAX, MessageRun

SHAPE: Final = ["exchange", "routing_key", "properties"]
"""The columns that most messages share, as dictionaries."""
BODY: Final = "body"
RUN_BYTES_MAX: Final = 262_144
"""The most octets of a run, except for a single larger message: it fits a processor's cache."""


def message_runs(messages: pa.Table, first_id: int) -> Iterator[MessageRun]:
    """Yield messages (columns SHAPE and BODY), numbered from `first_id` on, in their form in a log."""
    for batch in messages.to_batches():
        for run in _Bodies(batch).runs(first_id):
            yield run
            first_id += run.records


class _Bodies:
    """The buffers of a batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        body = batch.column(BODY)
        _, offsets, octets = body.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(body) + 1, body.offset * 4).astype(np.int64)
        self._places: list[int] = self._offsets.tolist()
        self._octets = np.frombuffer(octets, np.uint8) if octets else np.empty(0, np.uint8)
        self._view = self._octets.data
        columns = [batch.column(name) for name in SHAPE]
        self._exchanges, self._keys, self._properties = [column.dictionary.to_pylist() for column in columns]
        self._indices = [column.indices.to_numpy() for column in columns]
        self._rows: list[list[int]] = [indices.tolist() for indices in self._indices]
        self._heads: dict[tuple[int, int, int, int], bytes] = {}

    def runs(self, first_id: int) -> Iterator[MessageRun]:
        """Yield all messages, in order."""
        pieces: list[bytes | memoryview] = []
        count = size = 0
        places = self._places
        for begin, end in self._alike():
            body_bytes = places[begin + 1] - places[begin]
            head = self._head(begin, body_bytes)
            stride = len(head) + body_bytes
            while begin < end:
                room = min((RUN_BYTES_MAX - size) // stride, RUN_RECORDS_MAX - count)
                if room <= 0 and pieces:
                    yield _run(first_id, count, pieces)
                    first_id, count, size, pieces = first_id + count, 0, 0, []
                    continue
                stop = min(end, begin + max(1, room))
                if stop - begin == 1:
                    pieces += (head, self._view[places[begin] : places[stop]])
                else:
                    pieces.append(self._joined(head, begin, stop))
                count, size = count + stop - begin, size + (stop - begin) * stride
                begin = stop
        if pieces:
            yield _run(first_id, count, pieces)

    def _alike(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last + 1) of rows that differ in their bodies alone."""
        sizes = np.diff(self._offsets)
        differ = np.diff(sizes) != 0
        for indices in self._indices:
            differ |= np.diff(indices) != 0
        bounds = [0, *(np.flatnonzero(differ) + 1).tolist(), len(sizes)]
        return pairwise(bounds)

    def _head(self, row: int, body_bytes: int) -> bytes:
        """The octets before the body: the entry's length, and the message's head."""
        exchange, key, properties = [indices[row] for indices in self._rows]
        shape = exchange, key, properties, body_bytes
        head = self._heads.get(shape)
        if head is None:
            header = content_header(self._properties[properties], body_bytes)
            message = message_head(self._exchanges[exchange], self._keys[key], header)
            head = self._heads[shape] = (len(message) + body_bytes).to_bytes(4, "big") + message
        return head

    def _joined(self, head: bytes, begin: int, end: int) -> memoryview:
        """Rows with the same `head`, side by side."""
        bodies = self._octets[self._offsets[begin] : self._offsets[end]].reshape(end - begin, -1)
        joined = np.empty((end - begin, len(head) + bodies.shape[1]), np.uint8)
        joined[:, : len(head)] = np.frombuffer(head, np.uint8)
        joined[:, len(head) :] = bodies
        return joined.reshape(-1).data


def _run(first_id: int, count: int, pieces: list[bytes | memoryview]) -> MessageRun:
    return MessageRun(first_id, count, pieces[0] if len(pieces) == 1 else b"".join(pieces))

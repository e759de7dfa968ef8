"""Converts columns of the archive to messages as the broker's log has them, many at a time.

Arrow joins the parts of all messages of a piece, so no message is an object of Python: the time of a message is that
of copying it. Exchanges, routing keys and properties come as dictionaries, and mostly repeat. Messages that are alike,
but for their bodies' octets, are the rows of a matrix, which numpy copies in a fifth of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leveret.pipeline.archive.settled_offsets import Bools, Int64s
from leveret.wire.properties import EXPIRATION
from leveret.wire.record import content_header, message_head
from leveret.wire.stream.publish import RUN_RECORDS_MAX, MessageRun

SHAPE: Final = ["exchange", "routing_key", "properties"]
"""The columns that most messages share, as dictionaries."""
BODY: Final = "body"
RUN_BYTES_MAX: Final = 262_144
"""The most octets of a run, except for a single larger message: it fits a processor's cache."""
_PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
"""The octets of bodies, about, that are joined at once."""
_LENGTH: Final = np.dtype(">u4")
_HEADER: Final = np.dtype([("length", ">u4"), ("class", ">u4"), ("body", ">u8")])
"""The length of a content header, and its first 12 octets (wire.record)."""
_CLASS: Final = 60 << 16
_HEADER_BYTES: Final = 12


def message_runs(messages: pa.Table, first_id: int) -> Iterator[MessageRun]:
    """Yield messages (columns SHAPE and BODY), numbered from `first_id` on, in their form in a log."""
    for batch in messages.to_batches():
        if _are_alike(batch):
            yield from _alike_runs(batch, first_id)
        else:
            columns = _Columns(batch)
            begin = 0
            for end in _cuts(columns.sizes, _PIECE_BYTES_MAX, batch.num_rows):
                yield from columns.runs(begin, end, first_id + begin)
                begin = end
        first_id += batch.num_rows


def _are_alike(batch: pa.RecordBatch) -> bool:
    """Whether all messages have the same exchange, routing key and properties, and bodies of the same size."""
    varying = [batch.column(name).indices.to_numpy() for name in SHAPE] + [_sizes(batch.column(BODY))]
    return batch.num_rows > 0 and all(bool(np.all(values == values[0])) for values in varying)


def _alike_runs(batch: pa.RecordBatch, first_id: int) -> Iterator[MessageRun]:
    exchange, key, properties = [
        batch.column(name).dictionary[batch.column(name).indices[0].as_py()].as_py() for name in SHAPE
    ]
    bodies = batch.column(BODY)
    body_bytes, offsets = len(bodies[0].as_py()), np.frombuffer(bodies.buffers()[1], np.int32)
    begin, count = int(offsets[bodies.offset]), batch.num_rows
    octets = np.frombuffer(bodies.buffers()[2] or b"", np.uint8)[begin : begin + count * body_bytes]
    rows = octets.reshape(count, body_bytes)
    message = message_head(exchange, key, content_header(properties, body_bytes))
    head = np.frombuffer((len(message) + body_bytes).to_bytes(_LENGTH.itemsize) + message, np.uint8)
    expires = bool(_expiring(pa.array([properties], pa.binary()))[0])
    step = min(RUN_RECORDS_MAX, max(1, RUN_BYTES_MAX // (len(head) + body_bytes)))
    for first in range(0, count, step):
        records = min(step, count - first)
        run = np.empty((records, len(head) + body_bytes), np.uint8)
        run[:, : len(head)] = head
        run[:, len(head) :] = rows[first : first + records]
        yield MessageRun(first_id + first, records, run.reshape(-1).data, records * body_bytes, expires)


class _Columns:
    """The parts of a batch's entries, one array a part.

    Attributes:
        sizes: the octets of each entry, without its length.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        exchanges, keys, properties = [_used(batch.column(name)) for name in SHAPE]
        self._exchanges = _in_rows(exchanges, _with_length(exchanges.dictionary))
        self._keys = _in_rows(keys, _with_length(keys.dictionary))
        self._properties = _in_rows(properties, properties.dictionary)
        self._bodies = batch.column(BODY)
        self._expires = _expiring(properties.dictionary)[properties.indices.to_numpy()]
        self._body_bytes = _sizes(self._bodies)
        property_bytes = _sizes(self._properties)
        self._headers = np.empty(batch.num_rows, _HEADER)
        self._headers["length"] = property_bytes + _HEADER_BYTES
        self._headers["class"] = _CLASS
        self._headers["body"] = self._body_bytes
        self.sizes: Int64s = _sizes(self._exchanges) + _sizes(self._keys) + _HEADER.itemsize
        self.sizes += property_bytes + self._body_bytes

    def runs(self, begin: int, end: int, first_id: int) -> Iterator[MessageRun]:
        """Yield the messages from row `begin` up to row `end`."""
        size = end - begin
        joined = pc.binary_join_element_wise(
            _fixed(self.sizes[begin:end].astype(_LENGTH)),
            self._exchanges.slice(begin, size),
            self._keys.slice(begin, size),
            _fixed(self._headers[begin:end]),
            self._properties.slice(begin, size),
            self._bodies.slice(begin, size),
            b"",
        )
        data = memoryview(joined.buffers()[2])
        ends = np.cumsum(self.sizes[begin:end] + _LENGTH.itemsize)
        first, position = 0, 0
        for last in _cuts(self.sizes[begin:end] + _LENGTH.itemsize, RUN_BYTES_MAX, RUN_RECORDS_MAX):
            rows = slice(begin + first, begin + last)
            yield MessageRun(
                first_id + first,
                last - first,
                data[position : int(ends[last - 1])],
                int(self._body_bytes[rows].sum()),
                bool(self._expires[rows].any()),
            )
            first, position = last, int(ends[last - 1])


def _cuts(sizes: Int64s, bytes_max: int, count_max: int) -> Iterator[int]:
    """The ends of pieces of at most so many octets and messages, but at least one message each."""
    ends = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < len(ends):
        fitting = int(np.searchsorted(ends, before + bytes_max, "right"))
        begin = min(max(begin + 1, fitting), begin + count_max)
        before = int(ends[begin - 1])
        yield begin


def _used(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The column with the values of its rows alone, if its dictionary is of many other rows, too."""
    is_large = len(column.dictionary) > len(column)
    return column.dictionary_decode().dictionary_encode() if is_large else column


def _with_length(values: pa.Array) -> pa.BinaryArray:
    """Short strings with their length in front, one octet."""
    return pa.array([bytes((len(each),)) + each for each in values.to_pylist()], pa.binary())


def _in_rows(column: pa.DictionaryArray, values: pa.Array) -> pa.BinaryArray:
    """For each row the value in place of that of its dictionary."""
    return values.take(column.indices)


def _sizes(values: pa.BinaryArray) -> Int64s:
    sizes: Int64s = pc.binary_length(values).to_numpy().astype(np.int64)
    return sizes


def _fixed(values: npt.NDArray[Any]) -> pa.BinaryArray:
    """Values of one size as octets."""
    count, size = len(values), values.dtype.itemsize
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    )


def _expiring(properties: pa.Array) -> Bools:
    """Whether messages with these properties have a time to live of their own."""
    flags = [int.from_bytes(each[:2], "big") for each in properties.to_pylist()]
    found: Bools = (np.array(flags, np.int64) & EXPIRATION) != 0
    return found

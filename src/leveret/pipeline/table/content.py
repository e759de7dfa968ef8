"""The content of messages as columns: names, properties and bodies, of queues and of streams.

A stream's entry is stored as a message whose properties are `wire.stream_entry.PROPERTIES`. Here it becomes its
messages, which may be several. A batch that only readers can unpack stays one row, with the entry as its body.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leveret.pipeline.archive.settled_offsets import Int64s
from leveret.pipeline.archive.stream_messages import StreamMessages
from leveret.pipeline.archive.tables import dictionary, whole
from leveret.pipeline.table.columns import OF_PROPERTIES
from leveret.pipeline.table.properties import property_columns
from leveret.wire.record import StoredMessage, content_header
from leveret.wire.stream_entry import PROPERTIES, is_entry

STORED: Final = {
    "exchange": "exchange",
    "routing_key": "routing_key",
    "body": "body",
    "body_bytes": "body",
} | (dict.fromkeys(OF_PROPERTIES, "properties"))
"""The stored column of each column of the content."""


def has_entries(stored: pa.Table) -> bool:
    """Whether some of these rows are entries of streams; needs the column `properties`."""
    return PROPERTIES in dictionary(stored.column("properties")).dictionary.to_pylist()


def unpacked(stored: pa.Table, queues: list[str]) -> tuple[pa.Table, Int64s]:
    """The messages of these rows, of these queues; and the row that each is from."""
    streams: dict[str, StreamMessages] = {}
    rows: list[int] = []
    found: list[StoredMessage] = []
    columns = [stored.column(name).to_pylist() for name in ("exchange", "routing_key", "properties", "body")]
    for row, (exchange, key, properties, body) in enumerate(zip(*columns, strict=True)):
        messages: list[StoredMessage] = []
        # In a queue of a type that is not known, an application may have chosen these properties.
        if properties == PROPERTIES and is_entry(body):
            queue = queues[row]
            messages = streams.setdefault(queue, StreamMessages(queue)).of(body)
        messages = messages or [StoredMessage(exchange, key, content_header(properties, len(body)), body)]
        found += messages
        rows += [row] * len(messages)
    table = pa.table(
        {
            "exchange": pa.array([each.exchange for each in found], pa.binary()).dictionary_encode(),
            "routing_key": pa.array([each.routing_key for each in found], pa.binary()).dictionary_encode(),
            "properties": pa.array([each.properties for each in found], pa.binary()).dictionary_encode(),
            "body": pa.array([each.body for each in found], pa.binary()),
        }
    )
    return table, np.array(rows, np.int64)


def content_columns(stored: pa.Table, names: list[str]) -> dict[str, pa.Array]:
    """Those of these columns that are of the content, of rows with the stored columns that they need."""
    columns: dict[str, pa.Array] = {}
    for name in ("exchange", "routing_key"):
        if name in names:
            found = dictionary(stored.column(name))
            texts = [octets.decode(errors="replace") for octets in found.dictionary.to_pylist()]
            columns[name] = pa.array(texts, pa.string()).take(found.indices)
    of_properties = [name for name in names if name in OF_PROPERTIES]
    if of_properties:
        columns |= property_columns(dictionary(stored.column("properties")), of_properties)
    if "body" in names or "body_bytes" in names:
        body = whole(stored.column("body"))
        columns |= {"body": body, "body_bytes": pc.binary_length(body)}
    return columns

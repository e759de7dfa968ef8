"""The untransferred tail: records of the outgoing logs that the node that replaced this one lacks."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leveret.model.errors import StorageError
from leveret.runtime.collecting.lowest_offsets import Key
from leveret.runtime.collecting.outgoing_log import OutgoingLog
from leveret.wire.chunk import Attribute, ChunkError, decode_chunk, decode_trailer

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * 1024 * 1024


async def first_untransferred(log: OutgoingLog, position: int) -> dict[Key, int] | None:
    """The first offset of each queue incarnation in the log from `position` on; None if the log cannot tell.

    It cannot if it begins behind `position` or ends before it, if a downstream began without records that retention
    had dropped, or if it cannot be read.
    """
    found: dict[Key, int] = {}
    if position <= 0 or not log.downstreams.lack_nothing:
        return None
    try:
        while log.first_offset <= position < log.log.next_offset:
            position = _note_untransferred(log, position, found)
            await asyncio.sleep(0)
    except (StorageError, ChunkError) as error:
        logger.error("outgoing_log_unreadable log=%s error=%s", log.log.directory, error)
        return None
    return found if position == log.log.next_offset else None


def _note_untransferred(log: OutgoingLog, position: int, found: dict[Key, int]) -> int:
    """Note some untransferred records, also ones that are not served yet; return the offset behind them.

    Raises:
        StorageError, ChunkError: the log cannot be read.
    """
    begin = position
    for header, octets in log.log.read_raw(position, _READ_BYTES):
        key, epoch, offset = b"", 0, 0
        for kind, name, value in decode_trailer(decode_chunk(octets).trailer):
            if kind == Attribute.QUEUE_EPOCH:
                key, epoch = name, value
            elif kind == Attribute.QUEUE_OFFSET:
                offset = value
        found[key, epoch] = min(offset, found.get((key, epoch), offset))
        position = header.next_offset
    if position == begin:
        raise StorageError(f"outgoing log {log.log.directory}: nothing can be read at offset {position}")
    return position

"""`/api/replication/divergent...`: quarantined messages, which only a previous leader or upstream had.

    GET  divergent              the reports; in a cluster those of all running nodes, each with its `node`
    GET  divergent/messages     the messages, `?report=ID` those of the reports with this id; a JSON object a line

Any node answers. Messages are sent as they are read, so that their number costs no memory; if one cannot be read, the
last line is `{"error": ..., "reason": ...}`. Another node sends its messages in pieces: `?first=N` asks it for those
from its N-th on, and it answers `{"messages": [...], "is_last": ...}`.

Threads read the messages: which of them are settled is known only after all settlements of a log were read, so the
first of its messages may take seconds. A node of a cluster whose event loop stands still for so long loses its lease.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.merging import whole_rows
from leveret.management.request.other_nodes import documents_of_others, part_of
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand, LeveretError, NotFound
from leveret.model.whole_number import whole_number

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 4_000_000
_SEND_AT_ONCE: Final = 64 * 1024
_DIVERGENT: Final = "/api/replication/divergent"


async def show_divergent(call: Call) -> Response:
    """The quarantined data, a row a report."""
    return await whole_rows(call, await _reports(call), "at_ms")


async def _reports(call: Call) -> list[dict[str, Any]]:
    found = await asyncio.to_thread(call.node.replication.inspection.divergent)
    return [{"node": call.cluster.name, **row} for row in found] if call.cluster.is_member else found


async def show_messages(call: Call) -> Response:
    """The quarantined messages."""
    report = call.query.get("report")
    if call.is_part:
        first_wanted = whole_number(call.query.get("first", "0"), most=sys.maxsize)
        if first_wanted is None:
            raise InvalidCommand("first is no number of a message")
        return json_reply(await asyncio.to_thread(_piece, call, report, first_wanted))
    rows, others = [], []
    if call.cluster.is_member:
        rows = [row for row in await _reports(call) if report in (None, row["id"])]
        for document in await documents_of_others(call, path=_DIVERGENT, query=[]):
            others += [row["node"] for row in document if report in (None, row["id"])]
        if report is not None and not rows and not others:
            raise NotFound(f"there is no report '{report}'")
    is_here = not others or report is None or bool(rows)
    messages = _messages(call, report) if is_here else iter(())
    # The first one is read while the status can still be chosen.
    first = await asyncio.to_thread(list, islice(messages, 1))
    lines = _all_lines(call, chain(first, messages), report, sorted({*others}))
    return StreamingResponse(lines, media_type="application/x-ndjson")


def _messages(call: Call, report: str | None) -> Iterable[dict[str, Any]]:
    return _named(call, call.node.replication.inspection.divergent_messages(report))


def _named(call: Call, found: Iterator[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return ({"node": call.cluster.name, **row} for row in found) if call.cluster.is_member else found


class _Piece(msgspec.Struct):
    """Some of a node's messages, in JSON; whether there are more behind them."""

    messages: list[msgspec.Raw]
    is_last: bool


def _piece(call: Call, report: str | None, first: int) -> _Piece:
    """This node's messages from the `first` one on, of about `PIECE_BYTES` at most."""
    encode = msgspec.json.Encoder().encode
    rows: list[msgspec.Raw] = []
    size = 0
    with closing(call.node.replication.inspection.divergent_part(report, first)) as found:
        for message in _named(call, found):
            rows.append(msgspec.Raw(encode(message)))
            size += len(rows[-1])
            if size > PIECE_BYTES:
                return _Piece(rows, is_last=False)
    return _Piece(rows, is_last=True)


async def _all_lines(
    call: Call, own: Iterable[dict[str, Any]], report: str | None, others: Iterable[str]
) -> AsyncIterator[bytes]:
    """This node's messages, then those of other nodes, a line each."""
    has_failed = False
    async for piece in lines_of(own):
        has_failed = piece.startswith(b'{"error"')
        yield piece
    try:
        for node in others if not has_failed else ():
            first, is_last = 0, False
            while not is_last:
                query = [("first", str(first)), *([] if report is None else [("report", report)])]
                found = await part_of(call, node, _Piece, query=query)
                async for piece in lines_of(found.messages):
                    yield piece
                first, is_last = first + len(found.messages), found.is_last
    except LeveretError as error:
        yield _failure(error)


async def lines_of(messages: Iterable[dict[str, Any] | msgspec.Raw]) -> AsyncIterator[bytes]:
    """The messages, a line each, in pieces of about 64 KB; a failure is a piece of its own."""
    pieces = _pieces_of(messages)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _pieces_of(messages: Iterable[dict[str, Any] | msgspec.Raw]) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    waiting: list[bytes] = []
    size = 0
    failed: Exception | None = None
    try:
        for message in messages:
            line = encode(message)
            waiting += (line, b"\n")
            size += len(line)
            if size > _SEND_AT_ONCE:
                yield b"".join(waiting)
                waiting, size = [], 0
    except (LeveretError, OSError) as error:
        failed = error
    yield b"".join(waiting)
    if failed is not None:
        yield _failure(failed)


def _failure(error: Exception) -> bytes:
    logger.error("divergent_messages_not_read error=%s", error)
    return msgspec.json.encode({"error": type(error).__name__, "reason": str(error)}) + b"\n"


ROUTES = [
    resource(_DIVERGENT, need=Requirement.MONITORING, GET=show_divergent),
    resource(f"{_DIVERGENT}/messages", need=Requirement.ADMINISTRATOR, GET=show_messages),
]

"""`/api/replication/...`: the followers of a node's whole data, and this node's role.

    GET  node                   see `management.node.ReplicationOperations.status`
    POST promote                {"dry_run": false, "force": false, "apply_delayed": false, "apply_until_ms": null}, the
                                last two for a delayed follower; else 400, with the reason and the loss
    POST verify                 {"follower": null, "deep": false}; a row a follower and log
    POST scrub                  read all stored data, repair damage GET  divergent              the reports of
    quarantined data GET  divergent/messages     its messages, `?report=ID` those of one report; a JSON object a line

Any node answers all of them. Messages are sent as they are read, so that their number costs no memory; if one cannot
be read, the last line is `{"error": ..., "reason": ...}`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from itertools import chain, islice
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from leveret.management.request.auth import Need
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand, LeveretError
from leveret.runtime.process.work_slices import in_slices

logger = logging.getLogger(__name__)

_SEND_AT_ONCE: Final = 64 * 1024
_TIME_MAX_MS: Final = (1 << 62) - 1
"""A time after all changes that a follower has."""


class PromoteBody(msgspec.Struct):
    """The body that promotes."""

    dry_run: bool = False
    force: bool = False
    apply_delayed: bool = False
    apply_until_ms: Annotated[int, Meta(ge=0, le=_TIME_MAX_MS)] | None = None


class VerifyBody(msgspec.Struct):
    """The body that compares; with a follower by name or id, else all of them."""

    follower: str | None = None
    deep: bool = False


async def show_status(call: Call) -> Response:
    """Role, followers and leader."""
    return call.show(call.node.replication.status())


async def promote(call: Call) -> Response:
    """Make a leader of this follower; or only estimate the loss."""
    wanted = await call.body(PromoteBody)
    if wanted.apply_delayed and wanted.apply_until_ms is not None:
        raise InvalidCommand("apply_delayed applies all, apply_until_ms a part: give one of the two")
    until_ms = _TIME_MAX_MS if wanted.apply_delayed else wanted.apply_until_ms
    outcome = await call.node.replication.promote(
        dry_run=wanted.dry_run, force=wanted.force, apply_until_ms=until_ms
    )
    if wanted.dry_run or outcome["promoted"]:
        return json_reply(outcome)
    return json_reply({"error": "not_promoted", **outcome}, HTTPStatus.BAD_REQUEST)


async def verify(call: Call) -> Response:
    """Compare this node's stored data with the other side's."""
    wanted = await call.body(VerifyBody)
    rows = await call.node.replication.inspection.verify(wanted.follower, wanted.deep)
    return await call.plain_list(rows, "follower", "log")


async def scrub(call: Call) -> Response:
    """Look for damage, and repair it; answers after all data were read."""
    return json_reply(await call.node.replication.inspection.scrub())


async def show_divergent(call: Call) -> Response:
    """The quarantined data, a row a report."""
    return await call.plain_list(call.node.replication.inspection.divergent(), "at_ms")


async def show_messages(call: Call) -> Response:
    """The quarantined messages."""
    messages = call.node.replication.inspection.divergent_messages(call.query.get("report"))
    # The first one is read while the status can still be chosen.
    first = list(islice(messages, 1))
    return StreamingResponse(_lines(chain(first, messages)), media_type="application/x-ndjson")


async def _lines(messages: Iterable[dict[str, Any]]) -> AsyncIterator[bytes]:
    encode = msgspec.json.Encoder().encode
    waiting: list[bytes] = []
    size = 0
    try:
        async for message in in_slices(messages):
            line = encode(message)
            waiting += (line, b"\n")
            size += len(line)
            if size > _SEND_AT_ONCE:
                yield b"".join(waiting)
                waiting, size = [], 0
    except (LeveretError, OSError) as error:
        logger.error("divergent_messages_not_read error=%s", error)
        waiting += (encode({"error": type(error).__name__, "reason": str(error)}), b"\n")
    yield b"".join(waiting)


_ADMIN: Final = Need.ADMINISTRATOR
_REPLICATION: Final = "/api/replication"
ROUTES = [
    resource(f"{_REPLICATION}/node", need=Need.MONITORING, GET=show_status),
    resource(f"{_REPLICATION}/promote", need=_ADMIN, on_followers=True, defines=False, POST=promote),
    resource(f"{_REPLICATION}/verify", need=_ADMIN, on_followers=True, defines=False, POST=verify),
    resource(f"{_REPLICATION}/scrub", need=_ADMIN, on_followers=True, defines=False, POST=scrub),
    resource(f"{_REPLICATION}/divergent", need=Need.MONITORING, GET=show_divergent),
    resource(f"{_REPLICATION}/divergent/messages", need=_ADMIN, GET=show_messages),
]

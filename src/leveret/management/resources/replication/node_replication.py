"""`/api/replication/...`: the followers of a node's whole data, and this node's role.

    GET  node                   see `management.node.ReplicationOperations.status`
    POST promote                {"dry_run": false, "force": false, "apply_delayed": false, "apply_until_ms": null}, the
                                last two for a delayed follower; else 400, with the reason and the loss
    POST verify                 {"follower": null, "deep": false}; a row a follower and log
    POST scrub                  read all stored data, repair damage

Any node answers all of them.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand

logger = logging.getLogger(__name__)

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


_ADMIN: Final = Requirement.ADMINISTRATOR
_REPLICATION: Final = "/api/replication"
ROUTES = [
    resource(f"{_REPLICATION}/node", need=Requirement.MONITORING, GET=show_status),
    resource(f"{_REPLICATION}/promote", need=_ADMIN, on_followers=True, defines=False, POST=promote),
    resource(f"{_REPLICATION}/verify", need=_ADMIN, on_followers=True, defines=False, POST=verify),
    resource(f"{_REPLICATION}/scrub", need=_ADMIN, on_followers=True, defines=False, POST=scrub),
]

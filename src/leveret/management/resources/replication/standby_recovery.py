"""Recovery from a standby's data: promotion, dry run, rehearsal, another broker; and the way back afterwards.

But for the last, each is a POST that answers with one JSON object a line as it goes on: any number of
`{"progress": ...}`, then `{"summary": ...}`, or `{"error": ..., "reason": ...}` if it failed half-way.
A promotion, and a recovery into another broker, go on to their end even if nobody waits for it; of a dry
run or a rehearsal nothing is left but, of a rehearsal, its result in the history of the node's events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response, StreamingResponse

from leveret.management.request.auth import Need
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand, LeveretError, NotAllowed, PreconditionFailed
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.event_history import EventHistory, RunningEvent
from leveret.runtime.standby.recovery import RecoveryRequest, RecoveryTarget, parse_moment, parse_target

logger = logging.getLogger(__name__)

Steps: TypeAlias = asyncio.Queue[dict[str, Any]]
Work: TypeAlias = Coroutine[Any, Any, Any]
_UNDER_WAY: Final[set[asyncio.Task[Any]]] = set()
"""What goes on; the event loop itself keeps no hold of a task."""


class To(msgspec.Struct):
    """Another broker: its URI, without a password, and the password."""

    uri: str
    password: str = ""

    def __repr__(self) -> str:
        return "To(...)"


class Body(msgspec.Struct):
    """What is to be recovered, and where to; `as_of` is a moment in ISO 8601, UTC without an offset."""

    start_from_scratch: bool = False
    all_available: bool = False
    exclude_virtual_hosts: list[str] = []
    queues: list[str] = []
    as_of: str | None = None
    to: To | None = None

    def wanted(self) -> RecoveryRequest:
        """Which messages.

        Raises:
            InvalidCommand: `as_of` is no moment of the past.
        """
        now_ms = clock_ms()
        return RecoveryRequest(
            start_from_scratch=self.start_from_scratch,
            all_available=self.all_available,
            exclude=sorted(self.exclude_virtual_hosts),
            queues=sorted(self.queues),
            as_of_ms=None if self.as_of is None else parse_moment(self.as_of, now_ms),
        )

    def target(self) -> RecoveryTarget | None:
        """Where to; None: here.

        Raises:
            InvalidCommand: the URI is none that can be recovered into.
        """
        return None if self.to is None else parse_target(self.to.uri, self.to.password)


class RejoinBody(msgspec.Struct):
    """Whether to follow also who was no standby of this node, with all that is replicated here set aside."""

    set_all_aside: bool = False


async def promote(call: Call) -> Response:
    """End the links, bring back what was transferred, be an upstream; or, with `to`, only fill another broker."""
    body = await call.body(Body)
    wanted, target = body.wanted(), body.target()
    standby = call.node.standby
    if target is None:
        return await _answer(
            call, lambda report: standby.promote(wanted, report), "promotion", **_chosen(body)
        )
    chosen = {**_chosen(body), "to": f"{target.host}:{target.port}"}
    return await _answer(
        call, lambda report: standby.recoveries.into(wanted, target, report), "recovery_into", **chosen
    )


async def dry_run(call: Call) -> Response:
    """Say what a promotion would bring back."""
    body = await call.body(Body)
    wanted, target = body.wanted(), body.target()
    return await _answer(call, lambda report: call.node.standby.recoveries.dry_run(wanted, target, report))


async def rehearse(call: Call) -> Response:
    """Recover into scratch vhosts, compare, remove them."""
    body = await call.body(Body)
    if body.to is not None:
        raise InvalidCommand("a rehearsal recovers into this node; there is no target")
    wanted = body.wanted()
    recoveries = call.node.standby.recoveries
    return await _answer(
        call, lambda report: recoveries.rehearse(wanted, report), "rehearsal", **_chosen(body)
    )


async def inspect(call: Call) -> Response:
    """Messages by vhost, exchange and routing key; reads all that was transferred."""
    return await _answer(call, call.node.standby.archive.inspect)


async def rejoin(call: Call) -> Response:
    """Come back as a downstream of the node that took this one's place."""
    body = await call.body(RejoinBody)
    history = call.node.event_history
    event = await history.begin("rejoin", call.caller.name)
    try:
        report = await call.node.rejoin.rejoin(set_all_aside=body.set_all_aside)
    except PreconditionFailed:
        await history.withdraw(event)
        raise
    except LeveretError as error:
        await history.end(event, str(error))
        raise
    await history.end(event, quarantined=report["messages"], upstream=", ".join(report["upstream_endpoints"]))
    return json_reply(report)


async def show_summary(call: Call) -> Response:
    """What was recovered, a row a vhost."""
    return json_reply(call.node.standby.promotion_summary())


def _chosen(body: Body) -> dict[str, Any]:
    """What is told in the history of how it was asked."""
    names = ("start_from_scratch", "all_available", "exclude_virtual_hosts", "queues", "as_of")
    return {name: value for name in names if (value := getattr(body, name))}


async def _answer(
    call: Call, begin: Callable[[Callable[[dict[str, Any]], None]], Work], kind: str = "", **chosen: Any
) -> Response:
    """Do it, and tell how it goes on; what has a `kind` becomes an event of the node's history."""
    steps: Steps = asyncio.Queue()
    history = call.node.event_history
    event = await history.begin(kind, call.caller.name, **chosen) if kind else None

    def report(progress: dict[str, Any]) -> None:
        if event is not None:
            history.note(event, progress)
        steps.put_nowait({"progress": progress})

    work = asyncio.create_task(_kept(begin(report), history, event))
    _UNDER_WAY.add(work)
    work.add_done_callback(partial(_end, steps))
    first = await steps.get()
    if "error" in first:
        # It was declined before it began, while a status can still be chosen.
        await work
    return StreamingResponse(_lines(first, steps), media_type="application/x-ndjson")


async def _kept(work: Work, history: EventHistory, event: RunningEvent | None) -> Any:
    """The work, with its end in the history."""
    try:
        result = await work
    except (InvalidCommand, PreconditionFailed, NotAllowed):
        if event is not None:
            await history.withdraw(event)
        raise
    except Exception as error:
        if event is not None:
            await history.end(event, str(error) or type(error).__name__)
        raise
    if event is not None:
        await history.end(event, **_numbers_of(result))
    return result


def _numbers_of(result: Any) -> dict[str, Any]:
    """The numbers of a result: of a rehearsal, or of rows a vhost."""
    if isinstance(result, dict):
        plain = {name: value for name, value in result.items() if isinstance(value, int | float | str)}
        return plain | {"queues_compared": len(result.get("queues", ()))}
    return {"messages": sum(row["message_count"] for row in result), "vhosts": len(result)}


def _end(steps: Steps, work: asyncio.Task[Any]) -> None:
    """Put the last step: there always is one, whatever became of it."""
    _UNDER_WAY.discard(work)
    if work.cancelled():
        steps.put_nowait({"error": "Cancelled", "reason": "the node is stopping; do it again to go on"})
        return
    error = work.exception()
    if error is None:
        steps.put_nowait({"summary": work.result()})
        return
    if not isinstance(error, LeveretError):
        logger.error("recovery_failed", exc_info=error)
    steps.put_nowait({"error": type(error).__name__, "reason": str(error)})


async def _lines(step: dict[str, Any], steps: Steps) -> AsyncIterator[bytes]:
    while not step.keys() & {"summary", "error"}:
        yield msgspec.json.encode(step) + b"\n"
        step = await steps.get()
    yield msgspec.json.encode(step) + b"\n"


_ADMIN = Need.ADMINISTRATOR
_STANDBY = "/api/replication/standby"
ROUTES = [
    resource(f"{_STANDBY}/promote", need=_ADMIN, defines=False, POST=promote),
    resource(f"{_STANDBY}/dry-run", need=_ADMIN, defines=False, POST=dry_run),
    resource(f"{_STANDBY}/rehearse", need=_ADMIN, defines=False, POST=rehearse),
    resource(f"{_STANDBY}/inspect", need=_ADMIN, defines=False, POST=inspect),
    resource(f"{_STANDBY}/rejoin", need=_ADMIN, defines=False, POST=rejoin),
    resource(f"{_STANDBY}/summary", need=Need.MONITORING, GET=show_summary),
]

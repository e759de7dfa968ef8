"""Recovery from a standby's data: promotion, dry run, rehearsal, another broker; and the rejoin.

Except for the last, each is a POST that answers with one JSON object a line during the work: any number of
`{"progress": ...}`, then `{"summary": ...}`, or `{"error": ..., "reason": ...}` if it failed half-way. A promotion,
and a recovery into another broker, continue to their end even without a waiting client. A dry run leaves nothing, and
a rehearsal only its result in the history of the node's events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from starlette.responses import Response, StreamingResponse

from leveret.core.replication.standby_site import RecoveryRequest
from leveret.management.request.auth import Requirement
from leveret.management.request.call import Call, resource
from leveret.management.request.replies import json_reply
from leveret.model.errors import InvalidCommand, LeveretError, NotAllowed, PreconditionFailed
from leveret.runtime.process.clock import clock_ms
from leveret.runtime.process.event_history import EventHistory, RunningEvent
from leveret.runtime.standby.recovery import RecoveryTarget, parse_moment, parse_target

logger = logging.getLogger(__name__)

Steps: TypeAlias = asyncio.Queue[dict[str, Any]]
Work: TypeAlias = Coroutine[Any, Any, Any]
_UNDER_WAY: Final[set[asyncio.Task[Any]]] = set()
"""The running work, because the event loop holds no references to tasks."""


class RecoveryTargetBody(msgspec.Struct):
    """Another broker: its URI, without a password, and the password."""

    uri: str
    password: str = ""

    def __repr__(self) -> str:
        return "RecoveryTargetBody(...)"


class RecoveryBody(msgspec.Struct):
    """The messages to recover, and the target; `as_of` is a moment in ISO 8601, UTC without an offset."""

    start_from_scratch: bool = False
    all_available: bool = False
    exclude_virtual_hosts: list[str] = []
    queues: list[str] = []
    as_of: str | None = None
    to: RecoveryTargetBody | None = None

    def wanted(self) -> RecoveryRequest:
        """The choice of messages.

        Raises:
            InvalidCommand: `as_of` is not a moment in the past.
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
        """The target; None for this node.

        Raises:
            InvalidCommand: the URI is no possible target.
        """
        return None if self.to is None else parse_target(self.to.uri, self.to.password)


class RejoinBody(msgspec.Struct):
    """Whether to follow also a node that was no standby of this one, with all replicated data here quarantined."""

    set_all_aside: bool = False


class ExportBody(msgspec.Struct):
    """The place and the format of an export, and the options of a query whose rows are exported; empty ones are not."""

    target: str
    format: str = "parquet"
    vhost: str = ""
    queue: str = ""
    from_: str = msgspec.field(name="from", default="")
    to: str = ""
    as_of: str = ""
    state: str = ""
    columns: str = ""

    def options(self) -> dict[str, str]:
        """The given options, by the names that the table has for them."""
        given = {
            "vhost": self.vhost,
            "queue": self.queue,
            "from": self.from_,
            "to": self.to,
            "asOf": self.as_of,
            "state": self.state,
            "columns": self.columns,
        }
        return {name: value for name, value in given.items() if value}


async def promote(call: Call) -> Response:
    """End the links, recover transferred messages, become an upstream; or, with `to`, only fill another broker."""
    body = await call.body(RecoveryBody)
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
    """The messages that a promotion would recover."""
    body = await call.body(RecoveryBody)
    wanted, target = body.wanted(), body.target()
    return await _answer(call, lambda report: call.node.standby.recoveries.dry_run(wanted, target, report))


async def rehearse(call: Call) -> Response:
    """Recover into scratch vhosts, compare, remove them."""
    body = await call.body(RecoveryBody)
    if body.to is not None:
        raise InvalidCommand("a rehearsal recovers into this node; there is no target")
    wanted = body.wanted()
    recoveries = call.node.standby.recoveries
    return await _answer(
        call, lambda report: recoveries.rehearse(wanted, report), "rehearsal", **_chosen(body)
    )


async def inspect(call: Call) -> Response:
    """The messages by vhost, queue, exchange and routing key; reads all transferred data."""
    return await _answer(call, call.node.standby.archive.inspect)


async def export(call: Call) -> Response:
    """Write transferred messages, with their states, to files on this node's machine or in a store."""
    body = await call.body(ExportBody)
    archive = call.node.standby.archive
    if body.vhost or body.queue:
        _check_exported(body, await archive.metrics(), call.node.broker.definitions.by_kind)
    return await _answer(
        call,
        lambda report: archive.export(body.target, body.format, body.options(), report),
        "export",
        target=body.target,
    )


def _check_exported(
    body: ExportBody, stored: list[dict[str, Any]], defined: Mapping[str, Mapping[tuple[str, ...], object]]
) -> None:
    """Check that vhost and queue are in the archive or defined, so that a typing error gives no empty export."""
    queues = {(row["vhost"], row["queue"]) for row in stored} | {
        (key[0], key[1]) for key in defined["queues"]
    }
    if body.vhost and body.vhost not in {vhost for vhost, _ in queues} | {
        key[0] for key in defined["vhosts"]
    }:
        raise InvalidCommand(
            f"there is no vhost '{body.vhost}' to export; see "
            "list_vhosts_available_for_standby_replication_recovery"
        )
    if body.queue and not any(queue == body.queue and body.vhost in ("", vhost) for vhost, queue in queues):
        place = f" in vhost '{body.vhost}'" if body.vhost else ""
        raise InvalidCommand(
            f"there is no queue '{body.queue}'{place} to export; see inspect_standby_downstream_metrics"
        )


async def rejoin(call: Call) -> Response:
    """Become a downstream of the node that replaced this one."""
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
    """The recovered messages, a row a vhost."""
    return json_reply(call.node.standby.promotion_summary())


def _chosen(body: RecoveryBody) -> dict[str, Any]:
    """The fields of the request for the history."""
    names = ("start_from_scratch", "all_available", "exclude_virtual_hosts", "queues", "as_of")
    return {name: value for name in names if (value := getattr(body, name))}


async def _answer(
    call: Call, begin: Callable[[Callable[[dict[str, Any]], None]], Work], kind: str = "", **chosen: Any
) -> Response:
    """Do the work, and send its progress; work with a `kind` becomes an event of the node's history."""
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
        # It was refused before it began, while the status can still be chosen.
        await work
    return StreamingResponse(_lines(first, steps), media_type="application/x-ndjson")


async def _kept(work: Work, history: EventHistory, event: RunningEvent | None) -> Any:
    """Do the work, and note its end in the history."""
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
    if any("message_count" not in row for row in result):
        return {"messages": sum(row["messages"] for row in result), "queues": len(result)}
    return {"messages": sum(row["message_count"] for row in result), "vhosts": len(result)}


def _end(steps: Steps, work: asyncio.Task[Any]) -> None:
    """Put the last step, which follows after each outcome."""
    _UNDER_WAY.discard(work)
    if work.cancelled():
        steps.put_nowait(
            {"error": "Cancelled", "reason": "the node is stopping; repeat the request to continue"}
        )
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


_ADMIN: Final = Requirement.ADMINISTRATOR
_STANDBY: Final = "/api/replication/standby"
ROUTES = [
    resource(f"{_STANDBY}/promote", need=_ADMIN, defines=False, POST=promote),
    resource(f"{_STANDBY}/dry-run", need=_ADMIN, defines=False, POST=dry_run),
    resource(f"{_STANDBY}/rehearse", need=_ADMIN, defines=False, POST=rehearse),
    resource(f"{_STANDBY}/inspect", need=_ADMIN, defines=False, POST=inspect),
    resource(f"{_STANDBY}/export", need=_ADMIN, defines=False, POST=export),
    resource(f"{_STANDBY}/rejoin", need=_ADMIN, defines=False, POST=rejoin),
    resource(f"{_STANDBY}/summary", need=Requirement.MONITORING, GET=show_summary),
]

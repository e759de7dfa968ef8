"""Documents that the console requests from sites only on demand: their history, and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from leveret.console.http.sessions import ConsoleSession
from leveret.console.judging.history import (
    PastEvent,
    RehearsalState,
    in_order,
    last_rehearsals,
    past_events,
    recovered_rows,
)
from leveret.console.sites.client import SiteClient, SiteRefuses, SiteSilent
from leveret.console.sites.documents import (
    AppliedSchema,
    KeptMoments,
    NotUnderstood,
    PastOperation,
    ShownMessage,
    read_document,
)
from leveret.console.sites.watch import SiteWatch, clock_ms
from leveret.model.errors import InvalidCommand
from leveret.model.path_part import path_part

Json = dict[str, Any]

MESSAGES_MAX: Final = 50
PAYLOAD_CHARACTERS_MAX: Final = 64 * 1024
_WHOLE_S: Final = 20.0


class MessagesQuery(msgspec.Struct):
    """A request for a queue's first messages, archived ones since a moment, or divergent ones of a report or of all."""

    site: str
    source: str
    vhost: str = ""
    queue: str = ""
    report: str = ""
    from_ms: int = 0
    count: int = 10


class _SiteHistory(NamedTuple):
    """The stored history of one site; `error` if it does not answer."""

    events: Sequence[PastEvent]
    recovered: Sequence[Json] = ()
    rehearsals: Sequence[RehearsalState] = ()
    error: str = ""


async def history(session: ConsoleSession) -> Json:
    """Return the time line of all answering sites, the results of their promotions, and their last rehearsals."""
    found = await asyncio.gather(*(_history_of(watch) for watch in session.watches.values()))
    return {
        "now_ms": clock_ms(),
        "events": [event._asdict() for event in in_order([event for each in found for event in each.events])],
        "recovered": [row for each in found for row in each.recovered],
        "rehearsals": [state._asdict() for each in found for state in each.rehearsals],
        "silent": [each.error for each in found if each.error],
    }


async def _history_of(watch: SiteWatch) -> _SiteHistory:
    facts, now_ms = watch.facts, clock_ms()
    known = past_events(facts, [], [], now_ms)
    if not facts.is_heard(now_ms):
        return _SiteHistory(known, error=f"Site {facts.site} is not heard of: its history is not whole.")
    try:
        async with asyncio.timeout(_WHOLE_S):
            applied = await watch.client.ask("/api/replication/schema/history", list[AppliedSchema])
            summary = await watch.client.ask("/api/replication/standby/summary", list[dict[str, Any]])
            operations = await watch.client.ask("/api/replication/history", list[PastOperation]) or []
    except (SiteRefuses, SiteSilent, NotUnderstood, TimeoutError) as error:
        return _SiteHistory(known, error=f"Site {facts.site}: {str(error) or 'no answer in time'}")
    return _SiteHistory(
        past_events(facts, applied or [], operations, now_ms),
        recovered_rows(facts.site, summary or []),
        last_rehearsals(facts, operations),
    )


async def messages(session: ConsoleSession, wanted: MessagesQuery) -> Json:
    """Return messages with their properties; bodies are cut to `PAYLOAD_CHARACTERS_MAX`.

    Raises:
        InvalidCommand: there is no such site or source. SiteRefuses, SiteSilent, NotUnderstood: as for SiteClient.
        TimeoutError: the site does not answer in time.
    """
    watch = session.watches.get(wanted.site)
    source = _SOURCES.get(wanted.source)
    if watch is None or source is None:
        raise InvalidCommand("name a site, and a queue of it, archived messages, or its divergent messages")
    count = max(1, min(wanted.count, MESSAGES_MAX))
    rows: list[Json] = []
    async with asyncio.timeout(_WHOLE_S):
        async for message in source(watch.client, wanted, count):
            rows.append(_cut(message))
            if len(rows) >= count:
                break
    return {"messages": rows}


async def _in_queue(client: SiteClient, wanted: MessagesQuery, count: int) -> AsyncIterator[ShownMessage]:
    path = f"/api/queues/{path_part(wanted.vhost)}/{path_part(wanted.queue)}/get"
    body = {
        "count": count,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "truncate": PAYLOAD_CHARACTERS_MAX,
    }
    for message in read_document(await client.whole("POST", path, body), list[ShownMessage]):
        yield message


async def _archived(client: SiteClient, wanted: MessagesQuery, count: int) -> AsyncIterator[ShownMessage]:
    chosen = {"vhost": wanted.vhost, "queue": wanted.queue, "from_ms": max(0, wanted.from_ms), "count": count}
    octets = await client.whole("GET", f"/api/replication/standby/messages?{urlencode(chosen)}")
    for message in read_document(octets, list[ShownMessage]):
        yield message


async def _divergent(client: SiteClient, wanted: MessagesQuery, _count: int) -> AsyncIterator[ShownMessage]:
    async for line in client.lines("GET", divergent_path(wanted.report), None):
        if line.strip():
            yield read_document(line, ShownMessage)


_SOURCES: Final = {"queue": _in_queue, "archived": _archived, "divergent": _divergent}


def divergent_path(report: str) -> str:
    """Return the path of a site's divergent messages, a JSON object a line; without `report`, of all reports."""
    query = f"?report={quote(report, safe='')}" if report else ""
    return f"/api/replication/divergent/messages{query}"


async def moments(session: ConsoleSession, site: str) -> Json:
    """Return a row for each vhost of a standby: the first and the last moment with a known state of its queues.

    Raises:
        InvalidCommand: there is no such site. SiteRefuses, SiteSilent, NotUnderstood: as for SiteClient.
        TimeoutError: the site does not answer in time.
    """
    client = _client_of(session, site)
    async with asyncio.timeout(_WHOLE_S):
        octets = await client.whole("GET", "/api/replication/standby/moments")
    rows = read_document(octets, list[KeptMoments])
    return {"now_ms": clock_ms(), "vhosts": msgspec.to_builtins(rows)}


async def export_divergent(session: ConsoleSession, site: str, report: str) -> AsyncIterator[bytes]:
    """Return an iterator over all divergent messages of a site, unchanged: a JSON object a line.

    Raises:
        InvalidCommand: there is no such site. SiteRefuses, SiteSilent, NotUnderstood: as for SiteClient.
        TimeoutError: the site does not answer in time.
    """
    lines = _client_of(session, site).lines("GET", divergent_path(report), None)
    # The first message is requested here, while an error can still change the answer's status.
    async with asyncio.timeout(_WHOLE_S):
        first = await anext(lines, b"")

    async def rest() -> AsyncIterator[bytes]:
        if first:
            yield first + b"\n"
        async for line in lines:
            yield line + b"\n"

    return rest()


def _client_of(session: ConsoleSession, site: str) -> SiteClient:
    watch = session.watches.get(site)
    if watch is None:
        raise InvalidCommand(f"there is no site {site[:64]}")
    return watch.client


def _cut(message: ShownMessage) -> Json:
    document: Json = msgspec.to_builtins(message)
    document["is_cut"] = max(len(message.payload), message.payload_bytes or 0) > PAYLOAD_CHARACTERS_MAX
    document["payload"] = message.payload[:PAYLOAD_CHARACTERS_MAX]
    return document

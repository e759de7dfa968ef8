"""What is asked of sites only while somebody looks at it: their history, and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from leveret.console.http.sessions import ConsoleSession
from leveret.console.judging.history import PastEvent, in_order, past_events, recovered_rows
from leveret.console.sites.client import SiteRefuses, SiteSilent
from leveret.console.sites.documents import AppliedSchema, NotUnderstood, ShownMessage, read_document
from leveret.console.sites.watch import SiteWatch, clock_ms
from leveret.model.errors import InvalidCommand

Json = dict[str, Any]

MESSAGES_MAX: Final = 50
PAYLOAD_CHARACTERS_MAX: Final = 64 * 1024
_WHOLE_S: Final = 20.0


class MessagesWanted(msgspec.Struct):
    """Which messages: the first of a queue, or divergent ones, of a report or of all."""

    site: str
    source: str
    vhost: str = ""
    queue: str = ""
    report: str = ""
    count: int = 10


async def history(session: ConsoleSession) -> Json:
    """The time line of all sites that answer, and what their promotions recovered."""
    watches = list(session.watches.values())
    found = await asyncio.gather(*(_history_of(watch) for watch in watches))
    events = [event for each, _, _ in found for event in each]
    return {
        "now_ms": clock_ms(),
        "events": [event._asdict() for event in in_order(events)],
        "recovered": [row for _, rows, _ in found for row in rows],
        "silent": [error for _, _, error in found if error],
    }


async def _history_of(watch: SiteWatch) -> tuple[list[PastEvent], list[Json], str]:
    facts, now_ms = watch.facts, clock_ms()
    if not facts.is_heard(now_ms):
        return (
            past_events(facts, [], now_ms),
            [],
            f"Site {facts.site} is not heard of: its history is not whole.",
        )
    try:
        async with asyncio.timeout(_WHOLE_S):
            applied = await watch.client.ask("/api/replication/schema/history", list[AppliedSchema])
            summary = await watch.client.ask("/api/replication/standby/summary", list[dict[str, Any]])
    except (SiteRefuses, SiteSilent, NotUnderstood, TimeoutError) as error:
        return past_events(facts, [], now_ms), [], f"Site {facts.site}: {str(error) or 'no answer in time'}"
    return past_events(facts, applied or [], now_ms), recovered_rows(facts.site, summary or []), ""


async def messages(session: ConsoleSession, wanted: MessagesWanted) -> Json:
    """Messages with their properties; bodies are cut to what a page can show.

    Raises:
        InvalidCommand: no such site or source. SiteRefuses, SiteSilent, NotUnderstood: as for a client's questions.
    """
    watch = session.watches.get(wanted.site)
    if watch is None or wanted.source not in ("queue", "divergent"):
        raise InvalidCommand("name a site, and a queue of it or its divergent messages")
    count = max(1, min(wanted.count, MESSAGES_MAX))
    rows: list[Json] = []
    async with asyncio.timeout(_WHOLE_S):
        lines = (
            _in_queue(watch, wanted, count) if wanted.source == "queue" else _divergent(watch, wanted.report)
        )
        async for message in lines:
            rows.append(_cut(message))
            if len(rows) >= count:
                break
    return {"messages": rows}


async def _in_queue(watch: SiteWatch, wanted: MessagesWanted, count: int) -> AsyncIterator[ShownMessage]:
    path = f"/api/queues/{quote(wanted.vhost, safe='')}/{quote(wanted.queue, safe='')}/get"
    body = {
        "count": count,
        "ackmode": "ack_requeue_true",
        "encoding": "auto",
        "truncate": PAYLOAD_CHARACTERS_MAX,
    }
    text = b"".join([line async for line in watch.client.lines("POST", path, body)])
    for message in read_document(text, list[ShownMessage]):
        yield message


async def _divergent(watch: SiteWatch, report: str) -> AsyncIterator[ShownMessage]:
    query = f"?report={quote(report, safe='')}" if report else ""
    async for line in watch.client.lines("GET", f"/api/replication/divergent/messages{query}", None):
        if line.strip():
            yield read_document(line, ShownMessage)


def _cut(message: ShownMessage) -> Json:
    document: Json = msgspec.to_builtins(message)
    document["is_cut"] = max(len(message.payload), message.payload_bytes or 0) > PAYLOAD_CHARACTERS_MAX
    document["payload"] = message.payload[:PAYLOAD_CHARACTERS_MAX]
    return document

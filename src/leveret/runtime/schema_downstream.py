"""The downstream's loop: connect, ask what differs, apply it, wait, ask again.

    connecting -> connected -> syncing -> (link lost) disconnected -> connecting
    connecting -> (the upstream refuses us) recover -> connected

A sync that fails changes nothing but what it had applied before; the next one goes on from there, since it
compares what *is*. What the downstream leaves as it is (locals, conflicts) keeps its digests from being
those of the upstream, so it remembers which of its own states stands for which of the upstream's.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from time import time
from typing import Final, NamedTuple, Protocol

import msgspec

from leveret.config import Config
from leveret.core.broker import Broker
from leveret.core.schema import UPSTREAM_PARAMETER, Delta, Digests, Locals, delta
from leveret.model.definitions import Change, GlobalParameter, Put
from leveret.model.errors import InvalidCommand, LeveretError, Refusal
from leveret.runtime.schema_link import Endpoint, SchemaLink, Upstream, connect_first, parse_upstream
from leveret.wire.schema_sync import SyncReply, SyncRequest, decode_reply, encode_request

logger = logging.getLogger(__name__)

CHANGES_PER_TURN: Final = 250
"""Applied before the event loop serves others again."""
REPORTED_MAX: Final = 20
"""Conflicts and refused changes named in the status."""


class SchemaNode(Protocol):
    """What the schema sync needs of its node."""

    broker: Broker

    @property
    def config(self) -> Config:
        """The node's settings."""

    async def commit(self) -> None:
        """Return once all changes applied so far are durable."""


class State(StrEnum):
    """The states of an end of a link, by RabbitMQ's names."""

    RUNNING = "running"
    """An upstream that serves."""
    CONNECTING = "connecting"
    """No endpoint answers yet."""
    RECOVER = "recover"
    """The upstream answers and refuses: user, password, permissions, vhost, mode."""
    CONNECTED = "connected"
    """The link is open, nothing was synced over it yet."""
    SYNCING = "syncing"
    """The link is open and the last sync went well."""
    DISCONNECTED = "disconnected"
    """There is no link, or none is wanted."""


class Timing(NamedTuple):
    """How long a downstream waits."""

    connect_timeout_s: float = 5.0
    reply_timeout_s: float = 60.0
    backoff_min_s: float = 0.5
    backoff_max_s: float = 30.0


class Progress(msgspec.Struct):
    """What a downstream has done; stamps are Unix seconds, the duration is in milliseconds."""

    state: State = State.DISCONNECTED
    last_connection_completion_stamp: int | None = None
    last_sync_request_stamp: int | None = None
    last_sync_duration: int | None = None
    last_error: str | None = None
    syncs: int = 0
    syncs_unchanged: int = 0
    changes_applied: int = 0
    changes_refused: int = 0
    conflicts: list[str] = []
    refused: list[str] = []


class SchemaDownstream:
    """Follows the upstream that the global parameter names; `run` until cancelled.

    Attributes:
        progress: how it goes.
    """

    def __init__(self, node: SchemaNode, timing: Timing) -> None:
        """Follow nobody yet.

        Raises:
            ConfigError: one of the `locals` is not a regular expression.
        """
        settings = node.config.schema_sync
        self.progress = Progress()
        self._node = node
        self._timing = timing
        self._interval_s = settings.minimum_sync_interval_ms / 1000
        self._locals = Locals(settings.locals_)
        self._digests = Digests()
        self._same: dict[str, tuple[str, str]] = {}
        self._wake = asyncio.Event()
        self._backoff_s = timing.backoff_min_s

    def sync_now(self) -> None:
        """Do not wait for the next attempt or sync."""
        self._wake.set()

    async def run(self) -> None:
        """Follow, and try again for ever."""
        while True:
            try:
                await self._follow()
            except LeveretError as error:
                self._failed(error)
            except Exception as error:
                # A bug, or an upstream that found one: this task is the only thing that may end by it.
                logger.exception("schema_sync_failed")
                self._failed(LeveretError(f"internal error: {error!r}"))
            await self._rest(self._backoff_s)
            self._backoff_s = min(self._backoff_s * 2, self._timing.backoff_max_s)

    async def _follow(self) -> None:
        self._wake.clear()
        upstream = self._upstream()
        if upstream is None:
            return
        if self.progress.state is not State.RECOVER:
            self.progress.state = State.CONNECTING
        endpoint, link = await connect_first(
            upstream, self._node.config.node_name, self._timing.connect_timeout_s, self._wake.set
        )
        try:
            self._connected(endpoint)
            while link.failure is None:
                await self._rest(await self._sync(link))
            raise link.failure
        finally:
            link.close()

    def _upstream(self) -> Upstream | None:
        held = self._node.broker.definitions.by_kind["global_parameters"].get((UPSTREAM_PARAMETER,))
        try:
            if isinstance(held, GlobalParameter):
                return parse_upstream(held.value)
            self.progress.last_error = "no upstream endpoints: use set_schema_replication_upstream_endpoints"
        except InvalidCommand as error:
            self.progress.last_error = str(error)
        self.progress.state = State.DISCONNECTED
        return None

    def _connected(self, endpoint: Endpoint) -> None:
        logger.info("schema_sync_connected upstream=%s", endpoint)
        self.progress.state = State.CONNECTED
        self.progress.last_connection_completion_stamp = int(time())

    def _failed(self, error: LeveretError) -> None:
        text = str(error)
        if text != self.progress.last_error:
            logger.warning("schema_sync_failed error=%s", text)
        self.progress.last_error = text
        if isinstance(error, Refusal):
            self.progress.state = State.RECOVER
        elif self.progress.state in (State.CONNECTED, State.SYNCING):
            self.progress.state = State.DISCONNECTED
        else:
            self.progress.state = State.CONNECTING

    async def _rest(self, delay_s: float) -> None:
        """Wait, unless woken."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    # -- one sync -----------------------------------------------------------------------------

    async def _sync(self, link: SchemaLink) -> float:
        """Ask once and apply the answer; return how long to wait before the next time, in seconds.

        That is until the interval has passed since the request, and at least as long as the sync took.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.progress.last_sync_request_stamp = int(time())
        try:
            body = await link.request(encode_request(self._request()), self._timing.reply_timeout_s)
        except Refusal as refusal:
            self._failed(refusal)
            return self._interval_s
        await self._apply(decode_reply(body))
        took_s = loop.time() - began
        progress = self.progress
        progress.state = State.SYNCING
        progress.syncs += 1
        progress.last_sync_duration = round(took_s * 1000)
        progress.last_error = progress.refused[0] if progress.refused else None
        self._backoff_s = self._timing.backoff_min_s
        return max(self._interval_s - took_s, took_s)

    def _request(self) -> SyncRequest:
        own = self._digests.of(self._node.broker.definitions)
        known = {kind: self._same.get(kind, ("", "")) for kind in own}
        digests = {kind: theirs if ours == own[kind] else own[kind] for kind, (ours, theirs) in known.items()}
        return SyncRequest(self._node.config.cluster_name, digests)

    async def _apply(self, reply: SyncReply) -> None:
        progress = self.progress
        progress.conflicts, progress.refused = [], []
        if not reply.entities:
            progress.syncs_unchanged += 1
            return
        broker = self._node.broker
        holding = {key for key, queue in broker.queues.items() if queue.message_count}
        found = delta(broker.definitions, reply.entities, self._locals, holding)
        unlike = {conflict.kind for conflict in found.conflicts} | await self._change(found.changes)
        await self._node.commit()
        self._report(found, reply.cluster)
        own = self._digests.of(broker.definitions)
        for kind in reply.entities.keys() & reply.digests.keys():
            self._same.pop(kind, None)
            if kind not in unlike:
                self._same[kind] = (own[kind], reply.digests[kind])

    async def _change(self, changes: list[Change]) -> set[str]:
        """Apply all that can be; return the kinds in which something could not."""
        refused: set[str] = set()
        for number, change in enumerate(changes):
            kind, key = _place(change)
            try:
                self._node.broker.apply(change)
            except Refusal as refusal:
                refused.add(kind)
                self.progress.changes_refused += 1
                if len(self.progress.refused) < REPORTED_MAX:
                    self.progress.refused.append(f"{kind} {'/'.join(key)}: {refusal}")
            else:
                self.progress.changes_applied += 1
            if number % CHANGES_PER_TURN == CHANGES_PER_TURN - 1:
                await asyncio.sleep(0)
        return refused

    def _report(self, found: Delta, cluster: str) -> None:
        progress = self.progress
        for conflict in found.conflicts[:REPORTED_MAX]:
            progress.conflicts.append(f"{conflict.kind} {'/'.join(conflict.key)}: {conflict.reason}")
        puts = sum(isinstance(change, Put) for change in found.changes)
        logger.info(
            "schema_sync_applied upstream_cluster=%s puts=%d deletes=%d conflicts=%d refused=%d",
            cluster,
            puts,
            len(found.changes) - puts,
            len(found.conflicts),
            len(progress.refused),
        )
        for text in [*progress.conflicts, *progress.refused]:
            logger.warning("schema_sync_left_as_is entity=%s", text)


def _place(change: Change) -> tuple[str, tuple[str, ...]]:
    """Kind and key of what is put or deleted."""
    if isinstance(change, Put):
        return change.entity.kind, change.entity.key
    return change.kind, change.key

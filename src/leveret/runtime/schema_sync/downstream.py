"""The loop of a downstream: connect, fetch the upstream's schema, apply the differences, wait, ask again.

    connecting -> connected -> syncing -> (link lost) disconnected -> connecting
    connecting -> (the upstream refuses us) recover -> connected

A failed sync changes nothing beyond the changes already applied. The next sync continues from there, since it compares
the present schemas. The downstream keeps the upstream's schema in memory beside its own: so the upstream need not
send conflicts again (locals, refused changes), and a sync reverts changes made at the downstream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from time import time
from typing import Final, NamedTuple, Protocol

import msgspec

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.schema.delta import SCHEMA_UPSTREAM, Delta, Key, LocalEntities
from leveret.model.definitions import Definitions, GlobalParameter
from leveret.model.errors import InvalidCommand, LeveretError, Refusal, ResourceLocked
from leveret.runtime.schema_sync.apply import (
    AppliedDelta,
    DeltaOutcome,
    QueuesWithMessages,
    SyncHistory,
    apply,
    delta_here,
    share,
)
from leveret.runtime.schema_sync.endpoints import SchemaUpstreamParameter, UpstreamEndpoint, parse_upstream
from leveret.runtime.schema_sync.source import (
    SchemaSource,
    UpstreamRequest,
    at,
    connect_first,
    fetch_from,
    likely_theirs,
)

logger = logging.getLogger(__name__)

REPORTED_MAX: Final = 20
"""The number of conflicts and refused changes that the status names; it counts all of them."""


class SchemaNode(Protocol):
    """The part of a node that the schema sync uses."""

    broker: Broker

    @property
    def config(self) -> Config:
        """The node's settings."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """A context in which this node, and no other node of its cluster, may change definitions.

        Raises:
            LeveretError: at entry: they cannot be changed now.
        """

    def flush(self) -> None:
        """Log the changes applied so far."""

    async def commit(self) -> None:
        """Return when all changes applied so far are durable."""


class SyncState(StrEnum):
    """The states of an end of a link, under RabbitMQ's names."""

    RUNNING = "running"
    """The upstream serves."""
    CONNECTING = "connecting"
    """No endpoint has answered yet."""
    RECOVER = "recover"
    """The upstream answers and refuses: user, password, permissions, vhost, mode."""
    CONNECTED = "connected"
    """The link is open; no sync has ended yet."""
    SYNCING = "syncing"
    """The link is open, and the last sync succeeded."""
    DISCONNECTED = "disconnected"
    """There is no link, or none is wanted."""


class Timing(NamedTuple):
    """The intervals and timeouts of a downstream."""

    connect_timeout_s: float = 5.0
    reply_timeout_s: float = 60.0
    backoff_min_s: float = 0.5
    backoff_max_s: float = 30.0


class SyncProgress(msgspec.Struct):
    """The progress of a downstream. Stamps are Unix seconds, durations milliseconds.

    `last_sync_request_stamp` is the time of the last attempt, `last_sync_stamp` the time of the last successful sync:
    at that time this node had the upstream's definitions. `last_sync_sent_bytes` and `last_sync_received_bytes` are its
    cost on the link; `sync_interval_ms` is the interval of syncs without changes.
    """

    state: SyncState = SyncState.DISCONNECTED
    upstream_endpoint: str | None = None
    upstream_cluster: str | None = None
    last_connection_completion_stamp: int | None = None
    last_sync_request_stamp: int | None = None
    last_sync_stamp: int | None = None
    last_sync_duration: int | None = None
    last_change_stamp: int | None = None
    last_change_duration: int | None = None
    last_sync_sent_bytes: int | None = None
    last_sync_received_bytes: int | None = None
    sync_interval_ms: int | None = None
    last_error: str | None = None
    syncs: int = 0
    syncs_unchanged: int = 0
    notices: int = 0
    changes_applied: int = 0
    changes_refused: int = 0
    conflict_count: int = 0
    conflicts: list[str] = []
    refused_count: int = 0
    refused: list[str] = []


def upstream_of(node: SchemaNode) -> SchemaUpstreamParameter | None:
    """Return the upstream that the global parameter names; None if there is none.

    Raises:
        InvalidCommand: the parameter cannot be used.
    """
    existing = node.broker.definitions.by_kind["global_parameters"].get((SCHEMA_UPSTREAM,))
    return parse_upstream(existing.value) if isinstance(existing, GlobalParameter) else None


def asked_by(node: SchemaNode, timing: Timing) -> UpstreamRequest:
    """Return the request with which this node connects to its upstream's listeners."""
    config = node.config
    return UpstreamRequest(
        config.node_name,
        config.cluster_name,
        config.schema_sync.tls,
        timing.connect_timeout_s,
        timing.reply_timeout_s,
    )


class _Wanted(NamedTuple):
    """A requested sync whose caller waits for it."""

    force: bool
    done: asyncio.Future[DeltaOutcome]


class SchemaDownstream:
    """Follows the upstream that the global parameter names; `run` until cancelled.

    Attributes:
        progress: of the syncs.
    """

    def __init__(
        self, node: SchemaNode, timing: Timing, history: SyncHistory, is_wanted: Callable[[], bool]
    ) -> None:
        """Follow nothing yet. `is_wanted` returns whether this node is still the follower of its site.

        Raises:
            ConfigError: one of the `locals` is not a regular expression.
        """
        settings = node.config.schema_sync
        self.progress = SyncProgress()
        self._node = node
        self._timing = timing
        self._history = history
        self._is_wanted = is_wanted
        self._interval_s = settings.minimum_sync_interval_ms / 1000
        self._locals = LocalEntities(settings.locals_)
        self._theirs = Definitions()
        self._wake = asyncio.Event()
        self._backoff_s = timing.backoff_min_s
        self._endpoint = ""
        self._cluster = history.last_cluster
        self._failed_at: UpstreamEndpoint | None = None
        self._may_sync_again_at = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._wanted: list[_Wanted] = []
        self._applied = asyncio.Event()
        self._applied.set()
        self._finished = asyncio.Event()
        self._finished.set()
        self._is_asked = False

    def sync_now(self) -> None:
        """End the wait for the next attempt or sync."""
        self._is_asked = True
        self._wake.set()

    async def sync(self, *, force: bool) -> DeltaOutcome:
        """Sync at once and return the outcome. `force` replaces queues in conflict although they hold messages.

        Raises:
            LeveretError: the reason of the failure.
        """
        if self.progress.state not in (SyncState.CONNECTED, SyncState.SYNCING):
            raise ResourceLocked(f"there is no link to an upstream: {self.progress.last_error or 'not yet'}")
        wanted = _Wanted(force, asyncio.get_running_loop().create_future())
        self._wanted.append(wanted)
        self._wake.set()
        return await wanted.done

    async def rest(self, *, at_once: bool) -> None:
        """Return while no delta is half applied nor, unless `at_once`, applied but not durable: a moment to cancel."""
        resting = self._applied if at_once else self._finished
        while not resting.is_set():
            await resting.wait()

    async def run(self) -> None:
        """Follow the upstream, and reconnect for ever."""
        try:
            self._theirs = await likely_theirs(self._node.broker.definitions)
            while True:
                try:
                    await self._follow()
                except LeveretError as error:
                    self._failed(error)
                except Exception as error:
                    # A fault here or at the upstream: only this task may end because of it.
                    logger.exception("schema_sync_failed")
                    self._failed(LeveretError(f"internal error: {error!r}"))
                await self._rest(self._backoff_s)
                self._backoff_s = min(self._backoff_s * 2, self._timing.backoff_max_s)
        finally:
            if self._due is not None:
                self._due.cancel()
            # A sync that is requested from now on would never be answered.
            self.progress.state = SyncState.DISCONNECTED
            self._give_up(ResourceLocked("schema replication was stopped meanwhile"))

    async def _follow(self) -> None:
        self._awake()
        upstream = self._upstream()
        if upstream is None:
            return
        if self.progress.state is not SyncState.RECOVER:
            self.progress.state = SyncState.CONNECTING
        asked = asked_by(self._node, self._timing)
        endpoint, source = await connect_first(
            upstream, asked, self._wake.set, self._noticed, self._failed_at
        )
        try:
            self._connected(endpoint)
            while source.failure is None:
                is_alone = len(upstream.endpoints) == 1
                await self._rest(await self._sync(endpoint, source, is_alone=is_alone))
            raise at(endpoint, source.failure)
        finally:
            self.progress.upstream_endpoint = None
            source.close()
            self._unlink()

    def _unlink(self) -> None:
        """Forget wake-ups of the lost link: they would let it be opened again and again without a pause."""
        if self._due is not None:
            self._due.cancel()
        if not self._is_asked:
            self._wake.clear()

    def _awake(self) -> None:
        self._wake.clear()
        self._is_asked = False

    def _upstream(self) -> SchemaUpstreamParameter | None:
        try:
            upstream = upstream_of(self._node)
            if upstream is not None:
                return upstream
            self.progress.last_error = "no upstream endpoints: use set_schema_replication_upstream_endpoints"
        except InvalidCommand as error:
            self.progress.last_error = str(error)
        self.progress.state = SyncState.DISCONNECTED
        return None

    def _connected(self, endpoint: UpstreamEndpoint) -> None:
        logger.info("schema_sync_connected upstream=%s", endpoint)
        self._endpoint = self.progress.upstream_endpoint = str(endpoint)
        self.progress.state = SyncState.CONNECTED
        self.progress.last_connection_completion_stamp = int(time())

    def _failed(self, error: LeveretError) -> None:
        text = str(error)
        if text != self.progress.last_error:
            logger.warning("schema_sync_failed error=%s", text)
        self.progress.last_error = text
        if isinstance(error, Refusal):
            self.progress.state = SyncState.RECOVER
        elif self.progress.state in (SyncState.CONNECTED, SyncState.SYNCING):
            self.progress.state = SyncState.DISCONNECTED
        else:
            self.progress.state = SyncState.CONNECTING
        self._give_up(error)

    def _give_up(self, error: LeveretError) -> None:
        wanted, self._wanted = self._wanted, []
        _decline(wanted, error)

    def _noticed(self) -> None:
        """Handle the notice of a change: sync, but not more often than a sync takes."""
        self.progress.notices += 1
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_at(self._may_sync_again_at, self._wake.set)

    async def _rest(self, delay_s: float) -> None:
        """Wait for a duration or a wake-up."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._awake()

    # -- one sync -----------------------------------------------------------------------------

    async def _sync(self, endpoint: UpstreamEndpoint, source: SchemaSource, *, is_alone: bool) -> float:
        """Ask once and apply the answer; return the seconds until the next sync.

        If an upstream refuses and `is_alone`, it is asked again over the same link; otherwise other endpoints are
        tried.
        """
        # The next sync answers requests that come from now on.
        wanted, self._wanted = self._wanted, []
        try:
            outcome, rest_s = await self._sync_once(endpoint, source, wanted)
        except Refusal as refusal:
            self._failed(refusal)
            _decline(wanted, refusal)
            if not is_alone:
                raise
            return self._interval_s
        except BaseException as error:
            reason = error if isinstance(error, LeveretError) else ResourceLocked("the sync was broken off")
            _decline(wanted, reason)
            raise
        finally:
            self._applied.set()
            self._finished.set()
        for each in wanted:
            if not each.done.done():
                each.done.set_result(outcome)
        return rest_s

    async def _sync_once(
        self, endpoint: UpstreamEndpoint, source: SchemaSource, wanted: Sequence[_Wanted]
    ) -> tuple[DeltaOutcome, float]:
        """Sync once; return the seconds until the next sync.

        That is the rest of the interval since the request, and at least the duration of the sync.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        before_bytes = source.sent_bytes, source.received_bytes
        progress = self.progress
        progress.last_sync_request_stamp = int(time())
        progress.upstream_cluster = await self._fetch(endpoint, source)
        self._note_cluster(progress.upstream_cluster)
        progress.last_sync_sent_bytes = source.sent_bytes - before_bytes[0]
        progress.last_sync_received_bytes = source.received_bytes - before_bytes[1]
        outcome = await self._apply(source.unreadable, wanted)
        took_s = loop.time() - began
        progress.state = SyncState.SYNCING
        progress.syncs += 1
        progress.last_sync_stamp = progress.last_sync_request_stamp
        progress.last_sync_duration = round(took_s * 1000)
        progress.last_error = progress.refused[0] if progress.refused else None
        progress.sync_interval_ms = round(max(self._interval_s, took_s) * 1000)
        if outcome.puts + outcome.deletes:
            await self._record(outcome)
        else:
            progress.syncs_unchanged += 1
        self._backoff_s = self._timing.backoff_min_s
        self._may_sync_again_at = loop.time() + took_s
        # No notice will tell of changes in the meantime.
        return outcome, took_s if source.is_behind else max(self._interval_s - took_s, took_s)

    async def _fetch(self, endpoint: UpstreamEndpoint, source: SchemaSource) -> str:
        """Update the known schema of the upstream; return the name of its cluster.

        An endpoint that accepts the connection and then fails is the last one of the next attempt.
        """
        try:
            cluster = await fetch_from(endpoint, source, self._theirs)
        except Exception:
            self._failed_at = endpoint
            raise
        self._failed_at = None
        return cluster

    def _note_cluster(self, cluster: str) -> None:
        """Warn if the definitions of another site come than before: those of the first one are about to be deleted.

        It is no error: a promoted site may have taken the place of the first one, under its address. Nodes of one
        cluster may have names of their own, too.
        """
        if self._cluster and cluster != self._cluster:
            logger.warning(
                "schema_sync_upstream_changed from=%s to=%s endpoint=%s hint=%s",
                self._cluster,
                cluster,
                self._endpoint,
                "if the endpoints are of several sites, name those of one",
            )
        self._cluster = cluster

    async def _apply(self, unreadable: Iterable[str], wanted: Sequence[_Wanted]) -> DeltaOutcome:
        broker = self._node.broker
        seen = _is_forced(wanted), broker.version
        found = await self._delta(self._holding(wanted))
        if found.steps:
            async with self._node.changing():
                # Meanwhile the schema here may have changed, and the caller who forced the sync may be gone.
                holding = self._holding(wanted)
                if seen != (_is_forced(wanted), broker.version):
                    found = await self._delta(holding)
                outcome = await self._make(found, holding)
        else:
            outcome = await apply(broker, found, self._holding(wanted), self._node.flush)
            # A former sync's changes may wait for room on the disk.
            await self._node.commit()
        outcome.refused += unreadable
        self._report(outcome)
        return outcome

    def _holding(self, wanted: Sequence[_Wanted]) -> Container[Key]:
        """Return the queues that a sync keeps because of their messages."""
        return frozenset() if _is_forced(wanted) else QueuesWithMessages(self._node.broker)

    async def _delta(self, holding: Container[Key]) -> Delta:
        return await delta_here(self._node.broker, self._theirs, self._locals, holding)

    async def _make(self, found: Delta, holding: Container[Key]) -> DeltaOutcome:
        """Apply all changes, and make them durable.

        Raises:
            ResourceLocked: this node is not the follower of its site any more.
        """
        # The new follower, or the new decision, changes definitions only after this node has let go of them.
        if not self._is_wanted():
            raise ResourceLocked("this node is not the one that follows the upstream any more")
        broker = self._node.broker
        self._applied.clear()
        self._finished.clear()
        outcome = await apply(broker, found, holding, self._node.flush)
        self._applied.set()
        if found.changes:
            await self._node.commit()
            await share(broker.definitions, self._theirs, found.changes)
        return outcome

    def _report(self, outcome: DeltaOutcome) -> None:
        progress = self.progress
        known = {*progress.conflicts, *progress.refused}
        progress.conflict_count, progress.conflicts = len(outcome.conflicts), outcome.conflicts[:REPORTED_MAX]
        progress.refused_count, progress.refused = len(outcome.refused), outcome.refused[:REPORTED_MAX]
        progress.changes_applied += outcome.puts + outcome.deletes
        progress.changes_refused += len(outcome.refused)
        for text in [*progress.conflicts, *progress.refused]:
            if text not in known:
                logger.warning("schema_sync_left_as_is entity=%s", text)

    async def _record(self, outcome: DeltaOutcome) -> None:
        progress = self.progress
        progress.last_change_stamp = int(time())
        progress.last_change_duration = progress.last_sync_duration
        applied = AppliedDelta(
            stamp=progress.last_change_stamp,
            upstream=self._endpoint,
            upstream_cluster=progress.upstream_cluster or "",
            duration_ms=progress.last_sync_duration or 0,
            sent_bytes=progress.last_sync_sent_bytes or 0,
            received_bytes=progress.last_sync_received_bytes or 0,
            puts=outcome.puts,
            deletes=outcome.deletes,
            conflicts=len(outcome.conflicts),
            refused=len(outcome.refused),
            changes=outcome.changes,
        )
        logger.info(
            "schema_sync_applied upstream_cluster=%s puts=%d deletes=%d conflicts=%d refused=%d duration_ms=%d "
            "received_bytes=%d",
            applied.upstream_cluster,
            applied.puts,
            applied.deletes,
            applied.conflicts,
            applied.refused,
            applied.duration_ms,
            applied.received_bytes,
        )
        await self._history.add(applied)


def _is_forced(wanted: Iterable[_Wanted]) -> bool:
    """Return whether a waiting caller forces the sync; a caller whose request failed does not wait any more."""
    return any(each.force and not each.done.done() for each in wanted)


def _decline(wanted: Iterable[_Wanted], error: LeveretError) -> None:
    """Answer waiting callers that there was no sync."""
    for each in wanted:
        if not each.done.done():
            each.done.set_exception(error)
            each.done.exception()  # a caller that stopped waiting does not want the error in the log

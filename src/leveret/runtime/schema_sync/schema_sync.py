"""Schema replication of one node: its mode, on and off, both sides of the link, its status.

An upstream answers requests that `session.amqp10.server` hands in; a downstream runs `SchemaDownstream`. What
an operator sets at run time is kept (`schema_deciding`) and wins over the configuration, after a restart
too: a promoted node does not fall back to following. All nodes of a cluster are on the same side; one of them follows
for all, as the definitions are theirs together.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

import msgspec

from leveret.core.broker.access import SALT_BYTES, hash_password, is_allowed, permission_of
from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.delta import SCHEMA_VHOST, UPSTREAM_PARAMETER, Locals
from leveret.core.schema.digests import Digests
from leveret.core.schema.operating_mode import OperatingMode, operating_mode
from leveret.model.definitions import GlobalParameter, Permission, Put, User, Vhost
from leveret.model.errors import (
    AccessRefused,
    ConfigError,
    InvalidCommand,
    NotAllowed,
    PeerError,
    PreconditionFailed,
)
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync.apply import Holding, SyncHistory, delta_here, rows_of
from leveret.runtime.schema_sync.decisions import Deciding, HereAlone
from leveret.runtime.schema_sync.downstream import (
    SchemaDownstream,
    SchemaNode,
    SyncProgress,
    SyncState,
    Timing,
    asked_by,
    upstream_of,
)
from leveret.runtime.schema_sync.endpoints import decode_upstream, parse_upstream
from leveret.runtime.schema_sync.source import fetch_first, likely_theirs
from leveret.session.schema_exchange import answer
from leveret.storage.state_file import StateFile
from leveret.wire.schema_sync import (
    SchemaSyncError,
    SyncReply,
    SyncRequest,
    decode_request,
    encode_reply,
)

logger = logging.getLogger(__name__)

RESOURCE: Final = "schema_definition_sync"
"""What a user must be allowed to write and read in the vhost of the link."""
DOWNSTREAMS_MAX: Final = 64
"""Downstreams that the status of an upstream names."""
LOOK_SHARE_MAX: Final = 0.05
"""Of its time, that an upstream spends on seeing whether its schema has changed."""


class _Served(msgspec.Struct):
    """A downstream, as its upstream sees it; it is in sync if it was told the last time all that it lacked."""

    user: str
    cluster: str
    last_request_stamp: int = 0
    requests: int = 0
    in_sync: bool = False


def _is_answered_in_full(request: SyncRequest, reply: SyncReply) -> bool:
    """Whether nothing is left to ask for, or all that was asked for is told: the downstream has it, then."""
    asked = {(kind, index) for kind, ask in request.asks.items() for index in ask.held}
    reported = {(kind, index) for kind, answers in reply.answers.items() for index in answers}
    return not reply.buckets and asked == reported


class SchemaSync:
    """Both sides; `start` begins to follow if that is what the node is for.

    Attributes:
        deciding: what holds for all nodes of the site.
    """

    def __init__(
        self, node: SchemaNode, state_file: StateFile, history: StateFile, timing: Timing | None = None
    ) -> None:
        """Read what was decided and done before; do nothing yet.

        Raises:
            StorageError: one of the two files is damaged.
            InvalidCommand: it holds something else than it should.
        """
        self.deciding: Deciding = HereAlone(state_file, node.config.node_name)
        self._node = node
        self._timing = timing or Timing()
        self._history = SyncHistory(history)
        self._digests = Digests()
        self._state = b""
        self._look_again_at_s = 0.0
        self._served: dict[tuple[str, str], _Served] = {}
        self._progress = SyncProgress()
        self._downstream: SchemaDownstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._is_open = False
        self._looking: asyncio.Task[None] | None = None
        self._requests_served = 0
        self._last_request_stamp: int | None = None

    @property
    def mode(self) -> OperatingMode:
        """Which side this node is now."""
        return self.deciding.decided.operating_mode or OperatingMode(
            self._node.config.schema_sync.operating_mode
        )

    @property
    def enabled(self) -> bool:
        """Whether this node follows or serves at all."""
        return self.deciding.decided.enabled

    @property
    def follower(self) -> str:
        """Name of the node of this site that follows the upstream; empty if none is to."""
        return self.deciding.follower if self.enabled and self.mode is OperatingMode.DOWNSTREAM else ""

    @property
    def follows(self) -> bool:
        """Whether it is for this node to follow the upstream now."""
        return self.follower == self._node.config.node_name

    async def start(self) -> None:
        """The node is open: follow, if this node is a downstream and replication is enabled."""
        self._is_open = True
        configured = self._node.config.schema_sync.operating_mode
        if self.mode != configured:
            logger.info("schema_sync_mode_set_at_run_time mode=%s configured=%s", self.mode, configured)
        self._begin()

    def _begin(self) -> None:
        if self._is_open and self.follows and self._task is None:
            self._downstream = SchemaDownstream(self._node, self._timing, self._history, lambda: self.follows)
            self._progress = self._downstream.progress
            self._task = asyncio.create_task(self._downstream.run(), name="schema downstream")

    def look(self) -> None:
        """What holds for all nodes of the site may have changed: it is for this node to follow now, or no longer."""
        if self._is_open and self._looking is None and self.follows != (self._task is not None):
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        try:
            async with self._lock:
                if not self._is_open:
                    return
                if self.follows:
                    self._begin()
                else:
                    await self.stop()
                    if self.mode is not OperatingMode.DOWNSTREAM:
                        self._progress = SyncProgress()
        finally:
            self._looking = None
        self.look()

    async def close(self) -> None:
        """The node stops: end the link, for good."""
        self._is_open = False
        if self._looking is not None:
            self._looking.cancel()
        await self.stop(at_once=True)

    async def stop(self, *, at_once: bool = False) -> None:
        """End the link; a delta that is being applied is applied whole, and durable unless `at_once`."""
        task, downstream = self._task, self._downstream
        if task is None or downstream is None:
            return
        # What was deleted to be put again would be missing, on a node that is about to be promoted too.
        await downstream.rest(at_once=at_once)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if self._task is task:
            self._task = self._downstream = None
        self._progress.state = SyncState.DISCONNECTED

    # -- the operator's commands --------------------------------------------------------------

    async def enable(self) -> None:
        """Follow or serve again; kept over restarts."""
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(True, held.operating_mode))
            self._begin()

    async def disable(self) -> None:
        """Neither follow nor serve; kept over restarts."""
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(False, held.operating_mode))
            await self.stop()

    async def restart(self) -> None:
        """Disable and enable: takes new endpoints and credentials."""
        async with self._lock:
            # What cannot be kept is refused, and all goes on as it did.
            await self._decide(lambda held: SchemaDecided(True, held.operating_mode))
            await self.stop()
            self._begin()

    async def set_mode(self, mode: str) -> None:
        """Change sides at once; kept over restarts.

        Raises:
            InvalidCommand: there is no such mode.
        """
        wanted = operating_mode(mode)
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(held.enabled, wanted))
            await self.stop()
            # How this node followed, and its last error, are of the past.
            self._progress = SyncProgress()
            self._begin()

    async def _decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        await self.deciding.decide(change)
        logger.info("schema_sync_decided enabled=%s mode=%s", self.enabled, self.mode)

    async def set_endpoints(self, text: str | bytes) -> None:
        """Set the upstream's endpoints and credentials from JSON; an open link keeps its own until a restart.

        Raises:
            InvalidCommand: not JSON, or names the field that is missing or malformed.
        """
        value = decode_upstream(text)
        parse_upstream(value)
        self._node.broker.apply(Put(GlobalParameter(name=UPSTREAM_PARAMETER, value=value)))
        await self._node.commit()
        self.endpoints_changed()

    def endpoints_changed(self) -> None:
        """Connect to the new ones at once, unless there is a link."""
        if self._progress.state not in (SyncState.CONNECTED, SyncState.SYNCING):
            self.sync_now()

    async def add_user(self, name: str, password: str) -> None:
        """Add a user with all permissions in the vhost of the link, which is made if need be.

        A user that is there, as one that a promoted downstream got from its upstream, keeps its tags and
        gets the password.

        Raises:
            InvalidCommand: no name or no password.
        """
        if not name or not password:
            raise InvalidCommand("a schema replication user needs a name and a password")
        broker = self._node.broker
        if (SCHEMA_VHOST,) not in broker.definitions.by_kind["vhosts"]:
            broker.apply(Put(Vhost(name=SCHEMA_VHOST, description="schema definition sync")))
        user = broker.definitions.by_kind["users"].get((name,))
        tags, limits = (user.tags, user.limits) if isinstance(user, User) else ((), {})
        password_hash = hash_password(password, os.urandom(SALT_BYTES))
        broker.apply(Put(User(name=name, password_hash=password_hash, tags=tags, limits=limits)))
        broker.apply(Put(Permission(user=name, vhost=SCHEMA_VHOST, configure=".*", write=".*", read=".*")))
        await self._node.commit()

    def sync_now(self) -> None:
        """A downstream syncs, or tries to connect, at once."""
        if self._downstream is not None:
            self._downstream.sync_now()

    async def sync(self, *, force: bool) -> dict[str, Any]:
        """Sync at once; what was changed and what was left as it is.

        `force` replaces queues that conflict with the upstream's although they hold messages.

        Raises:
            NotAllowed: this node follows nobody now.
            LeveretError: the upstream cannot be asked.
        """
        if self._downstream is None:
            raise NotAllowed("this node follows no upstream now: see schema_replication_status")
        try:
            outcome = await self._downstream.sync(force=force)
        except PeerError as error:
            raise PreconditionFailed(str(error)) from None
        shown: dict[str, Any] = msgspec.to_builtins(outcome)
        return shown

    async def diff(self) -> list[dict[str, Any]]:
        """What a sync would change now, over a link of its own; nothing is changed.

        Raises:
            PreconditionFailed: there is no upstream, or none of its endpoints can be asked.
            Refusal: the upstream declines.
        """
        node, definitions = self._node, self._node.broker.definitions
        upstream = upstream_of(node)
        if upstream is None:
            raise PreconditionFailed("no upstream endpoints: use set_schema_replication_upstream_endpoints")
        theirs = await likely_theirs(definitions)
        try:
            unreadable = await fetch_first(upstream, asked_by(node, self._timing), theirs)
        except (PeerError, ConfigError) as error:
            raise PreconditionFailed(str(error)) from None
        locals_ = Locals(node.config.schema_sync.locals_)
        found = await delta_here(node.broker, theirs, locals_, Holding(node.broker))
        return [row async for row in in_slices(rows_of(found, definitions, unreadable))]

    def history(self) -> list[dict[str, Any]]:
        """The last deltas that were applied here, newest first."""
        return self._history.rows()

    # -- the upstream's side ------------------------------------------------------------------

    def serve_request(self, user: str, body: bytes) -> bytes:
        """The reply to a downstream's request.

        Raises:
            Refusal: not for this user, not by this node now, or not a request.
        """
        definitions = self._node.broker.definitions
        permission = permission_of(definitions, user, SCHEMA_VHOST)
        if not (is_allowed(permission, "write", RESOURCE) and is_allowed(permission, "read", RESOURCE)):
            raise AccessRefused(f"access to '{RESOURCE}' in vhost '{SCHEMA_VHOST}' refused for user '{user}'")
        if self.mode is not OperatingMode.UPSTREAM:
            raise NotAllowed(f"this node is no upstream: its schema replication mode is '{self.mode}'")
        if not self.enabled:
            raise NotAllowed("schema replication is disabled on this node: use enable_schema_replication")
        try:
            request = decode_request(body)
        except SchemaSyncError as error:
            raise InvalidCommand(str(error)) from None
        try:
            reply = answer(self._digests, definitions, request, self._node.config.cluster_name)
        except SchemaSyncError as error:
            raise InvalidCommand(str(error)) from None
        # What is noted as told is this, and not what was seen a while ago and may come again.
        self._state = reply.state
        try:
            octets = encode_reply(reply)
        except SchemaSyncError as error:
            raise NotAllowed(str(error)) from None
        self._note(user, request, in_sync=_is_answered_in_full(request, reply))
        if reply.answers:
            logger.info(
                "schema_sync_served downstream_cluster=%s kinds=%s bytes=%d",
                request.cluster,
                ",".join(reply.answers),
                len(octets),
            )
        return octets

    def _note(self, user: str, request: SyncRequest, *, in_sync: bool) -> None:
        self._requests_served += 1
        self._last_request_stamp = int(time())
        key = user, request.cluster
        served = self._served.pop(key, None) or _Served(user, request.cluster)
        served.last_request_stamp = self._last_request_stamp
        served.requests += 1
        served.in_sync = in_sync
        self._served[key] = served
        if len(self._served) > DOWNSTREAMS_MAX:
            del self._served[next(iter(self._served))]

    def state(self) -> bytes:
        """Stands for what a downstream would be told now; empty if nothing.

        It may be behind for as long as it takes to look now and then.
        """
        if not self.enabled or self.mode is not OperatingMode.UPSTREAM:
            return b""
        began_s = monotonic()
        if began_s >= self._look_again_at_s:
            self._digests.look(self._node.broker.definitions)
            self._state = self._digests.state()
            ended_s = monotonic()
            self._look_again_at_s = ended_s + (ended_s - began_s) / LOOK_SHARE_MAX
        return self._state

    # -- status -------------------------------------------------------------------------------

    @property
    def why_nothing_came(self) -> str:
        """Why there was no sync since the start; empty if there was, or if this node follows nobody."""
        if not self.follows or self._progress.syncs:
            return ""
        return self._progress.last_error or "schema replication is connecting"

    def status(self) -> dict[str, Any]:
        """RabbitMQ's fields of `schema_replication_status`, and counts; no password."""
        status = msgspec.to_builtins(self._progress)
        if self.mode is not OperatingMode.DOWNSTREAM:
            serving = self.enabled and self.mode is OperatingMode.UPSTREAM
            status["state"] = SyncState.RUNNING if serving else SyncState.DISCONNECTED
            status["last_sync_request_stamp"] = self._last_request_stamp
        decided = self.deciding.decided.operating_mode is not None
        endpoints, username = self._upstream()
        return {
            "node": self._node.config.node_name,
            "follower": self.follower or None,
            "operating_mode": str(self.mode),
            "operating_mode_source": "run time" if decided else "configuration",
            "configured_operating_mode": self._node.config.schema_sync.operating_mode,
            "enabled": self.enabled,
            **status,
            "state": str(status["state"]),
            "upstream_endpoints": endpoints,
            "upstream_username": username,
            "requests_served": self._requests_served,
            "downstreams": msgspec.to_builtins(list(self._served.values())),
        }

    def _upstream(self) -> tuple[list[str], str | None]:
        parameter = self._node.broker.definitions.by_kind["global_parameters"].get((UPSTREAM_PARAMETER,))
        try:
            upstream = parse_upstream(parameter.value) if isinstance(parameter, GlobalParameter) else None
        except InvalidCommand:
            upstream = None
        if upstream is None:
            return [], None
        return [str(endpoint) for endpoint in upstream.endpoints], upstream.username

"""Schema replication of one node: its mode, its switch, both sides of the link, its status.

An upstream answers requests that `session.amqp10.server` passes on; a downstream runs `SchemaDownstream`. Run-time
decisions of an operator are stored (`runtime.schema_sync.decisions`) and override the configuration, after a restart
too: a promoted node does not return to following. All nodes of a cluster are on the same side; one of them follows for
all, since they share their definitions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from time import monotonic, time
from typing import Any, Final

import msgspec

from leveret.core.broker.access import SALT_BYTES, hash_password, is_allowed, permission_of
from leveret.core.schema.decisions import SchemaDecided
from leveret.core.schema.delta import SCHEMA_UPSTREAM, SCHEMA_VHOST, LocalEntities
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
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.schema_sync.apply import QueuesWithMessages, SyncHistory, delta_here, rows_of
from leveret.runtime.schema_sync.decisions import NodeSchemaDecisions, SchemaDecisionStore
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
"""The resource in the vhost of the link that a user must be allowed to write and read."""
DOWNSTREAMS_MAX: Final = 64
"""The number of downstreams that the status of an upstream names."""
DIGESTED_AT_ONCE: Final = 500
"""The most entities that are digested in one step, 2 to 5 ms; after more have changed, requests wait for slices."""
LOOK_SHARE_MAX: Final = 0.05
"""The share of its time in which an upstream checks whether its schema has changed."""


class _Served(msgspec.Struct):
    """A downstream from its upstream's view; it is in sync if the last reply had everything that it lacked."""

    user: str
    cluster: str
    last_request_stamp: int = 0
    requests: int = 0
    in_sync: bool = False


def _is_answered_in_full(request: SyncRequest, reply: SyncReply) -> bool:
    """Return whether the reply leaves nothing to request: then the downstream is in sync."""
    asked = {(kind, index) for kind, ask in request.asks.items() for index in ask.held}
    answered = {(kind, index) for kind, answers in reply.answers.items() for index in answers}
    return not reply.buckets and asked == answered


class SchemaSync:
    """Both sides of schema replication; `start` begins to follow if the node is a downstream.

    Attributes:
        deciding: the common decisions of all nodes of the site.
    """

    def __init__(
        self, node: SchemaNode, state_file: StateFile, history: StateFile, timing: Timing | None = None
    ) -> None:
        """Read the stored decisions and history; do nothing yet.

        Raises:
            StorageError: one of the two files is damaged.
            InvalidCommand: the content of a file is invalid.
        """
        self.deciding: SchemaDecisionStore = NodeSchemaDecisions(state_file, node.config.node_name)
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
        self._digesting: asyncio.Task[None] | None = None
        self._requests_served = 0
        self._last_request_stamp: int | None = None

    @property
    def mode(self) -> OperatingMode:
        """The side of this node."""
        return self.deciding.decided.operating_mode or OperatingMode(
            self._node.config.schema_sync.operating_mode
        )

    @property
    def enabled(self) -> bool:
        """Whether this node follows or serves at all."""
        return self.deciding.decided.enabled

    @property
    def follower(self) -> str:
        """The name of the node of this site that follows the upstream; empty if none does."""
        return self.deciding.follower if self.enabled and self.mode is OperatingMode.DOWNSTREAM else ""

    @property
    def follows(self) -> bool:
        """Whether this node follows the upstream now."""
        return self.follower == self._node.config.node_name

    async def start(self) -> None:
        """Begin to follow after the start of the node, if it is a downstream and replication is enabled."""
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

    def obey_decisions(self) -> None:
        """Handle a change of the site's decisions: this node may have to begin to follow, or to end."""
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
        self.obey_decisions()

    async def close(self) -> None:
        """End the link for good, as the node stops."""
        self._is_open = False
        for task in (self._looking, self._digesting):
            if task is not None:
                task.cancel()
        await self.stop(at_once=True)

    async def stop(self, *, at_once: bool = False) -> None:
        """End the link. A delta in progress is applied as a whole, and made durable unless `at_once`."""
        task, downstream = self._task, self._downstream
        if task is None or downstream is None:
            return
        # Otherwise entities that are deleted to be put again would be missing, also on a node about to be promoted.
        await downstream.rest(at_once=at_once)
        await end_task(task)
        if self._task is task:
            self._task = self._downstream = None
        self._progress.state = SyncState.DISCONNECTED

    # -- commands of operators --------------------------------------------------------------------

    async def enable(self) -> None:
        """Follow or serve again, also after restarts."""
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(True, held.operating_mode))
            self._begin()

    async def disable(self) -> None:
        """Neither follow nor serve, also after restarts."""
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(False, held.operating_mode))
            await self.stop()

    async def restart(self) -> None:
        """Disable and enable, in order to use new endpoints and credentials."""
        async with self._lock:
            # A decision that cannot be stored is refused, and nothing changes.
            await self._decide(lambda held: SchemaDecided(True, held.operating_mode))
            await self.stop()
            self._begin()

    async def set_mode(self, mode: str) -> None:
        """Change sides at once; the decision is stored.

        Raises:
            InvalidCommand: there is no such mode.
        """
        wanted = operating_mode(mode)
        async with self._lock:
            await self._decide(lambda held: SchemaDecided(held.enabled, wanted))
            await self.stop()
            # The previous progress, and the last error, are out of date.
            self._progress = SyncProgress()
            self._begin()

    async def _decide(self, change: Callable[[SchemaDecided], SchemaDecided]) -> None:
        await self.deciding.decide(change)
        logger.info("schema_sync_decided enabled=%s mode=%s", self.enabled, self.mode)

    async def set_endpoints(self, text: str | bytes) -> None:
        """Set the upstream's endpoints and credentials from JSON; an open link keeps the old ones until a restart.

        Raises:
            InvalidCommand: the text is not JSON, or lacks a field; the text of the error names the field.
        """
        value = decode_upstream(text)
        parse_upstream(value)
        self._node.broker.apply(Put(GlobalParameter(name=SCHEMA_UPSTREAM, value=value)))
        await self._node.commit()
        self.endpoints_changed()

    def endpoints_changed(self) -> None:
        """Connect to the new endpoints at once, unless there is a link."""
        if self._progress.state not in (SyncState.CONNECTED, SyncState.SYNCING):
            self.sync_now()

    async def add_user(self, name: str, password: str) -> None:
        """Add a user with all permissions in the vhost of the link, which is created if it is missing.

        An existing user, such as one that a promoted downstream got from its upstream, keeps its tags and gets the
        password.

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
        """Sync at once, or try to connect at once, as a downstream."""
        if self._downstream is not None:
            self._downstream.sync_now()

    async def sync(self, *, force: bool) -> dict[str, Any]:
        """Sync at once; return the changes and the conflicts.

        `force` replaces queues in conflict with the upstream's although they hold messages.

        Raises:
            NotAllowed: this node follows no upstream now.
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
        """Return the changes of a sync without making them, over a link of its own.

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
        locals_ = LocalEntities(node.config.schema_sync.locals_)
        found = await delta_here(node.broker, theirs, locals_, QueuesWithMessages(node.broker))
        return [row async for row in in_slices(rows_of(found, definitions, unreadable))]

    def history(self) -> list[dict[str, Any]]:
        """Return the last deltas that were applied here, newest first."""
        return self._history.rows()

    # -- the upstream's side ------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether an answer is a short step; otherwise the digests for it are made in slices from now on."""
        if not self.enabled or self.mode is not OperatingMode.UPSTREAM:
            return True
        if (
            self._digesting is None
            and self._digests.due_count(self._node.broker.definitions) > DIGESTED_AT_ONCE
        ):
            self._digesting = asyncio.create_task(self._digest())
        return self._digesting is None

    async def _digest(self) -> None:
        try:
            async for _ in in_slices(self._digests.preparing(self._node.broker.definitions)):
                pass
        finally:
            self._digesting = None

    def serve_request(self, user: str, body: bytes) -> bytes:
        """Return the reply to a downstream's request.

        Raises:
            Refusal: the user or this node may not, or the octets are no request.
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
        # The reply is recorded with this state, not with an earlier one that may return.
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
        """Return a value that identifies the replies of this moment; empty if there are none.

        It may be late by the interval of the checks.
        """
        if not self.enabled or self.mode is not OperatingMode.UPSTREAM:
            return b""
        began_s = monotonic()
        if began_s >= self._look_again_at_s and self.is_ready():
            self._digests.update(self._node.broker.definitions)
            self._state = self._digests.state()
            ended_s = monotonic()
            self._look_again_at_s = ended_s + (ended_s - began_s) / LOOK_SHARE_MAX
        return self._state

    # -- status -------------------------------------------------------------------------------

    @property
    def why_nothing_came(self) -> str:
        """Return why there was no sync since the start; empty if there was one, or if this node follows no upstream."""
        if not self.follows or self._progress.syncs:
            return ""
        return self._progress.last_error or "schema replication is connecting"

    def status(self) -> dict[str, Any]:
        """Return RabbitMQ's fields of `schema_replication_status`, and counts; never a password."""
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
        parameter = self._node.broker.definitions.by_kind["global_parameters"].get((SCHEMA_UPSTREAM,))
        try:
            upstream = parse_upstream(parameter.value) if isinstance(parameter, GlobalParameter) else None
        except InvalidCommand:
            upstream = None
        if upstream is None:
            return [], None
        return [str(endpoint) for endpoint in upstream.endpoints], upstream.username

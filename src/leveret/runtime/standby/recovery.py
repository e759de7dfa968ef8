"""Recoveries from the archive without effect on this node's production: dry runs, rehearsals, other brokers.

A dry run counts the messages that a promotion would recover. A rehearsal recovers them into scratch vhosts of this
node, compares every message with the archive, and removes the vhosts. The archive can also be recovered into any AMQP
0-9-1 broker. The transfer continues meanwhile. One of these recoveries runs at a time; a promotion ends it instead of
waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from leveret.config import Config
from leveret.config.kinds import Address
from leveret.core.broker.broker import Broker
from leveret.core.replication.standby_site import RecoveryRequest
from leveret.model.definitions import REHEARSAL_VHOSTS, Delete, Put, Queue, Vhost
from leveret.model.errors import InvalidCommand, NotAllowed, PreconditionFailed
from leveret.model.moment import moment_ms, moment_text
from leveret.runtime.process.unwanted_tasks import end_task
from leveret.runtime.process.work_slices import in_slices
from leveret.runtime.standby.archive import StandbyArchive
from leveret.runtime.standby.pipeline_process import Event, PipelineFailed, Report, ask

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LOOPBACK: Final = ("127.0.0.1", "::1", "0.0.0.0", "::")
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_URI_FORM: Final = "amqp://USER@HOST:PORT/VHOST"
_VERIFY: Final = {"verify_peer": True, "verify_none": False}


class RecoveryTarget(msgspec.Struct, kw_only=True, frozen=True):
    """Another broker; see `pipeline.jobs.job.AmqpTarget`."""

    host: str
    port: int
    username: str
    password: str
    vhost: str | None = None
    tls: bool = False
    verify: bool = True
    cacertfile: str = ""

    def __repr__(self) -> str:
        return f"Target({self.username}@{self.host}:{self.port})"

    def job(self, queues: dict[str, dict[str, dict[str, Any]]] | None = None) -> dict[str, Any]:
        """Return the fields for a pipeline process."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        credentials = {name: fields.pop(name) for name in ("username", "password")}
        return {**fields, "credentials": credentials, "queues": queues or {}}


class RecoveryListener(Protocol):
    """A listener, as this module uses it."""

    @property
    def addresses(self) -> list[Address]:
        """The addresses."""

    @property
    def tls_addresses(self) -> list[Address]:
        """The addresses with TLS."""


class RecoveringNode(Protocol):
    """The node, as this module uses it."""

    config: Config

    @property
    def broker(self) -> Broker:
        """The broker with its definitions."""

    @property
    def amqp(self) -> RecoveryListener:
        """The AMQP listener."""

    @property
    def streams(self) -> RecoveryListener:
        """The stream protocol's listener."""

    async def commit(self) -> None:
        """Return once all changes applied so far are durable."""

    def internal_user(self, purpose: str) -> AbstractContextManager[tuple[str, str]]:
        """Return a context with a user (name, password) of this node's own, who exists while the context lasts."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which definitions may be changed."""


class Recoveries:
    """Runs recoveries, one at a time."""

    def __init__(
        self,
        node: RecoveringNode,
        archive: StandbyArchive,
        losses: Callable[[], Awaitable[list[dict[str, Any]]]],
        followed: Callable[[], list[str]],
        vhosts: Callable[[], list[str] | None] = lambda: None,
    ) -> None:
        """Begin without work.

        Args:
            node: the node.
            archive: the node's archive.
            losses: returns a row for each vhost: the known records of the upstream that were not transferred.
            followed: returns the vhosts that the site follows.
            vhosts: returns the vhosts that this node recovers; None for all in its archive.
        """
        self._node = node
        self._archive = archive
        self._losses = losses
        self._followed = followed
        self._vhosts = vhosts
        self._task: asyncio.Task[Any] | None = None
        self._paused_by = ""

    # -- the operator's commands ------------------------------------------------------------------

    async def dry_run(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Report
    ) -> dict[str, Any]:
        """As `dry_run_part`, for the whole archive.

        Raises:
            InvalidCommand: a named vhost or queue does not exist.
        """
        await self.check_wanted(wanted)
        return await self.dry_run_part(wanted, target, report)

    async def into(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Report
    ) -> list[dict[str, Any]]:
        """As `into_part`, for the whole archive.

        Raises:
            InvalidCommand: a named vhost or queue does not exist.
        """
        await self.check_wanted(wanted)
        return await self.into_part(wanted, target, report)

    async def rehearse(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        """As `rehearse_part`, for the whole archive.

        Raises:
            InvalidCommand: a named vhost or queue does not exist.
        """
        await self.check_wanted(wanted)
        return await self.rehearse_part(wanted, report)

    async def check_wanted(self, wanted: RecoveryRequest) -> None:
        """As the function `check_wanted`, for this node's archive and definitions.

        Raises:
            InvalidCommand, PreconditionFailed: as for that function.
        """
        if names_something(wanted):
            contents = await self._archive.contents(fresh=True)
            check_wanted(wanted, contents, self._node.broker.definitions.by_kind)

    # -- the part of this node --------------------------------------------------------------------

    async def dry_run_part(
        self, wanted: RecoveryRequest, target: RecoveryTarget | None, report: Report
    ) -> dict[str, Any]:
        """Count the messages of a recovery, without any change here or at the target.

        Returns:
            `queues`: virtual_host, queue, message_count, first_timestamp, last_timestamp (text, UTC);
            `vhosts`: the known losses; `unfollowed`: the vhosts with records that a promotion leaves out, because this
            site does not follow them any more; `took_s`.

        Raises:
            PipelineFailed: the messages cannot be counted; the text has the reason.
        """
        job = self._job(wanted) | {"dry_run": True, "scratch": _scratch(), "to": self._to(target)}
        if target is None:
            job["followed"] = self._followed()
        done = await self._run_alone(ask("recover", job, report))
        return await self._done_row(done)

    async def into_part(
        self, wanted: RecoveryRequest, target: RecoveryTarget, report: Report
    ) -> list[dict[str, Any]]:
        """Recover into another broker; a second run publishes the messages transferred since the first.

        The messages of vhosts that this site does not follow any more come too.

        Returns:
            A row for each vhost, as `promote` returns, with `in_doubt`: the number of messages that the other broker
            may have twice.

        Raises:
            PipelineFailed: the recovery did not finish; the next run continues it.
        """
        logger.info("standby_recovery_begun to=%s:%d", target.host, target.port)

        def noted(event: Event) -> None:
            if event.get("event") == "blocked":
                logger.warning(
                    "standby_recovery_blocked to=%s reason=%s action=wait", event["target"], event["reason"]
                )
            elif event.get("event") == "unblocked":
                logger.info("standby_recovery_unblocked to=%s", event["target"])
            report(event)

        done = await self._run_alone(ask("recover", self._job(wanted) | {"to": self._to(target)}, noted))
        rows = reported_rows(done["summary"])
        for row in rows:
            logger.info(
                "standby_recovery_done to=%s:%d vhost=%s recovered=%d in_doubt=%d",
                target.host,
                target.port,
                row["virtual_host"],
                row["message_count"],
                row["in_doubt"],
            )
        return rows

    async def rehearse_part(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        """Recover into scratch vhosts, compare, and remove them.

        Returns:
            As `dry_run`, and `recovered_s`, `compared_s`, `compared` (messages).

        Raises:
            PreconditionFailed: the node has no listener on loopback for the recovery; or the archive is empty.
            PipelineFailed: the recovery or the comparison failed, as a promotion would have; the text has the reason.
        """
        return await self._run_alone(self._rehearse(wanted, report))

    @asynccontextmanager
    async def paused(self, by: str) -> AsyncIterator[None]:
        """End a running recovery, and refuse others while `by` ("a promotion") runs."""
        self._paused_by = by
        try:
            await self.give_way()
            yield
        finally:
            self._paused_by = ""

    def check_idle(self) -> None:
        """Check that no recovery runs.

        Raises:
            NotAllowed: a recovery runs.
        """
        if self._task is not None:
            raise NotAllowed("a dry run, a rehearsal or a recovery into another broker is under way already")

    async def give_way(self) -> None:
        """End a running recovery."""
        await end_task(self._task, Exception)

    async def clear_up(self) -> None:
        """Remove, at the start, a killed node's scratch vhosts of a rehearsal, unless a client uses them."""
        if self._task is not None:
            return
        vhosts = self._node.broker.definitions.by_kind["vhosts"].values()
        left = [
            each.name
            for each in vhosts
            if isinstance(each, Vhost)
            and each.name.startswith(REHEARSAL_VHOSTS)
            and each.description.endswith(self._whose)
        ]
        await self._remove(left)

    @property
    def _whose(self) -> str:
        """The end of the descriptions of this node's scratch vhosts in a cluster; empty for a node alone."""
        return f" at {self._node.config.node_name}" if self._node.config.cluster.is_member else ""

    # -- inside -----------------------------------------------------------------------------------

    async def _rehearse(self, wanted: RecoveryRequest, report: Report) -> dict[str, Any]:
        stream = own_endpoint(self._node, "stream")
        host, _, port = own_endpoint(self._node, "amqp").rpartition(":")
        available = self._recovered_here(await self._archive.list_vhosts_available())
        if not available:
            raise PreconditionFailed(
                "nothing was transferred to this node, so there is nothing to rehearse; see standby_replication_status"
            )
        vhosts = [name for name in available if name not in wanted.exclude]
        name = _scratch()
        with self._node.internal_user("rehearsal") as (username, password):
            async with self._scratch_vhosts(name, vhosts) as places:
                me = RecoveryTarget(
                    host=host.strip("[]"), port=int(port), username=username, password=password
                )
                job = self._job(wanted) | {
                    "followed": self._followed(),
                    "endpoint": stream,
                    "credentials": {"username": username, "password": password},
                    "scratch": name,
                    "vhosts": places,
                    "compare": me.job(),
                }
                done = await ask("recover", job, report)
        compared = done["compared"]["messages"]
        logger.info("standby_rehearsal_done messages=%d took_s=%g", compared, done["recovered_s"])
        return await self._done_row(done) | {"compared": compared, "compared_s": done["compared_s"]}

    @asynccontextmanager
    async def _scratch_vhosts(self, name: str, vhosts: list[str]) -> AsyncIterator[dict[str, str]]:
        """Make a scratch vhost for each vhost, with its durable queues, but no expiry, limits or dead letters."""
        places = {vhost: f"{REHEARSAL_VHOSTS}{name}.{number}" for number, vhost in enumerate(vhosts)}
        broker = self._node.broker
        queues = [each for each in broker.definitions.by_kind["queues"].values() if isinstance(each, Queue)]
        try:
            async with self._node.changing():
                for vhost, place in places.items():
                    described = f"rehearsal of vhost '{vhost}'{self._whose}"
                    broker.apply(Put(Vhost(name=place, description=described)))
                async for queue in in_slices(queues):
                    if queue.vhost in places and queue.durable:
                        broker.apply(Put(Queue(name=queue.name, vhost=places[queue.vhost])))
                await self._node.commit()
            yield places
        finally:
            await self._remove(list(places.values()))

    async def _remove(self, vhosts: list[str]) -> None:
        if not vhosts:
            return
        async with self._node.changing():
            for vhost in vhosts:
                self._node.broker.apply(Delete("vhosts", (vhost,)))
            await self._node.commit()

    def _recovered_here(self, vhosts: list[str]) -> list[str]:
        """Return those of these vhosts that this node recovers in a promotion."""
        own, followed = self._vhosts(), self._followed()
        return [vhost for vhost in vhosts if vhost in followed and (own is None or vhost in own)]

    def _job(self, wanted: RecoveryRequest) -> dict[str, Any]:
        own = self._vhosts()
        return {
            **self._archive.place,
            "vhosts": None if own is None else {vhost: vhost for vhost in own},
            "endpoint": "",
            "credentials": {"username": "", "password": ""},
            "spark": spark_settings(self._node.config),
            **msgspec.to_builtins(wanted),
        }

    def _to(self, target: RecoveryTarget | None) -> dict[str, Any] | None:
        """Return the fields of the target, with the properties of queues that it may lack."""
        if target is None:
            return None
        queues: dict[str, dict[str, dict[str, Any]]] = {}
        auto_delete: dict[str, list[str]] = {}
        for queue in self._node.broker.definitions.by_kind["queues"].values():
            if isinstance(queue, Queue) and queue.durable:
                queues.setdefault(queue.vhost, {})[queue.name] = dict(queue.arguments)
                if queue.auto_delete:
                    auto_delete.setdefault(queue.vhost, []).append(queue.name)
        return target.job(queues) | {"auto_delete": auto_delete}

    async def _done_row(self, done: Event) -> dict[str, Any]:
        return {
            "queues": reported_rows(done["queues"]),
            "vhosts": await self._losses(),
            "unfollowed": done["unfollowed"],
            "recovered_s": done["recovered_s"],
        }

    def _check_may_begin(self) -> None:
        self.check_idle()
        if self._paused_by:
            raise NotAllowed(f"{self._paused_by} is under way, which goes first: try again after it")

    async def _run_alone(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_may_begin()
        except NotAllowed:
            work.close()
            raise
        task: asyncio.Task[T] = asyncio.create_task(work, name="standby recovery")
        self._task = task
        try:
            await asyncio.wait([task])
            if task.cancelled():
                by = self._paused_by or "the end of the node"
                raise PipelineFailed(f"{by} has begun, which goes first")
            return task.result()
        finally:
            self._task = None
            task.cancel()


def check_wanted(
    wanted: RecoveryRequest, contents: Event, defined: Mapping[str, Mapping[tuple[str, ...], object]]
) -> None:
    """Check that the named vhosts, queues and moment exist, so that a typing error causes no wrong recovery.

    `contents` is the archive's content, `defined` the definitions by kind and key.

    Raises:
        InvalidCommand: a named vhost or queue is neither in the archive nor defined.
        PreconditionFailed: the state of the queues at the moment is unknown; the text has the earliest known moment.
    """
    vhosts = {row["vhost"] for row in contents["vhosts"]} | {key[0] for key in defined["vhosts"]}
    for name in wanted.exclude:
        if name not in vhosts:
            raise InvalidCommand(
                f"there is no vhost '{name}' to leave out; "
                "see list_vhosts_available_for_standby_replication_recovery"
            )
    queues = {row["queue"] for row in contents["queues"]} | {key[1] for key in defined["queues"]}
    for name in wanted.queues:
        if name not in queues:
            raise InvalidCommand(
                f"there is no queue '{name}' to recover; see inspect_standby_downstream_metrics"
            )
    if wanted.as_of_ms is not None:
        _check_moment(wanted, wanted.as_of_ms, contents)


def names_something(wanted: RecoveryRequest) -> bool:
    """Return whether a request names vhosts, queues or a moment, which may not exist."""
    return bool(wanted.exclude or wanted.queues or wanted.as_of_ms is not None)


def _check_moment(wanted: RecoveryRequest, as_of_ms: int, contents: Event) -> None:
    """Check that the moment is not before all known moments. Some vhosts and queues may be younger than the moment."""
    vhosts = [row for row in contents["vhosts"] if row["vhost"] not in wanted.exclude]
    names = {row["vhost"] for row in vhosts}
    known_from_ms = max((row["known_from_ms"] for row in vhosts), default=0)
    oldest = [
        row["oldest_ms"]
        for row in contents["queues"]
        if row["vhost"] in names and (not wanted.queues or row["queue"] in wanted.queues)
    ]
    if not oldest:
        raise PreconditionFailed(
            "no record of these queues was transferred to this node, so their state is known for no moment. Nothing "
            "was changed; see inspect_standby_downstream_metrics"
        )
    earliest_ms = max(known_from_ms, min(oldest))
    if as_of_ms < earliest_ms:
        raise PreconditionFailed(
            f"the history of these queues begins at {moment_text(earliest_ms)}, by the upstream's clock: the archive "
            "has no older record, or messages that were settled before are removed. Nothing was changed; name that "
            "moment or a later one, and see standby.replication.retention.time_limit.messages"
        )


def spark_settings(config: Config) -> dict[str, Any]:
    """Return the SparkSettings of a pipeline's job."""
    spark = config.spark
    return {"master": spark.master, "conf": dict(spark.conf), "python": spark.python}


def own_endpoint(node: RecoveringNode, protocol: str) -> str:
    """Return this node's endpoint for a pipeline, by `stream` or `amqp`; the user may log in from loopback only.

    Raises:
        PreconditionFailed: the node has no such listener.
    """
    listener = node.streams if protocol == "stream" else node.amqp
    for address in listener.addresses:
        if address.ip in _LOOPBACK and address not in listener.tls_addresses:
            return f"[::1]:{address.port}" if address.ip == "::1" else f"127.0.0.1:{address.port}"
    key = (
        "stream.listeners.tcp.local = 127.0.0.1:5552"
        if protocol == "stream"
        else "listeners.tcp.local = 127.0.0.1:5672"
    )
    raise PreconditionFailed(
        f"no {protocol} listener on loopback: a promotion publishes there; add `{key}` to the configuration and "
        "restart the node"
    )


def parse_target(uri: str, password: str) -> RecoveryTarget:
    """Parse an AMQP URI without a password, and add the password.

    Raises:
        InvalidCommand: the URI is invalid; the text never repeats it, because it may have a password.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise InvalidCommand(f"the target is no URI; the form is {_URI_FORM}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidCommand(f"the target is not amqp:// or amqps:// and a host; the form is {_URI_FORM}")
    if parts.password is not None:
        raise InvalidCommand(
            f"the target's URI has a password in it, where others see it; the form is {_URI_FORM}, and the password "
            "goes apart"
        )
    query = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(query.keys() - {"cacertfile", "verify"})
    if unknown:
        raise InvalidCommand(f"the target's URI: '{unknown[0]}' is none of cacertfile, verify")
    verify = query.get("verify", ["verify_peer"])[-1]
    if verify not in _VERIFY:
        raise InvalidCommand(f"the target's URI: verify is none of {', '.join(_VERIFY)}")
    return RecoveryTarget(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        username=unquote(parts.username or "guest"),
        password=password,
        vhost=unquote(parts.path[1:]) if len(parts.path) > 1 else None,
        tls=parts.scheme == "amqps",
        verify=_VERIFY[verify],
        cacertfile=query.get("cacertfile", [""])[-1],
    )


def parse_moment(text: str, now_ms: int) -> int:
    """Parse a moment in the past, such as `2026-11-21 14:00:00`, to milliseconds since 1970.

    `T`, fractions and an offset are optional; a time without an offset is UTC.

    Raises:
        InvalidCommand: the text is no moment in the past.
    """
    try:
        at_ms = moment_ms(text.strip())
    except ValueError:
        raise InvalidCommand(
            f"'{text}' is no moment: the form is 2026-11-21T14:00:00Z, or 2026-11-21 14:00:00, which is UTC too"
        ) from None
    if at_ms > now_ms:
        raise InvalidCommand(f"'{text}' lies in the future")
    return at_ms


def reported_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their times as text."""
    names = ("first_timestamp", "last_timestamp")
    return [row | {name: text_of(row[name]) for name in names} for row in rows]


def text_of(timestamp_ms: int | None) -> str:
    """Return a time in the form of RabbitMQ's summary, UTC; empty for none, the number for a year beyond 9999."""
    if timestamp_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _scratch() -> str:
    return secrets.token_hex(6)

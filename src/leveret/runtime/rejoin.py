"""An upstream that lost its place comes back as a standby of the node that took it, and is not wiped.

What it holds that the new upstream never saw is reported and kept: the tails of its queues' logs are set aside
as those of a follower that had gone its own way are (storage.divergent), and `list_divergent_messages` shows them.
All before that is the new upstream's by now, and is served there. So the replicated queues are deleted here, and
the schema sync makes them anew, empty; whatever is not replicated stays.

    clients sent away -> tails set aside, durably -> rejoin.json -> both modes downstream -> queues deleted
    -> rejoin.json removed -> clients let in, both links

A node that is killed on the way is an upstream as before if there is no rejoin.json, and else goes on from there
when it starts. An archive of its own from an earlier time as a standby is kept too, under another name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from leveret.config import Config
from leveret.core.broker import Broker
from leveret.core.queue import Queue
from leveret.core.schema import UPSTREAM_PARAMETER as SCHEMA_PARAMETER
from leveret.model.definitions import Delete
from leveret.model.errors import PreconditionFailed, Refusal
from leveret.runtime.maintenance import Maintenance
from leveret.runtime.outgoing import Collector
from leveret.runtime.outgoing_log import OutgoingLog
from leveret.runtime.outgoing_reach import Key
from leveret.runtime.pipeline_process import ask
from leveret.runtime.standby_transfer import Upstream
from leveret.runtime.stores import log_name
from leveret.storage.divergent import SetAside
from leveret.storage.divergent_report import Report
from leveret.storage.state_file import StateFile
from leveret.wire.chunk import Attribute, decode_chunk, decode_trailer

logger = logging.getLogger(__name__)

STATE_FILE: Final = "rejoin.json"
CLIENTS_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 4 * 1024 * 1024
_POLL_S: Final = 0.05


class Begun(msgspec.Struct, kw_only=True):
    """The state file: queues (vhost, name) that are to be deleted; their tails are set aside."""

    queues: list[tuple[str, str]] = []


class Door(Protocol):
    """The AMQP listener: who is connected."""

    peers: Any


class Schema(Protocol):
    """What is needed of schema replication."""

    async def diff(self) -> list[dict[str, Any]]:
        """What a sync would change; a Refusal if the upstream cannot be asked."""

    async def set_mode(self, mode: str) -> None:
        """Change sides; kept over restarts."""


class Standby(Protocol):
    """What is needed of message replication."""

    @property
    def mode(self) -> str:
        """Which side this node is."""

    @property
    def upstream(self) -> tuple[Upstream | None, str]:
        """Whom it is to follow, or why nobody."""

    def link_job(self, upstream: Upstream) -> dict[str, Any]:
        """How a pipeline process reaches it: endpoints, credentials, tls."""

    async def set_mode(self, mode: str) -> None:
        """Change sides; kept over restarts."""

    async def keep_former_archive(self) -> None:
        """Put what was transferred at an earlier time out of the way."""


class RejoiningNode(Protocol):
    """What is needed of the node."""

    config: Config
    data_dir: Path
    broker: Broker
    collector: Collector
    maintenance: Maintenance

    @property
    def amqp(self) -> Door:
        """The AMQP listener."""

    @property
    def schema_sync(self) -> Schema:
        """Schema replication."""

    @property
    def standby(self) -> Standby:
        """Message replication."""

    async def commit(self) -> None:
        """Return once everything applied so far is durable."""

    def queue_of(self, name: str) -> tuple[str, str] | None:
        """The queue whose log has that name."""


class Rejoin:
    """One node's way back."""

    def __init__(self, node: RejoiningNode, state_file: StateFile) -> None:
        """Read nothing yet."""
        self._node = node
        self._state_file = state_file
        self._lock = asyncio.Lock()

    async def rejoin(self) -> dict[str, Any]:
        """Come back as a downstream.

        Returns:
            upstream_endpoints, report (its id, empty if there was nothing to keep), messages, settlements_lost,
            queues: a row each: virtual_host, queue, messages, settlements_lost.

        Raises:
            PreconditionFailed: this node is no upstream, knows no new one, or that was no standby of this node.
            PipelineFailed: the new upstream cannot be asked.
            StorageError: what it never saw cannot be kept; this node is an upstream as before.
        """
        if self._lock.locked():
            raise PreconditionFailed("this node is coming back already")
        async with self._lock:
            upstream = self._check()
            positions = await self._ask_positions(upstream)
            await self._check_definitions()
            self._node.maintenance.drain()
            try:
                report = await self._set_aside(positions, upstream)
                await self._change_sides()
            finally:
                await self._node.maintenance.revive()
            return _told(upstream, report)

    async def resume(self) -> None:
        """At start, before the links: finish what a crash interrupted."""
        begun = self._state_file.load()
        if begun:
            logger.warning("rejoin_resumed")
            await self._finish(msgspec.convert(begun, Begun))

    # -- before anything is changed ---------------------------------------------------------------

    def _check(self) -> Upstream:
        standby = self._node.standby
        if standby.mode == "downstream":
            raise PreconditionFailed("this node is a downstream already: it follows whom its endpoints name")
        upstream, why_not = standby.upstream
        if upstream is None:
            raise PreconditionFailed(why_not)
        if (SCHEMA_PARAMETER,) not in self._node.broker.definitions.by_kind["global_parameters"]:
            raise PreconditionFailed(
                "whom to follow is not known: name the new upstream's AMQP port with "
                "set_schema_replication_upstream_endpoints first"
            )
        return upstream

    async def _check_definitions(self) -> None:
        """See that the schema sync will bring the queues back."""
        try:
            await self._node.schema_sync.diff()
        except Refusal as error:
            raise PreconditionFailed(
                f"the new upstream does not serve its definitions: {error}; nothing was changed. An upstream is set up "
                "with add_schema_replication_user, a promoted one too"
            ) from error

    async def _ask_positions(self, upstream: Upstream) -> dict[str, int]:
        """By vhost, up to which offset of our outgoing log the new upstream has it."""
        logs = {vhost: log.log_id for vhost, log in self._node.collector.logs.items()}
        job = {**self._node.standby.link_job(upstream), "logs": logs}
        found = (await ask("positions", job))["positions"]
        unknown = sorted(vhost for vhost in logs if found.get(vhost) is None)
        if unknown:
            raise PreconditionFailed(
                f"the node at {', '.join(upstream.endpoints)} never took the place of this one in vhost "
                f"'{unknown[0]}': it was no standby of this node, or has not been promoted; nothing was changed"
            )
        return {vhost: found[vhost] for vhost in logs}

    # -- keeping ----------------------------------------------------------------------------------

    async def _set_aside(self, positions: dict[str, int], upstream: Upstream) -> Report | None:
        """Keep what the new upstream never saw, durably."""
        node = self._node
        await self._wait_for_quiet()
        aside = SetAside(
            node.data_dir,
            at_ms=time.time_ns() // 1_000_000,
            from_epoch=0,
            to_epoch=0,
            node_id=node.config.node_name,
            leader_id="",
            leader_uri=upstream.endpoints[0],
            name_of=node.queue_of,
        )
        for vhost, position in positions.items():
            log = node.collector.logs[vhost]
            unseen = await _first_unseen(log, position)
            for queue in self._replicated(vhost):
                begin = unseen.get(log.key_of(queue), log.position_of(queue))
                await asyncio.to_thread(aside.add, log_name(queue), begin)
        report = await asyncio.to_thread(aside.finish)
        if report is not None:
            logger.warning("divergent_messages_set_aside report=%s see=list_divergent_messages", report.id)
        return report

    async def _wait_for_quiet(self) -> None:
        """Until nobody is connected and all is durable: the logs do not change any more."""
        deadline_s = time.monotonic() + CLIENTS_TIMEOUT_S
        while self._node.amqp.peers:
            if time.monotonic() > deadline_s:
                raise PreconditionFailed(
                    "clients are still connected; close their connections and do it again"
                )
            await asyncio.sleep(_POLL_S)
        await self._node.commit()

    def _replicated(self, vhost: str) -> list[Queue]:
        queues = self._node.broker.queues.values()
        return [queue for queue in queues if queue.key[0] == vhost and queue.replicated and not queue.damage]

    # -- following --------------------------------------------------------------------------------

    async def _change_sides(self) -> None:
        vhosts = self._node.collector.logs
        begun = Begun(
            queues=[(queue.key[0], queue.key[1]) for vhost in vhosts for queue in self._replicated(vhost)]
        )
        self._state_file.save(msgspec.to_builtins(begun))
        await self._finish(begun)

    async def _finish(self, begun: Begun) -> None:
        node = self._node
        await node.standby.keep_former_archive()
        for queue in begun.queues:
            node.broker.apply(Delete("queues", queue))
        await node.commit()
        # Last, for it declares them again.
        await node.standby.set_mode("downstream")
        await node.schema_sync.set_mode("downstream")
        self._state_file.save({})
        logger.warning("rejoined_as_downstream queues_emptied=%d", len(begun.queues))


async def _first_unseen(log: OutgoingLog, position: int) -> dict[Key, int]:
    """By queue and life, the first of its offsets that is in the log from `position` on."""
    found: dict[Key, int] = {}
    position = max(position, log.first_offset)
    while chunks := log.read(position, _READ_BYTES):
        for octets in chunks:
            chunk = decode_chunk(memoryview(octets))
            position = chunk.header.next_offset
            key, epoch, offset = b"", 0, 0
            for kind, name, value in decode_trailer(chunk.trailer):
                if kind == Attribute.QUEUE_EPOCH:
                    key, epoch = name, value
                elif kind == Attribute.QUEUE_OFFSET:
                    offset = value
            found[key, epoch] = min(offset, found.get((key, epoch), offset))
        await asyncio.sleep(0)
    return found


def _told(upstream: Upstream, report: Report | None) -> dict[str, Any]:
    logs = report.logs if report is not None else []
    return {
        "upstream_endpoints": upstream.endpoints,
        "report": report.id if report is not None else "",
        "messages": sum(log.messages for log in logs),
        "settlements_lost": sum(log.settlements_lost for log in logs),
        "queues": [
            {
                "virtual_host": log.vhost,
                "queue": log.queue,
                "messages": log.messages,
                "settlements_lost": log.settlements_lost,
            }
            for log in logs
        ],
    }

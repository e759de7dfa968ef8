"""Views and commands for operators of a cluster, at one of its nodes (management.node.ClusterOperations)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leveret.core.queues.queue import Queue
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import Placement, StoredPlacement, placement_write
from leveret.core.replication.election import DeleteKey, StoreTransaction, Unchanged
from leveret.core.replication.placement import QueuePlacement, asked_without, led_when_started, promotion
from leveret.core.replication.stream_members import with_member, without_member
from leveret.core.rules.mirror_policy import NOT_MIRRORED, NOT_MIRRORED_REASON
from leveret.core.rules.validation import CLASSIC, QUORUM, STREAM, queue_type
from leveret.model.definitions import QueueKey
from leveret.model.errors import InvalidCommand, LeveretError, NotFound, PreconditionFailed
from leveret.model.patterns import Pattern, PatternError, compiled
from leveret.runtime.cluster.forgetting import leader_without, row, undecided
from leveret.runtime.cluster.parts import ClusterParts
from leveret.runtime.integrity.log_copies import CopyRole, CopyState, LogCopy, copy_of
from leveret.runtime.link.questions import read_as
from leveret.runtime.logs.log_store import log_name
from leveret.runtime.mirroring.led_log import MirrorState
from leveret.storage.quarantine.report import DivergentLog

if TYPE_CHECKING:
    from leveret.runtime.node.node import Node

logger = logging.getLogger(__name__)

_KINDS: Final = (CLASSIC, QUORUM, STREAM)
_COPY_S: Final = 60
"""The time, in seconds, that another node has to read its copy of a log."""


class ClusterCommands:
    """See the module."""

    is_member: Final = True

    def __init__(self, node: Node, parts: ClusterParts) -> None:
        """Take the node and its parts as a member."""
        self._node = node
        self._parts = parts
        self._member = parts.member
        self._is_rebalancing = False

    @property
    def name(self) -> str:
        """See ClusterOperations."""
        return self._member.name

    def members(self) -> Sequence[str]:
        """See ClusterOperations."""
        return self._member.cluster_view().members

    def alive(self) -> Collection[str]:
        """See ClusterOperations."""
        return self._member.cluster_view().alive

    def status(self) -> dict[str, Any]:
        """See ClusterOperations."""
        state, store = self._member.state, self._member.store
        etcd = store.status()
        connected = self._parts.links.connected()
        cut_off = [
            name
            for name, presence in state.alive.items()
            if name != self.name and presence.uri and name not in connected
        ]
        return {
            "cluster_id": state.cluster_id,
            "state": "member" if store.holds_lease_now() else "suspended",
            "members": [self._row(name, connected) for name in self.members()],
            "pen": state.definitions_lock,
            "has_pen": self._member.definitions_lock.is_here,
            "lease_s": (etcd["lease_left_ms"] or 0) / 1000,
            "revision": state.revision,
            "etcd": {
                "endpoints": etcd["endpoints"],
                "endpoint": etcd["endpoint"],
                "error": etcd["last_error"],
                "is_full": etcd["is_full"],
            },
            "partitions": {self.name: cut_off} if cut_off else {},
        }

    def _row(self, name: str, connected: Collection[str]) -> dict[str, Any]:
        state = self._member.state
        member, presence = state.members.get(name), state.alive.get(name)
        return {
            "name": name,
            "alive": presence is not None,
            "joined_at_ms": member.joined_at_ms if member is not None else None,
            "uri": presence.uri if presence is not None else None,
            "http_uri": presence.http_uri if presence is not None else None,
            "started_at_ms": presence.started_at_ms if presence is not None else None,
            "version": presence.version if presence is not None else None,
            "connected": (name == self.name or name in connected) if presence is not None else None,
        }

    def placement(self, key: QueueKey) -> QueuePlacement:
        """See ClusterOperations."""
        placement = self._parts.locations.known(key)
        queue = self._queue(key)
        if placement is None:
            is_placed = not isinstance(queue, RemoteQueue)
            return QueuePlacement(self.name) if is_placed else QueuePlacement("", state="down")
        alive = self._member.state.alive
        policy = self._parts.locations.policy(queue.definition) if queue is not None else NOT_MIRRORED
        copies = (*placement.mirrors, *placement.stopped)
        if policy.has_members and isinstance(policy.params, tuple):
            copies = tuple(node for node in policy.params if node != placement.leader)
        elif (
            queue is not None
            and queue_type(queue.definition.arguments) == QUORUM
            and isinstance(policy.params, int)
        ):
            # Without the members that others have replaced.
            copies = copies[: policy.params - 1]
        state = "running" if placement.leader in alive else "down"
        if state == "running" and self._parts.roles.is_synchronising(key):
            state = "syncing"
        return QueuePlacement(
            leader=placement.leader,
            mirrors=tuple(node for node in placement.mirrors if node in alive),
            synchronised_mirrors=tuple(node for node in placement.synchronised if node in alive),
            recoverable_mirrors=copies,
            is_mirrored=policy.is_mirrored,
            state=state,
            term=placement.term,
            is_exclusive=placement.exclusive,
            lost_by=placement.lost.by if placement.lost is not None else "",
            has_successor=promotion(placement, policy, alive.keys() - {placement.leader}).leader is not None,
        )

    def mirror_states(self, key: QueueKey) -> list[dict[str, Any]]:
        """See ClusterOperations."""
        queue, placement = self._queue(key), self._parts.locations.known(key)
        if queue is None or placement is None or placement.leader != self.name:
            return []
        return [_mirror_state(row) for row in self._parts.sources.rows(log_name(queue))]

    def _queue(self, key: QueueKey) -> Queue | None:
        """The queue, or its placeholder; None if there is none."""
        return self._node.broker.queues.get(key)

    # -- other nodes --------------------------------------------------------------------------

    async def ask(self, node: str, what: str, about: Any) -> Any:
        """See ClusterOperations."""
        return await self._member.ask(node, what, about)

    def answer_with(self, answer: Callable[[str, Any], Awaitable[dict[str, Any]]]) -> None:
        """See ClusterOperations."""

        async def answered(what: str, about: Any) -> dict[str, Any]:
            match what:
                case "lengths":
                    return {"lengths": self._lengths()}
                case "copy":
                    found = await self._parts.copies.contents(str(about["log"]))
                    return {} if found is None else dict(msgspec.to_builtins(found))
                case "quarantine":
                    await self._parts.copies.quarantine_all(str(about["log"]), str(about["leader"]))
                    return {}
            return await answer(what, about)

        self._parts.answers.answer_operators_with(answered)

    def changing(self) -> AbstractAsyncContextManager[None]:
        """See ClusterOperations."""
        return self._member.definitions_lock.held()

    # -- queues -------------------------------------------------------------------------------

    async def sync_queue(self, vhost: str, name: str) -> None:
        """See ClusterOperations."""
        self._parts.sources.synchronise(self._mirrored_here(vhost, name))

    async def cancel_sync_queue(self, vhost: str, name: str) -> None:
        """See ClusterOperations."""
        self._parts.sources.cancel_synchronise(self._mirrored_here(vhost, name))

    def _mirrored_here(self, vhost: str, name: str) -> str:
        """Return the name of the queue's log. Raises NotFound, or PreconditionFailed if the queue is not led here."""
        queue = self._queue((vhost, name))
        placement = self._parts.locations.known((vhost, name))
        if queue is None or placement is None:
            raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
        if placement.leader != self.name:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' is led by {placement.leader}")
        if not self._parts.locations.policy(queue.definition).is_mirrored:
            raise PreconditionFailed(NOT_MIRRORED_REASON)
        return log_name(queue)

    async def rebalance(self, kind: str, vhost_pattern: str, queue_pattern: str) -> list[dict[str, Any]]:
        """See ClusterOperations: each node moves its surplus queues at this node's request."""
        try:
            vhosts, queues = compiled(vhost_pattern), compiled(queue_pattern)
        except PatternError as error:
            raise InvalidCommand(f"not a regular expression: {error}") from None
        if self._is_rebalancing:
            raise PreconditionFailed("a rebalance is under way")
        self._is_rebalancing = True
        try:
            await self._move_some(kind, vhosts, queues)
        finally:
            self._is_rebalancing = False
        counts = self._led()
        return [{"node": node, **{each: counts[node, each] for each in _KINDS}} for node in self.members()]

    def _led(self) -> Counter[tuple[str, str]]:
        """Return how many queues of each type each node leads, by node and type."""
        counts: Counter[tuple[str, str]] = Counter()
        for key, (placement, _) in self._member.state.placements.items():
            queue = self._queue(key)
            if queue is not None:
                counts[placement.leader, queue_type(queue.definition.arguments)] += 1
        return counts

    async def _move_some(self, kind: str, vhosts: Pattern, queues: Pattern) -> None:
        """Move queues from the node that leads most to synchronised mirrors that lead fewer, while that evens them out.

        As in RabbitMQ, queues with the fewest messages move first.
        """

        def chosen(key: QueueKey) -> bool:
            queue = self._queue(key)
            return (
                queue is not None
                and vhosts.covers(key[0])
                and queues.covers(key[1])
                and (kind == "all" or queue_type(queue.definition.arguments) == kind)
            )

        led: Counter[str] = Counter({node: 0 for node in self.alive()})
        lengths = await self._all_lengths()
        keys = [key for key in self._member.state.placements if chosen(key)]
        keys.sort(key=lambda key: (lengths[key], key))
        for key in keys:
            led[self._member.state.placements[key].placement.leader] += 1
        for key in keys:
            placed = self._member.state.placements.get(key)
            if placed is None:
                continue  # It was deleted while others moved.
            placement = placed.placement
            fewest = min(placement.synchronised, key=lambda node: (led[node], node), default="")
            if fewest and led[placement.leader] > led[fewest] + 1:
                try:
                    is_moved = await self.ask_to_move(key, placement, fewest)
                except LeveretError as error:
                    # The others move all the same.
                    logger.warning("queue_not_moved vhost=%s queue=%s to=%s error=%s", *key, fewest, error)
                    continue
                if is_moved:
                    led[placement.leader] -= 1
                    led[fewest] += 1

    async def _all_lengths(self) -> Counter[QueueKey]:
        """Return the numbers of messages in queues; 0 for queues of a node that does not answer."""
        others = [node for node in self.alive() if node != self.name]
        asked = (self.ask(node, "lengths", {}) for node in others)
        answers = [{"lengths": self._lengths()}, *await asyncio.gather(*asked, return_exceptions=True)]
        lengths: Counter[QueueKey] = Counter()
        for each in answers:
            if not isinstance(each, BaseException):
                lengths.update({(vhost, name): count for vhost, name, count in each["lengths"]})
        return lengths

    def _lengths(self) -> list[tuple[str, str, int]]:
        """Return vhost, name and number of messages of each queue that this node leads."""
        found = []
        for key, (placement, _) in self._member.state.placements.items():
            queue = self._queue(key) if placement.leader == self.name else None
            if queue is not None and queue.message_count:
                found.append((*key, queue.message_count))
        return found

    async def ask_to_move(self, key: QueueKey, placement: Placement, to: str) -> bool:
        """Request the leader to hand a queue over to another node, which has all of it; return whether it did.

        Raises:
            LeveretError: the leader does not answer, or that node did not become complete.
        """
        about = {"vhost": key[0], "name": key[1], "to": to}
        if placement.leader == self.name:
            answer = await self._parts.answers.answer(self.name, "move", about)
        else:
            answer = await self.ask(placement.leader, "move", about)
        return bool(answer["moved"])

    # -- streams ------------------------------------------------------------------------------

    async def add_replica(self, vhost: str, name: str, node: str) -> None:
        """See ClusterOperations."""
        if node not in self.members():
            raise NotFound(f"The node '{node}' is not in the cluster")
        await self._change_members(vhost, name, with_member, node)

    async def delete_replica(self, vhost: str, name: str, node: str) -> None:
        """See ClusterOperations."""
        await self._change_members(vhost, name, without_member, node)

    async def _change_members(
        self, vhost: str, name: str, change: Callable[[Placement, str, str], Placement], node: str
    ) -> None:
        where = f"stream '{name}' in vhost '{vhost}'"
        await self._parts.placement_controller.change(
            (vhost, name), lambda placement: change(placement, node, where)
        )

    async def restart_stream(self, vhost: str, name: str, preferred: str) -> str:
        """See ClusterOperations."""
        key = (vhost, name)
        placement = self._parts.locations.known(key)
        where = f"stream '{name}' in vhost '{vhost}'"
        if placement is None or placement.leader != self.name:
            raise PreconditionFailed(f"{where} is not led here")
        if preferred == self.name:
            return self.name
        led = self._led()
        able = [node for node in placement.synchronised if node in self.alive()]
        able.sort(key=lambda node: (led[node, STREAM], node))
        chosen = preferred or next(iter(able), "")
        if chosen not in able:
            if not able:
                raise PreconditionFailed(f"no other node that runs has a synchronised replica of {where}")
            raise PreconditionFailed(
                f"node '{preferred}' has no synchronised replica of {where}, or does not run; "
                f"these nodes have one: {', '.join(able)}"
            )
        if not await self._parts.placement_controller.move(key, chosen):
            raise PreconditionFailed(f"the placement of {where} is changing: try again")
        return chosen

    async def copies(self, vhost: str, name: str) -> list[LogCopy]:
        """See ClusterOperations."""
        queue = self._queue((vhost, name))
        placement = self._parts.locations.known((vhost, name))
        if queue is None or placement is None:
            return []
        asked = [self._copy(node, log_name(queue)) for node in _others(placement) if node != self.name]
        return list(await asyncio.gather(*asked))

    async def _copy(self, node: str, log: str) -> LogCopy:
        if node not in self.alive():
            return LogCopy(node, CopyRole.MIRROR, CopyState.UNKNOWN, why="the node does not run")
        about = {"log": log}
        try:
            async with asyncio.timeout(_COPY_S):
                found = await self.ask(node, "copy", about)
            copied = read_as(DivergentLog, found) if found else None
        except (LeveretError, TimeoutError) as error:
            why = str(error) or f"no answer within {_COPY_S} s"
            return LogCopy(node, CopyRole.MIRROR, CopyState.UNKNOWN, why=why)
        return copy_of(node, CopyRole.MIRROR, copied)

    async def quarantine_copies(self, vhost: str, name: str) -> None:
        """See ClusterOperations."""
        queue = self._queue((vhost, name))
        placement = self._parts.locations.known((vhost, name))
        if queue is None or placement is None:
            return
        about = {"log": log_name(queue), "leader": self.name}
        for node in _others(placement):
            if node != self.name and node in self.alive():
                await self.ask(node, "quarantine", about)

    # -- nodes --------------------------------------------------------------------------------

    async def forget_node(self, name: str) -> list[dict[str, Any]]:
        """See ClusterOperations."""
        state = self._member.state
        if name not in state.members:
            raise NotFound(f"The node '{name}' is not in the cluster")
        if name == self.name:
            raise PreconditionFailed("a node cannot forget itself: run this on another one")
        if name in state.alive:
            raise PreconditionFailed(f"node '{name}' is running: stop it first")
        rows: list[dict[str, Any]] = []
        async with self.changing():
            led = [(key, each) for key, each in state.placements.items() if each.placement.leader == name]
            # Decide all before the first write: if one leader is undecided, nothing has changed.
            leaders = [await self._leader_without(name, key, each.placement) for key, each in led]
            for (key, each), leader in zip(led, leaders, strict=True):
                rows.append(await self._lead_without(name, key, each, leader))
        keys = state.keys
        gone = StoreTransaction((state.unchanged(keys.alive(name)),), (DeleteKey(keys.member(name)),))
        if await self._member.store.transact(gone) is None:
            raise PreconditionFailed(f"node '{name}' has started meanwhile")
        return rows

    async def _leader_without(self, name: str, key: QueueKey, placement: Placement) -> str | None:
        """Return the next leader of a queue when `name` is forgotten.

        Raises:
            PreconditionFailed: the nodes that answer cannot decide which copy is complete.
        """
        state = self._member.state
        asked = asked_without(name, placement, state.members, state.alive)
        if asked.silent:
            raise undecided(key, asked)
        if not asked.running:
            return leader_without(name, placement, state.members, state.alive)
        ends = await self._parts.placement_controller.ends(asked.running, key, placement)
        if len(ends) < len(asked.running):
            silent = tuple(node for node in asked.running if node not in ends)
            raise undecided(key, asked._replace(silent=silent))
        return max(asked.running, key=lambda node: ends[node])

    async def _lead_without(
        self, name: str, key: QueueKey, placed: StoredPlacement, leader: str | None
    ) -> dict[str, Any]:
        """Make a mirror the leader, at once or once it starts; delete a queue that has none."""
        state, placement = self._member.state, placed.placement
        queue = self._queue(key)
        if leader is not None:
            after = led_when_started(placement, leader)
            conditions = (
                # The record that was decided on: by now a mirror that has started may lead.
                Unchanged(state.keys.placement(*key), placed.modified),
                state.unchanged(state.keys.alive(name)),
            )
            write = placement_write(state.keys, key, after)
            if await self._member.store.transact(StoreTransaction(conditions, (write,))) is None:
                raise LeveretError(
                    f"the placement of queue '{key[1]}' in vhost '{key[0]}' is changing: try again"
                )
        elif isinstance(queue, RemoteQueue) and queue.epoch == placement.epoch:
            self._node.broker.deletions.delete_when_writable([queue])
            self._node.engine.touch()
        return row(key, placement, leader, state.alive)

    async def join(self, node: str) -> bool:
        """See ClusterOperations: this node is already a member."""
        if node not in self._member.state.members:
            raise NotFound(f"node '{node}' is no member of the cluster at {self._member.state.keys.prefix}")
        return False


def _others(placement: Placement) -> tuple[str, ...]:
    """The nodes beside the leader that may have a copy of the queue's log."""
    lost_by = placement.lost.by if placement.lost is not None else ""
    named = (*placement.mirrors, *placement.stopped, lost_by)
    return tuple(dict.fromkeys(node for node in named if node and node != placement.leader))


def _mirror_state(row: dict[str, Any]) -> dict[str, Any]:
    """Return a mirror's state with the names that operators know."""
    states = {
        MirrorState.LIVE: "synchronised",
        MirrorState.SYNCHRONISING: "syncing",
        MirrorState.JOINING: "syncing",
    }
    return row | {"state": states.get(row["state"], "unsynchronised")}

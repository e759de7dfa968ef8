"""Removes a lost node from the cluster; its queues get other leaders, or are deleted with it.

Any running node can do so (operations). `forget_stopped` does so while no node runs: all of the cluster's records
are in etcd, so the settings of one node suffice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from leveret.config import Config
from leveret.core.broker.broker import Broker
from leveret.core.queues.queue import Queue, Reader
from leveret.core.queues.remote_queue import RemoteQueue
from leveret.core.replication.cluster import (
    Changed,
    ClusterKeys,
    ClusterState,
    DefinitionChanged,
    Placement,
    definition_writes,
    differences,
    placement_write,
)
from leveret.core.replication.election import DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.core.replication.leader_and_mirrors import successor_of_forgotten
from leveret.core.replication.placement import PendingSurvey, asked_without, led_when_started
from leveret.core.replication.transactions import parts
from leveret.model import definitions as d
from leveret.model.errors import NotFound, PreconditionFailed
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.runtime.cluster.placement.queues import ELSEWHERE
from leveret.runtime.coordination.etcd import Etcd, etcd_context
from leveret.runtime.coordination.lease import attempt_timeout_s


def leader_without(
    name: str, placement: Placement, members: Collection[str], alive: Collection[str]
) -> str | None:
    """Return the next leader of a queue whose leader is forgotten; None: no node has a copy, and the queue is gone."""

    def left(nodes: Iterable[str]) -> list[str]:
        return [node for node in nodes if node in members and node != name]

    return successor_of_forgotten(
        left(placement.stopped), left(placement.mirrors), placement.synchronised, alive
    )


def undecided(key: tuple[str, str], asked: PendingSurvey) -> PreconditionFailed:
    """Return the error that says why a node cannot be forgotten yet."""
    nodes = ", ".join(asked.silent)
    return PreconditionFailed(
        f"queue '{key[1]}' in vhost '{key[0]}': a majority of its mirrors has each confirmed message, so the mirror "
        f"with all of them is known only once these nodes report: {nodes}; start them, or first forget those that do "
        "not come back"
    )


def row(
    key: tuple[str, str], placement: Placement, leader: str | None, alive: Collection[str]
) -> dict[str, Any]:
    """Return the outcome for a queue, for operators.

    Args:
        key: vhost and name.
        placement: the queue's record before the change.
        leader: the next leader; None: the queue is gone.
        alive: the running nodes.
    """
    notes = []
    if leader is not None and leader not in placement.synchronised:
        notes.append(f"without the messages that only {placement.leader} had")
    if leader is not None and leader not in alive:
        notes.append(f"down until {leader} is started, or forgotten as well")
    return {"vhost": key[0], "name": key[1], "leader": leader, "note": "; ".join(notes)}


async def forget_stopped(config: Config, name: str, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Remove a node from a cluster of which no node runs.

    Args:
        config: the configuration of a member.
        name: the node that is forgotten.
        data_dir: that member's data directory, if available: it must belong to the same cluster.

    Returns:
        The queues that the node led: vhost, name, the leader once it is started, None if the queue is gone, and a note.

    Raises:
        LeveretError: not a member, a running node, another cluster, or no answer of etcd; may be repeated.
    """
    options = config.etcd
    etcd = Etcd(options.endpoints, attempt_timeout_s(options.lease_ttl_ms / 1000), etcd_context(options))
    try:
        state = ClusterState(ClusterKeys.under(options.prefix))
        found = await etcd.read(state.keys.prefix)
        changes = state.apply(differences({}, found.entries, found.revision), found.revision)
        _check(state, name, config.node_name, data_dir)
        rows, writes = _changes(state, name, changes)
        # A node that started meanwhile may have read the old records.
        nobody = [
            Unchanged(state.keys.definitions_lock, 0),
            *(Unchanged(state.keys.alive(each), 0) for each in state.names),
        ]
        own = [state.unchanged(state.keys.placement(each["vhost"], each["name"])) for each in rows]
        for part in parts(StoreTransaction((*nobody, *own), writes)):
            if await etcd.transact(part) is None:
                raise PreconditionFailed(
                    "a node has started meanwhile, or another command does the same: try again"
                )
        return rows
    finally:
        await etcd.close()


def _check(state: ClusterState, name: str, me: str, data_dir: Path | None) -> None:
    remembered = MembershipFile(data_dir).cluster_id if data_dir is not None else ""
    if remembered and remembered != state.cluster_id:
        raise PreconditionFailed(
            f"{data_dir} belongs to cluster {remembered}, and etcd below {state.keys.prefix} has "
            f"{f'cluster {state.cluster_id}' if state.cluster_id else 'none'}: see cluster.etcd.endpoints and "
            "cluster.etcd.prefix"
        )
    if name not in state.members:
        raise NotFound("The node selected is not in the cluster.")
    if name == me:
        raise PreconditionFailed("a node cannot forget itself: give the settings of another one")
    if state.alive:
        running = ", ".join(sorted(state.alive))
        raise PreconditionFailed(
            f"nodes of the cluster run, or did a moment ago: {running}: have it done there, or once their leases ended"
        )


def _changes(
    state: ClusterState, name: str, changes: Iterable[Changed]
) -> tuple[list[dict[str, Any]], tuple[PutKey | DeleteKey, ...]]:
    """Return a row for each queue that the node led, and all writes."""
    rows: list[dict[str, Any]] = []
    writes: list[PutKey | DeleteKey] = []
    gone: list[tuple[str, str]] = []
    for key, (placement, _) in state.placements.items():
        if placement.leader != name:
            continue
        asked = asked_without(name, placement, state.members, ())
        if asked.silent:
            raise undecided(key, asked)
        leader = leader_without(name, placement, state.members, ())
        rows.append(row(key, placement, leader, ()))
        if leader is None:
            gone.append(key)
        else:
            writes.append(placement_write(state.keys, key, led_when_started(placement, leader)))
    for change in _without(state, gone, changes) if gone else ():
        writes += definition_writes(state.keys, change)
    return rows, (*writes, DeleteKey(state.keys.member(name)))


def _without(
    state: ClusterState, gone: Iterable[tuple[str, str]], changes: Iterable[Changed]
) -> list[d.Change]:
    """Delete the queues with their bindings and unused auto-delete exchanges; return the changes to write."""

    def make_queue(definition: d.Queue, read: Reader, exclusive: bool) -> Queue:
        placed = state.placements.get(definition.key)
        queue = RemoteQueue(definition, placed.placement.leader if placed is not None else "")
        if placed is not None and placed.placement.exclusive:
            queue.owner = ELSEWHERE
        return queue

    broker = Broker(lambda queue, offset: [])
    broker.make_queue = make_queue
    for change in changes:
        if isinstance(change, DefinitionChanged):
            broker.apply(change.change)
    broker.shared = []
    for key in gone:
        queue = broker.queues.get(key)
        if queue is not None:
            broker.delete_queue(queue)
    return broker.shared

"""Starts a cluster from copies of its nodes, after the loss of the cluster and its etcd: core.replication.rebuilding.

    describe(data_dir, node)       the content of a copy, read while no node runs on it
    rebuild(config, copies, ...)   writes the records of a new cluster to etcd, in which each copy is a node

The nodes are then started on the copies as nodes of a cluster: the member records name the ids of their data.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from leveret.config import Config
from leveret.core.replication.cluster import (
    ClusterKeys,
    ClusterState,
    MemberRecord,
    cluster_proof,
    definition_writes,
    differences,
    encode,
)
from leveret.core.replication.election import TORN, DeleteKey, PutKey, StoreTransaction, Unchanged
from leveret.core.replication.rebuilding import DescribedCopy, DescribedLog, RebuiltCluster, check, rebuilt
from leveret.core.replication.transactions import parts
from leveret.model import definitions as d
from leveret.model.errors import PreconditionFailed, StorageError
from leveret.runtime.cluster.membership.membership_file import MembershipFile
from leveret.runtime.cluster.placement.complete_copies import complete_copies
from leveret.runtime.coordination.etcd import Etcd, etcd_context
from leveret.runtime.coordination.lease import attempt_timeout_s
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.logs.definitions_store import DefinitionsStore
from leveret.runtime.node.epoch_file import EpochFile
from leveret.runtime.replication.identity import IdentityFile, NodeIdentity
from leveret.runtime.replication.point_in_time import refuse_to_lead
from leveret.storage.secret_file import Secret, read
from leveret.storage.tree import Tree

_ID_BYTES: Final = 12
_COPY: Final = b"leveret copy of a node"
_QUEUES: Final = ("queues", "streams")


def _copy_proof(secret: Secret) -> str:
    return hmac.digest(secret.octets, _COPY, hashlib.sha256).hex()


def describe(data_dir: Path, node: str, clock_ms: int) -> DescribedCopy:
    """Describe the data of a node, or of a follower; no process may run on them.

    Args:
        data_dir: the data, which are recovered as at a start.
        node: the node's name in the new cluster.
        clock_ms: the time.

    Raises:
        LeveretError: the data cannot be read, or their pending changes are undecided; the text has the remedy.
    """
    if not (data_dir / "definitions").is_dir():
        raise PreconditionFailed(f"{data_dir} has no definitions: it is no copy of a node")
    refuse_to_lead(data_dir, clock_ms)
    identity = IdentityFile(data_dir).identity
    tree = Tree(data_dir)
    commits = GroupCommit(fsync=False, on_failure=lambda error: None)
    try:
        definitions = DefinitionsStore(tree.log(data_dir / "definitions"), commits, lambda: clock_ms)
        damaged = tree.open_all()
        return DescribedCopy(
            node=node,
            node_id=identity.node_id,
            cluster=MembershipFile(data_dir).cluster_id or identity.cluster,
            lacks=_lacks(identity, damaged),
            changed_at_ms=max((log.last_timestamp_ms for log in tree.logs.values()), default=0),
            definitions_at_ms=tree.logs["definitions"].last_timestamp_ms,
            epoch_max=max(EpochFile(tree.file(data_dir / "epochs.json")).last(), definitions.last_epoch),
            proof=_copy_proof(read(data_dir)),
            definitions=[d.encode_change(d.Put(each)) for each in definitions.definitions.entities()],
            logs=_logs(tree, complete_copies(tree)),
        )
    finally:
        commits.close()
        tree.close()


def _lacks(identity: NodeIdentity, damaged: dict[str, StorageError]) -> str:
    if identity.rewriting:
        return TORN
    if identity.role == "follower" and not identity.followed_epoch:
        return "it never finished joining the node that it follows"
    return next((f"log {name} is damaged: {error}" for name, error in damaged.items()), "")


def _logs(tree: Tree, complete: frozenset[str] | None) -> dict[int, DescribedLog]:
    """Return the copies by the epoch of their queue; all are complete if the node was not in a cluster."""
    found = {}
    for name, log in tree.logs.items():
        kind, _, directory = name.partition("/")
        if kind in _QUEUES:
            is_complete = complete is None or name in complete
            last = next((header for header, _ in log.headers_before(log.next_offset, 1)), None)
            found[int(directory, 16)] = DescribedLog(
                last.epoch if last is not None else 0, log.first_offset, log.next_offset, is_complete
            )
    return found


async def rebuild(
    config: Config, data_dir: Path, copies: Sequence[DescribedCopy], *, dry_run: bool, force: bool
) -> RebuiltCluster:
    """Write the records of a new cluster of which each copy is a node; no node of it may run yet.

    Args:
        config: the configuration of one of its nodes, with etcd and the prefix, below which no key may exist.
        data_dir: the data directory of one of its nodes, with the secret.
        copies: see `describe`.
        dry_run: only return the records.
        force: also accept incomplete copies.

    Raises:
        LeveretError: the copies do not belong together, the prefix has a cluster already, or etcd does not answer.
    """
    secret = read(data_dir)
    check(copies, _copy_proof(secret), force=force)
    found = rebuilt(copies)
    options = config.etcd
    etcd = Etcd(options.endpoints, attempt_timeout_s(options.lease_ttl_ms / 1000), etcd_context(options))
    try:
        keys = ClusterKeys.under(options.prefix)
        state = ClusterState(keys)
        stored = await etcd.read(keys.prefix)
        state.apply(differences({}, stored.entries, stored.revision), stored.revision)
        if stored.entries:
            raise PreconditionFailed(
                f"etcd below {keys.prefix} has cluster {state.cluster_id or 'records'} already, which may have nodes "
                "that serve: set another cluster.etcd.prefix, the same for all nodes, or remove these keys if no node "
                "of it runs or is to run again"
            )
        if dry_run:
            return found
        cluster_id = secrets.token_hex(_ID_BYTES)
        nobody = (Unchanged(keys.cluster, 0), Unchanged(keys.definitions_lock, 0))
        for part in parts(StoreTransaction(nobody, tuple(_writes(keys, found, copies, secret, cluster_id)))):
            if await etcd.transact(part) is None:
                raise PreconditionFailed(
                    f"a node has founded a cluster below {keys.prefix} meanwhile: stop all nodes, remove these keys, "
                    "and try again"
                )
        return found
    finally:
        await etcd.close()


def _writes(
    keys: ClusterKeys, found: RebuiltCluster, copies: Sequence[DescribedCopy], secret: Secret, cluster_id: str
) -> Iterable[PutKey | DeleteKey]:
    """Yield all records; the cluster's id comes last, so that no node takes the first ones for a cluster."""
    placed = {queue.key: queue.placement for queue in found.queues}
    for entity in found.definitions.entities():
        placement = placed.get((entity.vhost, entity.name)) if isinstance(entity, d.Queue) else None
        yield from definition_writes(keys, d.Put(entity), placement)
    now_ms = time.time_ns() // 1_000_000
    for number, copy in enumerate(copies):
        yield PutKey(keys.member(copy.node), encode(MemberRecord(copy.node, copy.node_id, now_ms + number)))
    yield PutKey(keys.epoch, encode(found.epoch))
    yield PutKey(keys.proof, encode(cluster_proof(secret.octets, cluster_id)))
    yield PutKey(keys.cluster, encode(cluster_id))

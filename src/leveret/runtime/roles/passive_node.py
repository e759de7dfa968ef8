"""Builds nodes that hold all data and serve no client: a follower's, and a replaced leader's.

Such a node shows its whole logs despite damage, and follows: it gets a damaged log anew from its leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.config import Config
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.cluster.placement.complete_copies import complete_copies
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.node import Node, make_commits
from leveret.runtime.replication.identity import NodeIdentity, StoredLogs
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.storage.tree import Tree, put_log_away

logger = logging.getLogger(__name__)

_DURABLE_S: Final = 5.0
_LOST_NAMED: Final = 20
"""Each of so many lost logs has a line of its own."""


OnDamagedCopy = Callable[[GroupCommit, Corrupt], None]
NoteIncomplete = Callable[[], None]
"""Records durably that the node lacks what it had, before a damaged log is moved away."""


def build(
    config: Config,
    data_dir: Path,
    *,
    stamp: int,
    failed: asyncio.Event,
    damaged: OnDamagedCopy,
    note_incomplete: NoteIncomplete,
    replication: object = None,
    cluster: object = None,
) -> Node:
    """Build a node that will be shown.

    Args:
        config: the process's settings.
        data_dir: the data directory.
        stamp: the epoch of its chunks.
        failed: set when the disk fails for good.
        damaged: called with a log whose files are damaged or gone; the group commit keeps no promise from then on.
        note_incomplete: called before a log of definitions that is damaged is moved away.
        replication: see Node.
        cluster: see Node.

    Raises:
        StorageError: a damaged log cannot be moved away.
    """

    def disk_failed(error: BaseException) -> None:
        if isinstance(error, Corrupt):
            damaged(commits, error)
            return
        logger.critical("disk_failed error=%s action=stop", error)
        failed.set()

    tree = Tree(data_dir, epoch=stamp, segments_open_max=process_sockets().budget.logs)
    commits = make_commits(config, data_dir, disk_failed)

    def node() -> Node:
        return Node(config, data_dir, tree, commits, failed=failed, replication=replication, cluster=cluster)

    try:
        return node()
    except Corrupt as error:
        note_incomplete()
        put_away(data_dir, "definitions", error)
        return node()


def build_anew(old: Node) -> Node:
    """A node of the same logs, some of which changed since the old one read them."""
    return Node(
        old.config,
        old.data_dir,
        old.tree,
        old.commits,
        failed=old.failed,
        replication=old.replication,
        cluster=old.cluster,
    )


def show(
    node: Node, identity: NodeIdentity, note_incomplete: NoteIncomplete, *, is_ones_own: bool = False
) -> None:
    """Read all logs of a node.

    A damaged log is moved away, because it comes anew from a leader; until then this node is no copy of what was
    promised, which `note_incomplete` records first. It stays if it is the node's own, or if other nodes count on it,
    which are notified of the damage first (runtime.cluster.placement_controller).

    Raises:
        StorageError: a damaged log cannot be moved away.
    """
    node.show(lambda: expected_logs(node.tree, is_in_cluster=is_ones_own or bool(identity.cluster)))
    for name, damage in node.tree.open_all().items():
        if is_ones_own:
            logger.error("damaged_log log=%s error=%s action=left", name, damage)
            continue
        note_incomplete()
        put_away(node.data_dir, name, damage)


def expected_logs(tree: Tree, *, is_in_cluster: bool) -> frozenset[str] | None:
    """The logs that are lost if they are missing; None for all that the definitions mark.

    A node of a cluster keeps the marks of queues that it has left to others, and logs of those only that it leads or
    mirrors. So has its copy.
    """
    if not is_in_cluster:
        return None
    try:
        return complete_copies(tree)
    except StorageError as error:
        logger.error("complete_copies_not_read error=%s action=expect_all_logs", error)
        return None


def stored_logs(node: Node) -> StoredLogs:
    """The logs that a node has on disk, and those that it lacks."""
    return StoredLogs(node.missing_logs(), node.definitions_end)


def report_lost_logs(node: Node, lost: Set[int], *, lost_definitions: bool) -> None:
    """Log that logs were removed while the node was down."""
    for queue in node.definitions_of(lost)[:_LOST_NAMED]:
        logger.error("log_lost vhost=%s queue=%s epoch=%016x action=fetch_again", *queue.key, queue.epoch)
    logger.error(
        "logs_lost count=%d definitions=%s action=stand_last hint=%s",
        len(lost),
        "lost" if lost_definitions else "whole",
        "these logs were removed while the node was down; a leader sends them again, and until then a promotion "
        "needs --force",
    )


def put_away(data_dir: Path, name: str, error: StorageError) -> None:
    """Move the rest of a damaged log, which is not open, to the quarantine.

    Raises:
        StorageError: the disk refuses it.
    """
    if not (data_dir / name).exists():
        return
    place = data_dir / "divergent" / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(time.time()))}"
    logger.error("damaged_log_quarantined log=%s to=%s error=%s", name, place, error)
    put_log_away(data_dir / name, place / name)


async def settle(node: Node) -> None:
    """Return once all applied changes are durable, or after a time limit for slow disks.

    A node that a change of its role has just closed has nothing left to settle.
    """
    with suppress(TimeoutError, StorageError):
        await asyncio.wait_for(node.commits.all_durable(), _DURABLE_S)

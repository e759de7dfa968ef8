"""A node that holds all data and serves no client: the node of a follower, and of a leader that was replaced.

Damage does not keep it from showing the rest, nor from following: it gets a damaged log anew from its leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.config import Config
from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.node.node import Node
from leveret.runtime.sockets.connection_budget import process_sockets
from leveret.storage.sync import file_system_of
from leveret.storage.tree import Tree, put_log_away

logger = logging.getLogger(__name__)

_SETTLE_S: Final = 5.0


OnDamagedCopy = Callable[[GroupCommit, Corrupt], None]


def build(
    config: Config,
    data_dir: Path,
    *,
    stamp: int,
    failed: asyncio.Event,
    damaged: OnDamagedCopy,
    replication: object = None,
    cluster: object = None,
) -> Node:
    """A node that is to be shown.

    Args:
        config: of the process.
        data_dir: where the data are.
        stamp: the epoch of its chunks.
        failed: set when the disk fails for good.
        damaged: told of a log whose files are damaged or gone. Either way its group commit keeps no promise any more.
        replication: see Node.
        cluster: see Node.

    Raises:
        StorageError: what is damaged cannot be put away.
    """

    def disk_failed(error: BaseException) -> None:
        if isinstance(error, Corrupt):
            damaged(commits, error)
            return
        logger.critical("fdatasync_failed error=%s action=stop", error)
        failed.set()

    tree = Tree(data_dir, epoch=stamp, segments_open_max=process_sockets().budget.logs)
    commits = GroupCommit(
        fsync=config.storage.durability == "fsync",
        on_failure=disk_failed,
        logs_at_once=process_sockets().budget.syncing,
        file_system=file_system_of(data_dir),
    )

    def node() -> Node:
        return Node(config, data_dir, tree, commits, failed=failed, replication=replication, cluster=cluster)

    try:
        return node()
    except Corrupt as error:
        put_away(data_dir, "definitions", error)
        return node()


def build_anew(old: Node) -> Node:
    """A node of the same logs, of which some are not what they were when the old one read them."""
    return Node(
        old.config,
        old.data_dir,
        old.tree,
        old.commits,
        failed=old.failed,
        replication=old.replication,
        cluster=old.cluster,
    )


def show(node: Node, *, is_ones_own: bool = False) -> None:
    """Read all it has.

    What is damaged is put away: it comes anew from a leader. Not what is the node's own, or counted on to be here by
    others, who hear of the damage first (runtime.cluster.placement_controller): that stays as it is.

    Raises:
        StorageError: what is damaged cannot be put away.
    """
    node.show()
    for name, damage in node.tree.open_all().items():
        if is_ones_own:
            logger.error("damaged_log log=%s error=%s action=left", name, damage)
            continue
        put_away(node.data_dir, name, damage)


def put_away(data_dir: Path, name: str, error: StorageError) -> None:
    """What is left of a damaged log, which nothing has open, is kept.

    Raises:
        StorageError: the disk refuses it.
    """
    if not (data_dir / name).exists():
        return
    place = data_dir / "divergent" / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    logger.error("damaged_log_quarantined log=%s to=%s error=%s", name, place, error)
    put_log_away(data_dir / name, place / name)


async def settle(node: Node) -> None:
    """Return once what was applied is durable, or a disk that is slow has had its time."""
    with suppress(TimeoutError):
        await asyncio.wait_for(node.commits.settle(), _SETTLE_S)

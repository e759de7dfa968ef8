"""One log that this node mirrors: its copy, and what is being copied in front of that (replication.prefix_segment)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.prefix_segment import CopiedPrefix
from leveret.storage.log import Log
from leveret.storage.tree import Tree


class MirrorCopy:
    """See the module.

    Attributes:
        name: of the log.
        leader: the node that it comes from.
        prefix: what is being copied in front of it.
        serial: of what was told of it last.
        is_accepting: whether what comes is the answer to that.
        is_busy: what is divergent of it is being quarantined: nothing is told of it, and nothing taken.
        busy: done when it is not busy any more; None if it never was.
        epoch: the one in which its leader leads it, 0 before that is known.
        lost_before, lost_epoch: see wire.link.Mirroring.
        damage: it is damaged or gone, while it was open: nothing is told of it or taken until it begins anew.
        failures: how often it could not be written since it last was.
        error: why it could not; empty for nothing.
    """

    def __init__(
        self,
        name: str,
        leader: str,
        tree: Tree,
        commits: GroupCommit,
        failed: Callable[[MirrorCopy, StorageError], None],
    ) -> None:
        """Of a log that is open in the tree, if there is one; `failed` is told of what fails later."""
        self.name = name
        self.leader = leader
        self.serial = 0
        self.is_accepting = False
        self.busy: asyncio.Task[None] | None = None
        self.epoch = 0
        self.lost_before = self.lost_epoch = 0
        self.damage: Corrupt | None = None
        self.failures = 0
        self.error = ""
        self._tree = tree
        self.prefix = CopiedPrefix(name, tree, commits, lambda error: failed(self, error))

    @property
    def is_busy(self) -> bool:
        """See the class."""
        return self.busy is not None and not self.busy.done()

    @property
    def log(self) -> Log | None:
        """The copy, if anything of it is here."""
        return self._tree.logs.get(self.name)

    def holds(self, log: Log) -> bool:
        """Whether it is this copy, or what is being copied to stand in front of it."""
        return log is self.log or self.prefix.holds(log)

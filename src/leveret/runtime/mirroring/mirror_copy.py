"""One log that this node mirrors: its copy, and the prefix that is being copied (replication.prefix_segment)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leveret.model.errors import Corrupt, StorageError
from leveret.runtime.logs.commit import GroupCommit
from leveret.runtime.replication.prefix_segment import CopiedPrefix
from leveret.runtime.sockets.backoff import RETRY_S, RetryWaits
from leveret.storage.log import Log
from leveret.storage.tree import Tree
from leveret.wire.link import Mirroring


class MirrorCopy:
    """See the module.

    Attributes:
        name: the name of the log.
        leader: the node that sends the log.
        prefix: the segments that are being copied in front of the copy.
        serial: the number of the last report.
        is_accepting: whether incoming records answer that report.
        is_busy: whether divergent records are being quarantined: nothing is reported or taken meanwhile.
        busy: done when the quarantine ends; None if there was none.
        epoch: the epoch in which its leader leads it, 0 until that is known.
        lost_before, lost_epoch: see wire.link.Mirroring.
        compared: set once the leader has compared the copy, or its mirroring has ended.
        damage: the copy is damaged or gone while it was open: nothing is reported or taken until it begins anew.
        waits: the waits after failed writes; see `CopyLink.fail`.
        error: the last write error; empty for none.
    """

    def __init__(
        self,
        name: str,
        leader: str,
        tree: Tree,
        commits: GroupCommit,
        failed: Callable[[MirrorCopy, StorageError], None],
    ) -> None:
        """Use the log that is open in the tree, if there is one; `failed` is called for later errors."""
        self.name = name
        self.leader = leader
        self.serial = 0
        self.is_accepting = False
        self.busy: asyncio.Task[None] | None = None
        self.epoch = 0
        self.lost_before = self.lost_epoch = 0
        self.compared = asyncio.Event()
        self.damage: Corrupt | None = None
        self.waits = RetryWaits(RETRY_S)
        self.error = ""
        self._tree = tree
        self.prefix = CopiedPrefix(name, tree, commits, lambda error: failed(self, error))

    @property
    def is_busy(self) -> bool:
        """See the class."""
        return self.busy is not None and not self.busy.done()

    @property
    def log(self) -> Log | None:
        """The copy's log; None if there is none."""
        return self._tree.logs.get(self.name)

    def led_by(self, leader: str) -> None:
        """Copy the log from another node from now on."""
        self.leader = leader
        self.compared.clear()
        self.pause()

    def reported(self, serial: int) -> None:
        """Note the report of that number: only its answer counts from now on."""
        self.serial = serial
        self.pause()

    def answered(self, said: Mirroring) -> None:
        """Take the leader's answer to the last report."""
        self.is_accepting, self.epoch, self.error = True, said.epoch, ""
        self.lost_before, self.lost_epoch = said.lost_before, said.lost_epoch

    def pause(self) -> None:
        """Take no more records until the next report is answered."""
        self.is_accepting = False

    def quarantines(self, quarantine: asyncio.Task[None]) -> None:
        """Take no more records until this is done, and its result reported."""
        self.pause()
        self.busy = quarantine

    def failed(self, error: Exception) -> None:
        """Note an error of a write, or that the copy is damaged."""
        self.pause()
        self.error = str(error)
        if isinstance(error, Corrupt):
            self.damage = error

    def end(self) -> None:
        """End its mirroring; who waits for its comparison waits no longer."""
        self.pause()
        self.compared.set()

    def holds(self, log: Log) -> bool:
        """Whether a log is this copy, or a segment of its prefix."""
        return log is self.log or self.prefix.holds(log)
